"""GLUE's metrics, as fractions (not x 100), and the figure of each task that CLEAR's Table 1 prints.

Wang et al. 2018, "GLUE", table 1. A correlation with a constant is 0, as scikit-learn has it for Matthews: a
model that answers the same to everything ranks nothing.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from sklearn.metrics import f1_score, matthews_corrcoef


def accuracy(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return the share of equal entries of int64[N] and int64[N]."""
    return float(np.mean(predicted == gold))


def f1(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return F1 of class 1; 0 where it is neither predicted nor there."""
    return float(f1_score(gold, predicted, zero_division=0.0))


def matthews(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Matthews' correlation for any number of classes (Gorodkin 2004, R_K)."""
    return float(matthews_corrcoef(gold, predicted))


def pearson(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Pearson's correlation of float[N] and float[N]."""
    return (
        0.0
        if np.ptp(predicted) == 0 or np.ptp(gold) == 0
        else float(stats.pearsonr(predicted, gold).statistic)
    )


def spearman(predicted: np.ndarray, gold: np.ndarray) -> float:
    """Return Spearman's correlation of float[N] and float[N]; ties share their mean rank."""
    return (
        0.0
        if np.ptp(predicted) == 0 or np.ptp(gold) == 0
        else float(stats.spearmanr(predicted, gold).statistic)
    )


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}


def scores_of(names: tuple[str, ...], predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the named metrics x 100, and their mean as "mean" where there are several.

    Args:
        predicted, gold: int64[N] classes, or float[N] numbers for pearson and spearman.
    """
    scores = {name: 100 * METRICS[name](predicted, gold) for name in names}
    if len(names) > 1:
        scores["mean"] = sum(scores.values()) / len(names)
    return scores
