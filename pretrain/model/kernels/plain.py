"""The encoder layer's operations in plain torch: any device, any floating type; the measure of the others.

Half-precision values are computed in float32 and rounded once, at the end of an operation. The interface is
described in `pretrain.model.kernels`.
"""

import torch
from torch import Tensor
from torch.nn import functional

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels.dropout import Dropout, apply, kept_probabilities


def add_norm(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    norm_bias: Tensor | None,
    eps: float,
    dropout: Dropout | None,
) -> tuple[Tensor, Tensor]:
    """Return `Kernels.connect`'s sum and its layer norm, both of the residual's type."""
    dtype = x.dtype if residual is None else residual.dtype
    added = at_least_float32(x)
    if bias is not None:
        added = added + bias
    added = apply(added, dropout)
    if residual is not None:
        added = at_least_float32(residual) + added
    return added.to(dtype), _layer_norm(added, weight, norm_bias, eps).to(dtype)


def connect(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    norm_bias: Tensor | None,
    eps: float,
    dropout: Dropout | None,
    dtype: torch.dtype,
    post: bool,
) -> tuple[Tensor, Tensor]:
    added, normed = add_norm(x, bias, residual, weight, norm_bias, eps, dropout)
    return normed if post else added, normed.to(dtype)


def norm_dropout(
    x: Tensor, weight: Tensor, norm_bias: Tensor | None, eps: float, dropout: Dropout | None
) -> Tensor:
    return apply(_layer_norm(at_least_float32(x), weight, norm_bias, eps), dropout).to(x.dtype)


def bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    wide = at_least_float32(x) if bias is None else at_least_float32(x) + bias
    return functional.gelu(wide).to(x.dtype)


def gelu_gate(x: Tensor, dropout: Dropout | None = None) -> Tensor:
    inner, gate = at_least_float32(x).chunk(2, dim=1)
    return apply(functional.gelu(inner) * gate, dropout).to(x.dtype)


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned = at_least_float32(qkv[:, :2])
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat([turned.to(qkv.dtype), qkv[:, 2:]], 1)


def attention(
    qkv: Tensor, layout: PackedLayout, scale: float, half_window: int | None, dropout: Dropout | None
) -> Tensor:
    _, _, heads, head_size = qkv.shape
    if dropout is not None and not dropout.rate:
        dropout = None
    wide = at_least_float32(qkv) if qkv.device.type == "cpu" or dropout is not None else qkv
    # split, not slices: the backward of K slices writes K full-size zero gradients, that of a split one
    # concatenation.
    sizes = [count * length for count, length in layout.groups] + [layout.filler] * bool(layout.filler)
    pieces = iter(wide.split(sizes))
    keys = iter(() if dropout is None else dropout.keys.split(sizes))
    outputs = []
    for count, length in layout.groups:
        q, k, v = next(pieces).view(count, length, 3, heads, head_size).permute(2, 0, 3, 1, 4)
        mask = None if half_window is None else layout.window_mask(length, half_window, qkv.device)
        if dropout is None:
            attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
        else:
            kept = kept_probabilities(next(keys).view(count, length), dropout, heads)
            attended = _attend(q, k, v, mask, scale, kept, dropout.rate)
        outputs.append(attended.transpose(1, 2).reshape(count * length, heads, head_size))
    for filler in pieces:
        # Zero, but connected: in a batch of filler alone every parameter still gets a (zero) gradient, which
        # is what the gradient hooks of the other ranks wait for.
        outputs.append(filler.sum(1) * 0.0)
    return torch.cat(outputs).to(qkv.dtype)


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, kept: Tensor, rate: float
) -> Tensor:
    """Attend with dropout on the probabilities: q, k, v [n, heads, L, D], kept bool[n, heads, L, L]."""
    scores = (q * scale) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1).masked_fill(~kept, 0.0) / (1.0 - rate)) @ v


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def at_least_float32(x: Tensor) -> Tensor:
    """Return float64 values as they are, all others as float32."""
    return x if x.dtype == torch.float64 else x.float()
