"""The encoder layer's operations as fused C++ kernels on a CPU, activations bfloat16 or float32.

Each tensor is read and written once. Masks of dropout are computed again in the backward, from the keys, and
so are attention's probabilities. The interface is described in `pretrain.model.kernels`; what the kernels do
not take (float64, float16, another device) goes to `pretrain.model.kernels.plain`, which is also what they
are compared with.

The kernels are an optional extension: `pip install -e .` compiles them if it finds a compiler (GCC 12 or
later). It is a second extension, beside `augment._native`, because that one must import without torch and
this one runs on the threads of torch's own OpenMP library: it is compiled for OpenMP, but not linked with
any, and finds torch's when it is loaded behind torch. `torch.set_num_threads` holds for it therefore, and
results have the same bits whatever that number is.
"""

import ctypes
import importlib.util
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import plain
from pretrain.model.kernels.dropout import Dropout, apply
from pretrain.model.kernels.plain import How, Norm

VARIABLE = "CLEAR_KERNELS"  # plain turns them off, to compare; native: an error without them
_INTERFACE = 3  # of the sources in native: a library compiled from other sources is not used
_EXTENSION = "pretrain.model.kernels._native"
_INSTRUCTION_SETS = ("portable", "avx2", "avx512")

_forced: str | None = None  # one of `instruction_sets`, by tests


def available() -> str | None:
    """Return the instruction set that the kernels run with; None: they are not compiled, or turned off."""
    if os.environ.get(VARIABLE) == "plain" or not instruction_sets():
        return None
    return _forced or instruction_sets()[-1]


@cache
def instruction_sets() -> tuple[str, ...]:
    """Return those of portable, avx2 and avx512 that this processor runs; none if nothing is compiled."""
    library = _library()
    return () if library is None else _INSTRUCTION_SETS[: library.instruction_sets() + 1]


def call(name: str, kind: str, *arguments: Tensor | float | None) -> None:
    """Call a kernel: tensors (contiguous, or None) go as pointers, and the number of threads comes last.

    kind: of the activations, one of `_TYPES` or, for norms, bfloat16 with a float32 residual (`_MIXED`).
    """
    instructions = available()
    assert instructions is not None
    _function(name, kind, instructions)(
        *(x.data_ptr() if isinstance(x, Tensor) else x for x in arguments), torch.get_num_threads()
    )


_POINTER, _SIZE, _INT, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_double
_DROPOUT = [_POINTER, _SIZE, _REAL]
_PLACED_DROPOUT = [*_DROPOUT, _INT]
_SEQUENCES = [_SIZE, _SIZE, _SIZE, _POINTER, _SIZE, _SIZE, _REAL, _SIZE]
_SIGNATURES: dict[str, list[Any]] = {  # before the number of threads
    "add_norm_forward": [_SIZE] * 2 + [_POINTER] * 5 + [_REAL, *_PLACED_DROPOUT] + [_POINTER] * 3,
    "add_norm_backward": [_SIZE] * 2 + [_POINTER] * 3 + _PLACED_DROPOUT + [_POINTER] * 6,
    "bias_gelu_forward": [_SIZE] * 2 + [_POINTER] * 3,
    "bias_gelu_backward": [_SIZE] * 2 + [_POINTER] * 5,
    "gelu_gate_forward": [_SIZE] * 2 + [_POINTER] * 2,
    "gelu_gate_backward": [_SIZE] * 2 + [_POINTER] * 3,
    "attention_forward": [*_SEQUENCES, _POINTER, *_DROPOUT] + [_POINTER] * 2,
    "attention_backward": [*_SEQUENCES, _POINTER, *_DROPOUT] + [_POINTER] * 3,
}


@cache
def _function(name: str, kind: str, instructions: str) -> Any:
    library = _library()
    assert library is not None
    return ctypes.CFUNCTYPE(None, *_SIGNATURES[name], _INT).in_dll(library, f"{name}_{kind}_{instructions}")


@cache
def _library() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec(_EXTENSION)
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)  # torch, imported above, has brought the OpenMP library
    except OSError:
        return None
    return library if library.interface_version() == _INTERFACE else None


_TYPES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}
_MIXED = "mixed"  # activations are bfloat16, the residual stream is float32
DTYPES = tuple(_TYPES)
"""Of activations that the kernels take."""


def residual_norm(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, how: How
) -> tuple[Tensor, Tensor]:
    kind = _TYPES.get(x.dtype)
    if residual is not None and residual.dtype != x.dtype:
        kind = _MIXED if (x.dtype, residual.dtype) == (torch.bfloat16, torch.float32) else None
    if kind is None or not _takes(x, bias, norm.weight, norm.bias):
        return plain.residual_norm(x, bias, residual, norm, how)
    added, normed = _AddNorm.apply(x, bias, residual, norm.weight, norm.bias, norm.eps, how, kind)
    return normed if how.post else added, normed.to(how.dtype)


def norm_dropout(x: Tensor, norm: Norm, dropout: Dropout | None) -> Tensor:
    if not _takes(x, norm.weight, norm.bias):
        return plain.norm_dropout(x, norm, dropout)
    how = How(dropout, x.dtype, post=True, behind=True)
    return _AddNorm.apply(x, None, None, norm.weight, norm.bias, norm.eps, how, _TYPES[x.dtype])[1]


def bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    if not _takes(x, bias):
        return plain.bias_gelu(x, bias)
    return _NativeBiasGelu.apply(x, bias)


def gelu_gate(x: Tensor, dropout: Dropout | None = None) -> Tensor:
    if not _takes(x):
        return plain.gelu_gate(x, dropout)
    return apply(_NativeGeluGate.apply(x), dropout)


rotate, cross_entropy_sum = plain.rotate, plain.cross_entropy_sum


def attention(
    qkv: Tensor, layout: PackedLayout, scale: float, half_window: int | None, dropout: Dropout | None
) -> Tensor:
    if not _takes(qkv):
        return plain.attention(qkv, layout, scale, half_window, dropout)
    return _NativeAttention.apply(qkv, layout, scale, half_window, dropout)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        residual: Tensor | None,
        weight: Tensor,
        norm_bias: Tensor | None,
        eps: float,
        how: How,
        kind: str,
    ) -> tuple[Tensor | None, Tensor]:
        x = x.contiguous()
        residual = _contiguous(residual)
        added = None if how.behind else torch.empty_like(x if residual is None else residual)
        normed = torch.empty_like(x if added is None else added)
        statistics = x.new_empty((len(x), 2), dtype=torch.float32)
        parts, dropout = (x, bias, residual, weight, norm_bias), _dropout(how.dropout, x)
        outputs = (added, normed, statistics)
        call("add_norm_forward", kind, *x.shape, *parts, eps, *dropout, how.behind, *outputs)
        ctx.save_for_backward(x if added is None else added, statistics, weight, bias, norm_bias)
        ctx.how, ctx.kind, ctx.has_residual, ctx.dtype = how, kind, residual is not None, x.dtype
        ctx.set_materialize_grads(False)
        return added, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, added_gradient: Tensor | None, normed_gradient: Tensor | None) -> tuple[Any, ...]:
        added, statistics, weight, bias, norm_bias = ctx.saved_tensors
        how, upstream = ctx.how, (_contiguous(added_gradient), _contiguous(normed_gradient))
        residual_gradient = torch.empty_like(added) if ctx.has_residual else None
        shared = ctx.has_residual and how.dropout is None and ctx.dtype == added.dtype
        x_gradient = None if shared else torch.empty_like(added, dtype=ctx.dtype)
        bias_gradient = None if bias is None else torch.empty_like(bias)
        norm_gradients = weight.new_empty((2, len(weight)))
        saved, dropout = (added, statistics, weight), _dropout(how.dropout, added)
        gradients = (*upstream, x_gradient, residual_gradient, bias_gradient, norm_gradients)
        call("add_norm_backward", ctx.kind, *added.shape, *saved, *dropout, how.behind, *gradients)
        return (
            residual_gradient if shared else x_gradient,
            bias_gradient,
            residual_gradient,
            norm_gradients[0],
            None if norm_bias is None else norm_gradients[1],
            *(None, None, None),
        )


class _NativeBiasGelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        call("bias_gelu_forward", _TYPES[x.dtype], *x.shape, x, bias, y)
        ctx.save_for_backward(x, bias)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        x, bias = ctx.saved_tensors
        gradient = gradient.contiguous()
        x_gradient = torch.empty_like(x)
        bias_gradient = None if bias is None else torch.empty_like(bias)
        call("bias_gelu_backward", _TYPES[x.dtype], *x.shape, x, bias, gradient, x_gradient, bias_gradient)
        return x_gradient, bias_gradient


class _NativeGeluGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        rows, columns = x.shape[0], x.shape[1] // 2
        y = x.new_empty((rows, columns))
        call("gelu_gate_forward", _TYPES[x.dtype], rows, columns, x, y)
        ctx.save_for_backward(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        x_gradient = torch.empty_like(x)
        call("gelu_gate_backward", _TYPES[x.dtype], *gradient.shape, x, gradient, x_gradient)
        return x_gradient


class _NativeAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        layout: PackedLayout,
        scale: float,
        half_window: int | None,
        dropout: Dropout | None,
    ) -> Tensor:
        qkv = qkv.contiguous()
        tokens, _, heads, size = qkv.shape
        ctx.task = (
            _TYPES[qkv.dtype],
            tokens,
            len(layout.cumulative) - 1,
            layout.max_length,
            layout.cumulative,
            heads,
            size,
            scale,
            -1 if half_window is None else half_window,
        )
        ctx.dropout = dropout
        output = qkv.new_empty((tokens, heads, size))
        log_sums = qkv.new_empty((heads, tokens), dtype=torch.float32)
        call("attention_forward", *ctx.task, qkv, *_dropout(dropout, qkv), output, log_sums)
        ctx.save_for_backward(qkv, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        qkv, log_sums = ctx.saved_tensors
        gradient, qkv_gradient = gradient.contiguous(), torch.empty_like(qkv)
        dropout = _dropout(ctx.dropout, qkv)
        call("attention_backward", *ctx.task, qkv, *dropout, log_sums, gradient, qkv_gradient)
        return qkv_gradient, None, None, None, None


def _takes(x: Tensor, *parameters: Tensor | None) -> bool:
    return (
        x.dtype in _TYPES
        and x.device.type == "cpu"
        and all(p is None or p.dtype == torch.float32 for p in parameters)
        and available() is not None
    )


def _dropout(dropout: Dropout | None, x: Tensor) -> tuple[Tensor | None, int, float]:
    if dropout is None:
        return None, 0, 0.0
    assert dropout.keys.shape == x.shape[:1] and dropout.keys.dtype == torch.int64
    return dropout.keys.contiguous(), dropout.site, dropout.rate


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
