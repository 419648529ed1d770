"""The encoder layer's operations as fused Triton programs on a GPU: bfloat16, float16 or float32.

Each tensor is read and written once, and every operation is one launch, and one more where a backward adds up
gradients of parameters. Masks of dropout are computed again in the backward, from the keys, so nothing of
them is kept. The interface is described in `pretrain.model.kernels`; `pretrain.model.kernels.operators` makes
the results and launches the programs. float64 goes to `pretrain.model.kernels.plain`, which they are held
against.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import operators, plain
from pretrain.model.kernels.dropout import Dropout

_LARGEST_WIDTH = 1 << 14


@cache  # every forward pass asks, and Python looks for a missing package again each time
def available() -> bool:
    """Return whether Triton imports here."""
    try:
        from pretrain.model.kernels import programs  # noqa: F401
    except ImportError:
        return False
    return True


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
    if x.dtype == torch.float64 or x.shape[1] > _LARGEST_WIDTH:
        return plain.connect(x, bias, residual, weight, norm_bias, eps, dropout, dtype, post)
    kept = torch.is_grad_enabled()  # of the caller: within `apply` it is off
    return _Connect.apply(x, bias, residual, weight, norm_bias, eps, dropout, dtype, post, kept)


def norm_dropout(
    x: Tensor, weight: Tensor, norm_bias: Tensor | None, eps: float, dropout: Dropout | None
) -> Tensor:
    if x.dtype == torch.float64 or x.shape[1] > _LARGEST_WIDTH:
        return plain.norm_dropout(x, weight, norm_bias, eps, dropout)
    return _NormDropout.apply(x, weight, norm_bias, eps, dropout)


def bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    return plain.bias_gelu(x, bias) if x.dtype == torch.float64 else _BiasGelu.apply(x, bias)


def gelu_gate(x: Tensor, dropout: Dropout | None = None) -> Tensor:
    return plain.gelu_gate(x, dropout) if x.dtype == torch.float64 else _GeluGate.apply(x, dropout)


def rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return plain.rotate(qkv, cos, sin) if qkv.dtype == torch.float64 else _Rotate.apply(qkv, cos, sin)


def attention(
    qkv: Tensor, layout: PackedLayout, scale: float, half_window: int | None, dropout: Dropout | None
) -> Tensor:
    """Attend by length in plain torch, where there is no flash kernel (float32, old GPUs)."""
    return plain.attention(qkv, layout, scale, half_window, dropout)


def cross_entropy_sum(logits: Tensor, labels: Tensor, width: int) -> Tensor:
    """Sum -log softmax(logits[:, :width])[label] over rows: float32.

    logits: [P, V], V >= width, written over by their gradient where one is wanted. labels: int64[P].
    """
    return _CrossEntropySum.apply(logits, labels, width)


# ---- derivatives -------------------------------------------------------------------------------------------


class _Connect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        norm_bias: Tensor | None,
        eps: float,
        dropout: Dropout | None,
        dtype: torch.dtype,
        post: bool,
        kept: bool,
    ) -> tuple[Tensor, Tensor]:
        keys, site, rate = _dropout(dropout)
        added, normed, working, statistics = torch.ops.clear.connect_forward(
            x, bias, residual, weight, norm_bias, keys, eps, site, rate, dtype, post, kept
        )
        if not post:
            normed = added
        elif dtype == normed.dtype:
            working = normed.view_as(normed)  # two outputs, so that both gradients are added in the backward
        ctx.save_for_backward(added, statistics, weight, keys)
        ctx.has = bias is not None, residual is not None, norm_bias is not None
        ctx.dropout, ctx.post, ctx.dtype = (site, rate), post, x.dtype
        ctx.set_materialize_grads(False)
        return normed, working

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_stream: Tensor | None, of_working: Tensor | None) -> tuple[Any, ...]:
        added, statistics, weight, keys = ctx.saved_tensors
        has_bias, has_residual, has_norm_bias = ctx.has
        of_residual, of_x, sums = torch.ops.clear.connect_backward(
            of_stream, of_working, added, statistics, weight, keys, *ctx.dropout, ctx.post, ctx.dtype
        )
        of_weight, of_norm_bias, of_bias = sums.sum(0)
        return (
            of_x if of_x.numel() else of_residual,
            of_bias if has_bias else None,
            of_residual if has_residual else None,
            of_weight,
            of_norm_bias if has_norm_bias else None,
            *(None,) * 5,
        )


class _NormDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, norm_bias: Tensor | None, eps: float, dropout: Dropout | None
    ) -> Tensor:
        keys, site, rate = _dropout(dropout)
        output, statistics = torch.ops.clear.norm_dropout_forward(x, weight, norm_bias, keys, eps, site, rate)
        ctx.save_for_backward(x, statistics, weight, keys)
        ctx.dropout, ctx.has_norm_bias = (site, rate), norm_bias is not None
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        of_x, sums = torch.ops.clear.norm_dropout_backward(gradient, *ctx.saved_tensors, *ctx.dropout)
        of_weight, of_norm_bias = sums.sum(0)
        return of_x, of_weight, of_norm_bias if ctx.has_norm_bias else None, None, None


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, bias)
        return torch.ops.clear.bias_gelu_forward(x, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, bias = ctx.saved_tensors
        of_x, sums = torch.ops.clear.bias_gelu_backward(gradient, x, bias)
        return of_x, None if bias is None else sums.sum(0)


class _GeluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout | None) -> Tensor:
        keys, *ctx.dropout = _dropout(dropout)
        ctx.save_for_backward(x, keys)
        return torch.ops.clear.gelu_gate_forward(x, keys, *ctx.dropout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return torch.ops.clear.gelu_gate_backward(gradient, *ctx.saved_tensors, *ctx.dropout), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return torch.ops.clear.rotation(qkv, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return torch.ops.clear.rotation(gradient, *ctx.saved_tensors, -1), None, None


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, width: int) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        logits = logits.contiguous()
        losses = torch.ops.clear.cross_entropy(logits, labels, width, wanted)
        if wanted:
            ctx.save_for_backward(logits)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        return operators.scaled(gradient, upstream), None, None


def _dropout(dropout: Dropout | None) -> tuple[Tensor | None, int, float]:
    if dropout is None or not dropout.rate:
        return None, 0, 0.0
    return dropout.keys, dropout.site, dropout.rate
