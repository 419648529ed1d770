"""Select at random inside every sequence of a batch at once: exactly k tokens, or k spans without overlap.

Both give what `random.sample` for each sequence would give, in a few array operations for thousands of
sequences.
"""

import numpy as np

from augment.core.keys import bits_per_sequence, token_bits
from augment.core.ragged import offsets_of, segment_indices

_SORTED_AT_ONCE = 1 << 15


def round_half_even(values: np.ndarray) -> np.ndarray:
    """Round as Python's `round` does (2.5 -> 2, 3.5 -> 4): float64[...] -> int64[...]."""
    return np.rint(values).astype(np.int64)


def shuffled(
    keys: np.ndarray, counts: np.ndarray, stream: int = 0, last: np.ndarray | None = None
) -> np.ndarray:
    """Return the items of every sequence in random order: int64[T], indices into all T = counts.sum() items.

    last: bool[T], items that come after all others of their sequence. This is one sort of 64-bit numbers
    (sequence | 32 random bits | item), 3 ns an item (AVX-512), where an argsort of floats takes 60. Blocks of
    some 32,768 items fit 64 bits and the cache; the item breaks ties the same way in any batch.
    """
    offsets = offsets_of(counts)
    total = int(offsets[-1])
    bits = token_bits(keys, counts, stream)
    if last is not None:
        bits >>= np.uint32(1)
        bits |= last.astype(np.uint32) << np.uint32(31)
    order = np.empty(total, dtype=np.int64)
    row = 0
    while row < len(counts):
        stop = max(row + 1, int(np.searchsorted(offsets, offsets[row] + _SORTED_AT_ONCE, side="right")) - 1)
        stop = min(stop, row + _SORTED_AT_ONCE, len(counts))  # empty sequences need row bits too
        low, high = int(offsets[row]), int(offsets[stop])
        item_bits = max(1, (high - low - 1).bit_length())
        numbers = bits[low:high].astype(np.uint64)
        numbers |= np.repeat(np.arange(stop - row, dtype=np.uint64) << np.uint64(32), counts[row:stop])
        numbers <<= np.uint64(item_bits)
        numbers |= np.arange(high - low, dtype=np.uint64)
        numbers.sort()
        numbers &= np.uint64((1 << item_bits) - 1)
        np.add(numbers.view(np.int64), low, out=order[low:high])
        row = stop
    return order


def choose(
    keys: np.ndarray,
    lengths: np.ndarray,
    counts: np.ndarray,
    eligible: np.ndarray | None = None,
    stream: int = 0,
) -> np.ndarray:
    """Choose exactly counts[i] eligible tokens of sequence i, every set equally likely: rising int64."""
    order = shuffled(keys, lengths, stream, None if eligible is None else ~eligible)
    starts = offsets_of(lengths)[:-1]
    chosen = np.zeros(len(order), dtype=bool)
    chosen[order.take(segment_indices(starts, counts))] = True
    return np.flatnonzero(chosen)


def count_per_sequence(flags: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Count the flagged tokens of each sequence: bool[T], int64[N + 1] -> int64[N]."""
    sums = np.zeros(len(flags) + 1, dtype=np.int32)
    np.cumsum(flags, dtype=np.int32, out=sums[1:])
    return np.diff(sums.take(offsets)).astype(np.int64)


def draw_spans(
    keys: np.ndarray, sizes: np.ndarray, count: int, rate: float, room: np.ndarray, multiple: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `count` rising spans without overlap in each sequence: (starts, lengths), int64[N, count] both.

    A span has rate * size tokens, rounded down or up such that all together have count * rate * size, rounded
    down or up (systematic rounding). Where that is below one token a span, there are round(count * rate *
    size) spans of one token, at least `multiple`. Their number is a multiple of `multiple`, and shrinks to
    what `room` allows. Spans that are missing come first, with start -1 and length 0.
    """
    bits = bits_per_sequence(keys, count + 1)
    length = sizes * rate
    used = np.full(len(sizes), count, dtype=np.int64)
    short = length < 1
    if short.any():
        groups = round_half_even(length[short] * (count / multiple))
        used[short] = np.clip(groups, 1, count // multiple) * multiple
    used = np.minimum(used, room // multiple * multiple)
    length = np.clip(length, 1.0, np.maximum(room / np.maximum(used, 1), 1.0))

    phase = (bits[:, :1] >> np.uint64(11)).astype(np.float64) * 2.0**-53
    # Tokens in the spans before this one.
    before = np.arange(count + 1, dtype=np.float64)[None, :] * length[:, None]
    partial = bool((used < count).any())
    if partial:
        skipped = (count - used)[:, None]
        before -= skipped * length[:, None]
        np.maximum(before, 0.0, out=before)
    before += phase
    ends = np.minimum(before.astype(np.int64), room[:, None])
    lengths = np.diff(ends, axis=1)
    places = (sizes - ends[:, -1] + 1).astype(np.uint64)
    draws = bits[:, 1:] >> np.uint64(32)
    if partial:
        absent = np.arange(count)[None, :] < skipped
        draws[absent] = 0
    draws.sort(axis=1)
    starts = ((draws * places[:, None]) >> np.uint64(32)).view(np.int64)
    starts += ends[:, :-1]
    if partial:
        starts[absent] = -1
    return starts, lengths
