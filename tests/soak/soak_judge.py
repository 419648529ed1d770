"""Judge series of samples: does memory grow, and do counts stay as they were?

Memory (MB) is judged by its slope after a warm-up: Theil and Sen's median of the slopes between all pairs of
blocks, a block being the median of about a minute. It fails when the slope is above the bound, and the
interval of 95% lies above 0 as a whole.

A step: Python's and C's allocators keep the most that was ever needed, so that a rise to a new level, and
level from there on, is no leak. At most `STEPS` steps of a series are taken out before the fit, the largest
first, and reported. A leak that comes in steps, once for each evaluation, has more of them.

Counts (descriptors, threads, entries) have no noise, but vary with what the run does just then: a save has a
thread and files of its own. So equal phases are compared: the quietest sample of each third after the
warm-up. They must be equal, exactly. More in the last third than in the first fails; fewer is reported.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import theilslopes

STEPS = 2
BLOCKS = 60
SMALLEST_STEP = 1.0
"""MB; what is smaller is left to the fit, which it hardly moves."""


@dataclass(frozen=True)
class Judgement:
    """Of one series. sound: whether it passes. says: figures, for a line of the report."""

    series: str
    sound: bool
    says: str

    def __str__(self) -> str:
        return f"{'ok  ' if self.sound else 'FAIL'}  {self.series}: {self.says}"


def judge_memory(
    series: str, seconds: Sequence[float], megabytes: Sequence[float], bound: float
) -> Judgement:
    """Judge memory after the warm-up.

    Args:
        bound: MB/hour.
    """
    times, values = blocks(np.asarray(seconds, float), np.asarray(megabytes, float))
    if len(times) < 6:
        return Judgement(series, False, f"only {len(times)} blocks of samples: too few to judge")
    values, steps = without_steps(values)
    slope, _, low, high = theilslopes(values, times / 3600, 0.95)
    says = (
        f"{slope:+.2f} MB/hour ({low:+.2f} to {high:+.2f}), bound {bound:g}, at {np.median(megabytes):.1f} MB"
    )
    if steps:
        says += ", steps taken out: " + ", ".join(
            f"{size:+.1f} MB at {times[at] / 60:.0f} min" for at, size in steps
        )
    return Judgement(series, not (slope > bound and low > 0), says)


def blocks(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the medians of at most `BLOCKS` runs of equally many samples."""
    groups = np.array_split(np.arange(len(times)), max(1, min(BLOCKS, len(times) // 3)))
    return (
        np.array([np.median(times[group]) for group in groups]),
        np.array([np.median(values[group]) for group in groups]),
    )


def without_steps(values: np.ndarray) -> tuple[np.ndarray, list[tuple[int, float]]]:
    """Return block medians without their largest steps, and the steps: (index of the block after, size).

    A step is a difference of neighbouring blocks, or of those one apart, above 6 times the usual difference.
    Its size is that of the medians of the four blocks before and behind.
    """
    values, steps = values.copy(), []
    for _ in range(STEPS):
        rises = np.array(
            [
                np.median(values[i : i + 4]) - np.median(values[max(0, i - 4) : i])
                for i in range(2, len(values) - 1)
            ]
        )
        usual = np.median(np.abs(np.diff(values)))
        at = int(np.argmax(np.abs(rises))) + 2
        # the place of the step among blocks near it: where neighbours differ most
        near = range(max(1, at - 2), min(len(values), at + 3))
        at = max(near, key=lambda i: abs(values[i] - values[i - 1]))
        size = float(np.median(values[at : at + 4]) - np.median(values[max(0, at - 4) : at]))
        if abs(size) < max(SMALLEST_STEP, 6 * usual):
            break
        values[at:] -= size
        steps.append((at, size))
    return values, steps


def judge_counts(series: str, counts: Sequence[float]) -> Judgement:
    """Judge counts after the warm-up: the quietest sample of each third."""
    thirds = [min(third) for third in np.array_split(np.asarray(counts), 3) if len(third)]
    most = max(counts, default=0)
    says = f"at least {', '.join(f'{count:g}' for count in thirds)} in the thirds, at most {most:g}"
    return Judgement(series, len(thirds) == 3 and thirds[0] >= thirds[1] >= thirds[2], says)


FEWEST = 10
"""Starts, after the first, of which halves can be compared."""


def judge_peaks(series: str, peaks: Sequence[float], noise: float) -> Judgement:
    """Judge the peak memory of starts, in MB: none above the first by more than noise, nor ever higher.

    Whether they become ever higher is asked of `FEWEST` and more: starts have peaks of two sizes, 3% apart,
    and halves of few starts differ by chance.

    Args:
        noise: share of the peak of the first start. Later ones may also differ by what a resume reads.
    """
    first, rest = peaks[0], peaks[1:]
    limit = first * (1 + noise)
    half = len(rest) // 2
    drift = statistics.median(rest[half:]) - statistics.median(rest[:half]) if len(rest) >= FEWEST else 0.0
    says = (
        f"first {first:.1f}, others {min(rest):.1f} to {max(rest):.1f}, limit {limit:.1f}; "
        f"later half {drift:+.1f} against the earlier"
    )
    return Judgement(series, max(rest) <= limit and drift <= first * noise / 2, says)
