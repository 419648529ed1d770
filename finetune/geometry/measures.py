"""Measures on clouds of sentence vectors: functions of arrays, without models or files."""

from collections.abc import Sequence

import numpy as np

from pretrain.benchmarks import distinct


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1, float64[N, d]; a zero row stays zero."""
    return distinct.unit(np.asarray(vectors, np.float64))


def neighbourhood(vectors: np.ndarray, classes: np.ndarray, top: Sequence[int]) -> dict[str, list]:
    """Return VaSCL's figure 2a by 1 - cosine: mean purity of and distance to the K nearest."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=top[-1], algorithm="brute").fit(unit(vectors))
    distances, found = index.kneighbors()  # of a point itself none
    counts = np.arange(1, top[-1] + 1) * len(found)
    purity = (classes[found] == classes[:, None]).sum(0).cumsum() / counts
    mean = (np.square(distances) / 2).sum(0).cumsum() / counts
    at = [k - 1 for k in top]
    return {"top": list(top), "purity": purity[at].tolist(), "distance": mean[at].tolist()}


def pair_distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return 1 - cosine of corresponding rows of two [N, d], float64[N]."""
    return np.square(unit(first) - unit(second)).sum(1) / 2
