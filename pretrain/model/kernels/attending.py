"""The GPU's programs of attention, in Triton: of short sequences, and of sequences of any length.

A program takes one head of one slot of `PackedLayout.slots`: a sequence's first token, its tokens (none in a
slot that is not used), and the first of the positions that the program computes. A sequence of at most 128
tokens is one tile, which stays in registers from scores to output; a longer one is cut into tiles
(FlashAttention-2, Dao 2023). Dropout is that of `pretrain.model.kernels.dropout`. Tensors are qkv
[T, 3, heads, SIZE], its gradient, output and upstream gradient [T, heads, SIZE], keys int64[T] or None;
products add up in float32, and softmax is float32.

SIZE: channels of a head; COLUMNS: that up to a power of 2 that products take. WINDOW: the largest distance
that is seen; -1: any. RATE: of dropout. BLOCK: positions of a program; STEP: how many it meets at a time.
"""

import triton
import triton.language as tl

from pretrain.model.kernels.programs import _kept, _read, _write


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
    """Attend within a sequence of at most BLOCK tokens; `first`: the slot of the first programs."""
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
    """Attend from BLOCK queries to their sequence.

    written: (output, logarithms of the softmax's sums, float32[T, heads]).
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
