"""The GPU's programs behind `pretrain.model.kernels.fused`, in Triton (it comes with torch's CUDA build).

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
def _standardised_gradient(gradient, standard, deviation, width, inside):
    """Pull the gradient by standardised values through the standardisation of a row."""
    along = tl.sum(gradient * standard, 0) / width
    mean = tl.sum(tl.where(inside, gradient, 0.0), 0) / width
    return (gradient - mean - standard * along) * deviation


@triton.jit
def norm_forward(
    x, before, norm, dropout, outputs, width, RATE: tl.constexpr, BEHIND: tl.constexpr, BLOCK: tl.constexpr
):
    """Normalise a row of x, to which bias and residual are added.

    before: (bias, residual). norm: (weight, bias, eps). dropout: (keys, site), of x + bias or, with BEHIND,
    of the result. outputs: (the sum, its norm, the norm again in another type, statistics [rows, 2]).
    """
    bias, residual = before
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
    sum; the norm in its other type). results: (of the residual; of x, None where it is the same; sums
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
        of_sum = _standardised_gradient(of_normed * factor, standard, deviation, width, inside)
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
def _slot(slots, first, heads, BLOCK: tl.constexpr):
    """Return a program's head, its sequence's first token and length, and its rows of the sequence."""
    slot = slots + 3 * (first + tl.program_id(0) // heads)
    rows = tl.load(slot + 2) + tl.arange(0, BLOCK)
    return tl.program_id(0) % heads, tl.load(slot).to(tl.int64), tl.load(slot + 1), rows


@triton.jit
def _places(
    tokens, inside, part, PARTS: tl.constexpr, heads, head, SIZE: tl.constexpr, COLUMNS: tl.constexpr
):
    """Return offsets into [T, PARTS, heads, SIZE] of one part and head [tokens, COLUMNS], and which are."""
    columns = tl.arange(0, COLUMNS)
    offsets = ((tokens * PARTS + part) * heads + head)[:, None] * SIZE + columns[None, :]
    return offsets, inside[:, None] & (columns < SIZE)[None, :]


@triton.jit
def _scores(q, k, rows, columns, length, scale, WINDOW: tl.constexpr):
    """Return scores [rows, columns] of positions in a sequence, in float32; what is not seen gets -1e30.

    That is finite: rows behind the sequence may see nothing, and must not become NaN.
    """
    seen = (columns < length)[None, :]
    if WINDOW >= 0:
        seen = seen & (tl.abs(rows[:, None] - columns[None, :]) <= WINDOW)
    return tl.where(seen, tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale, -1e30)


@triton.jit
def _kept_pairs(keys, begin, rows, columns, length, head, site, RATE: tl.constexpr):
    """Return which probabilities of a sequence's head are kept: query rows by key columns."""
    key = tl.load(keys + begin + rows, mask=rows < length, other=0)
    return _kept(key[:, None], site, (head * 65536 + columns)[None, :], RATE)


@triton.jit(do_not_specialize=["first", "site"])
def attention_forward(
    qkv,
    slots,
    keys,
    output,
    first,
    heads,
    scale,
    site,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RATE: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attend within a sequence of at most BLOCK tokens, for one head of SIZE channels.

    Program p takes slot `first + p // heads` of `slots` and head `p % heads`; a slot is a sequence's first
    token, how many it has (none in a slot that is not used), and 0. WINDOW: the largest distance that is
    seen; -1: any. COLUMNS: SIZE, up to a power of 2 that products take.
    """
    head, begin, length, rows = _slot(slots, first, heads, BLOCK)
    tokens, inside = begin + rows, rows < length
    places, inner = _places(tokens, inside, 0, 3, heads, head, SIZE, COLUMNS)
    q = tl.load(qkv + places, mask=inner, other=0.0)
    k = tl.load(qkv + places + heads * SIZE, mask=inner, other=0.0)
    v = tl.load(qkv + places + 2 * heads * SIZE, mask=inner, other=0.0)
    scores = _scores(q, k, rows, rows, length, scale, WINDOW)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    sums = tl.sum(weights, 1)
    if keys is not None:
        kept = _kept_pairs(keys, begin, rows, rows, length, head, site, RATE)
        weights = tl.where(kept, weights, 0.0)
    result = tl.dot(weights.to(v.dtype), v, input_precision="tf32x3") / (sums * (1.0 - RATE))[:, None]
    places, inner = _places(tokens, inside, 0, 1, heads, head, SIZE, COLUMNS)
    _write(output, places, result, inner)


@triton.jit(do_not_specialize=["first", "site"])
def attention_backward(
    gradient,
    qkv,
    slots,
    keys,
    of_qkv,
    first,
    heads,
    scale,
    site,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RATE: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pull the gradient through `attention_forward`, whose probabilities are computed again."""
    head, begin, length, rows = _slot(slots, first, heads, BLOCK)
    tokens, inside = begin + rows, rows < length
    places, inner = _places(tokens, inside, 0, 1, heads, head, SIZE, COLUMNS)
    upstream = tl.load(gradient + places, mask=inner, other=0.0)
    places, inner = _places(tokens, inside, 0, 3, heads, head, SIZE, COLUMNS)
    q = tl.load(qkv + places, mask=inner, other=0.0)
    k = tl.load(qkv + places + heads * SIZE, mask=inner, other=0.0)
    v = tl.load(qkv + places + 2 * heads * SIZE, mask=inner, other=0.0)
    scores = _scores(q, k, rows, rows, length, scale, WINDOW)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    exact = weights * (1.0 / tl.sum(weights, 1))[:, None]
    used = exact
    of_exact = tl.dot(upstream, tl.trans(v), input_precision="tf32x3")
    if keys is not None:
        KEPT: tl.constexpr = 1.0 / (1.0 - RATE)
        kept = _kept_pairs(keys, begin, rows, rows, length, head, site, RATE)
        used = tl.where(kept, exact * KEPT, 0.0)
        of_exact = tl.where(kept, of_exact * KEPT, 0.0)
    # rows behind the sequence add nothing below: their queries and upstream gradients are 0
    of_v = tl.dot(tl.trans(used.to(v.dtype)), upstream, input_precision="tf32x3")
    _write(of_qkv, places + 2 * heads * SIZE, of_v, inner)
    of_scores = exact * (of_exact - tl.sum(exact * of_exact, 1)[:, None]) * scale
    of_scores = of_scores.to(q.dtype)
    _write(of_qkv, places, tl.dot(of_scores, k, input_precision="tf32x3"), inner)
    of_k = tl.dot(tl.trans(of_scores), q, input_precision="tf32x3")
    _write(of_qkv, places + heads * SIZE, of_k, inner)


@triton.jit
def _span(rows_first, length, ROWS: tl.constexpr, STEP: tl.constexpr, WINDOW: tl.constexpr):
    """Return where positions begin and end that rows of a tile see, or are seen by; in steps."""
    if WINDOW < 0:
        return 0, length
    begin = tl.maximum(rows_first - WINDOW, 0) // STEP * STEP
    return begin, tl.minimum(length, rows_first + ROWS + WINDOW)


@triton.jit(do_not_specialize=["site"])
def long_attention_forward(
    qkv,
    slots,
    keys,
    written,
    heads,
    scale,
    site,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RATE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Attend from BLOCK queries to their sequence, STEP keys at a time (Dao 2023, "FlashAttention-2").

    A slot is a sequence's first token, how many it has, and the position of the first query. written:
    (output, logarithms of the softmax's sums, float32[T, heads]).
    """
    output, log_sums = written
    head, begin, length, rows = _slot(slots, 0, heads, BLOCK)
    inside = rows < length
    places, inner = _places(begin + rows, inside, 0, 3, heads, head, SIZE, COLUMNS)
    q = tl.load(qkv + places, mask=inner, other=0.0)
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    result = tl.zeros((BLOCK, COLUMNS), tl.float32)
    first, last = _span(tl.min(rows, 0), length, BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        columns = start + tl.arange(0, STEP)
        of_keys, seen = _places(begin + columns, columns < length, 1, 3, heads, head, SIZE, COLUMNS)
        k = tl.load(qkv + of_keys, mask=seen, other=0.0)
        v = tl.load(qkv + of_keys + heads * SIZE, mask=seen, other=0.0)
        scores = _scores(q, k, rows, columns, length, scale, WINDOW)
        top = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - top[:, None])
        shrunk = tl.exp(largest - top)
        sums = sums * shrunk + tl.sum(weights, 1)
        if keys is not None:
            kept = _kept_pairs(keys, begin, rows, columns, length, head, site, RATE)
            weights = tl.where(kept, weights, 0.0)
        result = result * shrunk[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = top
    places, inner = _places(begin + rows, inside, 0, 1, heads, head, SIZE, COLUMNS)
    _write(output, places, result / (sums * (1.0 - RATE))[:, None], inner)
    tl.store(log_sums + (begin + rows) * heads + head, largest + tl.log(sums), mask=inside)


@triton.jit
def _pair_gradients(tensors, statistics, kept_by, where, scale, WINDOW: tl.constexpr, RATE: tl.constexpr):
    """Return the probabilities as used [queries, keys], and the gradient by scores.

    tensors: (q, k, v, upstream). statistics: of the queries, (log sums, upstream * output summed). kept_by:
    (keys, site, head). where: (first token, length, queries' positions, keys' positions).
    """
    q, k, v, upstream = tensors
    log_sums, along = statistics
    keys, site, head = kept_by
    begin, length, rows, columns = where
    exact = tl.exp(_scores(q, k, rows, columns, length, scale, WINDOW) - log_sums[:, None])
    used = exact
    of_exact = tl.dot(upstream, tl.trans(v))
    if keys is not None:
        KEPT: tl.constexpr = 1.0 / (1.0 - RATE)
        kept = _kept_pairs(keys, begin, rows, columns, length, head, site, RATE)
        used = tl.where(kept, exact * KEPT, 0.0)
        of_exact = tl.where(kept, of_exact * KEPT, 0.0)
    return used.to(q.dtype), (exact * (of_exact - along[:, None]) * scale).to(q.dtype)


@triton.jit(do_not_specialize=["site"])
def long_attention_of_queries(
    qkv,
    slots,
    keys,
    read,
    of_qkv,
    heads,
    scale,
    site,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RATE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pull the gradient to BLOCK queries.

    read: (gradient, output, log sums, and what is written here: gradient * output summed, float32[T, heads]).
    """
    gradient, output, log_sums, along = read
    head, begin, length, rows = _slot(slots, 0, heads, BLOCK)
    inside, tokens = rows < length, begin + rows
    places, inner = _places(tokens, inside, 0, 1, heads, head, SIZE, COLUMNS)
    upstream = tl.load(gradient + places, mask=inner, other=0.0)
    product = tl.sum(upstream.to(tl.float32) * _read(output, places, inner), 1)
    tl.store(along + tokens * heads + head, product, mask=inside)
    statistics = tl.load(log_sums + tokens * heads + head, mask=inside, other=0.0), product
    places, inner = _places(tokens, inside, 0, 3, heads, head, SIZE, COLUMNS)
    q = tl.load(qkv + places, mask=inner, other=0.0)
    result = tl.zeros((BLOCK, COLUMNS), tl.float32)
    first, last = _span(tl.min(rows, 0), length, BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        columns = start + tl.arange(0, STEP)
        of_keys, seen = _places(begin + columns, columns < length, 1, 3, heads, head, SIZE, COLUMNS)
        k = tl.load(qkv + of_keys, mask=seen, other=0.0)
        v = tl.load(qkv + of_keys + heads * SIZE, mask=seen, other=0.0)
        where = begin, length, rows, columns
        _, of_scores = _pair_gradients(
            (q, k, v, upstream), statistics, (keys, site, head), where, scale, WINDOW, RATE
        )
        result += tl.dot(of_scores, k)
    _write(of_qkv, places, result, inner)


@triton.jit(do_not_specialize=["site"])
def long_attention_of_keys(
    qkv,
    slots,
    keys,
    read,
    of_qkv,
    heads,
    scale,
    site,
    SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    RATE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEP: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Pull the gradient to BLOCK keys and their values; read: as `long_attention_of_queries` leaves it."""
    gradient, _, log_sums, along = read
    head, begin, length, columns = _slot(slots, 0, heads, BLOCK)
    places, inner = _places(begin + columns, columns < length, 1, 3, heads, head, SIZE, COLUMNS)
    k = tl.load(qkv + places, mask=inner, other=0.0)
    v = tl.load(qkv + places + heads * SIZE, mask=inner, other=0.0)
    of_k = tl.zeros((BLOCK, COLUMNS), tl.float32)
    of_v = tl.zeros((BLOCK, COLUMNS), tl.float32)
    first, last = _span(tl.min(columns, 0), length, BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        rows = start + tl.arange(0, STEP)
        inside, tokens = rows < length, begin + rows
        of_rows, seen = _places(tokens, inside, 0, 1, heads, head, SIZE, COLUMNS)
        upstream = tl.load(gradient + of_rows, mask=seen, other=0.0)
        of_rows, seen = _places(tokens, inside, 0, 3, heads, head, SIZE, COLUMNS)
        q = tl.load(qkv + of_rows, mask=seen, other=0.0)
        # without a query nothing is added, whatever its statistics are: q and its gradient are 0
        sums = tl.load(log_sums + tokens * heads + head, mask=inside, other=0.0)
        product = tl.load(along + tokens * heads + head, mask=inside, other=0.0)
        where = begin, length, rows, columns
        used, of_scores = _pair_gradients(
            (q, k, v, upstream), (sums, product), (keys, site, head), where, scale, WINDOW, RATE
        )
        of_v += tl.dot(tl.trans(used), upstream)
        of_k += tl.dot(tl.trans(of_scores), q)
    _write(of_qkv, places, of_k, inner)
    _write(of_qkv, places + heads * SIZE, of_v, inner)


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
