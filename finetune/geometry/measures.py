"""Measures on clouds of sentence vectors: functions of arrays, without models or files.

Memory: vectors are N x d; whatever needs pairs goes in tiles of at most `TILE_BYTES`, but for
`gromov_hausdorff`, which holds N x N / 2 distances, and of at most `AS_CODED_LIMIT` points N x N.

Sources: Wang and Isola (ICML 2020), uniformity;
Dubossarsky et al. (EMNLP 2020), effective condition number and singular value
gap; Patra et al. (ACL 2019) and Vulic et al. (EMNLP 2020, code cambridgeltl/iso-study), Gromov-Hausdorff;
Zhang et al. (VaSCL, ACL Findings 2022), figure 2.
"""

from collections.abc import Iterator, Sequence
from statistics import harmonic_mean

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.special import logsumexp

from pretrain.benchmarks.files import evenly_spaced

TILE_BYTES = 64 << 20
AS_CODED_LIMIT = 2000
SPECTRUM_FLOOR = 1e-6
"""A singular value below this share of the largest is the rounding of a float32 encoder, and counts as 0."""


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1, float64[N, d]; a zero row stays zero."""
    wide = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(norms == 0, 1.0, norms)


def uniformity(vectors: np.ndarray) -> float:
    """Return log mean exp(-2 |x - y|^2) over pairs of normalised rows of [N, d] (Wang and Isola, t 2)."""
    points = unit(vectors)
    count = len(points)
    totals = []
    for rows in _tiles(count, count * 8):
        squared = 2 - 2 * points[rows] @ points[rows.start :].T
        later = np.arange(squared.shape[1])[None, :] > np.arange(squared.shape[0])[:, None]
        totals.append(logsumexp(-2 * np.clip(squared, 0, None), b=later))
    return float(logsumexp(totals) - np.log(count * (count - 1) / 2))


# -- isomorphism of two clouds -----------------------------------------


def singular_values(vectors: np.ndarray) -> np.ndarray:
    """Return the singular values of [N, d], not centred, falling, float64[min(N, d)]; rounding is 0."""
    values = np.linalg.svd(np.asarray(vectors, np.float64), compute_uv=False)
    return np.where(values > values[0] * SPECTRUM_FLOOR, values, 0.0)


def effective_condition_number(values: np.ndarray) -> float:
    """Return the first singular value over the one at rank floor(exp(entropy)) (Dubossarsky, 2 to 4)."""
    positive = values[values > 0]
    if not len(positive):
        return float("nan")
    share = positive / positive.sum()
    # n equal values are n, not n - 1e-15
    rank = int(np.floor(np.exp(-(share * np.log(share)).sum()) * (1 + 1e-12)))
    return float(positive[0] / positive[rank - 1])


def singular_value_gap(first: np.ndarray, second: np.ndarray) -> float:
    """Return SVG, sum (log a_i - log b_i)^2, of falling singular values (Dubossarsky, 6).

    A value that is rounding in either cloud is left out: its logarithm is noise, and would be most of it.
    """
    shared = min(len(first), len(second))
    kept = (first[:shared] > 0) & (second[:shared] > 0)
    gaps = np.log(first[:shared][kept]) - np.log(second[:shared][kept])
    return float(np.square(gaps).sum())


def compare_clouds(first: np.ndarray, second: np.ndarray) -> dict[str, float]:
    """Return how alike two clouds [N, d] are, row by row the same sentences: isomorphism's four figures."""
    spectra = singular_values(first), singular_values(second)
    some = evenly_spaced(range(len(first)), AS_CODED_LIMIT)
    return {
        "cond_hm": harmonic_mean([effective_condition_number(values) for values in spectra]),
        "svg": singular_value_gap(*spectra),
        "gromov_hausdorff": gromov_hausdorff(first, second),
        "gromov_hausdorff_as_coded": gromov_hausdorff(first[some], second[some], as_coded=True),
    }


def connection_lengths(points: np.ndarray) -> np.ndarray:
    """Return the edges of the minimum spanning tree of [N, d], falling: deaths in dimension 0."""
    return linkage(np.asarray(points, np.float64), "single")[::-1, 2]


def bottleneck(first: np.ndarray, second: np.ndarray) -> float:
    """Return the bottleneck distance of two persistence diagrams in dimension 0, given by falling deaths.

    (0, a) and (0, b) are |a - b| apart, (0, a) is a / 2 from the diagonal. An optimal matching pairs the k
    largest of both in order, for some k, and sends the rest to the diagonal: crossings can be uncrossed.
    """
    shared = min(len(first), len(second))
    paired = np.concatenate([[0.0], np.maximum.accumulate(np.abs(first[:shared] - second[:shared]))])
    left = np.zeros(shared + 1)
    for side in (first, second):
        left[: len(side)] = np.maximum(left[: len(side)], side[: shared + 1] / 2)
    return float(np.maximum(paired, left).min())


def gromov_hausdorff(first: np.ndarray, second: np.ndarray, as_coded: bool = False) -> float:
    """Return the bottleneck distance that Patra et al. take for Gromov-Hausdorff of two [N, d]. 0: alike.

    Of rows normalised, centred and normalised again, as in iso-study. as_coded: what its published line
    computes, the rows of the distance matrix as points; its scale grows with N.
    """
    clouds = [unit(unit(cloud) - unit(cloud).mean(0)) for cloud in (first, second)]
    if as_coded:
        assert max(map(len, clouds)) <= AS_CODED_LIMIT, "N x N distances"
        clouds = [np.sqrt(np.clip(2 - 2 * np.clip(cloud @ cloud.T, -1, 1), 0, None)) for cloud in clouds]
    return bottleneck(*map(connection_lengths, clouds))


# -- neighbourhoods and pairs ------------------------------------------


def neighbourhood(vectors: np.ndarray, labels: Sequence, top: Sequence[int]) -> dict[str, list]:
    """Return VaSCL's figure 2a by 1 - cosine: mean purity of and distance to the K nearest."""
    from sklearn.neighbors import NearestNeighbors

    _, classes = np.unique(np.asarray(labels), return_inverse=True)
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


def _tiles(count: int, bytes_per_row: int) -> Iterator[slice]:
    step = max(1, TILE_BYTES // bytes_per_row)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
