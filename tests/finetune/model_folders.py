"""Small models with random weights as folders: Hugging Face's, and an export of ours."""

import json
import shutil
from pathlib import Path

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AlbertConfig, AlbertModel, BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from pretrain.export.sentence_transformers import Interface, write_modules

SENTENCES = [
    "a man plays a guitar",
    "a woman rides",
    "the cat",
    "a man plays a guitar",
    "dogs bark at night and cats do not",
    "",
]
LONGEST = 64


def make_tokenizer(
    texts=SENTENCES, size=200, longest=LONGEST, pair="$A:0 $B:1", **settings
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of word pieces trained on `texts`; `longest`: its model_max_length."""
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *settings.get("additional_special_tokens", ())]
    raw.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=size, special_tokens=special))
    raw.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=longest,
        **settings,
    )


def save_bert(folder: Path, tokenizer: PreTrainedTokenizerFast | None = None, **settings) -> Path:
    """Save a BERT with its tokenizer; two layers, 32 wide, where `settings` say nothing else."""
    tokenizer = tokenizer or make_tokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    shape |= {"max_position_embeddings": LONGEST, "initializer_range": 0.3} | settings
    torch.manual_seed(1)
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_run(bert: Path, run: Path, pooling: str) -> Path:
    """A run folder whose export holds this BERT, trained for `pooling` by its own word."""
    shutil.copytree(bert, run / "export")
    (run / "config.yaml").write_text("name: mine\n")
    write_modules(run / "export", pooling, 32, 2, Interface(LONGEST))
    (run / "export" / "clear.json").write_text(
        json.dumps({"format_version": 1, "pooling": pooling, "step": 7})
    )
    return run


def save_guest(bert: Path, folder: Path, pooling: str, *after, longest: int = LONGEST, **settings) -> Path:
    """Save a model of sentence-transformers around a BERT, without its masked-language head."""
    transformer = Transformer(str(bert))
    transformer.max_seq_length = longest
    modules = [transformer, Pooling(transformer.get_embedding_dimension(), pooling), *after]
    SentenceTransformer(modules=modules, device="cpu", **settings).save(str(folder))
    return folder


def save_prompted(bert: Path, folder: Path, prompts=None, default=None, include_prompt=True) -> Path:
    """Save a sentence-transformers model, the mean of this BERT's states, with prompts of its own."""
    transformer = Transformer(str(bert))
    mean = Pooling(transformer.get_embedding_dimension(), "mean", include_prompt=include_prompt)
    prompts = {"query": "the cat ", "document": "a man rides "} if prompts is None else prompts
    model = SentenceTransformer(
        modules=[transformer, mean], device="cpu", prompts=prompts, default_prompt_name=default
    )
    model.save(str(folder))
    file = folder / "config_sentence_transformers.json"  # the library adds a query and a document
    file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": prompts}))
    return folder


def write_function(file: Path, vector: str) -> str:
    """Write a module whose embed gives every text `t` the vector of an expression; return its name."""
    lines = (
        "import numpy as np",
        "def embed(texts):",
        f"    return np.array([{vector} for t in texts], float)",
    )
    file.write_text("\n".join(lines) + "\n")
    return f"{file}:embed"


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
    """Save a three-layer BERT with a tokenizer of its own, trained on LONG_AND_SHORT."""
    return save_bert(path, make_tokenizer(LONG_AND_SHORT, 300, None), num_hidden_layers=3)
