"""Sentences to vectors with a trained encoder: tokenised, sorted by length, packed, without gradients."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from augment.core.pretrained import pretrained, pretrained_model
from finetune.encoders.padded import tokenized
from finetune.encoders.source import OWN_MODULES, ModelSource
from pretrain.common.errors import UserError, naming
from pretrain.data.microbatches import count_micro_batches, cut
from pretrain.model.encoder import SentenceEncoder, load_encoder
from pretrain.model.heads import ProjectionHead, simcse_head
from pretrain.model.modules import evaluation_mode
from pretrain.model.pooling import SECOND_STATE, WORDS, check_pooling

POOLINGS = tuple(SECOND_STATE)
POOLER = "pooler"
"""The first token's state through the pooler that a checkpoint brings (`load_pooler`); no pooling to train
with."""


def parse_poolings(names: str) -> list[str]:
    """Return the poolings of a list by commas, "all" for every one but `pooler`, which stands alone."""
    if names == "all":
        return list(POOLINGS)
    given = [name.strip() for name in names.split(",") if name.strip()]
    if given == [POOLER]:
        return given
    for alone in (POOLER, WORDS):
        if alone in given and len(given) > 1:
            raise UserError(f"--pooling {names}: {alone} is evaluated alone; give it in a command of its own")
    chosen = [check_pooling(name) for name in given]
    if not chosen:
        raise UserError(f"no pooling given; choose from {', '.join(POOLINGS)}, or all")
    return list(dict.fromkeys(chosen))


def embed_sentences(
    encoder: SentenceEncoder,
    tokenizer: Any,
    sentences: Sequence[str],
    pooling: str | None = None,
    token_budget: int = 16384,
    max_length: int | None = None,
) -> np.ndarray:
    """Return vectors float32[N, d] in the order of `sentences`, by `pooling` or else the encoder's own."""
    name = check_pooling(pooling or encoder.pooling)
    return embed_poolings(encoder, tokenizer, sentences, [name], token_budget, max_length)[name]


def embed_poolings(
    encoder: SentenceEncoder,
    tokenizer: Any,
    sentences: Sequence[str],
    poolings: Sequence[str],
    token_budget: int = 16384,
    max_length: int | None = None,
) -> dict[str, np.ndarray]:
    """Return pooling -> float32[N, d], as `sentences` are ordered; too long ones are cut.

    A head is applied to vectors of the pooling that it was trained for, and to no others. The encoder runs
    once for each distinct second hidden state that the poolings need: `cls`, `mean` and one other share a
    pass. token_budget: of one pass; moves results by rounding only.
    """
    longest = min(max_length or encoder.max_positions, encoder.max_positions)
    parts = tokenized(tokenizer, sentences, truncation=True, max_length=longest)
    rows = [np.asarray(ids, np.int64) for part in parts for ids in part["input_ids"]]
    return embed_rows(encoder, rows, poolings, token_budget)


@torch.inference_mode()
def embed_rows(
    encoder: SentenceEncoder, rows: Sequence[np.ndarray], poolings: Sequence[str], token_budget: int = 16384
) -> dict[str, np.ndarray]:
    """Return `embed_poolings` of sentences as rows of tokens, int64."""
    vectors = {} if rows else {name: np.empty((0, encoder.hidden_size), np.float32) for name in poolings}
    device = next(encoder.parameters()).device
    passes = _passes(poolings)
    sizes = np.array([len(row) for row in rows], np.int64)
    count = count_micro_batches(sizes, max(token_budget, int(sizes.max(initial=0))))
    with evaluation_mode(encoder), encoder.weights_unchanged():
        for batch in filter(len, cut(sizes, count)):
            ids = torch.from_numpy(np.concatenate([rows[n] for n in batch])).to(device)
            lengths = torch.from_numpy(sizes[batch])
            for first, names in passes.items():
                states = encoder.states_for(first, encoder.pack(ids, lengths))
                for name in names:
                    made = encoder.vectors(states, name).cpu().numpy()
                    vectors.setdefault(name, np.empty((len(rows), made.shape[1]), np.float32))[batch] = made
    return {name: vectors[name] for name in poolings}


@dataclass(frozen=True)
class PackedModel:
    """A model that runs packed (`finetune.encoders.models.Function` says what it has)."""

    encoder: SentenceEncoder
    tokenizer: Any
    longest: int
    token_budget: int
    single: bool

    @classmethod
    def open(
        cls, source: ModelSource, pooling: str, token_budget: int, max_length: int | None, quiet: bool
    ) -> Self:
        """Load a model; by POOLER, or OWN_MODULES, it has no other pooling."""
        encoder, tokenizer = load_model(source, pooling == POOLER, quiet)
        own = source.modules.interface.max_length if source.modules is not None else None
        longest = min(filter(None, (max_length, own, encoder.max_positions)))
        return cls(encoder, tokenizer, longest, token_budget, pooling in (POOLER, OWN_MODULES))

    def vectors(self, texts: Sequence[str], poolings: Sequence[str]) -> Mapping[str, np.ndarray]:
        names = [self.encoder.pooling] if self.single else poolings
        made = embed_poolings(self.encoder, self.tokenizer, texts, names, self.token_budget, self.longest)
        return dict.fromkeys(poolings, made[names[0]]) if self.single else made


def load_model(source: ModelSource, pooler: bool = False, quiet: bool = False) -> tuple[SentenceEncoder, Any]:
    """Load (encoder, tokenizer), on the GPU if there is one; pooler: the checkpoint's own is the head."""
    location = source.location
    with naming(f"cannot load a tokenizer from {location!r}", OSError, ValueError):
        tokenizer = pretrained(AutoTokenizer, location)
    files = sorted(set(tokenizer.vocab_files_names.values()))
    if source.folder and not any((source.folder / file).is_file() for file in files):
        # transformers makes one without a vocabulary then, to which every word is unknown
        raise UserError(f"{location} holds no tokenizer ({' or '.join(files)}): copy the model's there")
    modules = source.modules
    own = modules.pooling if modules is not None and not modules.others else "mean"
    encoder = load_encoder(location, tokenizer, source.trained_pooling or own)
    if modules is not None:
        modules.install(encoder, tokenizer)
        encoder.normalize = modules.interface.normalize and not pooler
    if pooler:
        encoder.pooling, encoder.head = "cls", load_pooler(location)
    if source.policy and not pooler and not quiet:
        through = ", through the head that it keeps" if encoder.head is not None else ""
        print(f"trained with {encoder.pooling} pooling{through}", file=sys.stderr)
    return encoder.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def load_pooler(source: str | Path) -> ProjectionHead:
    """Read a Hugging Face model's pooler: next-sentence prediction's in BERT, the loss's in SimCSE."""
    with naming(f"cannot load a model from {source!r}", OSError, ValueError):
        model, report = pretrained_model(AutoModel, source, dtype=torch.float32, output_loading_info=True)
    pooler = getattr(model, "pooler", None)
    if pooler is None or any("pooler." in key for key in report["missing_keys"]):
        raise UserError(f"--pooling {POOLER}: {source} has no weights of a pooler")
    if not isinstance(getattr(pooler, "activation", None), torch.nn.Tanh):
        raise UserError(f"--pooling {POOLER}: the pooler of {source} is not a linear map and tanh")
    head = simcse_head(model.config.hidden_size)
    head.layers[0].load_state_dict(pooler.dense.state_dict())
    return head.eval()


def _passes(poolings: Sequence[str]) -> dict[str, list[str]]:
    """Group poolings by their second hidden state; those that need none are computed with the first.

    Each group has the name of the pooling whose states it reads; `words`, which reads none, stands alone.
    """
    assert WORDS not in poolings or len(set(poolings)) == 1
    passes: dict[str, list[str]] = {}
    for name in sorted(poolings, key=lambda name: SECOND_STATE.get(name) is None):
        passes.setdefault(
            name if SECOND_STATE.get(name) is not None else next(iter(passes), name), []
        ).append(name)
    return passes
