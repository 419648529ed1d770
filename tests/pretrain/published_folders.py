"""Small random models in the files that published checkpoints come in: config, weights, own tokenizer.

Configurations have the keys of the published ones of their kind, older spellings too. Models are of
transformers' own classes, and tokenizers are trained on made-up prose as theirs were.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from run_helpers import write_corpus
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import processors as post
from transformers import AutoConfig, AutoModelForMaskedLM

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48}
POSITIONS = 64  # usable ones
BYTES = [f"<0x{number:02X}>" for number in range(256)]


@cache
def texts(folder: Path) -> list[str]:
    """Lines of made-up prose."""
    return write_corpus(folder / "prose.txt", documents=60).read_text().split("\n\n")


def bert(prose: list[str]) -> Tokenizer:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(prose, trainer)
    return around(tokenizer, "[CLS]", "[SEP]")


def byte_level(prose: list[str], special: list[str], size: int = 320) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(prose, trainer)
    return tokenizer


def roberta(prose: list[str]) -> Tokenizer:
    tokenizer = byte_level(prose, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    tokenizer.post_processor = post.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def modernbert(prose: list[str]) -> Tokenizer:
    """Its special tokens lie behind the vocabulary of the model."""
    tokenizer = byte_level(prose, [])
    tokenizer.add_special_tokens(["[UNK]", "[CLS]", "[SEP]", "[PAD]", AddedToken("[MASK]", lstrip=True)])
    return around(tokenizer, "[CLS]", "[SEP]")


def xlm_roberta(prose: list[str]) -> Tokenizer:
    """SentencePiece's Unigram, whose last entry is the mask."""
    tokenizer = Tokenizer(models.Unigram())
    blanks = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), blanks])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=110,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(prose, trainer)
    settings = json.loads(tokenizer.to_str())
    settings["model"]["vocab"].append(["<mask>", 0.0])
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    return around(tokenizer, "<s>", "</s>")


def gemma(prose: list[str]) -> Tokenizer:
    """BPE over whole texts, with bytes for what is unknown; blanks are written as ▁."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # in training: words apart
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=[*special, *BYTES], show_progress=False)
    tokenizer.train_from_iterator(prose, trainer)
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = settings["added_tokens"][: len(special)]
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return around(tokenizer, "<bos>", "<eos>")


def around(tokenizer: Tokenizer, first: str, last: str) -> Tokenizer:
    special = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    tokenizer.post_processor = post.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1", special_tokens=special
    )
    return tokenizer


def roles(first: str, last: str, **others: str) -> dict[str, str]:
    return {"bos_token": first, "cls_token": first, "eos_token": last, "sep_token": last} | others


BERTS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
ROBERTAS = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
BERTS_ROLES = {"cls_token": "[CLS]", "sep_token": "[SEP]"} | BERTS
GEMMAS_ROLES = {"bos_token": "<bos>", "eos_token": "<eos>"} | ROBERTAS
OF_ROBERTA = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
    "type_vocab_size": 1,
    "max_position_embeddings": POSITIONS + 2,
}
OF_MODERNBERT = {  # as published: thetas by their old names
    "global_attn_every_n_layers": 3,
    "local_attention": 8,
    "global_rope_theta": 160000.0,
    "max_position_embeddings": POSITIONS,
    "hidden_activation": "gelu",
    "position_embedding_type": "absolute",
    "tie_word_embeddings": True,
}

# kind: (tokenizer, its class and roles in tokenizer_config.json, config.json)
KINDS: dict[str, tuple[Callable[[list[str]], Tokenizer], str, dict, dict]] = {
    "bert": (
        bert,
        "BertTokenizer",
        BERTS_ROLES,
        {"model_type": "bert", "max_position_embeddings": POSITIONS},
    ),
    "roberta": (
        roberta,
        "RobertaTokenizer",
        roles("<s>", "</s>", **ROBERTAS),
        {"model_type": "roberta"} | OF_ROBERTA,
    ),
    "modernbert": (
        modernbert,
        "PreTrainedTokenizerFast",
        BERTS_ROLES,
        {"model_type": "modernbert", "local_rope_theta": 10000.0} | OF_MODERNBERT,
    ),
    "mmbert": (
        gemma,
        "GemmaTokenizer",
        GEMMAS_ROLES,
        {
            "model_type": "modernbert",
            "local_rope_theta": 160000.0,
            "bos_token_id": 2,
            "eos_token_id": 1,
            "cls_token_id": 1,
            "sep_token_id": 1,
            "pad_token_id": 0,
        }
        | OF_MODERNBERT,
    ),
    "xlm-roberta": (
        xlm_roberta,
        "XLMRobertaTokenizer",
        roles("<s>", "</s>", **ROBERTAS),
        {"model_type": "xlm-roberta"} | OF_ROBERTA,
    ),
}


def write_published(kind: str, folder: Path) -> Path:
    """Write a random model of a kind with its tokenizer; weights are far from their small initial ones."""
    make, its_class, its_roles, config = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make(texts(folder.parent))
    config = config | SIZES | {"vocab_size": tokenizer.get_vocab_size()}
    for role in ("cls", "sep", "pad"):
        if f"{role}_token" in its_roles:
            config.setdefault(f"{role}_token_id", tokenizer.token_to_id(its_roles[f"{role}_token"]))
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(folder))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0 if parameter.dim() > 1 else 1.0, 0.1)
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config))  # in the place of what this version writes
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": its_class, "model_max_length": POSITIONS, **its_roles}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
