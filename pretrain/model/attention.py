"""Where the sequences of a packed row [1, T] lie, end to end, each attending only to itself.

Padding would multiply the work of every linear layer by (longest / mean length); a block-diagonal mask over
the row would make attention quadratic in T. Here the linear layers see a row without padding, and attention
runs

- on CUDA, in a row of sequences of at most 128 tokens, as one program for each sequence and head
  (`pretrain.model.kernels.fused`), with dropout by hash; in other rows so for each 128 queries, if the run
  wants that (`model.attention`);
- on CUDA in half precision, in rows with longer sequences else, as one flash kernel for all lengths, dropout
  included. torch has the kernel (Dao 2023, "FlashAttention-2") with a backward, windows, and dropout on the
  probabilities, as `aten::_flash_attention_forward` (what it makes public, `torch.nn.attention.varlen`, has
  no dropout). It draws its dropout from torch's generator on the device, so a second pass drops the same
  where the generator was seeded the same (`SentenceModel.autocast`);
- anywhere else by `pretrain.model.kernels`, as one dense product for each distinct length or in C++.

What depends on the batch only (groups, cumulative lengths) is computed once per forward.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from augment.core.ragged import segment_indices
from pretrain.common.memory import row_multiple
from pretrain.common.transfer import send

HALF = (torch.float16, torch.bfloat16)
BUCKETS = (16, 32, 64, 128)
"""Most tokens of the sequences that one launch for short sequences takes."""
_HEADS = range(8, 257, 8)  # sizes of those that flash attention takes


@dataclass(frozen=True, eq=False)
class PackedLayout:
    """Where the sequences of one packed row begin and end, in the forms that the kernels want.

    Equal lengths must be neighbours (`sort_order` gives the order that makes them so).
    """

    groups: tuple[tuple[int, int], ...]
    """(sequences, length) of each run of equal lengths, in row order."""
    num_tokens: int
    """Tokens that belong to a sequence."""
    filler: int
    """Tokens behind them that belong to none: no sequence attends to them, and nobody reads their states."""
    max_length: int
    cumulative: Tensor
    """int32[N+1] on the device: where each sequence begins, and the last one ends."""
    boundaries: Tensor
    """int32[S+1] on the device: `cumulative`, and behind it the same of the filler, as sequences of at most
    `longest` tokens, and of empty ones. A kernel for a whole row then needs no cut of what goes in and comes
    out, and S takes few values, as the number of tokens does: rows of one shape can be one CUDA graph."""
    longest: int
    """No sequence of `boundaries` has more tokens: one of `BUCKETS`, or a multiple of the last."""
    slots: Tensor
    """int32[., 3] on the device, one row for each piece of at most 128 tokens of a sequence of `boundaries`:
    the sequence's first token, its tokens, and the piece's first position in it. By bucket, each filled up to
    one of few numbers by slots without tokens."""
    buckets: tuple[tuple[int, int], ...]
    """(most tokens, slots) of each bucket that has any, in the order of `slots`; empty if a sequence is
    longer than all of `BUCKETS`."""

    @classmethod
    def build(cls, lengths: Tensor, device: torch.device, filler: int = 0) -> "PackedLayout":
        """`lengths` int64[N] on the CPU (no device synchronisation is needed then), equal ones adjacent."""
        sizes, count = lengths.numpy(), len(lengths)
        firsts = _firsts(sizes)
        num_tokens, max_length = int(sizes.sum()), int(sizes.max()) if count else 0
        longest = _longest(max_length or filler)
        ends = range(num_tokens, num_tokens + filler, longest)
        # as many pieces as the filler of any row of this size may have
        pieces = max(len(ends), -(-row_multiple(num_tokens + filler) // longest))
        edges = np.full(_slots(count) + pieces + 1, num_tokens + filler, dtype=np.int32)
        edges[0] = 0
        edges[1 : count + 1] = sizes.cumsum()
        edges[count : count + len(ends)] = ends
        places, buckets = _by_bucket(edges, count, pieces, longest)
        boundaries, slots = torch.from_numpy(edges), torch.from_numpy(places)
        layout = cls(
            groups=tuple(zip(np.diff(firsts, append=count).tolist(), sizes[firsts].tolist(), strict=True)),
            num_tokens=num_tokens,
            filler=filler,
            max_length=max_length,
            cumulative=boundaries[: count + 1],
            boundaries=boundaries,
            longest=longest,
            slots=slots,
            buckets=buckets,
        )
        return layout.moved(*send([boundaries, slots], device))

    def moved(self, boundaries: Tensor, slots: Tensor) -> "PackedLayout":
        """Return this layout with its tensors as they are on a device."""
        cumulative = boundaries[: len(self.cumulative)]
        return replace(self, boundaries=boundaries, cumulative=cumulative, slots=slots)


def _longest(length: int) -> int:
    """Return the smallest `PackedLayout.longest` that is at least `length`."""
    bucket = next((bucket for bucket in BUCKETS if length <= bucket), None)
    return -(-length // BUCKETS[-1]) * BUCKETS[-1] if bucket is None else bucket


def _slots(count: int) -> int:
    """Round a number of sequences up to one of 4 an octave, a multiple of 8."""
    multiple = max(8, 1 << max(count.bit_length() - 3, 0))
    return -(-count // multiple) * multiple


def _firsts(sizes: np.ndarray) -> np.ndarray:
    """Return where runs of equal numbers begin."""
    return np.flatnonzero(np.concatenate([[True] * (len(sizes) > 0), sizes[1:] != sizes[:-1]]))


def _by_bucket(
    edges: np.ndarray, count: int, pieces: int, longest: int
) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """Return a layout's `slots` and `buckets`: of `count` sequences, and `pieces` of filler behind them."""
    starts, lengths = edges[:-1], np.diff(edges)
    if longest not in BUCKETS:
        return _cut(starts, lengths), ()
    slots = np.stack([starts, lengths, np.zeros_like(lengths)], 1)
    filler, bucket = slots[count : count + pieces], np.searchsorted(BUCKETS, lengths[:count])
    parts, buckets = [], []
    for number, most in enumerate(BUCKETS):
        own = slots[:count][bucket == number]
        behind = filler[: pieces if most == longest else 0]
        if size := _slots(len(own)) + len(behind):
            parts += [own, behind, np.zeros((size - len(own) - len(behind), 3), np.int32)]
            buckets.append((most, size))
    return np.concatenate(parts), tuple(buckets)


def _cut(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the slots of sequences of any length, as many for any lengths of the same number and sum."""
    most = BUCKETS[-1]
    pieces = (lengths + most - 1) // most
    sequence = np.repeat(np.arange(len(pieces)), pieces)
    first = segment_indices(np.zeros_like(pieces), pieces).astype(np.int32) * most
    slots = np.stack([starts[sequence], lengths[sequence], first], 1)
    empty = np.zeros((int(lengths.sum()) // most + len(lengths) - len(slots), 3), np.int32)
    return np.concatenate([slots[::-1], empty])  # the longest, which come last, begin first


def sort_order(lengths: Tensor) -> Tensor | None:
    """int64[N]: the stable order by length, or None when equal lengths are neighbours already."""
    sizes = lengths.numpy()
    if (sizes[1:] >= sizes[:-1]).all() or len(_firsts(sizes)) == len(np.unique(sizes)):
        return None
    return torch.from_numpy(sizes.argsort(kind="stable"))


def takes_flash(qkv: Tensor) -> bool:
    """Return whether the kernel takes tensors like `qkv` [..., D]."""
    takes = qkv.dtype in HALF and qkv.shape[-1] in _HEADS and _runs_flash(qkv.device)
    return takes and torch.backends.cuda.is_flash_attention_available()


def attend(qkv: Tensor, layout: PackedLayout, dropout: float, half_window: int | None) -> Tensor:
    """Attend within each sequence, by tensors that the kernel takes: [T, 3, heads, D] -> [T, heads, D].

    half_window: the largest distance that is seen; None: any.
    """
    window = -1 if half_window is None else half_window
    return torch.ops.aten._flash_attention_forward(
        *qkv.unbind(1),
        layout.boundaries,
        layout.boundaries,
        layout.longest,
        layout.longest,
        dropout,
        False,  # not causal
        False,  # no copy of the probabilities for debugging
        scale=qkv.shape[-1] ** -0.5,
        window_size_left=window,
        window_size_right=window,
    )[0]


@cache
def _runs_flash(device: torch.device) -> bool:
    """Return whether the device is of NVIDIA's Ampere generation or later."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
