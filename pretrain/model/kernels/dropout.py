"""Dropout as a hash: which values are kept is a pure function of keys, never of a generator's state.

A value of the encoder is kept or dropped by (key of its sequence, position in it, site, channel) alone. The
key says run, step, sequence and view; the site says the layer and the place in it. So the same values are
dropped in a second pass over a micro-batch, and whatever micro-batch or rank a sequence falls into.

All arithmetic is modulo 2**64 (keys, rows) or 2**32 (values), in the two's complement of torch's signed
integers; every implementation of the kernels gives the same bits. Keys are hashed by SplitMix64 (Steele, Lea
and Flood, OOPSLA 2014), values by the finaliser of MurmurHash3 (Appleby) with its second multiplication
offset by bits of the row.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from augment.core.keys import mix
from augment.core.ragged import segment_indices

EMBEDDING, PROBABILITIES, ATTENTION, MLP = range(4)
"""Places in a layer: after the embedding block, on attention's probabilities, after attention, in or after
the MLP."""

_PLACES = 8
_HEAD_STRIDE = 1 << 16


@dataclass(frozen=True, eq=False)
class Dropout:
    """One place's dropout of a packed row of T tokens.

    rate: share of the values that is dropped, 0 <= rate < 1.
    keys: int64[T] (the bits of uint64), `token_keys` of the row, on the values' device.
    site: `site_of` the place.
    """

    rate: float
    keys: Tensor
    site: int


def site_of(layer: int, place: int) -> int:
    """Number the places of all layers: layer * 8 + place."""
    return layer * _PLACES + place


def token_keys(sequence_keys: Tensor, lengths: Tensor) -> Tensor:
    """Return a key for every token: int64[lengths.sum()], by its sequence's key and its position in it.

    sequence_keys, lengths: int64[N], on the CPU.
    """
    counts, keys = lengths.numpy(), sequence_keys.numpy().view(np.uint64)
    places = segment_indices(np.ones_like(counts), counts).view(np.uint64) * np.uint64(0xD1342543DE82EF95)
    places += np.repeat(keys, counts) + np.uint64(0x9E3779B97F4A7C15)
    return torch.from_numpy(mix(places).view(np.int64))


def keep_mask(dropout: Dropout, channels: int) -> Tensor:
    """Return which values of [T, channels] are kept: bool[T, channels]."""
    columns = torch.arange(channels, dtype=torch.int32, device=dropout.keys.device)
    return _keep_mask(dropout.keys[:, None], dropout, columns)


def kept_probabilities(keys: Tensor, dropout: Dropout, heads: int) -> Tensor:
    """Return which attention probabilities of n sequences of one length are kept: bool[n, heads, L, L].

    keys: int64[n, L], those of the sequences' tokens among `dropout.keys`. The row of a probability is the
    query token's, its channel is head * 65536 + the key token's position.
    """
    length = keys.shape[1]
    head = torch.arange(heads, dtype=torch.int32, device=keys.device)[:, None, None]
    position = torch.arange(length, dtype=torch.int32, device=keys.device)
    return _keep_mask(keys[:, None, :, None], dropout, head * _HEAD_STRIDE + position)


def apply(values: Tensor, dropout: Dropout | None) -> Tensor:
    """Drop values [T, C], and divide those kept by 1 - rate; None: no dropout."""
    if dropout is None:
        return values
    return values.masked_fill(~keep_mask(dropout, values.shape[1]), 0.0) / (1.0 - dropout.rate)


def _keep_mask(keys: Tensor, dropout: Dropout, channels: Tensor) -> Tensor:
    rows = _splitmix64(keys + _signed(dropout.site * 0xA0761D6478BD642F))
    low, high = rows.to(torch.int32), (rows >> 32).to(torch.int32)
    bits = mix32(channels * signed32(0x9E3779B9) + low, high)
    smallest = -(1 << 31)  # turned over, the sign bit makes signed comparison that of unsigned numbers
    return (bits ^ smallest) >= int(dropout.rate * 2.0**32) + smallest


def mix32(bits: Tensor, offset: Tensor | int = 0) -> Tensor:
    """Apply MurmurHash3's 32-bit finaliser to int32 `bits`, which are written over.

    offset: added to the product of its first multiplication.
    """
    bits ^= (bits >> 16) & 0xFFFF  # torch's shift of signed integers fills with the sign
    bits = bits * signed32(0x85EBCA6B) + offset
    bits ^= (bits >> 13) & 0x7FFFF
    bits *= signed32(0xC2B2AE35)
    bits ^= (bits >> 16) & 0xFFFF
    return bits


def _splitmix64(keys: Tensor) -> Tensor:
    keys = keys + _signed(0x9E3779B97F4A7C15)
    keys = (keys ^ ((keys >> 30) & ((1 << 34) - 1))) * _signed(0xBF58476D1CE4E5B9)
    keys = (keys ^ ((keys >> 27) & ((1 << 37) - 1))) * _signed(0x94D049BB133111EB)
    return keys ^ ((keys >> 31) & ((1 << 33) - 1))


def _signed(number: int) -> int:
    """Return the signed number that has the lowest 64 bits of `number`."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def signed32(number: int) -> int:
    """Return the signed number that has the lowest 32 bits of `number`."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)
