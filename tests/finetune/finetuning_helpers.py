"""Small models and data for the tests of fine-tuning."""

import random

import torch
from model_folders import make_tokenizer
from transformers import AutoConfig, AutoModelForMaskedLM

WORDS = ["the", "a", "man", "woman", "child", "dog", "horse"]
WORDS += ["river", "good", "bad", "fine", "sings", "reads", "eats", "not"]


def sentence(draw, least=3, most=14):
    return " ".join(draw.choices(WORDS, k=draw.randint(least, most)))


PAIRS = [(sentence(random.Random(n)), sentence(random.Random(n + 100), most=20)) for n in range(9)]


def save_model(folder, kind, positions=64):
    """A random two-layer model of a type, with a tokenizer that writes pairs as that type does."""
    draw = random.Random(0)
    pair = "[CLS] $A [SEP] [SEP] $B [SEP]" if kind == "roberta" else "[CLS] $A [SEP] $B:1 [SEP]:1"
    tokenizer = make_tokenizer([sentence(draw) for _ in range(20)], 200, None, pair)
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": positions + (kind == "roberta"),
        "initializer_range": 0.2,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 3,
    }
    if kind == "modernbert":
        settings |= {"cls_token_id": 2, "sep_token_id": 3, "local_attention": 8}
    torch.manual_seed(1)
    AutoModelForMaskedLM.from_config(AutoConfig.for_model(kind, **settings)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
