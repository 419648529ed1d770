"""Packed attention: sequences end to end in one row [1, T], each attending only to itself.

Padding would multiply the work of every linear layer by (longest / mean length); a block-diagonal mask over
the row would make attention quadratic in T. Here the linear layers see a row without padding, and attention
runs

- on CUDA in half precision as one flash kernel for all lengths, dropout included (`pretrain.model.flash`);
- anywhere else as one dense `scaled_dot_product_attention` for each distinct length, dropout included.

It is registered under the name "packed" with transformers' attention and mask interfaces, so that the
library's own models run it unchanged. What depends on the batch only (groups, cumulative lengths, masks) is
computed once per forward in a `PackedLayout`, which travels through the model as the keyword argument
`packed_layout`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pretrain.common.errors import UserError
from pretrain.common.transfer import send
from pretrain.model.flash import HALF, attend, variable_length_kernel

ATTENTION_NAME = "packed"


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
    window_masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    """(length, half window) -> bool[length, length], filled on first use, shared by the forward's layers."""

    @classmethod
    def build(cls, lengths: Tensor, device: torch.device, filler: int = 0) -> PackedLayout:
        """`lengths` int64[N] on the CPU (no device synchronisation is needed then), equal ones adjacent."""
        values, counts = torch.unique_consecutive(lengths, return_counts=True)
        num_tokens, max_length = int(lengths.sum()), int(values.max()) if len(values) else 0
        longest = max_length or filler
        ends = [num_tokens + min(end, filler) for end in range(longest, filler + longest, longest or 1)]
        boundaries = torch.zeros(len(lengths) + 1 + len(ends), dtype=torch.int32)
        boundaries[1 : len(lengths) + 1] = lengths.cumsum(0)
        boundaries[len(lengths) + 1 :] = torch.tensor(ends)
        (boundaries,) = send([boundaries], device)
        return cls(
            groups=tuple(zip(counts.tolist(), values.tolist(), strict=True)),
            num_tokens=num_tokens,
            filler=filler,
            max_length=max_length,
            cumulative=boundaries[: len(lengths) + 1],
            boundaries=boundaries,
            longest=longest,
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


def sort_order(lengths: Tensor) -> Tensor | None:
    """int64[N]: the stable order by length, or None when equal lengths are neighbours already."""
    runs = torch.unique_consecutive(lengths).numel()
    if runs == torch.unique(lengths).numel():
        return None
    return torch.argsort(lengths, stable=True)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    packed_layout: PackedLayout | None = None,
    deterministic: bool | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attend within each sequence of a packed row: transformers' attention interface.

    query, key, value: [1, heads, T, head size]; returns [1, T, heads, head size].

    `sliding_window` follows the library's convention: a token sees those at a distance of at most
    sliding_window - 1.
    """
    if packed_layout is None:
        raise UserError(
            f"a model with attn_implementation='{ATTENTION_NAME}' was called with a padded batch; call it "
            "through "
            "pretrain.model.encoder.SentenceEncoder, or load its folder with another attn_implementation."
        )
    half_window = None if sliding_window is None else sliding_window - 1
    kernel = variable_length_kernel(query, bool(deterministic))
    if kernel is not None:
        q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
        output = attend(
            kernel,
            q,
            k,
            v,
            packed_layout.boundaries,
            packed_layout.longest,
            scaling,
            dropout,
            half_window,
            bool(deterministic),
        )
        return output.unsqueeze(0), None
    if query.device.type == "cpu" and query.dtype in HALF and module.training and not dropout:
        # The fused CPU kernel's bfloat16 backward takes 2.7 times as long as its float32 one at sentence
        # lengths (8k
        # tokens: 86 against 32 ms). By mode and not by grad mode: a pass without gradients and its replay
        # with them must give the same numbers. With dropout another kernel runs, and bfloat16 is the faster.
        with torch.autocast("cpu", enabled=False):
            output = _attend_by_length(
                query.float(), key.float(), value.float(), packed_layout, scaling, dropout, half_window
            )
        return output.to(query.dtype), None
    return _attend_by_length(query, key, value, packed_layout, scaling, dropout, half_window), None


def _attend_by_length(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: PackedLayout,
    scaling: float | None,
    dropout: float,
    half_window: int | None,
) -> Tensor:
    heads, head_size = query.shape[1], query.shape[3]
    # split, not slices: the backward of K slices writes K full-size zero gradients, that of a split one
    # concatenation.
    sizes = [count * length for count, length in layout.groups] + [layout.filler] * bool(layout.filler)
    pieces = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    outputs = []
    for count, length in layout.groups:
        q, k, v = (x.view(heads, count, length, head_size).transpose(0, 1) for x in next(pieces))
        mask = None if half_window is None else layout.window_mask(length, half_window, query.device)
        attended = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        outputs.append(attended.transpose(1, 2).reshape(count * length, heads, head_size))
    for q, k, v in pieces:
        # Zero, but connected: in a batch of filler alone every parameter still gets a (zero) gradient, which
        # is what the gradient hooks of the other ranks wait for.
        outputs.append(((q + k + v) * 0.0)[0].transpose(0, 1))
    return torch.cat(outputs).unsqueeze(0)


def _packed_mask(*_: object, attention_mask: Tensor | None = None, **__: object) -> None:
    """Build no mask: transformers' mask interface, where the layout already says everything."""
    if attention_mask is not None:
        raise UserError(
            "packed attention takes no attention_mask: sequences are laid end to end without padding. Call "
            "the model through "
            "pretrain.model.encoder.SentenceEncoder."
        )


def register() -> None:
    """Give the library's models this attention, by its name."""
    from transformers import AttentionInterface, AttentionMaskInterface  # seconds: kernels go without

    AttentionInterface.register(ATTENTION_NAME, packed_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, _packed_mask)
