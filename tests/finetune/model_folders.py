"""Small models with random weights as folders: Hugging Face's, and an export of ours."""

import json
import shutil
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AlbertConfig, AlbertModel, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from pretrain.export.sentence_transformers import write_modules

SENTENCES = [
    "a man plays a guitar",
    "a woman rides",
    "the cat",
    "a man plays a guitar",
    "dogs bark at night and cats do not",
    "",
]
LONGEST = 64


def make_tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    raw.train_from_iterator(SENTENCES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=LONGEST,
    )


def save_bert(folder: Path) -> Path:
    """A two-layer BERT, 32 wide, with its tokenizer."""
    torch.manual_seed(1)
    tokenizer = make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=LONGEST,
        initializer_range=0.3,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_run(bert: Path, run: Path, pooling: str) -> Path:
    """A run folder whose export holds this BERT, trained for `pooling` by its own word."""
    shutil.copytree(bert, run / "export")
    (run / "config.yaml").write_text("name: mine\n")
    write_modules(run / "export", pooling, 32, 2, LONGEST)
    (run / "export" / "clear.json").write_text(
        json.dumps({"format_version": 1, "pooling": pooling, "step": 7})
    )
    return run


def albert(folder):
    """A model of a type that the packed encoder does not know."""
    tokenizer = make_tokenizer()
    config = AlbertConfig(
        vocab_size=len(tokenizer),
        embedding_size=16,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    AlbertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def padded(folder, pooling, sentences=SENTENCES):
    """Vectors by sentence-transformers, padded."""
    transformer = Transformer(str(folder))
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)], device="cpu"
    )
    return model.encode(sentences)


LONG_AND_SHORT = [
    "a man is playing a guitar .",
    "a woman rides a horse",
    "the cat",
    "",
    "the quick brown fox jumps over the lazy dog and then it sleeps for a long long time in the sun",
    "a man is playing a guitar .",
    "dogs bark at night , cats do not .",
] + [f"sentence number {n} has " + "word " * (n % 7) for n in range(40)]


def save_wide_bert(path: Path) -> Path:
    """A three-layer BERT with a tokenizer of its own, trained on LONG_AND_SHORT."""
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    raw.train_from_iterator(LONG_AND_SHORT, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertForMaskedLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
