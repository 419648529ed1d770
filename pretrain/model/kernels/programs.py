"""The GPU's programs behind `pretrain.model.kernels.fused`, in Triton (it comes with torch's CUDA build).

Those of attention are in `pretrain.model.kernels.attending`.

Each reads and writes every tensor once. A program of a norm computes whole rows of H channels (BLOCK: the
next power of 2); backward programs take every `programs`-th row and leave partial sums for the gradients of
parameters, so that these add up in the same order at every call. Arithmetic is float32 whatever the tensors
are. Tensors in a tuple may be None, which is known when a program is compiled.

With TRITON_INTERPRET=1 they run on a CPU, which is how tests hold them against `plain`.
"""

import triton
import triton.language as tl


@triton.jit
def _splitmix64(x):
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _kept(key, site, columns, RATE: tl.constexpr):
    """Return which channels are kept by the hash of `pretrain.model.kernels.dropout`: keys by channels."""
    THRESHOLD: tl.constexpr = int(RATE * 4294967296.0)
    bits = _splitmix64(key.to(tl.uint64, bitcast=True) + site.to(tl.uint64) * 0xA0761D6478BD642F)
    x = columns.to(tl.uint32) * 0x9E3779B9 + bits.to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x85EBCA6B + (bits >> 32).to(tl.uint32)
    x = x ^ (x >> 13)
    x = x * 0xC2B2AE35
    x = x ^ (x >> 16)
    return x >= THRESHOLD


@triton.jit
def _dropped(values, keys, row, site, columns, RATE: tl.constexpr):
    return tl.where(_kept(tl.load(keys + row), site, columns, RATE), values / (1.0 - RATE), 0.0)


@triton.jit
def _read(pointer, offsets, inside):
    return tl.load(pointer + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _write(pointer, offsets, values, inside):
    tl.store(pointer + offsets, values.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def _gelu_slope(x):
    return 0.5 * (1.0 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327


@triton.jit
def norm_forward(
    x, addends, norm, dropout, outputs, width, RATE: tl.constexpr, BEHIND: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalise a row of x, to which bias and residual are added.

    addends: (bias, residual). norm: (weight, bias, eps). dropout: (keys, site), of x + bias or, with BEHIND,
    of the result. outputs: (the sum, its norm, the norm again in another type, statistics [rows, 2]).
    """
    bias, residual = addends
    weight, norm_bias, eps = norm
    keys, site = dropout
    added, normed, working, statistics = outputs
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    offsets = row * width + columns
    total = _read(x, offsets, inside)
    if bias is not None:
        total += _read(bias, columns, inside)
    if keys is not None and not BEHIND:
        total = _dropped(total, keys, row, site, columns, RATE)
    if residual is not None:
        total += _read(residual, offsets, inside)
    if added is not None:
        _write(added, offsets, total, inside)
    mean = tl.sum(total, 0) / width
    centred = tl.where(inside, total - mean, 0.0)
    deviation = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / width + eps)
    tl.store(statistics + 2 * row, mean)
    tl.store(statistics + 2 * row + 1, deviation)
    result = centred * deviation * _read(weight, columns, inside)
    if norm_bias is not None:
        result += _read(norm_bias, columns, inside)
    if keys is not None and BEHIND:
        result = _dropped(result, keys, row, site, columns, RATE)
    if normed is not None:
        _write(normed, offsets, result, inside)
    if working is not None:
        _write(working, offsets, result, inside)


@triton.jit
def norm_backward(
    saved,
    upstream,
    dropout,
    results,
    shape,
    POST: tl.constexpr,
    RATE: tl.constexpr,
    BEHIND: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Pull gradients through `norm_forward`.

    saved: (the sum, statistics, weight). upstream: of (the stream, which is the norm with POST, else the
    sum; the norm in its other type). results: (of the residual; of x, None if it is the same; sums
    float32[programs, 3, width], of the gradients by weight, norm's bias and, not with BEHIND, bias). shape:
    (rows, width, programs).
    """
    of_stream, of_working = upstream
    added, statistics, weight = saved
    keys, site = dropout
    of_residual, of_x, sums = results
    rows, width, programs = shape
    program = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    factor = _read(weight, columns, inside)
    of_weight = tl.zeros((BLOCK,), tl.float32)
    of_norm_bias = tl.zeros((BLOCK,), tl.float32)
    of_bias = tl.zeros((BLOCK,), tl.float32)
    for number in range(program, rows, programs):
        row = tl.zeros((), tl.int64) + number
        offsets = row * width + columns
        of_normed = tl.zeros((BLOCK,), tl.float32)
        if of_working is not None:
            of_normed += _read(of_working, offsets, inside)
        if POST and of_stream is not None:
            of_normed += _read(of_stream, offsets, inside)
        if keys is not None and BEHIND:
            of_normed = _dropped(of_normed, keys, row, site, columns, RATE)
        mean = tl.load(statistics + 2 * row)
        deviation = tl.load(statistics + 2 * row + 1)
        standard = tl.where(inside, (_read(added, offsets, inside) - mean) * deviation, 0.0)
        of_weight += of_normed * standard
        of_norm_bias += of_normed
        of_standard = of_normed * factor
        along = tl.sum(of_standard * standard, 0) / width
        of_mean = tl.sum(tl.where(inside, of_standard, 0.0), 0) / width
        of_sum = (of_standard - of_mean - standard * along) * deviation
        if of_stream is not None and not POST:
            of_sum += _read(of_stream, offsets, inside)
        _write(of_residual, offsets, of_sum, inside)
        if keys is not None and not BEHIND:
            of_sum = _dropped(of_sum, keys, row, site, columns, RATE)
        of_bias += of_sum
        if of_x is not None:
            _write(of_x, offsets, of_sum, inside)
    PARTS: tl.constexpr = 2 if BEHIND else 3
    offsets = program.to(tl.int64) * PARTS * width + columns
    tl.store(sums + offsets, of_weight, mask=inside)
    tl.store(sums + offsets + width, of_norm_bias, mask=inside)
    if not BEHIND:
        tl.store(sums + offsets + 2 * width, of_bias, mask=inside)


@triton.jit
def bias_gelu_forward(x, bias, output, width, BLOCK: tl.constexpr):
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    offsets = tl.program_id(0).to(tl.int64) * width + columns
    values = _read(x, offsets, inside)
    if bias is not None:
        values += _read(bias, columns, inside)
    _write(output, offsets, _gelu(values), inside)


@triton.jit(do_not_specialize=["rows"])
def bias_gelu_backward(gradient, x, bias, of_x, sums, rows, width, programs, BLOCK: tl.constexpr):
    """sums: float32[programs, width], of the gradient by the bias."""
    program = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    of_bias = tl.zeros((BLOCK,), tl.float32)
    added = tl.zeros((BLOCK,), tl.float32)
    if bias is not None:
        added = _read(bias, columns, inside)
    for number in range(program, rows, programs):
        offsets = (tl.zeros((), tl.int64) + number) * width + columns
        slope = _gelu_slope(_read(x, offsets, inside) + added)
        result = _read(gradient, offsets, inside) * slope
        of_bias += result
        _write(of_x, offsets, result, inside)
    if bias is not None:
        tl.store(sums + program.to(tl.int64) * width + columns, of_bias, mask=inside)


@triton.jit
def gelu_gate_forward(x, dropout, output, width, RATE: tl.constexpr, BLOCK: tl.constexpr):
    keys, site = dropout
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    inner = _read(x, 2 * row * width + columns, inside)
    result = _gelu(inner) * _read(x, (2 * row + 1) * width + columns, inside)
    if keys is not None:
        result = _dropped(result, keys, row, site, columns, RATE)
    _write(output, row * width + columns, result, inside)


@triton.jit
def gelu_gate_backward(gradient, x, dropout, of_x, width, RATE: tl.constexpr, BLOCK: tl.constexpr):
    keys, site = dropout
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    inner = _read(x, 2 * row * width + columns, inside)
    gate = _read(x, (2 * row + 1) * width + columns, inside)
    upstream = _read(gradient, row * width + columns, inside)
    if keys is not None:
        upstream = _dropped(upstream, keys, row, site, columns, RATE)
    _write(of_x, 2 * row * width + columns, upstream * gate * _gelu_slope(inner), inside)
    _write(of_x, (2 * row + 1) * width + columns, upstream * _gelu(inner), inside)


@triton.jit
def rotation(qkv, cos, sin, output, heads, size, SIGN: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr):
    """Rotate pairs (channel, channel + D/2) of a token's queries and keys, and copy its values.

    cos, sin: [T, D], whose halves are equal. BLOCK: heads, up to a power of 2; HALF: D/2, likewise.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    channels = tl.arange(0, HALF)
    half = size // 2
    number = tl.arange(0, BLOCK)
    inside = (number[:, None] < heads) & (channels[None, :] < half)
    first = ((token * 3 + part) * heads + number[:, None]) * size + channels[None, :]
    left = _read(qkv, first, inside)
    right = _read(qkv, first + half, inside)
    seen = channels < half
    turns = part < 2
    c = tl.where(turns, _read(cos, token * size + channels, seen), 1.0)[None, :]
    s = tl.where(turns, SIGN * _read(sin, token * size + channels, seen), 0.0)[None, :]
    _write(output, first, left * c - right * s, inside)
    _write(output, first + half, right * c + left * s, inside)


@triton.jit
def cross_entropy(
    logits, labels, losses, stride, width, IGNORED: tl.constexpr, GRADIENT: tl.constexpr, BLOCK: tl.constexpr
):
    """-log softmax(logits)[label] of a row, 0 for IGNORED; with GRADIENT that of logits is written over them.

    Columns from `width` to `stride` are filled up: they count for nothing, and get gradients of 0.
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    start = row * stride
    counts = label != IGNORED
    chosen = tl.load(logits + start + label, mask=counts, other=0.0).to(tl.float32)
    largest = tl.full((), float("-inf"), tl.float32)
    total = tl.zeros((), tl.float32)
    for first in range(0, width, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        values = tl.load(logits + start + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        top = tl.maximum(largest, tl.max(values, 0))
        total = total * tl.exp(largest - top) + tl.sum(tl.exp(values - top), 0)
        largest = top
    log_sum = largest + tl.log(total)
    tl.store(losses + row, tl.where(counts, log_sum - chosen, 0.0))
    if GRADIENT:
        tl.debug_barrier()  # every thread has read what is now written over
        for first in range(0, stride, BLOCK):
            columns = first + tl.arange(0, BLOCK)
            values = _read(logits, start + columns, columns < stride)
            gradient = tl.exp(values - log_sum) - tl.where(columns == label, 1.0, 0.0)
            gradient = tl.where(counts & (columns < width), gradient, 0.0)
            _write(logits, start + columns, gradient, columns < stride)
