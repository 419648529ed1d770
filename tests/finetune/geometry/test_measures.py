"""Every geometry measure against another implementation or a closed form."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.neighbors import NearestNeighbors

from finetune.geometry import augmentations as measures
from finetune.geometry import run


def cloud(count=60, size=7, seed=0, shift=0.5):
    return (np.random.default_rng(seed).normal(size=(count, size)) + shift).astype(np.float32)


def test_neighbourhood_against_scikit_learn():
    points, labels = cloud(90, 6), np.random.default_rng(3).choice(["a", "b", "c"], 90)
    found = run.neighbourhood(points, labels, [1, 5, 20])
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
    found = run.neighbourhood(points, np.array([0, 0, 1, 1]), [1])
    assert found["purity"] == [1.0]
    assert found["distance"] == pytest.approx([5e-9], rel=1e-3)


def test_pair_distances_are_scipys():
    first, second = cloud(seed=1), cloud(seed=2)
    expected = np.diagonal(cdist(first.astype(float), second.astype(float), "cosine"))
    assert measures.pair_distances(first, second) == pytest.approx(expected, abs=1e-7)
