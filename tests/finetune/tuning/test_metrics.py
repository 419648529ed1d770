"""GLUE's metrics by hand."""

import numpy as np
import pytest

from finetune.answers import scores_of
from finetune.tuning.tasks import TASKS


def figure(name, predicted, gold):
    return scores_of((name,), predicted, gold)[name] / 100


def test_f1_is_that_of_class_1():
    gold, predicted = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    scores = scores_of(("f1", "accuracy"), predicted, gold)
    assert scores["f1"] == pytest.approx(100 * 2 / 3)  # precision 2/3, recall 2/3
    assert scores["accuracy"] == pytest.approx(75.0)
    assert scores["mean"] == pytest.approx((100 * 2 / 3 + 75) / 2)
    flipped = scores_of(("f1",), 1 - predicted, 1 - gold)
    assert flipped == {"f1": pytest.approx(80.0)}  # the other class: precision 4/5, recall 4/5


def test_f1_of_nothing_is_0():
    assert figure("f1", np.zeros(4, int), np.zeros(4, int)) == 0.0
    assert figure("f1", np.zeros(4, int), np.ones(4, int)) == 0.0


def test_matthews_is_the_formula():
    gold, predicted = np.array([1] * 7 + [0] * 5), np.array([1] * 5 + [0] * 2 + [1] * 1 + [0] * 4)
    tp, fn, fp, tn = 5, 2, 1, 4
    expected = (tp * tn - fp * fn) / ((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)) ** 0.5
    assert figure("matthews", predicted, gold) == pytest.approx(expected)
    assert figure("matthews", np.ones(12, int), gold) == 0.0


def test_correlations_are_of_numbers_and_of_ranks_with_ties_sharing():
    gold, predicted = np.array([0.0, 1.0, 2.0, 3.0, 4.0]), np.array([0.0, 1.0, 1.0, 9.0, 100.0])
    x, y = predicted - predicted.mean(), gold - gold.mean()
    assert figure("pearson", predicted, gold) == pytest.approx((x @ y) / (x @ x * (y @ y)) ** 0.5)
    ranks = np.array([0, 1.5, 1.5, 3, 4]) - 2
    assert figure("spearman", predicted, gold) == pytest.approx(
        (ranks @ y) / (ranks @ ranks * (y @ y)) ** 0.5
    )
    assert figure("spearman", np.ones(5), gold) == figure("pearson", np.ones(5), gold) == 0.0


@pytest.mark.parametrize("name", ["accuracy", "f1", "matthews", "pearson", "spearman"])
def test_predictions_and_gold_may_change_places(name):
    gold, predicted = np.random.default_rng(3).integers(0, 2, (2, 40))
    assert figure(name, predicted, gold) == pytest.approx(figure(name, gold, predicted))


def test_clears_figures_are_means():
    assert TASKS["MRPC"].metrics == ("accuracy", "f1") and TASKS["STS-B"].headline == "mean"
    assert TASKS["CoLA"].headline == "matthews"
