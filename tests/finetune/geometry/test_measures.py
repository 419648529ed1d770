"""Every geometry measure against another implementation or a closed form."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import cdist, cosine, pdist
from scipy.stats import entropy
from sklearn.neighbors import NearestNeighbors

from finetune.clustering import LabelledTexts
from finetune.geometry import augmentations as measures
from finetune.geometry import run
from finetune.results import Evaluation
from pretrain.common.errors import UserError


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


def model_of(vectors):
    """A model whose texts are the numbers of their vectors; blank ones are the last."""
    return SimpleNamespace(
        encode=lambda texts: vectors[[int(text) if text.isdigit() else -1 for text in texts]]
    )


def measured(measure, vectors, data):
    evaluation = Evaluation("geometry", "m", "mean", None, "p")
    measure(model_of(vectors), data, evaluation)
    return evaluation.tasks


def test_pairs_are_measured_as_the_papers_define_it():
    """Alignment of pairs above 4, not at 4; the rest over all sentences, each once."""
    vectors, rng = cloud(30, 6), np.random.default_rng(4)
    sides = rng.integers(0, 30, (3, 2, 20))
    gold = rng.choice([0.5, 3.9, 4.0, 4.2, 5.0], (3, 20))
    parts = [
        SimpleNamespace(first=[*map(str, a)], second=[*map(str, b)], gold=g) for (a, b), g in zip(sides, gold)
    ]
    tasks = measured(run.measure_sts, vectors, parts)
    points = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    first, second = points[sides[:, 0][gold > 4]], points[sides[:, 1][gold > 4]]
    assert tasks["alignment"].value == pytest.approx(np.square(first - second).sum(1).mean())
    assert tasks["alignment"].details["pairs"] == (gold > 4).sum()
    used = points[np.unique(sides)]
    assert tasks["uniformity"].details["sentences"] == len(used)
    assert tasks["uniformity"].value == pytest.approx(np.log(np.exp(-2 * pdist(used) ** 2).mean()))
    assert tasks["isotropy"].value == pytest.approx((1 - pdist(used, "cosine")).mean())
    share = np.linalg.svd(used - used.mean(0), compute_uv=False)
    rank = np.exp(entropy(share / share.sum()))
    assert tasks["isotropy"].scores["effective_rank"] == pytest.approx(rank)
    with pytest.raises(UserError, match="no STS-B pair has a score above 4"):
        measured(run.measure_sts, vectors, [SimpleNamespace(first=["1"], second=["2"], gold=np.array([4.0]))])


@pytest.mark.parametrize(("count", "headline"), [(6, 5), (10, 5), (11, 10), (60, 10)])
def test_purity_is_a_percentage_of_as_many_neighbours_as_there_are(count, headline):
    vectors, labels = cloud(count, 5), np.arange(count) % 3
    data = LabelledTexts([*map(str, range(count - 1)), " "], labels, 3)
    tasks = measured(run.measure_neighbourhoods, vectors, {"mine": data})
    found = tasks["neighbourhood/mine"]
    expected = run.neighbourhood(vectors, labels, [k for k in (1, 2, 5, 10, 20, 50) if k < count])
    assert found.metric == f"cosine_purity@{headline}" and found.value == found.scores[found.metric]
    purity = dict(zip(expected["top"], expected["purity"]))
    distance = dict(zip(expected["top"], expected["distance"]))
    assert found.scores == {f"cosine_purity@{k}": 100 * one for k, one in purity.items()} | {
        f"cosine_distance@{k}": one for k, one in distance.items()
    }
    assert (found.details["points"], found.details["classes"]) == (count, 3)


def test_entailment_is_nearer_where_it_is_strictly_nearer():
    vectors = cloud(9, 4)
    triplets = [("0", "1", "2"), ("3", "4", "5"), ("6", "7", "7"), ("8", "0", "8")]
    found = measured(run.measure_nli, vectors, (triplets, "f.csv"))["nli"]
    near, far = (
        np.array([cosine(vectors[int(row[0])].astype(float), vectors[int(row[side])]) for row in triplets])
        for side in (1, 2)
    )
    assert found.value == pytest.approx(100 * (near[:2] < far[:2]).sum() / 4)
    assert found.scores["cosine_entailment"] == pytest.approx(near.mean(), abs=1e-6)
    assert found.scores["cosine_contradiction"] == pytest.approx(far.mean(), abs=1e-6)
    assert found.scores["cosine_ratio_median"] == pytest.approx(np.median(near[:3] / far[:3]), rel=1e-4)
