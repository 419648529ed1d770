"""Encode each distinct sentence once, and refuse vectors that cannot be evaluated."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pretrain.common.errors import CollapsedEncoder, UserError, naming

EmbedFunction = Callable[[list[str]], np.ndarray]
FEWEST_TO_DIFFER = 10
"""Fewer sentences than this may share one vector: they may differ in case alone."""
ROUNDING = 1e-6
"""The coordinates of one sentence's unit vector differ by less between batches."""


def distinct(encode: EmbedFunction, sentences: Sequence[str], name: str) -> np.ndarray:
    """Return vectors float32[N, d] of N sentences, each distinct one encoded once; name: of the model."""
    if isinstance(sentences, str):
        raise UserError("one string was given, where a list of sentences is expected: write [sentence]")
    if isinstance(sentences, Iterator):
        sentences = list(sentences)
    for number, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise UserError(f"sentence {number} is {sentence!r}, not a string; leave it out, or write ''")
        try:
            sentence.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"sentence {number} has half of a surrogate pair: {sentence[:60]!a}; remove it"
            ) from None
    index: dict[str, int] = {}
    numbers = (index.setdefault(sentence, len(index)) for sentence in sentences)
    rows = np.fromiter(numbers, np.int64, len(sentences))
    different = list(index)
    encoded = encode(different)
    if hasattr(encoded, "detach"):  # a torch tensor, perhaps on a GPU
        encoded = encoded.detach().cpu().float().numpy()
    what = f"{name} gave no array of numbers for {len(different)} sentences"
    with naming(what, ValueError, TypeError), np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(encoded, np.float32)
    require_sound(vectors, different, name)
    return vectors if len(different) == len(sentences) else vectors[rows]  # no copy of what may be gigabytes


def require_sound(vectors: np.ndarray, sentences: Sequence[str], name: str) -> None:
    """Raise UserError unless vectors of N sentences are [N, d], of finite lengths and several directions."""
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(f"{name}: shape {vectors.shape} for {len(sentences)} sentences; give one vector each")
    with np.errstate(over="ignore"):
        damaged = np.flatnonzero(~np.isfinite(np.einsum("nd,nd->n", vectors, vectors)))
    if len(damaged):
        # SentEval turns these into 0 and scores on; a model that gives NaN would look merely weak.
        raise UserError(
            f"{name}: NaN, infinity or an infinite length in {len(damaged):,} of {len(sentences):,} vectors, "
            f"first in that of {sentences[damaged[0]]!r}; look for such weights in the model"
        )
    if len(vectors) >= FEWEST_TO_DIFFER:
        require_directions(name, vectors)


def require_directions(name: str, *parts: np.ndarray) -> None:
    """Raise CollapsedEncoder if vectors, [N, d] in each part, are two or more of one direction.

    However few they are: no figure follows from them.
    """
    # The first 100 nearly always differ; then the rest, which may be gigabytes, need not be copied.
    for most in (100, None):
        vectors = np.concatenate([part[:most] for part in parts])
        if len(vectors) < 2 or np.ptp(unit(vectors.astype(np.float64)), axis=0).max(initial=0) > ROUNDING:
            return
    raise CollapsedEncoder(
        f"{name} gives all {len(vectors):,} sentences the same vector, or one of the same direction: it has "
        "collapsed, or its tokenizer knows none of their words"
    )


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors float[N, d] of length 1, in their own precision; a zero vector stays."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
