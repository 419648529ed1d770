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

What depends on the batch only (groups, cumulative lengths, masks) is computed once per forward.
"""

from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from pretrain.common.transfer import send

HALF = (torch.float16, torch.bfloat16)
BUCKETS = (16, 32, 64, 128)
"""Most tokens of the sequences that one launch for short sequences takes."""
_LARGEST_HEAD = 256
_HEAD_MULTIPLE = 8


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
    """int32[N+1+F]: `cumulative`, and behind it the same of the filler, as F sequences of at most `longest`
    tokens. A kernel for a whole row then needs no cut of what goes in and comes out."""
    longest: int
    """Tokens of the longest sequence of `boundaries`."""
    slots: Tensor
    """int32[S, 3] on the device, one row for each piece of at most 128 tokens of a sequence of `boundaries`:
    the sequence's first token, its tokens (0 would be no sequence), and the piece's first position in it."""
    buckets: tuple[tuple[int, int], ...]
    """(most tokens, slots) of each bucket that has any, in the order of `slots`; empty where a sequence is
    longer than all of `BUCKETS`."""
    window_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(length, half window) -> bool[length, length], filled on first use, shared by the forward's layers."""

    @classmethod
    def build(cls, lengths: Tensor, device: torch.device, filler: int = 0) -> "PackedLayout":
        """`lengths` int64[N] on the CPU (no device synchronisation is needed then), equal ones adjacent."""
        values, counts = torch.unique_consecutive(lengths, return_counts=True)
        num_tokens, max_length = int(lengths.sum()), int(values.max()) if len(values) else 0
        longest = max_length or filler
        ends = [num_tokens + min(end, filler) for end in range(longest, filler + longest, longest or 1)]
        boundaries = torch.zeros(len(lengths) + 1 + len(ends), dtype=torch.int32)
        boundaries[1 : len(lengths) + 1] = lengths.cumsum(0)
        boundaries[len(lengths) + 1 :] = torch.tensor(ends)
        slots, buckets = _slots(boundaries, longest)
        boundaries, slots = send([boundaries, slots], device)
        return cls(
            groups=tuple(zip(counts.tolist(), values.tolist(), strict=True)),
            num_tokens=num_tokens,
            filler=filler,
            max_length=max_length,
            cumulative=boundaries[: len(lengths) + 1],
            boundaries=boundaries,
            longest=longest,
            slots=slots,
            buckets=buckets,
        )

    def window_mask(self, length: int, half_window: int, device: torch.device) -> Tensor | None:
        """bool[length, length], true where |i - j| <= half_window; None where that is everywhere."""
        if length <= half_window + 1:
            return None
        key = (length, half_window)
        if key not in self.window_masks:
            position = torch.arange(length, device=device)
            self.window_masks[key] = (position[:, None] - position[None, :]).abs() <= half_window
        return self.window_masks[key]


def _slots(boundaries: Tensor, longest: int) -> tuple[Tensor, tuple[tuple[int, int], ...]]:
    """Return `PackedLayout.slots` and `PackedLayout.buckets` of its `boundaries`, on the CPU."""
    starts, lengths, most = boundaries[:-1], boundaries.diff(), BUCKETS[-1]
    if longest > most:
        pieces = (lengths + most - 1) // most
        sequence = torch.repeat_interleave(pieces)
        before = (pieces.cumsum(0) - pieces).index_select(0, sequence)
        first = (torch.arange(len(sequence)) - before).int() * most
        slots = torch.stack([starts[sequence], lengths[sequence], first], 1)
        return slots.flip(0), ()  # the longest, which come last, begin first
    bucket = torch.bucketize(lengths, torch.tensor(BUCKETS))
    counts = torch.bincount(bucket, minlength=len(BUCKETS)).tolist()
    slots = torch.stack([starts, lengths, torch.zeros_like(lengths)], 1)
    slots = slots.index_select(0, bucket.argsort(stable=True))
    return slots, tuple((most, count) for most, count in zip(BUCKETS, counts, strict=True) if count)


def sort_order(lengths: Tensor) -> Tensor | None:
    """int64[N]: the stable order by length, or None when equal lengths are neighbours already."""
    runs = torch.unique_consecutive(lengths).numel()
    if runs == torch.unique(lengths).numel():
        return None
    return torch.argsort(lengths, stable=True)


def takes_flash(qkv: Tensor) -> bool:
    """Return whether the kernel takes tensors like `qkv` [..., D]."""
    if qkv.dtype not in HALF or qkv.shape[-1] > _LARGEST_HEAD or not _runs_flash(qkv.device):
        return False
    return torch.backends.cuda.is_flash_attention_available()


def attend(qkv: Tensor, layout: PackedLayout, dropout: float, half_window: int | None) -> Tensor:
    """Attend within each sequence, by heads of any size D: [T, 3, heads, D] -> [T, heads, D].

    half_window: the largest distance that is seen; None: any.
    """
    size = qkv.shape[-1]
    missing = -size % _HEAD_MULTIPLE
    if missing:  # zeros add nothing to a score, and give values that are cut off again
        qkv = pad(qkv, (0, missing))
    window = -1 if half_window is None else half_window
    output = torch.ops.aten._flash_attention_forward(
        *qkv.unbind(1),
        layout.boundaries,
        layout.boundaries,
        layout.longest,
        layout.longest,
        dropout,
        False,  # not causal
        False,  # no copy of the probabilities for debugging
        scale=size**-0.5,
        window_size_left=window,
        window_size_right=window,
    )[0]
    return output[..., :size] if missing else output


@cache
def _runs_flash(device: torch.device) -> bool:
    """Return whether the device is of NVIDIA's Ampere generation or later."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
