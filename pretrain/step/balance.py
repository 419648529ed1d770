"""Which rank encodes which sequences of a step, so that all have about equally many tokens.

The ranks wait for each other at every step, so the one with the most tokens sets the pace. Which sequences a
rank draws is decided by its lanes; which it encodes is decided here, from the lengths of all, which every
rank knows: all compute the same answer, and nothing more has to be agreed.

Ranks exchange sequences one for one, long against short, so each keeps its number of them where that
suffices, and gathers of vectors keep their shape. Few sequences move: with 32 a rank, one in twenty.
"""

from collections.abc import Sequence

import numpy as np

UNTIL = 1.02
"""Exchanges end where no rank has more than this share of the mean number of tokens."""
ABOVE = {"auto": 1.05, "on": UNTIL}
"""The share of the mean from which on sequences move: an exchange costs two collectives a step, which a few
percent of the encoder's time do not always earn."""

_CANDIDATES = 64  # sequences of the lighter rank that are tried against all of the heavier one
_ROUNDS = 32  # random lengths take 3 to 8; this bounds the time for lengths that nobody can balance
_NOTHING = (1 << 32) - 1  # the key of an empty place; that of a sequence is its length << 32 | its number


def initial_owners(counts: Sequence[int], roles: int = 1) -> np.ndarray:
    """Return which rank draws each sequence: int64[roles * N].

    Of the views [roles, N] of a global batch, numbered row by row, rank r draws the next counts[r] columns.

    >>> initial_owners([3, 2], roles=2)
    array([0, 0, 0, 1, 1, 0, 0, 0, 1, 1])
    """
    return np.tile(np.repeat(np.arange(len(counts)), counts), roles)


def imbalance(lengths: np.ndarray, owners: np.ndarray, ranks: int) -> float:
    """Return the tokens of the most loaded rank over their mean; 1 for no tokens. Arguments as `balance`."""
    loads = np.bincount(owners, lengths, ranks)
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def balance(
    lengths: np.ndarray, owners: np.ndarray, ranks: int, above: float = ABOVE["auto"], until: float = UNTIL
) -> np.ndarray:
    """Return which rank is to encode each sequence: int64[N].

    In every round the most loaded rank exchanges with the least loaded, the second with the second and so on:
    as many of its longest sequences for the other's shortest as fit into half the difference of their loads,
    then the one pair that comes nearest to what is left of it. Where that does not suffice (few sequences a
    rank, of which one is very long), a rank may also give a sequence for none.

    Args:
        lengths: int64[N], tokens of each sequence, below 2^31.
        owners: int64[N], the rank that has each.
        above: `owners` itself is returned where no rank has more than this many times the mean.
        until: where to end.

    >>> lengths = np.array([9, 8, 7, 2, 1, 3])
    >>> balance(lengths, owners=np.array([0, 0, 0, 1, 1, 1]), ranks=2)
    array([1, 0, 0, 1, 1, 1])
    """
    if imbalance(lengths, owners, ranks) <= above:
        return owners
    has = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=ranks)
    keys = np.full((ranks, counts.max()), _NOTHING)
    keys[np.arange(counts.max()) < counts[:, None]] = lengths[has] << 32 | has
    longest = int(lengths.max())  # some rank has it, whatever is exchanged
    most = max(until * float(lengths.sum()) / ranks, longest)
    keys = _exchanged(np.sort(keys, axis=1), most)
    if _loads(keys).max() > most:
        empty = np.full_like(keys, _NOTHING)
        keys = _exchanged(np.sort(np.concatenate([empty, keys], axis=1), axis=1), most)
    return _owners(keys)


def _loads(keys: np.ndarray) -> np.ndarray:
    """Return the tokens of each row: int64[W]."""
    return (keys >> 32).sum(1)


def _owners(keys: np.ndarray) -> np.ndarray:
    """Return the row that each sequence's key is in: int64[N]."""
    rows = np.repeat(np.arange(len(keys)), keys.shape[1])
    keys = keys.ravel()
    real = keys != _NOTHING
    owners = np.empty(np.count_nonzero(real), dtype=np.int64)
    owners[keys[real] & _NOTHING] = rows[real]
    return owners


def _exchanged(keys: np.ndarray, most: float) -> np.ndarray:
    """Return keys int64[W, m], each row rising, after exchanges that give no row more than `most` tokens."""
    loads = _loads(keys)
    for _ in range(_ROUNDS):
        order = np.argsort(loads, kind="stable")
        heavy = order[::-1][: len(order) // 2]
        heavy = heavy[loads[heavy] > most]
        light = order[: len(heavy)]
        rows, others = _exchange_one(*_exchange_extremes(keys[heavy], keys[light]))
        if np.array_equal(rows, keys[heavy]):
            break
        keys[heavy], keys[light] = rows, others
        loads[heavy], loads[light] = _loads(rows), _loads(others)
    return keys


def _excess(heavy: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Return the difference of loads of pairs of ranks: int64[K, 1]."""
    return (_loads(heavy) - _loads(light))[:, None]


def _exchange_extremes(heavy: np.ndarray, light: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exchange longest for shortest sequences while no more than half the difference of loads moves.

    heavy, light: keys int64[K, m] of pairs of ranks, each row rising; so are those returned.
    """
    longest = heavy[:, ::-1]
    gains = (longest >> 32) - (light >> 32)  # falling
    fits = (gains > 0) & (2 * np.cumsum(gains, axis=1) <= _excess(heavy, light))
    if not fits.any():
        return heavy, light
    kept, taken = np.where(fits, light, longest), np.where(fits, longest, light)
    return np.sort(kept, axis=1), np.sort(taken, axis=1)


def _exchange_one(heavy: np.ndarray, light: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exchange the one pair of sequences that makes loads most alike, the shortest of equally good ones.

    Arguments and result as `_exchange_extremes`; rows that no pair improves stay.
    """
    pairs, size = heavy.shape
    if not pairs:
        return heavy, light
    every = -(-size // _CANDIDATES)
    long, short, excess = heavy >> 32, light[:, ::every] >> 32, _excess(heavy, light)
    # One search for all pairs of ranks: each row is shifted into a range of its own.
    pair = np.arange(pairs)[:, None]
    span = long.max() + 1
    wanted = np.minimum(short + (excess + 1) // 2, span - 1)
    found = np.searchsorted((long + pair * span).ravel(), wanted + pair * span) - pair * size
    nearest = np.stack([np.minimum(found, size - 1), np.maximum(found - 1, 0)], axis=2)
    left = np.abs(excess[:, :, None] - 2 * (long[pair[:, :, None], nearest] - short[:, :, None]))
    left = left.reshape(pairs, -1)
    best = left.argmin(1)
    better = np.flatnonzero(left.min(1) < excess[:, 0])
    column, side = np.divmod(best[better], 2)
    gives, gets = nearest[better, column, side], column * every
    heavy, light = heavy.copy(), light.copy()
    heavy[better, gives], light[better, gets] = light[better, gets], heavy[better, gives]
    return np.sort(heavy, axis=1), np.sort(light, axis=1)
