"""Figures on draws are those of the libraries' metrics on the drawn examples; intervals are scipy's."""

from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from finetune.answers import MEAN, Answers, resampled_figures
from pretrain.telemetry.intervals import draws, interval


def _correlation(correlate, one, other):
    return 0.0 if np.ptp(one) == 0 or np.ptp(other) == 0 else correlate(one, other).statistic


METRICS = {
    "accuracy": accuracy_score,
    "f1": partial(f1_score, zero_division=0.0),
    "matthews": matthews_corrcoef,
    "pearson": partial(_correlation, stats.pearsonr),
    "spearman": partial(_correlation, stats.spearmanr),
}
random = np.random.default_rng(5)
COUNT = 60
NUMBERS = random.normal(size=COUNT).astype(np.float32)
CASES = {
    "accuracy": (random.integers(4, size=COUNT), random.integers(4, size=COUNT)),
    "f1": (random.integers(2, size=COUNT), random.integers(2, size=COUNT)),
    "matthews": (random.integers(3, size=COUNT), random.integers(3, size=COUNT)),
    "pearson": (NUMBERS + random.normal(size=COUNT).astype(np.float32), NUMBERS),
    "spearman": (NUMBERS.round(1) + random.normal(size=COUNT).astype(np.float32).round(1), NUMBERS.round(1)),
}


def answers(predicted, gold, metric, **how):
    return Answers.of(predicted, gold, metric, "data", **how)


@pytest.mark.parametrize("metric", CASES)
def test_a_figure_of_a_draw_is_the_metric_of_the_drawn_examples(metric):
    predicted, gold = CASES[metric]
    found = resampled_figures(["task"], [answers(predicted, gold, metric)], 50)[0]
    expected = []
    for counts in np.concatenate(list(draws("task", COUNT, 50))).astype(int):
        rows = np.repeat(np.arange(COUNT), counts)
        expected.append(100 * METRICS[metric](gold[rows], predicted[rows]))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert found[-1] == pytest.approx(100 * METRICS[metric](gold, predicted), abs=1e-4)


@pytest.mark.parametrize("metric", CASES)
def test_constant_answers_give_what_the_metric_gives(metric):
    _, gold = CASES[metric]
    predicted = np.full_like(gold, gold.dtype.type(0.3) if gold.dtype.kind == "f" else 0)
    found = resampled_figures(["task"], [answers(predicted, gold, metric)], 5)[0]
    assert found[-1] == pytest.approx(100 * METRICS[metric](gold, predicted), abs=1e-6)


def test_the_figure_is_over_metrics_sets_and_runs():
    """MNLI's two sets are drawn each by itself and averaged, MRPC's metrics too; of seeds the median."""
    gold = random.integers(2, size=50)
    predicted = np.stack([np.where(random.random(50) < share, gold, 1 - gold) for share in (0.6, 0.9, 0.8)])
    one = answers(predicted, gold, ("accuracy", "f1"), over="median", parts=(20, 30))
    of_runs = [
        np.mean(
            [
                METRICS[key](gold[part], run[part])
                for part in (slice(20), slice(20, 50))
                for key in ("accuracy", "f1")
            ]
        )
        for run in predicted
    ]
    assert resampled_figures(["one", "other"], [one], 3)[0, -1] == pytest.approx(100 * np.median(of_runs))
    figures = random.random(40)
    found = resampled_figures(["task"], [answers(figures, np.zeros(40), MEAN)], 3)[0]
    assert found[-1] == pytest.approx(100 * figures.mean(), abs=1e-4)


BY_HAND = {
    "accuracy": lambda predicted, gold: (predicted == gold).mean(-1),
    "f1": lambda predicted, gold: 2 * (predicted * gold).sum(-1) / (predicted + gold).sum(-1),
}


@pytest.mark.parametrize("metric", BY_HAND)
def test_the_interval_of_a_difference_is_scipys_paired_bootstrap(metric):
    predicted, gold = CASES["f1"]
    other = np.where(random.random(COUNT) < 0.4, gold, predicted)  # more often right
    figures = resampled_figures(["task"], [answers(predicted, gold, metric), answers(other, gold, metric)])
    apart = figures[1] - figures[0]
    ours = interval(apart[-1], None, apart[:-1] - apart[-1])
    theirs = stats.bootstrap(
        [other, predicted, gold],
        lambda one, two, right, axis: 100 * (BY_HAND[metric](one, right) - BY_HAND[metric](two, right)),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=5000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.12 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.12 * width)


def test_the_interval_of_accuracies_is_mcnemars():
    """Its standard error of paired shares (Agresti, Categorical Data Analysis, 11.1): a formula, no draws."""
    gold = np.ones(2000, int)
    one, other = (random.random((2, 2000)) < np.array([[0.7], [0.8]])).astype(int)
    figures = resampled_figures(["task"], [answers(one, gold, "accuracy"), answers(other, gold, "accuracy")])
    apart = figures[1] - figures[0]
    ours = interval(apart[-1], None, apart[:-1] - apart[-1])
    gained, lost = ((other > one).mean(), (one > other).mean())
    error = 100 * np.sqrt((gained + lost - (gained - lost) ** 2) / 2000)
    assert ours.mean == pytest.approx(100 * (gained - lost))
    assert ours.high - ours.low == pytest.approx(2 * 1.96 * error, rel=0.1)
