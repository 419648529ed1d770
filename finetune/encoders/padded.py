"""Models that sentence-transformers runs, in padded batches: load them, and know where they cut a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from augment.core.pretrained import require_weights
from finetune.encoders.source import ModelSource
from pretrain.common.errors import UserError

NO_CODE = {"trust_remote_code": False}
SAFE_WEIGHTS = NO_CODE | {"use_safetensors": True}
"""`model_kwargs` of sentence-transformers: no code of the model's, and no pickled weights."""


def token_counts(tokenizer: Any, texts: Sequence[str]) -> list[int]:
    """Return the tokens of each text before it is cut, special ones included."""
    ids = tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
    return [len(row) for row in ids]


def open_padded(source: ModelSource, pooling: str, max_length: int | None) -> Any:
    """Load an architecture without packed attention as a SentenceTransformer, which runs padded."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if pooling not in ("cls", "mean"):
        raise UserError(
            f"--pooling {pooling}: {source.name} is of a type that runs padded only, with cls or mean pooling"
        )
    try:
        require_weights(source.location)
        transformer = Transformer(
            source.location,
            config_kwargs=NO_CODE,
            model_kwargs=SAFE_WEIGHTS,
            processor_kwargs=NO_CODE,
        )
    except Exception as error:  # of its own, of transformers, of safetensors: for the same few causes
        raise UserError(f"cannot load a model from {source.location!r}: {error}") from error
    model = SentenceTransformer(
        modules=[transformer, Pooling(transformer.get_embedding_dimension(), pooling)]
    )
    cut_at(model, max_length)
    return model


def encode_padded(
    model: Any, prompts: Iterable[str], batch_size: int, sentences: Sequence[str]
) -> np.ndarray:
    """Return a SentenceTransformer's vectors [N, d] of N sentences that begin with their prompts.

    A pooling that leaves prompts out is told the longest of `prompts` that begins a sentence.
    """
    pools_all = all(getattr(module, "include_prompt", True) for module in model)
    told = [""] if pools_all else sorted({"", *prompts}, key=len, reverse=True)
    of = [next(filter(sentence.startswith, told)) for sentence in sentences]
    vectors = np.empty(0)
    for prompt in dict.fromkeys(of or [""]):
        rows = [row for row, one in enumerate(of) if one == prompt]
        found = model.encode(
            [sentences[row][len(prompt) :] for row in rows],
            prompt=prompt,
            batch_size=batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
        )
        vectors = vectors if vectors.size else np.empty((len(of), *found.shape[1:]), found.dtype)
        vectors[rows] = found
    return vectors


def cut_at(model: Any, max_length: int | None) -> int | None:
    """Cut a SentenceTransformer's texts to `max_length` tokens; return it, or None where it sets no limit."""
    own = model.max_seq_length
    # static embeddings have no limit that could be set
    if max_length is None or own is None or math.isinf(own):
        return None
    model.max_seq_length = min(max_length, own)
    return max_length


def limit_of(model: Any) -> tuple[int | None, Callable[[Sequence[str]], Sequence[int]] | None]:
    """Return `longest` and `token_counts` of a SentenceTransformer; None: it sets no limit."""
    longest = model.max_seq_length
    if longest is None or math.isinf(longest):
        return None, None
    return longest, partial(token_counts, model.tokenizer)
