"""The encoder layer's operations in plain torch: any device, any floating type; the measure of the others.

Half-precision values are computed in float32 and rounded once, at the end of an operation. `dropout` None is
no dropout.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels.dropout import Dropout, apply, kept_probabilities

IGNORED = -1
"""Label of a row that counts for nothing."""
Inputs = Sequence[Tensor | None]


class Norm(NamedTuple):
    """Parameters of a layer norm; float32 at least."""

    weight: Tensor
    bias: Tensor | None
    eps: float


class How(NamedTuple):
    """What is done to a sum that is normalised.

    dtype: of the norm, for products to read. post: whether the norm goes on as the residual stream, and not
    the sum. behind: whether the dropout is that of the norm, and not of what is added.
    """

    dropout: Dropout | None
    dtype: torch.dtype
    post: bool
    behind: bool = False


def residual_norm(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, how: How
) -> tuple[Tensor, Tensor]:
    """Add to the residual stream and normalise: (stream, normed), both [T, H].

    sum = residual + dropout(x + bias), without a residual dropout(x + bias) of x's type. The stream goes on,
    in the residual's type, as the sum's layer norm if norms come after the residual connection
    (`how.post`), else as the sum. normed is the layer norm in `how.dtype`.
    """
    stream = x.dtype if residual is None else residual.dtype
    added = at_least_float32(x)
    if bias is not None:
        added = added + bias
    added = apply(added, how.dropout)
    if residual is not None:
        added = at_least_float32(residual) + added
    normed = functional.layer_norm(added, added.shape[-1:], *norm).to(stream)
    return normed if how.post else added.to(stream), normed.to(how.dtype)


def norm_dropout(x: Tensor, norm: Norm, dropout: Dropout | None) -> Tensor:
    """Return dropout(layer norm(x)): [T, H] -> [T, H] of x's type (the embedding block's end)."""
    normed = functional.layer_norm(at_least_float32(x), x.shape[-1:], *norm)
    return apply(normed, dropout).to(x.dtype)


def bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """Return gelu(x + bias), in its exact form by erf: [T, I] -> [T, I] of x's type."""
    wide = at_least_float32(x) if bias is None else at_least_float32(x) + bias
    return functional.gelu(wide).to(x.dtype)


def gelu_gate(x: Tensor, dropout: Dropout | None = None) -> Tensor:
    """Return dropout(gelu(x[:, :I]) * x[:, I:]): [T, 2I] -> [T, I] of x's type."""
    inner, gate = at_least_float32(x).chunk(2, dim=1)
    return apply(functional.gelu(inner) * gate, dropout).to(x.dtype)


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs (channel, channel + D/2) of queries and keys by their position's angle (Su et al. 2021).

    qkv: [T, 3, heads, D]; values stay. cos, sin: [T, 1, 1, D], of halves that are equal, float32 at least;
    they get no gradient.
    """
    turned = at_least_float32(qkv[:, :2])
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat([turned.to(qkv.dtype), qkv[:, 2:]], 1)


def attention(
    qkv: Tensor, layout: PackedLayout, scale: float, half_window: int | None, dropout: Dropout | None
) -> Tensor:
    """Let each token attend to its own sequence: [T, 3, heads, D] -> [T, heads, D] of qkv's type.

    half_window: the largest distance that is seen; None: any. scale: of the scores. Filler behind the
    sequences gives zeros and has zero gradients.
    """
    _, _, heads, head_size = qkv.shape
    wide = at_least_float32(qkv) if qkv.device.type == "cpu" or dropout is not None else qkv
    # split, not slices: the backward of K slices writes K full-size zero gradients, that of a split one
    # concatenation.
    sizes = [count * length for count, length in layout.groups] + [layout.filler] * bool(layout.filler)
    pieces = iter(wide.split(sizes))
    keys = iter(() if dropout is None else dropout.keys.split(sizes))
    outputs = []
    for count, length in layout.groups:
        q, k, v = next(pieces).view(count, length, 3, heads, head_size).permute(2, 0, 3, 1, 4)
        mask = None
        if half_window is not None and length > half_window + 1:
            position = torch.arange(length, device=qkv.device)
            mask = (position[:, None] - position[None, :]).abs() <= half_window
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
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, keep_mask: Tensor, rate: float
) -> Tensor:
    """Attend with dropout on the probabilities: q, k, v [n, heads, L, D], keep_mask bool[n, heads, L, L]."""
    scores = (q * scale) @ k.transpose(2, 3)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1).masked_fill(~keep_mask, 0.0) / (1.0 - rate)) @ v


def at_least_float32(x: Tensor) -> Tensor:
    """Return float64 values as they are, all others as float32."""
    return x if x.dtype == torch.float64 else x.float()


def with_gradients(compute: Callable[..., tuple[Tensor, Inputs, Inputs]]) -> Callable[..., Tensor]:
    """Make of a function that computes a scalar, and its gradients with it, a differentiable one.

    compute: returns the scalar, its inputs, and the gradient by each; None for what is none, or wants none.
    """

    @wraps(compute)
    def differentiable(*arguments: Any, **more: Any) -> Tensor:
        with torch.no_grad():
            value, inputs, gradients = compute(*arguments, **more)
        return _WithGradients.apply(value, gradients, *inputs)

    return differentiable


class _WithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value: Tensor, gradients: Inputs, *inputs: Tensor | None) -> Tensor:
        ctx.save_for_backward(*gradients)
        return value.detach()  # an input itself would be a view, which nobody may change in place

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        """Multiply the gradients, which stay as they are, by a wider scalar: each product is rounded once.

        A scalar of no dimension would be rounded to a gradient's type first, on a GPU: by up to 0.4% to
        bfloat16, and so the weight of the loss.
        """
        factor = upstream.reshape(1)
        made = (g if g is None else torch.mul(g, factor, out=torch.empty_like(g)) for g in ctx.saved_tensors)
        return None, None, *made


def cross_entropy_sum(logits: Tensor, labels: Tensor, width: int) -> Tensor:
    """Sum -log softmax(logits[:, :width])[label] over rows: float32, or float64 from float64.

    logits: [P, V], V >= width; they may be written over. labels: int64[P], `IGNORED` if a row counts for
    nothing.

    Half-precision logits are read in float32. The gradient, softmax - onehot, is made in the logits' dtype,
    and is all that is kept: autograd's own chain would hold float32 copies of [P, V] three times.
    """
    return _cross_entropy_sum(logits[:, :width], labels)


@with_gradients
def _cross_entropy_sum(logits: Tensor, labels: Tensor) -> tuple[Tensor, Inputs, Inputs]:
    wide = at_least_float32(logits)
    ignored = (labels == IGNORED)[:, None]
    target = labels.clamp(min=0)[:, None]
    log_sum = wide.logsumexp(1, keepdim=True)
    loss = (log_sum - wide.gather(1, target)).masked_fill(ignored, 0.0).sum()
    if not logits.requires_grad:
        return loss, (logits,), (None,)
    gradient = (wide - log_sum).exp_()
    gradient.scatter_add_(1, target, gradient.new_full(target.shape, -1.0))
    gradient.masked_fill_(ignored, 0.0)
    return loss, (logits,), (gradient.to(logits.dtype),)
