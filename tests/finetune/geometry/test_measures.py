"""Every geometry measure against another implementation or a closed form."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching, minimum_spanning_tree
from scipy.spatial.distance import cdist, pdist, squareform
from scipy.stats import special_ortho_group
from sklearn.neighbors import NearestNeighbors

from finetune.geometry import measures


def cloud(count=60, size=7, seed=0, shift=0.5):
    return (np.random.default_rng(seed).normal(size=(count, size)) + shift).astype(np.float32)


@pytest.fixture
def tiny_tiles(monkeypatch):
    """Tiles of a few rows, so that every function runs over several."""
    monkeypatch.setattr(measures, "TILE_BYTES", 4000)


# -- alignment, uniformity, isotropy -----------------------------------


def test_uniformity_is_wang_and_isolas_code(tiny_tiles):
    points = cloud(seed=1)
    x = torch.nn.functional.normalize(torch.from_numpy(points).double(), dim=1)
    expected = torch.pdist(x, p=2).pow(2).mul(-2).exp().mean().log().item()
    assert measures.uniformity(points) == pytest.approx(expected, abs=1e-12)
    assert measures.uniformity(np.array([[1.0, 0], [-3, 0]])) == pytest.approx(-8)
    assert measures.uniformity(np.ones((5, 3))) == pytest.approx(0, abs=1e-12)


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


def test_singular_value_gap_leaves_rounding_out():
    first = measures.singular_values(rotated_spectrum([8.0, 4, 2, 1e-12]))
    second = measures.singular_values(rotated_spectrum([4.0, 4, 1, 1e-10], seed=3))
    assert measures.singular_value_gap(first, second) == pytest.approx(2 * np.log(2) ** 2, abs=1e-9)


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


def test_gromov_hausdorff_ignores_rotation_and_scale():
    points = cloud()
    turned = 3 * points @ special_ortho_group.rvs(points.shape[1], random_state=1)
    assert measures.gromov_hausdorff(points, turned) == pytest.approx(0, abs=1e-6)
    assert measures.gromov_hausdorff(points, cloud(seed=9)) > 1e-3


# -- neighbourhoods and pairs ------------------------------------------


def test_neighbourhood_against_scikit_learn(tiny_tiles):
    points, labels = cloud(90, 6), np.random.default_rng(3).choice(["a", "b", "c"], 90)
    found = measures.neighbourhood(points, labels, [1, 5, 20])
    far, near = (
        NearestNeighbors(n_neighbors=21, metric="cosine", algorithm="brute")
        .fit(points.astype(float))
        .kneighbors()
    )
    for place, k in enumerate((1, 5, 20)):
        assert found["purity"][place] == pytest.approx(
            (labels[near[:, :k]] == labels[:, None]).mean(), abs=1e-12
        )
        assert found["distance"][place] == pytest.approx(far[:, :k].mean(), abs=1e-6)


def test_neighbourhood_keeps_the_digits_of_short_distances():
    points = np.array([[1, 0], [1, 1e-4], [0, 1], [1e-4, 1]], np.float32)
    found = measures.neighbourhood(points, [0, 0, 1, 1], [1])
    assert found["purity"] == [1.0]
    assert found["distance"] == pytest.approx([5e-9], rel=1e-3)


def test_pair_distances_are_scipys():
    first, second = cloud(seed=1), cloud(seed=2)
    expected = np.diagonal(cdist(first.astype(float), second.astype(float), "cosine"))
    assert measures.pair_distances(first, second) == pytest.approx(expected, abs=1e-7)


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
