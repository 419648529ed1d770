"""Every geometry measure against another implementation or a closed form."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching, minimum_spanning_tree
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.stats import special_ortho_group
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from finetune.geometry import measures
from pretrain.common.errors import UserError


def cloud(count=60, size=7, seed=0, shift=0.5):
    return (np.random.default_rng(seed).normal(size=(count, size)) + shift).astype(np.float32)


@pytest.fixture
def tiny_tiles(monkeypatch):
    """Tiles of a few rows, so that every function runs over several."""
    monkeypatch.setattr(measures, "TILE_BYTES", 4000)


# -- alignment, uniformity, isotropy -----------------------------------


def test_alignment_and_uniformity_are_wang_and_isolas_code(tiny_tiles):
    first, second = cloud(seed=1), cloud(seed=2)
    x, y = (torch.nn.functional.normalize(torch.from_numpy(v).double(), dim=1) for v in (first, second))
    assert measures.alignment(first, second) == pytest.approx(
        (x - y).norm(p=2, dim=1).pow(2).mean().item(), abs=1e-12
    )
    assert measures.uniformity(first) == pytest.approx(
        torch.pdist(x, p=2).pow(2).mul(-2).exp().mean().log().item(), abs=1e-12
    )


def test_closed_forms_of_alignment_and_uniformity():
    antipodes = np.array([[1.0, 0], [-3, 0]])
    assert measures.alignment(antipodes, -antipodes) == pytest.approx(4)
    assert measures.uniformity(antipodes) == pytest.approx(-8)
    assert measures.uniformity(np.ones((5, 3))) == pytest.approx(0, abs=1e-12)


def test_average_cosine_over_all_pairs():
    points = cloud()
    assert measures.average_cosine(points) == pytest.approx(
        1 - pdist(points.astype(float), "cosine").mean(), abs=1e-12
    )


def test_partition_ratio_by_brute_force_and_on_a_cross():
    points = cloud().astype(float)
    _, basis = np.linalg.eigh(points.T @ points)
    sums = [np.exp(points @ (sign * c)).sum() for c in basis.T for sign in (1, -1)]
    assert measures.partition_ratio(points) == pytest.approx(min(sums) / max(sums), rel=1e-9)
    cross = np.concatenate([np.eye(4), -np.eye(4)])
    assert measures.partition_ratio(cross) == pytest.approx(1)
    assert np.isfinite(measures.partition_ratio(1000 * points))  # in logarithms: exp(1000) overflows


def test_isoscore_is_the_papers_algorithm():
    points = cloud(200, 6, shift=0) * np.array([3, 2, 1, 1, 0.5, 0.1])
    variances = PCA(6).fit_transform(points).var(axis=0)
    normal = variances * np.sqrt(6) / np.linalg.norm(variances)
    defect = np.linalg.norm(normal - 1) / np.sqrt(2 * (6 - np.sqrt(6)))
    expected = ((6 - defect**2 * (6 - np.sqrt(6))) ** 2 - 6) / (6 * 5)
    assert measures.isoscore(points) == pytest.approx(expected, abs=1e-9)
    assert measures.isoscore(np.concatenate([np.eye(5), -np.eye(5)])) == pytest.approx(1)
    assert measures.isoscore(np.outer(np.arange(9.0), np.ones(4))) == pytest.approx(0, abs=1e-9)
    with pytest.raises(UserError, match="more vectors than dimensions"):
        measures.isoscore(np.eye(5))


# -- isomorphism -------------------------------------------------------


def rotated_spectrum(values, rows=40, seed=0):
    """A matrix of known singular values."""
    left, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(rows, len(values))))
    return left * np.asarray(values) @ special_ortho_group.rvs(len(values), random_state=seed)


def test_effective_condition_number():
    equal = measures.singular_values(rotated_spectrum([2.0, 2, 2, 2]))
    assert measures.effective_condition_number(equal) == pytest.approx(1)
    values = np.array([10.0, 5, 1, 0.01])
    share = values / values.sum()
    rank = int(np.exp(-(share * np.log(share)).sum()))  # 2.4: the second value
    assert rank == 2
    assert measures.effective_condition_number(
        measures.singular_values(rotated_spectrum(values))
    ) == pytest.approx(10 / 5)
    assert measures.harmonic_mean(2, 6) == pytest.approx(3)


def test_singular_value_gap_leaves_rounding_out():
    first = measures.singular_values(rotated_spectrum([8.0, 4, 2, 1e-12]))
    second = measures.singular_values(rotated_spectrum([4.0, 4, 1, 1e-10], seed=3))
    gap = measures.singular_value_gap(first, second)
    assert gap.value == pytest.approx(2 * np.log(2) ** 2, abs=1e-9)
    assert gap.compared == 3


def test_components_die_where_the_minimum_spanning_tree_has_its_edges():
    points = cloud(80, 5)
    tree = minimum_spanning_tree(squareform(pdist(points.astype(float)))).data
    assert measures.connection_lengths(points) == pytest.approx(np.sort(tree)[::-1], abs=1e-9)


def brute_force_bottleneck(first, second):
    """Every candidate radius, by maximum bipartite matching with the diagonal's own points."""
    n, m = len(first), len(second)
    costs = np.zeros((n + m, n + m))
    costs[:n, :m] = np.abs(first[:, None] - second[None])
    costs[:n, m:] = np.where(np.eye(n, dtype=bool), first[:, None] / 2, np.inf)
    costs[n:, :m] = np.where(np.eye(m, dtype=bool), second[None] / 2, np.inf)
    for radius in np.unique(costs[np.isfinite(costs)]):
        matched = maximum_bipartite_matching(csr_matrix(costs <= radius), perm_type="column")
        if (matched >= 0).all():
            return radius
    raise AssertionError("no perfect matching")


@pytest.mark.parametrize("seed", range(25))
def test_bottleneck_distance_by_brute_force(seed):
    rng = np.random.default_rng(seed)
    first, second = (np.sort(rng.exponential(1, rng.integers(1, 7)))[::-1] for _ in range(2))
    assert measures.bottleneck(first, second) == pytest.approx(
        brute_force_bottleneck(first, second), abs=1e-12
    )


def test_bottleneck_with_one_side_empty():
    assert measures.bottleneck(np.array([3.0, 1.0]), np.array([])) == 1.5
    assert measures.bottleneck(np.array([]), np.array([])) == 0


@pytest.mark.parametrize("as_coded", [False, True])
def test_gromov_hausdorff_is_iso_studys(as_coded):
    """Against gudhi, as the published code calls it, where gudhi is installed."""
    gudhi = pytest.importorskip(
        "gudhi", reason="gudhi is not installed; brute force stands in for it elsewhere"
    )
    clouds = [cloud(60, 6, seed, shift) for seed, shift in ((1, 0.2), (2, 2.0))]
    diagrams = []
    for points in clouds:
        unit = points / np.linalg.norm(points, axis=1, keepdims=True)
        unit = unit - unit.mean(0)
        unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
        matrix = np.sqrt(2 - 2 * np.clip(unit.astype(float) @ unit.T, -1, 1))
        np.fill_diagonal(matrix, 0)
        rips = gudhi.RipsComplex(points=matrix) if as_coded else gudhi.RipsComplex(distance_matrix=matrix)
        tree = rips.create_simplex_tree(max_dimension=1)
        tree.persistence()
        diagrams.append(tree.persistence_intervals_in_dimension(0))
    expected = gudhi.bottleneck_distance(*diagrams, e=0)
    assert measures.gromov_hausdorff(*clouds, as_coded=as_coded) == pytest.approx(expected, abs=1e-5)


def test_gromov_hausdorff_ignores_rotation_and_scale_and_bounds_memory():
    points = cloud()
    turned = 3 * points @ special_ortho_group.rvs(points.shape[1], random_state=1)
    assert measures.gromov_hausdorff(points, turned) == pytest.approx(0, abs=1e-6)
    assert measures.gromov_hausdorff(points, cloud(seed=9)) > 1e-3
    with pytest.raises(UserError, match=str(measures.AS_CODED_LIMIT)):
        measures.gromov_hausdorff(np.zeros((measures.AS_CODED_LIMIT + 1, 2)), points, as_coded=True)


# -- neighbourhoods and pairs ------------------------------------------


@pytest.mark.parametrize("distance", measures.DISTANCES)
def test_neighbourhood_against_scikit_learn(distance, tiny_tiles):
    points, labels = cloud(90, 6), np.random.default_rng(3).choice(["a", "b", "c"], 90)
    found = measures.neighbourhood(points, labels, [1, 5, 20], distance)
    far, near = (
        NearestNeighbors(n_neighbors=21, metric=distance, algorithm="brute")
        .fit(points.astype(float))
        .kneighbors()
    )
    for place, k in enumerate((1, 5, 20)):
        assert found.purity[place] == pytest.approx(
            (labels[near[:, :k]] == labels[:, None]).mean(), abs=1e-12
        )
        assert found.distance[place] == pytest.approx(far[:, :k].mean(), abs=1e-6)


def test_neighbourhood_keeps_the_digits_of_short_distances_between_long_vectors():
    points = np.array([[1000.0, 0], [1000.0, 0.125], [0, 1000], [0.125, 1000]], np.float32)
    found = measures.neighbourhood(points, [0, 0, 1, 1], [1], "euclidean")
    assert found.purity == [1.0]
    assert found.distance == pytest.approx([0.125])


def test_neighbourhood_refuses_what_it_cannot_do():
    with pytest.raises(UserError, match="between 1 and 3"):
        measures.neighbourhood(np.eye(4), [0, 0, 1, 1], [4])
    with pytest.raises(UserError, match="cosine, euclidean"):
        measures.neighbourhood(np.eye(4), [0, 0, 1, 1], [1], "manhattan")


@pytest.mark.parametrize("distance", measures.DISTANCES)
def test_pair_distances_are_scipys(distance):
    first, second = cloud(seed=1), cloud(seed=2)
    expected = np.diagonal(cdist(first.astype(float), second.astype(float), distance))
    assert measures.pair_distances(first, second, distance) == pytest.approx(expected, abs=1e-7)


def test_optimal_transport_bounds_hold():
    """The bottleneck distance is at most the largest cost of the assignment with the least sum, a matching
    among others."""
    first, second = (
        measures.connection_lengths(cloud(30, seed=1)),
        measures.connection_lengths(cloud(30, seed=2)),
    )
    costs = np.abs(first[:, None] - second[None])
    rows, columns = linear_sum_assignment(costs)
    assert measures.bottleneck(first, second) <= costs[rows, columns].max() + 1e-12
