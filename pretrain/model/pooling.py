"""Sentence vectors from packed hidden states.

| pooling          | sentence vector |
|------------------|---|
| `cls`            | the last layer's state of the first token |
| `mean`           | mean over the sequence's tokens, special ones included, of the last layer's states |
| `first-last`     | mean over tokens of (output of the first layer + last layer) / 2: SimCSE's code now |
| `embedding-last` | mean over tokens of (embedding output + last layer) / 2: SimCSE's paper |
| `last-two`       | mean over tokens of (last but one + last layer) / 2: `avg_top2` |
| `words`          | mean over tokens, special ones left out, of word embeddings: a table without layers |
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pretrain.common.errors import UserError
from pretrain.model.kernels.plain import at_least_float32

SECOND_STATE: dict[str, int | None] = {
    "cls": None,
    "mean": None,
    "first-last": 1,
    "embedding-last": 0,
    "last-two": -2,
}
"""Pooling -> index of the hidden state it needs beside the last (0: embeddings, i: output of layer i)."""

WORDS = "words"
SIF_CONSTANT = 1e-3
"""a of Arora et al.; they find 1e-4 to 1e-3 alike."""


@dataclass(frozen=True, slots=True)
class PackedStates:
    """What the encoder gives for one packed batch of N sequences and T tokens, in the order of its input."""

    last: Tensor
    """[T, H]: the last layer's states."""
    second: Tensor | None
    """[T, H]: the other state that the encoder's pooling needs, if any."""
    lengths: Tensor
    """int64[N], on the states' device."""
    pooled: Tensor | None = None
    """bool[T]: the tokens that a mean is over; or float32[T], their weights in it; None: all alike."""


def sif_weights(counts: np.ndarray) -> np.ndarray:
    """Return the weight of each token by its count int64[V], a / (a + share), float64[V].

    Arora, Liang and Ma 2017, "A simple but tough-to-beat baseline for sentence embeddings", equation 3.
    """
    return SIF_CONSTANT / (SIF_CONSTANT + counts / counts.sum())


def check_pooling(pooling: str) -> str:
    """`pooling` itself, or a UserError that lists the known ones."""
    if pooling not in SECOND_STATE and pooling != WORDS:
        raise UserError(f"unknown pooling '{pooling}'; choose one of {', '.join([*SECOND_STATE, WORDS])}.")
    return pooling


def pool(states: PackedStates, pooling: str) -> Tensor:
    """Return sentence vectors [N, H], float32 (float64 from float64 states); the same bits at every call."""
    lengths = states.lengths
    device_type = states.last.device.type
    with torch.autocast(device_type, enabled=False):
        if pooling == "cls":
            # an empty sequence at the end of a row has no first token; nobody reads its vector
            starts = (lengths.cumsum(0) - lengths).clamp(max=len(states.last) - 1)
            return at_least_float32(states.last.index_select(0, starts))
        means = _mean(states.last, states)
        if SECOND_STATE.get(check_pooling(pooling)) is None:
            return means
        assert states.second is not None
        return (means + _mean(states.second, states)) / 2


def _mean(values: Tensor, states: PackedStates) -> Tensor:
    """Mean of [T, H] over each sequence's tokens that are pooled, by their weights: [N, H]."""
    values = at_least_float32(values)
    if states.pooled is None:
        return segment_mean(values, states.lengths)
    kept = states.pooled[:, None].to(values.dtype)
    # weights may all be 0: the vector is then 0, as sentence-transformers' is
    return segment_mean(values * kept, states.lengths) / segment_mean(kept, states.lengths).clamp_min(1e-12)


def segment_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each segment: values [T, H], lengths int64[N] on their device -> [N, H], NaN without rows."""
    if values.device.type == "cpu":
        rows = torch.repeat_interleave(lengths, output_size=len(values))
        sums = values.new_zeros(len(lengths), values.shape[1]).index_add(0, rows, values)
        return sums / lengths[:, None].to(values.dtype)
    # index_add on CUDA adds with atomics, in an order that changes from run to run.
    return torch.segment_reduce(values, "mean", lengths=lengths, axis=0, unsafe=True)
