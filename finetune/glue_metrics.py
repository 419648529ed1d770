"""GLUE's metrics, as fractions (not x 100), and the figure of each task that CLEAR's Table 1 prints.

Wang et al. 2018, "GLUE", table 1. A correlation with a constant is 0, as scikit-learn has it for Matthews: a model that
answers the same to everything ranks nothing.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata


def accuracy(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Share of equal entries of int64[N] and int64[N]."""
    return float(np.mean(predicted == gold))


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """F1 of class 1; 0 where it is neither predicted nor there."""
    hits = int(np.sum((predicted == 1) & (gold == 1)))
    total = int(np.sum(predicted == 1)) + int(np.sum(gold == 1))
    return 2 * hits / total if total else 0.0


def matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Matthews' correlation for any number of classes (Gorodkin 2004, R_K)."""
    classes = int(max(predicted.max(), gold.max())) + 1
    table = np.zeros((classes, classes))
    np.add.at(table, (gold, predicted), 1)
    true, guessed, count = table.sum(1), table.sum(0), table.sum()
    covariance = np.trace(table) * count - true @ guessed
    spread = np.sqrt((count**2 - guessed @ guessed) * (count**2 - true @ true))
    return float(covariance / spread) if spread else 0.0


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Pearson's correlation of float[N] and float[N]."""
    x, y = np.asarray(predicted, np.float64), np.asarray(gold, np.float64)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / np.sqrt((x @ x) * (y @ y)))


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Spearman's correlation of float[N] and float[N]; ties share their mean rank."""
    return pearson(rankdata(predicted), rankdata(gold))


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}


def scores_of(names: tuple[str, ...], predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """The named metrics x 100, and their mean as "mean" where there are several.

    Args:
        predicted, gold: int64[N] classes, or float[N] numbers for pearson and spearman.
    """
    scores = {name: 100 * METRICS[name](predicted, gold) for name in names}
    if len(names) > 1:
        scores["mean"] = sum(scores.values()) / len(names)
    return scores
