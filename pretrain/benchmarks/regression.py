"""Fit the logistic regression that classifies frozen vectors."""

import warnings
from typing import Any

import numpy as np

ITERATIONS = 1000


def fit(vectors: np.ndarray, labels: np.ndarray) -> tuple[Any, bool]:
    """Fit scikit-learn's regression to float32[N, d] and int64[N]; return it, and whether it converged.

    A softmax with the penalty |W|^2 / 2 over the weights of all classes, C = 1. Of two classes scikit-learn
    fits one weight vector, the difference of two opposite ones: that is the same at twice the C.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    regression = LogisticRegression(C=2.0 if len(np.unique(labels)) == 2 else 1.0, max_iter=ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        regression.fit(vectors, labels)
    return regression, not any(issubclass(one.category, ConvergenceWarning) for one in caught)
