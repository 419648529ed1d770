"""GLUE's metrics, as fractions (not x 100), and the figure of each task that CLEAR's Table 1 prints.

Wang et al. 2018, "GLUE", table 1. A correlation with a constant is 0, as scikit-learn has it for Matthews: a
model that answers the same to everything ranks nothing.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef


def _correlation(correlate: Callable, one: np.ndarray, other: np.ndarray) -> float:
    """Return a correlation of float[N] and float[N]; 0 where either is constant."""
    return 0.0 if np.ptp(one) == 0 or np.ptp(other) == 0 else correlate(one, other).statistic


METRICS: dict[str, Callable] = {
    "accuracy": accuracy_score,
    "f1": partial(f1_score, zero_division=0.0),
    "matthews": matthews_corrcoef,
    "pearson": partial(_correlation, stats.pearsonr),
    "spearman": partial(_correlation, stats.spearmanr),
}
"""F1 is of class 1. None of them changes where predictions and gold change places."""


def scores_of(names: tuple[str, ...], predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the named metrics x 100 of classes or numbers [N]; of several also their mean, as "mean"."""
    scores = {name: 100 * float(METRICS[name](gold, predicted)) for name in names}
    if len(names) > 1:
        scores["mean"] = sum(scores.values()) / len(names)
    return scores
