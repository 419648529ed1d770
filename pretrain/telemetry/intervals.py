"""Intervals of a difference between two rows of a sweep, over seeds and over the pairs of a benchmark.

Two things are random in a difference: the seeds of the runs, and which sentence pairs the benchmark happens
to hold. All runs are scored on the same pairs, so the two cross: another draw of pairs moves all seeds
together. The error over seeds is Student's t, that over pairs a bootstrap of Spearman's correlation, and the
interval is of their sum. A bootstrap over seeds would be too narrow: of 95% intervals over 5 seeds that
resample them, 83% hold the truth, of t's 95% (docs/evaluation.md).
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
SMALLEST = 0.005
"""A smaller difference is none: tables print two decimals."""
RESAMPLES = 1000
"""Draws of the pairs."""
_QUANTILES = 400  # of Student's t, each combined with each draw of the pairs
_AT_ONCE = 200  # draws whose ranks are held at a time
_DRAWN_AT_ONCE = 1 << 22  # counts of examples that are held at a time
_ROUNDING = 1e-24  # squares of equal numbers less their mean, beside the squares of the numbers


@dataclass(frozen=True)
class Interval:
    """A difference, and the interval of `LEVEL` around it."""

    mean: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the difference can be told from none.

        Its interval does not hold 0, and it is more than the rounding of figures of one encoder by two
        kernels.
        """
        return abs(self.mean) >= SMALLEST and not self.low <= 0 <= self.high

    def __str__(self) -> str:
        """Return a difference as tables print it; ~ stands before one that cannot be told from none.

        >>> print(Interval(1.2, 0.3, 2.1), Interval(0.1, -0.2, 0.4))
        +1.20 [+0.30, +2.10] ~ +0.10 [-0.20, +0.40]
        """
        return f"{'' if self.differs else '~ '}{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


@dataclass(frozen=True)
class Error:
    """The error of a mean over seeds: its standard error, and that error's degrees of freedom."""

    standard: float
    freedom: float


def paired_error(differences: Sequence[float]) -> Error | None:
    """Return the error of the mean of differences, one a seed; None for a single one."""
    count = len(differences)
    if count < 2:
        return None
    return Error(float(np.std(differences, ddof=1)) / count**0.5, count - 1)


def unpaired_error(first: Sequence[float], second: Sequence[float]) -> Error | None:
    """Return the error of the difference of two rows' means (Welch); None if neither has two seeds.

    A row of a single figure counts as known.
    """
    parts = [(np.var(row, ddof=1) / len(row), len(row) - 1) for row in (first, second) if len(row) > 1]
    total = sum(part for part, _ in parts)
    if not parts or not total:
        return None
    return Error(float(total**0.5), float(total**2 / sum(part**2 / freedom for part, freedom in parts)))


def interval(mean: float, error: Error | None, noise: np.ndarray | None = None) -> Interval | None:
    """Return the interval around a difference; None without anything to measure it by.

    error: over seeds. noise: float64[B], what other draws of the pairs would add to the difference.
    """
    from scipy import stats  # half a second, which --help need not wait for

    tail = (1 - LEVEL) / 2
    if noise is None:
        if error is None:
            return None
        half = float(error.standard * stats.t.ppf(1 - tail, error.freedom))
        return Interval(mean, mean - half, mean + half)
    both = np.asarray(noise, np.float64)
    if error is not None:
        points = stats.t.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, error.freedom)
        both = (both[:, None] + error.standard * points).ravel()
    low, high = np.quantile(both, [tail, 1 - tail])
    return Interval(mean, mean + float(low), mean + float(high))


def draws(task: str, count: int, resamples: int = RESAMPLES) -> Iterator[np.ndarray]:
    """Yield how often each of `count` examples is in a draw of as many, then in the examples as they are.

    float64[resamples + 1, count], in parts of some megabytes; the draws follow from the task's name and
    `count`.
    """
    draw = np.random.default_rng([zlib.crc32(task.encode()), count])
    at_once = max(1, min(_AT_ONCE, _DRAWN_AT_ONCE // count))
    for first in range(0, resamples, at_once):
        drawn = [draw.integers(count, size=count) for _ in range(min(at_once, resamples - first))]
        yield np.stack([np.bincount(rows, minlength=count).astype(np.float64) for rows in drawn])
    yield np.ones((1, count))


def correlation(counts: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of values float[B, N] in each draw; 0 if one side is constant."""
    centred, spreads = [], []
    for side in (one.astype(np.float64), other.astype(np.float64)):
        mean = np.einsum("bn,bn->b", counts, side) / counts.sum(1)
        rest = side - mean[:, None]
        spread, whole = (np.einsum("bn,bn,bn->b", counts, part, part) for part in (rest, side))
        spreads.append(np.where(spread <= _ROUNDING * whole, np.inf, spread))
        centred.append(rest)
    return np.einsum("bn,bn,bn->b", counts, *centred) / np.sqrt(spreads[0] * spreads[1])


def centred_ranks(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the ranks, less their mean, of values float[P] of which draw b holds counts[b] copies: [B, P].

    Equal values have the mean of their ranks. What is sorted once serves all draws: a rank is the number of
    smaller values that were drawn, and half of the equal ones.
    """
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks = np.cumsum(sizes, axis=1) - sizes / 2
    return ranks[:, group] - counts.shape[1] / 2
