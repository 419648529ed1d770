"""Run folders with checkpoints of small models, to export."""

from pathlib import Path

import torch
from checkpoint_helpers import save
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast

from pretrain.config.recipe import validate_config
from pretrain.data.tokenizer import tokenizer_hash
from pretrain.model.encoder import build_encoder
from pretrain.objectives import build_objective

TEXT = "a bird builds its nest under the old roof and sings when morning comes while nobody listens to it"
WORDS = TEXT.split()


def make_tokenizer() -> PreTrainedTokenizerFast:
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[DEL]"]
    vocabulary = {token: number for number, token in enumerate(special + sorted(set(WORDS)))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
        extra_special_tokens={"del_token": "[DEL]"},
    )


class Model(nn.Module):
    """Shaped like the trained module: an encoder and an objective with a head."""

    def __init__(self, encoder, objective=None) -> None:
        super().__init__()
        self.encoder = encoder
        self.objective = objective or nn.ModuleDict(
            {"projection": nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16))}
        )


class Engine:
    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.optimizer = torch.optim.AdamW(module.parameters())


def make_run(
    folder: Path,
    kind: str = "bert",
    pooling: str = "mean",
    layers: int = 3,
    steps: tuple[int, ...] = (7,),
    simcse: dict | None = None,
    matryoshka: tuple[int, ...] = (),
    prompts: dict[str, str] | None = None,
    prompts_pooled: bool = True,
):
    """A run folder with checkpoints, of the objective simcse where its settings are given; returns the
    encoder as it was at the last, and the tokenizer."""
    torch.manual_seed(len(kind) + layers)
    tokenizer = make_tokenizer()
    data = folder / "data"
    tokenizer.save_pretrained(data / "tokenizer")
    sizes = {"layers": layers, "hidden_size": 16, "heads": 2, "intermediate_size": 24, "max_positions": 20}
    encoder = build_encoder({"type": kind, **sizes}, tokenizer, pooling).eval()
    with torch.no_grad():
        for parameter in encoder.parameters():  # far from the initial values, so that every layer matters
            parameter.add_(0.3 * torch.randn_like(parameter))
    # reached by --init only: the recipe does not say it
    recipe_type = kind if kind != "distilbert" else "bert"
    config = validate_config(
        {
            "name": "test",
            "folder": str(folder),
            "model": {"type": recipe_type, "pooling": pooling, **sizes},
            "data": {"folder": str(data), "prompts": prompts or {}, "prompts_pooled": prompts_pooled},
            "objective": {"matryoshka": list(matryoshka)}
            | ({} if simcse is None else {"name": "simcse", "simcse": simcse, "mlm": {"weight": 0.0}}),
        },
        "test",
    )
    objective = None if simcse is None else build_objective(config, encoder)
    engine = Engine(Model(encoder, objective))
    for step in steps:
        state = {
            "step": step,
            "config": config.model_dump(mode="json"),
            "tokenizer_hash": tokenizer_hash(data),
            "progress": {"tokens": 123456, "seconds": 3725.0},
            "kept_head": None if objective is None else objective.kept_head_name,
        }
        save(folder / "checkpoints", engine, state, keep=9)
    return encoder, tokenizer
