"""The encoder layer's operations as fused Triton programs on a GPU: bfloat16, float16 or float32.

Each tensor is read and written once, and every operation is one launch, and one more where a backward adds up
gradients of parameters. Masks of dropout are computed again in the backward, from the keys, so nothing of
them is kept. The interface is described in `pretrain.model.kernels`; its modules `programs` and `attending`
have the programs. float64 goes to `pretrain.model.kernels.plain`, which they are held against.
"""

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.attention import BUCKETS, HALF, PackedLayout
from pretrain.model.kernels import plain
from pretrain.model.kernels.dropout import Dropout
from pretrain.model.kernels.plain import How, Inputs, Norm

PROGRAMS = (512, 2112)
"""Fewest and most programs of a backward that adds up rows; on any GPU the same, and so are the sums. The
most fill an H200: 252 us for 65,536 rows of 768, where 512 programs take 323."""
_ROWS = 32
"""Of a program, where the fewest and most allow it: partial sums are then a twentieth of what is read."""
_COLUMNS = 1024
_LARGEST_HEAD = 128
_NONE = Dropout(0.0, None, 0)  # type: ignore[arg-type]  # as programs take what is absent
_WARPS = {16: 1, 32: 2, 64: 4, 128: 8}
"""Of attention, by the most tokens of a bucket: the fastest on an H200."""
_STEP = 64
"""Keys (or, for their gradients, queries) that a program of long sequences takes at a time."""
_LONG_WARPS = 8
_TILES = {2: 5, 4: 6}
"""Bytes of a number -> tiles [most tokens, channels] that attention's backward shares, compiled for sm_90."""
_LONG_TILES = {2: 7}
"""The same of long sequences."""


@cache  # every forward pass asks
def available() -> bool:
    """Return whether Triton imports here."""
    try:
        from pretrain.model.kernels import programs  # noqa: F401
    except ImportError:
        return False
    return True


def residual_norm(
    x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, how: How
) -> tuple[Tensor, Tensor]:
    differentiable = torch.is_grad_enabled()  # of the caller: within `apply` it is off
    return _Norm.apply(x, bias, residual, norm.weight, norm.bias, norm.eps, how, differentiable)


def norm_dropout(x: Tensor, norm: Norm, dropout: Dropout | None) -> Tensor:
    how = How(dropout, x.dtype, post=True, behind=True)
    return _Norm.apply(x, None, None, norm.weight, norm.bias, norm.eps, how, False)[0]


def takes_attention(qkv: Tensor, layout: PackedLayout) -> bool:
    """Return whether `attention` of qkv [T, 3, heads, D] is by the program for short sequences.

    It is so when all sequences of the row have at most 128 tokens, heads have at most 128 channels, and
    shared memory holds a sequence's tiles.
    """
    return bool(layout.buckets) and _fits(qkv, layout.buckets[-1][0], _TILES)


def attends_by_slots(qkv: Tensor, layout: PackedLayout) -> bool:
    """Return whether `attention` of qkv [T, 3, heads, D] is by programs, of which one takes any length."""
    return takes_attention(qkv, layout) or (qkv.dtype in HALF and _fits(qkv, BUCKETS[-1], _LONG_TILES))


def attention(
    qkv: Tensor, layout: PackedLayout, scale: float, half_window: int | None, dropout: Dropout | None
) -> Tensor:
    """As `plain`'s, but filler attends to itself.

    It is `plain`'s for what no program takes: longer sequences in float32, heads over 128 channels.
    """
    how = _Attends(layout, scale, half_window, dropout or _NONE)
    if takes_attention(qkv, layout):
        return _Attention.apply(qkv, how)
    if attends_by_slots(qkv, layout):
        return _LongAttention.apply(qkv, how)
    return plain.attention(qkv, layout, scale, half_window, dropout)


@plain.with_gradients
def cross_entropy_sum(logits: Tensor, labels: Tensor, width: int) -> tuple[Tensor, Inputs, Inputs]:
    """As `plain`'s; logits are written over by their gradient if one is wanted."""
    made, (rows, stride), wanted = logits.contiguous(), logits.shape, logits.requires_grad
    losses = logits.new_empty(rows, dtype=torch.float32)
    constants = {"IGNORED": plain.IGNORED, "GRADIENT": wanted, "BLOCK": 2048, "warps": 8}
    _launch("cross_entropy", (rows,), made, labels, losses, stride, width, **constants)
    return losses.sum(), (logits,), (made if wanted else None,)


# ---- launches and derivatives ------------------------------------------------------------------------------


def _launch(name: str, grid: tuple[int, ...], *arguments: Any, warps: int = 4, **constants: Any) -> None:
    """Run the program of this name; without data (device "meta"), or with nothing to compute, do nothing."""
    first = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
    if first.device.type == "meta" or 0 in grid:
        return
    from pretrain.model.kernels import attending, programs

    program = getattr(attending if "attention" in name else programs, name)
    program[grid](*arguments, **constants, num_warps=warps)


def _partial_sums(x: Tensor, *shape: int) -> Tensor:
    """float32[programs, ...]: every program writes its own, and without rows the sum is zero."""
    make, (fewest, most), rows = x.new_empty if len(x) else x.new_zeros, PROGRAMS, max(len(x), 1)
    return make((min(max(rows // _ROWS, fewest), most, rows), *shape), dtype=torch.float32)


def _block(width: int) -> dict[str, int]:
    block = 1 << max(width - 1, 1).bit_length()
    return {"BLOCK": block, "warps": min(max(block // 256, 1), 16)}


class _Norm(torch.autograd.Function):
    """differentiable: whether a backward may follow that needs the sum."""

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
        differentiable: bool,
    ) -> tuple[Tensor, Tensor]:
        x, (rows, width) = x.contiguous(), x.shape
        residual = None if residual is None else residual.contiguous()
        like, drops = x if residual is None else residual, how.dropout or _NONE
        # the sum if it goes on, or is kept for a backward (x is the sum of itself alone); its norm in the
        # residual's type if that goes on, and in the working type if that is another
        added = torch.empty_like(like) if not how.behind and (differentiable or not how.post) else None
        normed = torch.empty_like(like) if how.post else None
        apart = not how.post or like.dtype != how.dtype
        working = torch.empty_like(like, dtype=how.dtype) if apart else None
        statistics = x.new_empty((rows, 2), dtype=torch.float32)  # means and deviations
        tensors = (bias, residual), (weight, norm_bias, eps), (drops.keys, drops.site)
        outputs = (added, normed, working, statistics)
        constants: dict[str, Any] = {"RATE": drops.rate, "BEHIND": how.behind, **_block(width)}
        _launch("norm_forward", (rows,), x, *tensors, outputs, width, **constants)
        ctx.save_for_backward(x if how.behind else added, statistics, weight)
        ctx.has = bias is not None, residual is not None, norm_bias is not None
        ctx.drops, ctx.how, ctx.dtype = drops, how, x.dtype
        ctx.set_materialize_grads(False)
        stream = normed if how.post else added
        assert stream is not None
        # two outputs, so that both gradients are added in the backward
        return stream, stream.view_as(stream) if working is None else working

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_stream: Tensor | None, of_working: Tensor | None) -> tuple[Any, ...]:
        added, statistics, weight = ctx.saved_tensors
        (rows, width), drops, how = added.shape, ctx.drops, ctx.how
        of_residual = torch.empty_like(added)
        apart = (drops.keys is not None and not how.behind) or added.dtype != ctx.dtype
        of_x = torch.empty_like(added, dtype=ctx.dtype) if apart else None
        sums = _partial_sums(added, 2 if how.behind else 3, width)
        upstream = tuple(None if g is None else g.contiguous() for g in (of_stream, of_working))
        saved, results = (added, statistics, weight), (of_residual, of_x, sums)
        shape = (rows, width, len(sums))
        constants: dict[str, Any] = {"POST": how.post, "RATE": drops.rate, "BEHIND": how.behind}
        arguments = (saved, upstream, (drops.keys, drops.site), results, shape)
        _launch("norm_backward", (min(len(sums), rows),), *arguments, **constants, **_block(width))
        of_weight, of_norm_bias, *of_bias = sums.sum(0)
        has_bias, has_residual, has_norm_bias = ctx.has
        return (
            of_residual if of_x is None else of_x,
            of_bias[0] if has_bias else None,
            of_residual if has_residual else None,
            of_weight,
            of_norm_bias if has_norm_bias else None,
            *(None, None, None),
        )


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
    def forward(ctx: Any, x: Tensor, dropout: Dropout | None = None) -> Tensor:
        x, width, drops = x.contiguous(), x.shape[1] // 2, dropout or _NONE
        output = x.new_empty((len(x), width))
        grid = (len(x), -(-width // _COLUMNS))
        arguments = (x, (drops.keys, drops.site), output, width)
        _launch("gelu_gate_forward", grid, *arguments, RATE=drops.rate, BLOCK=_COLUMNS)
        ctx.save_for_backward(x)
        ctx.drops = drops
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (x,), drops = ctx.saved_tensors, ctx.drops
        of_x, (rows, width) = torch.empty_like(x), gradient.shape
        grid = (rows, -(-width // _COLUMNS))
        arguments = (gradient.contiguous(), x, (drops.keys, drops.site), of_x, width)
        _launch("gelu_gate_backward", grid, *arguments, RATE=drops.rate, BLOCK=_COLUMNS)
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


bias_gelu, gelu_gate, rotate = _BiasGelu.apply, _GeluGate.apply, _Rotate.apply


def _rotation(qkv: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    qkv = qkv.contiguous()
    tokens, _, heads, size = qkv.shape
    output = torch.empty_like(qkv)
    blocks = {"HALF": _block(size // 2)["BLOCK"], "BLOCK": _block(heads)["BLOCK"]}
    _launch("rotation", (tokens, 3), qkv, cos, sin, output, heads, size, SIGN=sign, **blocks)
    return output


class _Attends(NamedTuple):
    """What attention does: as the arguments of `attention`."""

    layout: PackedLayout
    scale: float
    half_window: int | None
    drops: Dropout


class _Attention(torch.autograd.Function):
    """Keeps nothing but its input: probabilities are computed again in the backward."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, how: _Attends) -> Tensor:
        qkv, ctx.how = qkv.contiguous(), how
        ctx.save_for_backward(qkv)
        output = torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format)
        return _attend("attention_forward", how, (qkv,), output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        (qkv,) = ctx.saved_tensors
        read = (gradient.contiguous(), qkv)
        return _attend("attention_backward", ctx.how, read, torch.empty_like(qkv)), None


class _LongAttention(torch.autograd.Function):
    """FlashAttention-2 (Dao 2023): also keeps its output, and the softmax's sums."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, how: _Attends) -> Tensor:
        qkv, ctx.how = qkv.contiguous(), how
        output = torch.empty_like(qkv[:, 0], memory_format=torch.contiguous_format)
        log_sums = output.new_empty(output.shape[:2], dtype=torch.float32)
        _attend_long("long_attention_forward", how, qkv, (output, log_sums))
        ctx.save_for_backward(qkv, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        qkv, output, log_sums = ctx.saved_tensors
        of_qkv = torch.empty_like(qkv)
        read = (gradient.contiguous(), output, log_sums, torch.empty_like(log_sums))
        _attend_long("long_attention_of_queries", ctx.how, qkv, read, of_qkv)
        _attend_long("long_attention_of_keys", ctx.how, qkv, read, of_qkv)
        return of_qkv, None


def _attend_long(name: str, how: _Attends, qkv: Tensor, *more: Any) -> None:
    (heads, size), drops = qkv.shape[-2:], how.drops
    grid = (len(how.layout.slots) * heads,)
    arguments = (qkv, how.layout.slots, drops.keys, *more, heads, how.scale, drops.site)
    window = -1 if how.half_window is None else how.half_window
    constants = {"SIZE": size, "WINDOW": window, "RATE": drops.rate, "COLUMNS": _columns(size)}
    _launch(name, grid, *arguments, **constants, BLOCK=BUCKETS[-1], STEP=_STEP, warps=_LONG_WARPS)


def _attend(name: str, how: _Attends, read: tuple[Tensor, ...], written: Tensor) -> Tensor:
    first, (heads, size), drops = 0, written.shape[-2:], how.drops
    constants = {"SIZE": size, "RATE": drops.rate, "COLUMNS": _columns(size)}
    for most, count in how.layout.buckets:
        # ModernBERT's window leaves out something of the longest ones only
        window = -1 if how.half_window is None or most <= how.half_window + 1 else how.half_window
        arguments = (*read, how.layout.slots, drops.keys, written, first, heads, how.scale, drops.site)
        constants |= {"WINDOW": window, "BLOCK": most}
        _launch(name, (count * heads,), *arguments, **constants, warps=_WARPS[most])
        first += count
    return written


def _fits(qkv: Tensor, tokens: int, tiles: dict[int, int]) -> bool:
    """Return whether a program's tiles of `tokens` tokens fit into shared memory."""
    size, columns = qkv.element_size(), _columns(qkv.shape[-1])
    if qkv.dtype == torch.float64 or columns > _LARGEST_HEAD:
        return False
    return shared_by(tiles, size, tokens, columns) <= _shared_memory(qkv.device)


def shared_by(tiles: dict[int, int], size: int, tokens: int, columns: int) -> int:
    """Return the most bytes that a program with tiles of numbers of `size` bytes shares."""
    return tiles[size] * size * tokens * max(columns, tokens // 2)


def _columns(size: int) -> int:
    """Return a head's size up to a power of 2 that products take."""
    return max(_block(size)["BLOCK"], 16)


@cache
def _shared_memory(device: torch.device) -> float:
    """Return the bytes that a program of attention may share; none before NVIDIA's Ampere generation."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return float("inf")  # without data, or by Triton's interpreter
    if torch.cuda.get_device_capability(device) < (8, 0):
        return 0
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
