"""Measures on clouds of sentence vectors: functions of arrays, without models or files.

Memory: vectors are N x d; whatever needs pairs goes in tiles of at most `TILE_BYTES`. Only
`gromov_hausdorff(..., as_coded=True)` holds N x N distances, and refuses more than `AS_CODED_LIMIT` points.

Sources: Wang and Isola (ICML 2020), alignment and uniformity; Ethayarajh (EMNLP 2019), average cosine; Mu and
Viswanath (ICLR 2018), partition function; Rudman et al. (ACL Findings 2022), IsoScore; Roy and Vetterli
(EUSIPCO 2007), effective rank; Dubossarsky et al. (EMNLP 2020), effective condition number and singular value
gap; Patra et al. (ACL 2019) and Vulic et al. (EMNLP 2020, code cambridgeltl/iso-study), Gromov-Hausdorff;
Zhang et al. (VaSCL, ACL Findings 2022), figure 2.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import logsumexp

from pretrain.common.errors import UserError

TILE_BYTES = 64 << 20
AS_CODED_LIMIT = 2000
DISTANCES = ("cosine", "euclidean")
SPECTRUM_FLOOR = 1e-6
"""A singular value below this share of the largest is the rounding of a float32 encoder, and counts as 0."""


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return the rows scaled to length 1, float64[N, d]; a zero row stays zero."""
    wide = np.asarray(vectors, np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return wide / np.where(norms == 0, 1.0, norms)


# -- alignment, uniformity, isotropy -----------------------------------


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean squared distance of the normalised rows of two [N, d] (Wang and Isola, alpha 2).

    0: the same point; 2: unrelated.
    """
    return float(np.square(unit(first) - unit(second)).sum(1).mean())


def uniformity(vectors: np.ndarray) -> float:
    """Return log mean exp(-2 |x - y|^2) over pairs of normalised rows of [N, d] (Wang and Isola, t 2).

    0: all in one point; about -4: spread evenly over a sphere of many dimensions.
    """
    points = unit(vectors)
    count = len(points)
    totals = []
    for rows in _tiles(count, count * 8):
        squared = 2 - 2 * points[rows] @ points[rows.start :].T
        later = np.arange(squared.shape[1])[None, :] > np.arange(squared.shape[0])[:, None]
        totals.append(logsumexp(-2 * np.clip(squared, 0, None), b=later))
    return float(logsumexp(totals) - np.log(count * (count - 1) / 2))


def average_cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine over pairs of rows of [N, d] (Ethayarajh's anisotropy baseline).

    0: isotropic; 1: one direction.
    """
    points = unit(vectors)
    count = len(points)
    total = np.square(points.sum(0)).sum() - np.square(points).sum()
    return float(total / (count * (count - 1)))


def partition_ratio(vectors: np.ndarray) -> float:
    """Return min Z(c) / max Z(c), Z(c) = sum over rows of exp(c . x) (Mu and Viswanath).

    c runs over the eigenvectors of X'X. 1: isotropic.

    An eigenvector's sign is arbitrary, so both are tried. Not invariant to scale: pass raw vectors for the
    paper's own figure, `unit` ones to compare encoders whose vectors differ in length.
    """
    points = np.asarray(vectors, np.float64)
    _, basis = np.linalg.eigh(points.T @ points)
    products = points @ basis
    logs = np.concatenate([logsumexp(products, axis=0), logsumexp(-products, axis=0)])
    return float(np.exp(logs.min() - logs.max()))


def isoscore(vectors: np.ndarray) -> float:
    """Return the IsoScore of [N, d], N > d (Rudman et al., algorithm 1).

    1 if the covariance is a multiple of the identity, 0 if of rank 1.

    The PCA of their step 2 makes the covariance diagonal, so its eigenvalues are all that enters.

    Raises:
        UserError: not more rows than dimensions: the covariance has zero eigenvalues whatever the vectors.
    """
    count, size = np.shape(vectors)
    if count <= size or size < 2:
        raise UserError(
            f"IsoScore needs more vectors than dimensions, and 2 dimensions; there are {count} of {size}"
        )
    variances = np.linalg.eigvalsh(np.cov(np.asarray(vectors, np.float64), rowvar=False)).clip(0)
    length = np.linalg.norm(variances)
    if length == 0:
        return 0.0
    defect = np.linalg.norm(variances * np.sqrt(size) / length - 1) / np.sqrt(2 * (size - np.sqrt(size)))
    used = (size - defect**2 * (size - np.sqrt(size))) ** 2 / size  # dimensions isotropically used
    return float((used - 1) / (size - 1))


# -- isomorphism of two clouds -----------------------------------------


def singular_values(vectors: np.ndarray) -> np.ndarray:
    """Return the singular values of [N, d], not centred, falling, float64[min(N, d)].

    Those that are rounding are set to 0.
    """
    values = np.linalg.svd(np.asarray(vectors, np.float64), compute_uv=False)
    return np.where(values > values[0] * SPECTRUM_FLOOR, values, 0.0)


def effective_condition_number(values: np.ndarray) -> float:
    """Return the first singular value over the one at the effective rank.

    The rank is floor(exp(entropy)) (Dubossarsky et al., equations 2 to 4).
    """
    positive = values[values > 0]
    if not len(positive):
        return float("nan")
    share = positive / positive.sum()
    # n equal values are n, not n - 1e-15
    rank = int(np.floor(np.exp(-(share * np.log(share)).sum()) * (1 + 1e-12)))
    return float(positive[0] / positive[rank - 1])


def harmonic_mean(first: float, second: float) -> float:
    """Return the harmonic mean of two positive numbers: COND-HM of two effective condition numbers."""
    return 2 * first * second / (first + second)


@dataclass(frozen=True)
class SingularValueGap:
    """Hold a gap of two spectra.

    value: sum over i of (log a_i - log b_i)^2. compared: how many i, those where both are above rounding.
    """

    value: float
    compared: int


def singular_value_gap(first: np.ndarray, second: np.ndarray) -> SingularValueGap:
    """Return SVG of two falling lists of singular values (Dubossarsky et al., equation 6); 0 for equal ones.

    A value that is rounding in either cloud is left out: its logarithm is noise, and would be most of the
    sum.
    """
    shared = min(len(first), len(second))
    kept = (first[:shared] > 0) & (second[:shared] > 0)
    gaps = np.log(first[:shared][kept]) - np.log(second[:shared][kept])
    return SingularValueGap(float(np.square(gaps).sum()), int(kept.sum()))


@dataclass(frozen=True)
class SpectralComparison:
    """Hold how alike the spectra of two clouds are.

    conditions: their effective condition numbers. cond_hm: the harmonic mean of these. gap: SVG.
    """

    conditions: tuple[float, float]
    cond_hm: float
    gap: SingularValueGap


def compare_spectra(first: np.ndarray, second: np.ndarray) -> SpectralComparison:
    """Compare the singular values of two clouds [N, d] (Dubossarsky et al., equations 2 to 6)."""
    values = singular_values(first), singular_values(second)
    conditions = effective_condition_number(values[0]), effective_condition_number(values[1])
    return SpectralComparison(conditions, harmonic_mean(*conditions), singular_value_gap(*values))


def connection_lengths(points: np.ndarray) -> np.ndarray:
    """Return the edges of the minimum spanning tree of [N, d], falling, [N - 1].

    There components of the Vietoris-Rips filtration die.

    The persistence diagram in dimension 0: every component is born at 0, one never dies. Prim's algorithm,
    O(N d) memory.
    """
    cloud = np.asarray(points, np.float64)
    squares = np.einsum("nd,nd->n", cloud, cloud)
    nearest = np.full(len(cloud), np.inf)
    outside = np.ones(len(cloud), bool)
    edges = np.empty(len(cloud) - 1)
    newest = 0
    for number in range(len(edges)):
        outside[newest] = False
        np.minimum(nearest, squares + squares[newest] - 2 * (cloud @ cloud[newest]), out=nearest)
        newest = int(np.argmin(np.where(outside, nearest, np.inf)))
        edges[number] = nearest[newest]
    return np.sqrt(np.sort(edges.clip(0))[::-1])


def bottleneck(first: np.ndarray, second: np.ndarray) -> float:
    """Return the bottleneck distance of two persistence diagrams in dimension 0, given by falling deaths.

    Points (0, a) and (0, b) are |a - b| apart, and (0, a) is a / 2 from the diagonal. All lie on one line, so
    an optimal matching pairs the k largest of both in order, for some k, and sends the rest to the diagonal:
    a crossing can be uncrossed, and a point near the diagonal given up for a farther one, without making the
    largest distance larger.
    """
    shared = min(len(first), len(second))
    paired = np.concatenate([[0.0], np.maximum.accumulate(np.abs(first[:shared] - second[:shared]))])
    left = np.zeros(shared + 1)
    for side in (first, second):
        left[: len(side)] = np.maximum(left[: len(side)], side[: shared + 1] / 2)
    return float(np.maximum(paired, left).min())


def gromov_hausdorff(first: np.ndarray, second: np.ndarray, as_coded: bool = False) -> float:
    """Return the bottleneck distance that Patra et al. take for Gromov-Hausdorff of two [N, d]. 0: alike.

    Rows are normalised, centred and normalised again, as in iso-study; the diagrams are those of Euclidean
    distances in dimension 0. Twice the Gromov-Hausdorff distance is at least this large (Chazal et al. 2009).

    Args:
        as_coded: what iso-study's published line computes (`gudhi.RipsComplex(distances)`, whose first
            argument is points): the rows of the distance matrix stand as points. Its scale grows with N, so
            compare at equal N only.

    Raises:
        UserError: `as_coded` with more than `AS_CODED_LIMIT` points.
    """
    clouds = [unit(unit(cloud) - unit(cloud).mean(0)) for cloud in (first, second)]
    if as_coded:
        if max(map(len, clouds)) > AS_CODED_LIMIT:
            raise UserError(
                "the Gromov-Hausdorff distance as coded holds N x N distances: at most "
                f"{AS_CODED_LIMIT} points"
            )
        clouds = [np.sqrt(np.clip(2 - 2 * np.clip(cloud @ cloud.T, -1, 1), 0, None)) for cloud in clouds]
    return bottleneck(*map(connection_lengths, clouds))


# -- neighbourhoods and pairs ------------------------------------------


@dataclass(frozen=True)
class Neighbourhood:
    """Per K: mean share of the K nearest that have the point's own label, and mean distance to them."""

    top: list[int]
    purity: list[float]
    distance: list[float]


def neighbourhood(
    vectors: np.ndarray, labels: Sequence, top: Sequence[int], distance: str = "cosine"
) -> Neighbourhood:
    """Compute VaSCL's figure 2a, averaged over all N points of [N, d].

    Args:
        labels: N labels, of any kind.
        top: the Ks, each below N.
        distance: "cosine" (1 - cosine) or "euclidean" (of the vectors as they are). The paper does not say
            which it plots.
    """
    _check_distance(distance)
    ks = sorted(set(top))
    if not ks or ks[0] < 1 or ks[-1] >= len(vectors):
        raise UserError(
            f"top-K {list(top)} must lie between 1 and {len(vectors) - 1}, one less than the points"
        )
    _, classes = np.unique(np.asarray(labels), return_inverse=True)
    classes = torch.from_numpy(classes)
    points = torch.from_numpy(
        np.ascontiguousarray(unit(vectors) if distance == "cosine" else vectors, np.float32)
    )
    squares = points.square().sum(1)
    same, far = torch.zeros(ks[-1], dtype=torch.float64), torch.zeros(ks[-1], dtype=torch.float64)
    for rows in _tiles(len(points), 4 * (2 * len(points) + 2 * ks[-1] * points.shape[1])):
        closeness = (points[rows] @ points.T).mul_(2).sub_(squares)
        own = torch.arange(rows.start, rows.stop)
        closeness[torch.arange(len(own)), own] = -torch.inf
        found = closeness.topk(ks[-1], dim=1).indices
        same += (classes[found] == classes[own][:, None]).sum(0)
        # Anew from differences: |x|^2 + |y|^2 - 2xy has lost the digits of a short distance between long
        # vectors.
        apart = (points[found] - points[own][:, None]).square().sum(2).double()
        far += (apart / 2 if distance == "cosine" else apart.sqrt()).sum(0)
    counts = torch.arange(1, ks[-1] + 1) * len(points)
    purity, mean = same.cumsum(0) / counts, far.cumsum(0) / counts
    return Neighbourhood(ks, [purity[k - 1].item() for k in ks], [mean[k - 1].item() for k in ks])


def pair_distances(first: np.ndarray, second: np.ndarray, distance: str = "cosine") -> np.ndarray:
    """Return distances of corresponding rows of two [N, d], float64[N]: "cosine" (1 - it) or "euclidean"."""
    _check_distance(distance)
    if distance == "cosine":
        return np.square(unit(first) - unit(second)).sum(1) / 2
    return np.linalg.norm(np.asarray(first, np.float64) - second, axis=1)


def _check_distance(distance: str) -> None:
    if distance not in DISTANCES:
        raise UserError(f"unknown distance {distance!r}; there are {', '.join(DISTANCES)}")


def _tiles(count: int, bytes_per_row: int) -> Iterator[slice]:
    step = max(1, TILE_BYTES // bytes_per_row)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
