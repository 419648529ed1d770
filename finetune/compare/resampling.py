"""The figure of a task on draws of its examples, for several models on the same draws.

A draw is a count for each example, so that a metric is a few products of matrices for all draws at once. The
definitions are those of `finetune.tuning.metrics` (tests compare them, draw by draw).
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from finetune.answers import MEAN, Answers
from pretrain.telemetry.intervals import RESAMPLES, centred_ranks, draws

Metric = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From counts float64[B, N], answers [N] and gold [N] to the figure of each draw, float64[B]."""
_ROUNDING = 1e-24
"""Squares of equal numbers less their mean, beside the squares of the numbers."""


def resampled_figures(name: str, models: Sequence[Answers], resamples: int = RESAMPLES) -> np.ndarray:
    """Return the figure x 100 of a task for M models on each draw: float64[M, B + 1].

    The last one is of the examples as they are. Sets that a figure is the mean of are drawn each by itself.

    Args:
        name: of the task, from which the draws follow.
        models: answers to the same examples, by the same metrics.
    """
    first = models[0]
    sizes = first.parts or (len(first.gold),)
    ends = np.cumsum(sizes)
    figures = [np.zeros((len(one.predicted), resamples + 1)) for one in models]
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        part = slice(end - size, end)
        start = 0
        for counts in draws(f"{name}/{number}", size, resamples):
            rows = slice(start, start + len(counts))
            for one, found in zip(models, figures, strict=True):
                for run, answers in enumerate(one.predicted):
                    of_metrics = [METRICS[key](counts, answers[part], one.gold[part]) for key in one.metrics]
                    found[run, rows] += np.mean(of_metrics, axis=0) / len(sizes)
            start += len(counts)
    return 100 * np.stack(
        [_OVER[one.over](found, axis=0) for one, found in zip(models, figures, strict=True)]
    )


def _accuracy(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return counts @ (predicted == gold) / counts.sum(1)


def _f1(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Of class 1; 0 where neither side has it."""
    both, either = counts @ ((predicted == 1) & (gold == 1)), counts @ ((predicted == 1) * 1.0 + (gold == 1))
    return 2 * both / np.where(either == 0, 1, either)


def _matthews(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Gorodkin 2004, R_K, for any number of classes; 0 where one side is constant."""
    classes = np.unique(np.concatenate([predicted, gold]))
    total, right = counts.sum(1), counts @ (predicted == gold)
    answered, true = (counts @ (side[:, None] == classes) for side in (predicted, gold))
    spread = (total**2 - (answered**2).sum(1)) * (total**2 - (true**2).sum(1))
    return (right * total - (answered * true).sum(1)) / np.sqrt(np.where(spread <= 0, np.inf, spread))


def _pearson(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return _correlation(counts, *(np.broadcast_to(side, counts.shape) for side in (predicted, gold)))


def _spearman(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return _correlation(counts, centred_ranks(predicted, counts), centred_ranks(gold, counts))


def _correlation(counts: np.ndarray, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return Pearson's correlation of values float[B, N] in each draw; 0 where one side is constant."""
    centred, spreads = [], []
    for side in (one.astype(np.float64), other.astype(np.float64)):
        mean = np.einsum("bn,bn->b", counts, side) / counts.sum(1)
        rest = side - mean[:, None]
        spread, whole = (np.einsum("bn,bn,bn->b", counts, part, part) for part in (rest, side))
        spreads.append(np.where(spread <= _ROUNDING * whole, np.inf, spread))
        centred.append(rest)
    return np.einsum("bn,bn,bn->b", counts, *centred) / np.sqrt(spreads[0] * spreads[1])


def _mean(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    return counts @ predicted / counts.sum(1)


METRICS: Mapping[str, Metric] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
    MEAN: _mean,
}
_OVER: Mapping[str, Callable[..., np.ndarray]] = {"mean": np.mean, "median": np.median}
