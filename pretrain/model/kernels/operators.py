"""Torch's operators `clear::...`: each makes its results, and launches a Triton program that fills them.

As operators they also take tensors without data, so that tests count launches, and the bytes that they move,
on a machine without a GPU. `pretrain.model.kernels.programs` has the programs.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PROGRAMS = 512
"""Programs of a backward that adds up rows; on any GPU the same, and so are the sums."""
IGNORED = -1
"""Label of a row that counts for nothing."""
_COLUMNS = 1024

_LIBRARY = torch.library.Library("clear", "DEF")


def scaled(gradient: Tensor, factor: Tensor) -> Tensor:
    """Multiply a gradient, which stays as it is, by a wider scalar: each product is rounded once.

    A scalar of no dimension would be rounded to the gradient's type first, on a GPU: by up to 0.4% to
    bfloat16, and so the weight of the loss.
    """
    return torch.mul(gradient, factor.reshape(1), out=torch.empty_like(gradient))


def _operator(schema: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function for GPUs, for tensors without data, and for a CPU with Triton's interpreter."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        name = function.__name__.removeprefix("_")
        _LIBRARY.define(f"{name}{schema}")
        for kind in ("CUDA", "Meta", "CPU"):
            _LIBRARY.impl(name, function, kind)
        return function

    return register


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run a program of `programs`; without data, or with nothing to compute, do nothing."""
    if arguments[0].device.type == "meta" or 0 in grid:
        return
    from pretrain.model.kernels import programs

    getattr(programs, name)[grid](*arguments, **constants, num_warps=warps)


def _dropping(keys: Tensor | None, rate: float) -> dict[str, Any]:
    return {"DROPS": keys is not None, "THRESHOLD": int(rate * 2.0**32), "RATE": rate}


def _partial_sums(x: Tensor, *shape: int) -> Tensor:
    """float32[programs, ...]: every program writes its own, and without rows the sum is zero."""
    make = x.new_empty if len(x) else x.new_zeros
    return make((min(PROGRAMS, max(len(x), 1)), *shape), dtype=torch.float32)


def _block(width: int) -> dict[str, int]:
    block = 1 << max(width - 1, 1).bit_length()
    return {"BLOCK": block, "warps": min(max(block // 256, 1), 16)}


@_operator(
    "(Tensor x, Tensor? bias, Tensor? residual, Tensor weight, Tensor? norm_bias, Tensor? keys, float eps, "
    "int site, float rate, ScalarType dtype, bool post, bool kept) -> (Tensor, Tensor, Tensor, Tensor)"
)
def _connect_forward(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    weight: Tensor,
    norm_bias: Tensor | None,
    keys: Tensor | None,
    eps: float,
    site: int,
    rate: float,
    dtype: torch.dtype,
    post: bool,
    kept: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(sum where it goes on, or is `kept` for a backward, its norm in the residual's type where `post`, its
    norm in `dtype` where that is another, and the means and deviations float32[T, 2])."""
    x = x.contiguous()
    residual = None if residual is None else residual.contiguous()
    like = x if residual is None else residual
    apart, kept = not post or like.dtype != dtype, kept or not post
    added = torch.empty_like(like) if kept else like.new_empty(0)
    normed = torch.empty_like(like) if post else like.new_empty(0)
    working = torch.empty_like(like, dtype=dtype) if apart else like.new_empty(0)
    statistics = x.new_empty((len(x), 2), dtype=torch.float32)
    _launch(
        "connect_forward",
        (len(x),),
        x,
        bias,
        residual,
        weight,
        norm_bias,
        keys,
        added,
        normed,
        working,
        statistics,
        x.shape[1],
        eps,
        site,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        HAS_NORM_BIAS=norm_bias is not None,
        WRITES_ADDED=kept,
        WRITES_NORMED=post,
        WRITES_WORKING=apart,
        **_dropping(keys, rate),
        **_block(x.shape[1]),
    )
    return added, normed, working, statistics


@_operator(
    "(Tensor? of_stream, Tensor? of_working, Tensor added, Tensor statistics, Tensor weight, Tensor? keys, "
    "int site, float rate, bool post, ScalarType dtype) -> (Tensor, Tensor, Tensor)"
)
def _connect_backward(
    of_stream: Tensor | None,
    of_working: Tensor | None,
    added: Tensor,
    statistics: Tensor,
    weight: Tensor,
    keys: Tensor | None,
    site: int,
    rate: float,
    post: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by residual and x (of `dtype`; empty where it is the residual's), and partial sums
    [programs, 3, H] of those by parameters."""
    rows, width = added.shape
    apart = keys is not None or added.dtype != dtype
    of_residual = torch.empty_like(added)
    of_x = torch.empty_like(added, dtype=dtype) if apart else added.new_empty(0)
    sums = _partial_sums(added, 3, width)
    of_stream = None if of_stream is None else of_stream.contiguous()
    of_working = None if of_working is None else of_working.contiguous()
    _launch(
        "connect_backward",
        (min(len(sums), rows),),
        added,
        of_stream,
        of_working,
        statistics,
        weight,
        keys,
        of_residual,
        of_x,
        sums,
        rows,
        width,
        len(sums),
        site,
        POST=post,
        HAS_STREAM=of_stream is not None,
        HAS_WORKING=of_working is not None,
        WRITES_X=apart,
        **_dropping(keys, rate),
        **_block(width),
    )
    return of_residual, of_x, sums


@_operator(
    "(Tensor x, Tensor weight, Tensor? norm_bias, Tensor? keys, float eps, int site, float rate) "
    "-> (Tensor, Tensor)"
)
def _norm_dropout_forward(
    x: Tensor,
    weight: Tensor,
    norm_bias: Tensor | None,
    keys: Tensor | None,
    eps: float,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    output = torch.empty_like(x)
    statistics = x.new_empty((len(x), 2), dtype=torch.float32)
    _launch(
        "norm_dropout_forward",
        (len(x),),
        x,
        weight,
        norm_bias,
        keys,
        output,
        statistics,
        x.shape[1],
        eps,
        site,
        HAS_NORM_BIAS=norm_bias is not None,
        **_dropping(keys, rate),
        **_block(x.shape[1]),
    )
    return output, statistics


@_operator(
    "(Tensor gradient, Tensor x, Tensor statistics, Tensor weight, Tensor? keys, int site, float rate) "
    "-> (Tensor, Tensor)"
)
def _norm_dropout_backward(
    gradient: Tensor,
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    keys: Tensor | None,
    site: int,
    rate: float,
) -> tuple[Tensor, Tensor]:
    """The gradient by x, and partial sums [programs, 2, H] of those by weight and norm_bias."""
    x, (rows, width) = x.contiguous(), x.shape
    of_x = torch.empty_like(x)
    sums = _partial_sums(x, 2, width)
    _launch(
        "norm_dropout_backward",
        (min(len(sums), rows),),
        gradient.contiguous(),
        x,
        statistics,
        weight,
        keys,
        of_x,
        sums,
        rows,
        width,
        len(sums),
        site,
        **_dropping(keys, rate),
        **_block(width),
    )
    return of_x, sums


@_operator("(Tensor x, Tensor? bias) -> Tensor")
def _bias_gelu_forward(x: Tensor, bias: Tensor | None) -> Tensor:
    x = x.contiguous()
    output = torch.empty_like(x)
    grid = (len(x), -(-x.shape[1] // _COLUMNS))
    has = bias is not None
    _launch("bias_gelu_forward", grid, x, bias, output, x.shape[1], HAS_BIAS=has, BLOCK=_COLUMNS)
    return output


@_operator("(Tensor gradient, Tensor x, Tensor? bias) -> (Tensor, Tensor)")
def _bias_gelu_backward(gradient: Tensor, x: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradient by x, and partial sums [programs, I] of that by the bias."""
    x, (rows, width) = x.contiguous(), x.shape
    of_x = torch.empty_like(x)
    sums = _partial_sums(x, width)
    _launch(
        "bias_gelu_backward",
        (min(len(sums), rows), -(-width // _COLUMNS)),
        gradient.contiguous(),
        x,
        bias,
        of_x,
        sums,
        rows,
        width,
        len(sums),
        HAS_BIAS=bias is not None,
        BLOCK=_COLUMNS,
    )
    return of_x, sums


@_operator("(Tensor x, Tensor? keys, int site, float rate) -> Tensor")
def _gelu_gate_forward(x: Tensor, keys: Tensor | None, site: int, rate: float) -> Tensor:
    x, width = x.contiguous(), x.shape[1] // 2
    output = x.new_empty((len(x), width))
    grid = (len(x), -(-width // _COLUMNS))
    _launch("gelu_gate_forward", grid, x, keys, output, width, site, **_dropping(keys, rate), BLOCK=_COLUMNS)
    return output


@_operator("(Tensor gradient, Tensor x, Tensor? keys, int site, float rate) -> Tensor")
def _gelu_gate_backward(gradient: Tensor, x: Tensor, keys: Tensor | None, site: int, rate: float) -> Tensor:
    x, width = x.contiguous(), x.shape[1] // 2
    of_x = torch.empty_like(x)
    grid, gradient = (len(x), -(-width // _COLUMNS)), gradient.contiguous()
    _launch(
        "gelu_gate_backward",
        grid,
        gradient,
        x,
        keys,
        of_x,
        width,
        site,
        **_dropping(keys, rate),
        BLOCK=_COLUMNS,
    )
    return of_x


@_operator("(Tensor qkv, Tensor cos, Tensor sin, int sign) -> Tensor")
def _rotation(qkv: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    output = torch.empty_like(qkv)
    blocks = {"HALF": _block(size // 2)["BLOCK"], "BLOCK": _block(heads)["BLOCK"]}
    cos, sin = cos.contiguous(), sin.contiguous()
    _launch("rotation", (tokens, 3), qkv, cos, sin, output, heads, size, SIGN=sign, **blocks)
    return output


@_operator("(Tensor(a!) logits, Tensor labels, int width, bool gradient) -> Tensor")
def _cross_entropy(logits: Tensor, labels: Tensor, width: int, gradient: bool) -> Tensor:
    """Losses float32[P]; with `gradient`, that of the logits is written over them."""
    losses = logits.new_empty(len(logits), dtype=torch.float32)
    _launch(
        "cross_entropy",
        (len(logits),),
        logits,
        labels,
        losses,
        logits.shape[1],
        width,
        IGNORED=IGNORED,
        GRADIENT=gradient,
        BLOCK=2048,
        warps=8,
    )
    return losses
