"""The GPU's programs of attention, in Triton: of short sequences, and of sequences of any length.

A program takes one head of one slot of `PackedLayout.slots`: a sequence's first token, its tokens (none in a
slot that is not used), and the first of the positions that the program computes. A sequence of at most 128
tokens is one tile, which stays in registers from scores to output; a longer one is cut into tiles
(FlashAttention-2, Dao 2023). Dropout is that of `pretrain.model.kernels.dropout`. Tensors are qkv
[T, 3, heads, SIZE], its gradient, output and upstream gradient [T, heads, SIZE], keys int64[T] or None;
products add up in float32, and softmax is float32.

sequence: (heads, the program's head, the sequence's first token, its tokens); rows, columns: positions in it.
SIZE: channels of a head. WINDOW: the largest distance that is seen; -1: any. RATE: of dropout. BLOCK:
positions of a program; STEP: how many it meets at a time.
"""

import triton
import triton.language as tl

from pretrain.model.kernels.programs import _kept


@triton.jit
def _slot(slots, first, heads, BLOCK: tl.constexpr):
    """Return a program's sequence, and its rows of that."""
    slot = slots + 3 * (first + tl.program_id(0) // heads)
    rows = tl.load(slot + 2) + tl.arange(0, BLOCK)
    return (heads, tl.program_id(0) % heads, tl.load(slot).to(tl.int64), tl.load(slot + 1)), rows


@triton.jit
def _places(tensor, part, PARTS: tl.constexpr, sequence, rows, SIZE: tl.constexpr):
    """Return places in [T, PARTS, heads, SIZE] of one part and head [rows, channels], and which there are.

    The channels go up to a power of 2 that products take.
    """
    heads, head, begin, length = sequence
    COLUMNS: tl.constexpr = max(triton.next_power_of_2(SIZE), 16)
    columns = tl.arange(0, COLUMNS)
    offsets = ((begin + rows) * PARTS * heads + head)[:, None] * SIZE + columns[None, :]
    return tensor + part * heads * SIZE + offsets, (rows < length)[:, None] & (columns < SIZE)[None, :]


@triton.jit
def _tile(tensor, part, PARTS: tl.constexpr, sequence, rows, SIZE: tl.constexpr):
    places, inside = _places(tensor, part, PARTS, sequence, rows, SIZE)
    return tl.load(places, mask=inside, other=0.0)


@triton.jit
def _put(values, tensor, part, PARTS: tl.constexpr, sequence, rows, SIZE: tl.constexpr):
    places, inside = _places(tensor, part, PARTS, sequence, rows, SIZE)
    tl.store(places, values.to(tensor.dtype.element_ty), mask=inside)


@triton.jit
def _numbers(sequence, rows):
    """Return offsets into [T, heads] of a head's rows, and which there are."""
    heads, head, begin, length = sequence
    return (begin + rows) * heads + head, rows < length


@triton.jit
def _scores(q, k, sequence, rows, columns, scale, WINDOW: tl.constexpr):
    """Return scores [rows, columns] in float32; what is not seen gets -1e30.

    That is finite: rows behind the sequence may see nothing, and must not become NaN.
    """
    seen = (columns < sequence[3])[None, :]
    if WINDOW >= 0:
        seen = seen & (tl.abs(rows[:, None] - columns[None, :]) <= WINDOW)
    return tl.where(seen, tl.dot(q, tl.trans(k), input_precision="tf32x3") * scale, -1e30)


@triton.jit
def _kept_pairs(keys, site, sequence, rows, columns, RATE: tl.constexpr):
    """Return which probabilities are kept: query rows by key columns."""
    _, head, begin, length = sequence
    key = tl.load(keys + begin + rows, mask=rows < length, other=0)
    return _kept(key[:, None], site, (head * 65536 + columns)[None, :], RATE)


@triton.jit
def _gradients(exact, v, upstream, along, keys, site, sequence, rows, columns, scale, RATE: tl.constexpr):
    """Return the probabilities as used [queries, keys], and the gradient by scores, in the type of v.

    exact: the probabilities before dropout. along: of the queries, upstream * output summed; None where all
    keys of theirs are at hand, which give the same.
    """
    used = exact
    of_exact = tl.dot(upstream, tl.trans(v), input_precision="tf32x3")
    if keys is not None:
        KEPT: tl.constexpr = 1.0 / (1.0 - RATE)
        kept = _kept_pairs(keys, site, sequence, rows, columns, RATE)
        used = tl.where(kept, exact * KEPT, 0.0)
        of_exact = tl.where(kept, of_exact * KEPT, 0.0)
    if along is None:
        along = tl.sum(exact * of_exact, 1)
    return used.to(v.dtype), (exact * (of_exact - along[:, None]) * scale).to(v.dtype)


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
):
    """Attend within a sequence of at most BLOCK tokens; `first`: the slot of the first programs."""
    sequence, rows = _slot(slots, first, heads, BLOCK)
    q = _tile(qkv, 0, 3, sequence, rows, SIZE)
    k = _tile(qkv, 1, 3, sequence, rows, SIZE)
    v = _tile(qkv, 2, 3, sequence, rows, SIZE)
    scores = _scores(q, k, sequence, rows, rows, scale, WINDOW)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    sums = tl.sum(weights, 1)
    if keys is not None:
        weights = tl.where(_kept_pairs(keys, site, sequence, rows, rows, RATE), weights, 0.0)
    result = tl.dot(weights.to(v.dtype), v, input_precision="tf32x3") / (sums * (1.0 - RATE))[:, None]
    _put(result, output, 0, 1, sequence, rows, SIZE)


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
):
    """Pull the gradient through `attention_forward`, whose probabilities are computed again."""
    sequence, rows = _slot(slots, first, heads, BLOCK)
    upstream = _tile(gradient, 0, 1, sequence, rows, SIZE)
    q = _tile(qkv, 0, 3, sequence, rows, SIZE)
    k = _tile(qkv, 1, 3, sequence, rows, SIZE)
    v = _tile(qkv, 2, 3, sequence, rows, SIZE)
    scores = _scores(q, k, sequence, rows, rows, scale, WINDOW)
    weights = tl.exp(scores - tl.max(scores, 1)[:, None])
    exact = weights * (1.0 / tl.sum(weights, 1))[:, None]
    used, of_scores = _gradients(exact, v, upstream, None, keys, site, sequence, rows, rows, scale, RATE)
    # rows behind the sequence add nothing below: their queries and upstream gradients are 0
    of_v = tl.dot(tl.trans(used), upstream, input_precision="tf32x3")
    _put(of_v, of_qkv, 2, 3, sequence, rows, SIZE)
    _put(tl.dot(of_scores, k, input_precision="tf32x3"), of_qkv, 0, 3, sequence, rows, SIZE)
    of_k = tl.dot(tl.trans(of_scores), q, input_precision="tf32x3")
    _put(of_k, of_qkv, 1, 3, sequence, rows, SIZE)


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
):
    """Attend from BLOCK queries to their sequence.

    written: (output, logarithms of the softmax's sums, float32[T, heads]).
    """
    output, log_sums = written
    sequence, rows = _slot(slots, 0, heads, BLOCK)
    q = _tile(qkv, 0, 3, sequence, rows, SIZE)
    largest = tl.full((BLOCK,), -1e30, tl.float32)
    sums = tl.zeros((BLOCK,), tl.float32)
    result = tl.zeros(q.shape, tl.float32)
    first, last = _span(tl.min(rows, 0), sequence[3], BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        columns = start + tl.arange(0, STEP)
        k = _tile(qkv, 1, 3, sequence, columns, SIZE)
        v = _tile(qkv, 2, 3, sequence, columns, SIZE)
        scores = _scores(q, k, sequence, rows, columns, scale, WINDOW)
        top = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - top[:, None])
        shrunk = tl.exp(largest - top)
        sums = sums * shrunk + tl.sum(weights, 1)
        if keys is not None:
            weights = tl.where(_kept_pairs(keys, site, sequence, rows, columns, RATE), weights, 0.0)
        result = result * shrunk[:, None] + tl.dot(weights.to(v.dtype), v)
        largest = top
    _put(result / (sums * (1.0 - RATE))[:, None], output, 0, 1, sequence, rows, SIZE)
    numbers, inside = _numbers(sequence, rows)
    tl.store(log_sums + numbers, largest + tl.log(sums), mask=inside)


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
):
    """Pull the gradient to BLOCK queries.

    read: (gradient, output, log sums, and what is written here: gradient * output summed, float32[T, heads]).
    """
    gradient, output, log_sums, along = read
    sequence, rows = _slot(slots, 0, heads, BLOCK)
    upstream = _tile(gradient, 0, 1, sequence, rows, SIZE)
    attended = _tile(output, 0, 1, sequence, rows, SIZE)
    product = tl.sum(upstream.to(tl.float32) * attended.to(tl.float32), 1)
    numbers, inside = _numbers(sequence, rows)
    tl.store(along + numbers, product, mask=inside)
    sums = tl.load(log_sums + numbers, mask=inside, other=0.0)
    q = _tile(qkv, 0, 3, sequence, rows, SIZE)
    result = tl.zeros(q.shape, tl.float32)
    first, last = _span(tl.min(rows, 0), sequence[3], BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        columns = start + tl.arange(0, STEP)
        k = _tile(qkv, 1, 3, sequence, columns, SIZE)
        v = _tile(qkv, 2, 3, sequence, columns, SIZE)
        exact = tl.exp(_scores(q, k, sequence, rows, columns, scale, WINDOW) - sums[:, None])
        _, of_scores = _gradients(
            exact, v, upstream, product, keys, site, sequence, rows, columns, scale, RATE
        )
        result += tl.dot(of_scores, k)
    _put(result, of_qkv, 0, 3, sequence, rows, SIZE)


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
):
    """Pull the gradient to BLOCK keys and their values; read: as `long_attention_of_queries` leaves it."""
    gradient, _, log_sums, along = read
    sequence, columns = _slot(slots, 0, heads, BLOCK)
    k = _tile(qkv, 1, 3, sequence, columns, SIZE)
    v = _tile(qkv, 2, 3, sequence, columns, SIZE)
    of_k = tl.zeros(k.shape, tl.float32)
    of_v = tl.zeros(k.shape, tl.float32)
    first, last = _span(tl.min(columns, 0), sequence[3], BLOCK, STEP, WINDOW)
    for start in range(first, last, STEP):
        rows = start + tl.arange(0, STEP)
        upstream = _tile(gradient, 0, 1, sequence, rows, SIZE)
        q = _tile(qkv, 0, 3, sequence, rows, SIZE)
        # without a query nothing is added, whatever its statistics are: q and its gradient are 0
        numbers, inside = _numbers(sequence, rows)
        sums = tl.load(log_sums + numbers, mask=inside, other=0.0)
        product = tl.load(along + numbers, mask=inside, other=0.0)
        exact = tl.exp(_scores(q, k, sequence, rows, columns, scale, WINDOW) - sums[:, None])
        used, of_scores = _gradients(
            exact, v, upstream, product, keys, site, sequence, rows, columns, scale, RATE
        )
        of_v += tl.dot(tl.trans(used), upstream)
        of_k += tl.dot(tl.trans(of_scores), q)
    _put(of_k, of_qkv, 1, 3, sequence, columns, SIZE)
    _put(of_v, of_qkv, 2, 3, sequence, columns, SIZE)
