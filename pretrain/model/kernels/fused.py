"""The encoder layer's operations as fused Triton programs on a GPU: bfloat16, float16 or float32.

Each tensor is read and written once, and every operation is one launch, and one more where a backward adds up
gradients of parameters. Masks of dropout are computed again in the backward, from the keys, so nothing of
them is kept. The interface is described in `pretrain.model.kernels`; its module `programs` has the programs.
float64 goes to `pretrain.model.kernels.plain`, which they are held against.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import plain
from pretrain.model.kernels.dropout import Dropout

PROGRAMS = 512
"""Programs of a backward that adds up rows; on any GPU the same, and so are the sums."""
IGNORED = -1
"""Label of a row that counts for nothing."""
_COLUMNS = 1024
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
    return _Connect.apply(x, bias, residual, weight, norm_bias, _How(eps, dropout, dtype, post, kept))


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


def scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply a gradient, which stays as it is, by a wider scalar: each product is rounded once.

    A scalar of no dimension would be rounded to the gradient's type first, on a GPU: by up to 0.4% to
    bfloat16, and so the weight of the loss.
    """
    return torch.mul(gradient, factor.reshape(1), out=torch.empty_like(gradient))


# ---- launches and derivatives ------------------------------------------------------------------------------


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run a program of `programs`; without data (device "meta"), or with nothing to compute, do nothing."""
    if arguments[0].device.type == "meta" or 0 in grid:
        return
    from pretrain.model.kernels import programs

    getattr(programs, name)[grid](*arguments, **constants, num_warps=warps)


def _partial_sums(x: Tensor, *shape: int) -> Tensor:
    """float32[programs, ...]: every program writes its own, and without rows the sum is zero."""
    make = x.new_empty if len(x) else x.new_zeros
    return make((min(PROGRAMS, max(len(x), 1)), *shape), dtype=torch.float32)


def _block(width: int) -> dict[str, int]:
    block = 1 << max(width - 1, 1).bit_length()
    return {"BLOCK": block, "warps": min(max(block // 256, 1), 16)}


class _Drops(NamedTuple):
    """Keys and site of a dropout, and the programs' constants; keys None: no dropout."""

    keys: Tensor | None
    site: int
    constants: dict[str, Any]


def _drops(dropout: Dropout | None) -> _Drops:
    if dropout is None or not dropout.rate:
        return _Drops(None, 0, {"THRESHOLD": 0, "RATE": 0.0})
    return _Drops(dropout.keys, dropout.site, {"THRESHOLD": dropout.threshold, "RATE": dropout.rate})


class _How(NamedTuple):
    """What `connect` does: as its arguments; kept: whether a backward may follow."""

    eps: float
    dropout: Dropout | None
    dtype: torch.dtype
    post: bool
    kept: bool


class _Connect(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        norm_bias: Tensor | None,
        how: _How,
    ) -> tuple[Tensor, Tensor]:
        x, (rows, width) = x.contiguous(), x.shape
        residual = None if residual is None else residual.contiguous()
        like, drops = x if residual is None else residual, _drops(how.dropout)
        # the sum where it goes on, or is kept for a backward; its norm in the residual's type where that goes
        # on, and in the working type where that is another
        added = torch.empty_like(like) if how.kept or not how.post else None
        normed = torch.empty_like(like) if how.post else None
        apart = not how.post or like.dtype != how.dtype
        working = torch.empty_like(like, dtype=how.dtype) if apart else None
        statistics = x.new_empty((rows, 2), dtype=torch.float32)  # means and deviations
        tensors = (x, bias, residual, weight, norm_bias, drops.keys, added, normed, working, statistics)
        numbers = (width, how.eps, drops.site)
        _launch("connect_forward", (rows,), *tensors, *numbers, **drops.constants, **_block(width))
        ctx.save_for_backward(added, statistics, weight)
        ctx.has = bias is not None, residual is not None, norm_bias is not None
        ctx.drops, ctx.post, ctx.dtype = drops, how.post, x.dtype
        ctx.set_materialize_grads(False)
        stream = normed if how.post else added
        assert stream is not None
        # two outputs, so that both gradients are added in the backward
        return stream, stream.view_as(stream) if working is None else working

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_stream: Tensor | None, of_working: Tensor | None) -> tuple[Any, ...]:
        added, statistics, weight = ctx.saved_tensors
        (rows, width), drops = added.shape, ctx.drops
        of_residual = torch.empty_like(added)
        apart = drops.keys is not None or added.dtype != ctx.dtype
        of_x = torch.empty_like(added, dtype=ctx.dtype) if apart else None
        sums = _partial_sums(added, 3, width)
        of_stream, of_working = (None if g is None else g.contiguous() for g in (of_stream, of_working))
        tensors = (added, of_stream, of_working, statistics, weight, drops.keys, of_residual, of_x, sums)
        numbers = (rows, width, len(sums), drops.site)
        constants = {"POST": ctx.post, **drops.constants, **_block(width)}
        _launch("connect_backward", (min(len(sums), rows),), *tensors, *numbers, **constants)
        of_weight, of_norm_bias, of_bias = sums.sum(0)
        has_bias, has_residual, has_norm_bias = ctx.has
        return (
            of_residual if of_x is None else of_x,
            of_bias if has_bias else None,
            of_residual if has_residual else None,
            of_weight,
            of_norm_bias if has_norm_bias else None,
            None,
        )


class _NormDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, norm_bias: Tensor | None, eps: float, dropout: Dropout | None
    ) -> Tensor:
        x, (rows, width), drops = x.contiguous(), x.shape, _drops(dropout)
        output = torch.empty_like(x)
        statistics = x.new_empty((rows, 2), dtype=torch.float32)
        tensors = (x, weight, norm_bias, drops.keys, output, statistics)
        numbers = (width, eps, drops.site)
        _launch("norm_dropout_forward", (rows,), *tensors, *numbers, **drops.constants, **_block(width))
        ctx.save_for_backward(x, statistics, weight)
        ctx.drops, ctx.has_norm_bias = drops, norm_bias is not None
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, statistics, weight = ctx.saved_tensors
        (rows, width), drops = x.shape, ctx.drops
        of_x, sums = torch.empty_like(x), _partial_sums(x, 2, width)
        tensors = (gradient.contiguous(), x, statistics, weight, drops.keys, of_x, sums)
        numbers = (rows, width, len(sums), drops.site)
        grid, constants = (min(len(sums), rows),), {**drops.constants, **_block(width)}
        _launch("norm_dropout_backward", grid, *tensors, *numbers, **constants)
        of_weight, of_norm_bias = sums.sum(0)
        return of_x, of_weight, of_norm_bias if ctx.has_norm_bias else None, None, None


class _BiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        x, (rows, width) = x.contiguous(), x.shape
        output = torch.empty_like(x)
        grid = (rows, -(-width // _COLUMNS))
        _launch("bias_gelu_forward", grid, x, bias, output, width, BLOCK=_COLUMNS)
        ctx.save_for_backward(x, bias)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, bias = ctx.saved_tensors
        rows, width = x.shape
        of_x, sums = torch.empty_like(x), _partial_sums(x, width)
        grid = (min(len(sums), rows), -(-width // _COLUMNS))
        arguments = (gradient.contiguous(), x, bias, of_x, sums, rows, width, len(sums))
        _launch("bias_gelu_backward", grid, *arguments, BLOCK=_COLUMNS)
        return of_x, None if bias is None else sums.sum(0)


class _GeluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dropout: Dropout | None) -> Tensor:
        x, width, drops = x.contiguous(), x.shape[1] // 2, _drops(dropout)
        output = x.new_empty((len(x), width))
        grid = (len(x), -(-width // _COLUMNS))
        arguments = (x, drops.keys, output, width, drops.site)
        _launch("gelu_gate_forward", grid, *arguments, **drops.constants, BLOCK=_COLUMNS)
        ctx.save_for_backward(x)
        ctx.drops = drops
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (x,), drops = ctx.saved_tensors, ctx.drops
        of_x, (rows, width) = torch.empty_like(x), gradient.shape
        grid = (rows, -(-width // _COLUMNS))
        arguments = (gradient.contiguous(), x, drops.keys, of_x, width, drops.site)
        _launch("gelu_gate_backward", grid, *arguments, **drops.constants, BLOCK=_COLUMNS)
        return of_x, None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        cos, sin = cos.contiguous(), sin.contiguous()
        ctx.save_for_backward(cos, sin)
        return _rotation(qkv, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        cos, sin = ctx.saved_tensors
        return _rotation(gradient, cos, sin, -1), None, None


def _rotation(qkv: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    output = torch.empty_like(qkv)
    blocks = {"HALF": _block(size // 2)["BLOCK"], "BLOCK": _block(heads)["BLOCK"]}
    _launch("rotation", (tokens, 3), qkv, cos, sin, output, heads, size, SIGN=sign, **blocks)
    return output


class _CrossEntropySum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, width: int) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        logits, (rows, stride) = logits.contiguous(), logits.shape
        losses = logits.new_empty(rows, dtype=torch.float32)
        constants = {"IGNORED": IGNORED, "GRADIENT": wanted, "BLOCK": 2048, "warps": 8}
        _launch("cross_entropy", (rows,), logits, labels, losses, stride, width, **constants)
        if wanted:
            ctx.save_for_backward(logits)
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        (gradient,) = ctx.saved_tensors
        return scaled(gradient, upstream), None, None
