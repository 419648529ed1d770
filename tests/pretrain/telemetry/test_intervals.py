"""Intervals of differences: against scipy, and how often they hold the truth."""

import numpy as np
import pytest
from scipy import stats

from finetune.answers import Answers, resampled_figures
from pretrain.telemetry.intervals import draws, interval, paired_error, unpaired_error


def spearman_of_draws(name, gold, similarities, count):
    runs = [Answers(values[None], gold, ("spearman",), "") for values in similarities]
    return resampled_figures([name], runs, count)


def test_ranks_of_a_draw_are_those_of_the_drawn_pairs():
    random = np.random.default_rng(0)
    gold = random.integers(0, 6, 40) / 5  # many ties
    similarities = [(gold + random.normal(size=40)).astype(np.float32) for _ in range(2)]
    similarities[0][:5] = similarities[0][5:10]
    found = spearman_of_draws("task", gold, similarities, 30)
    assert found.shape == (2, 31)
    for run, values in enumerate(similarities):
        assert found[run, -1] == pytest.approx(100 * stats.spearmanr(values, gold).statistic)
        for number, counts in enumerate(np.concatenate(list(draws("task", 40, 30)))):
            which = np.repeat(np.arange(40), counts.astype(int))
            expected = 100 * stats.spearmanr(values[which], gold[which]).statistic
            assert found[run, number] == pytest.approx(expected)
    again = spearman_of_draws("task", gold, similarities, 30)
    assert np.array_equal(again, found)


def test_over_seeds_they_are_students_and_welchs():
    first, second = [3.1, 2.7, 3.9, 3.3, 2.9], [2.5, 2.6, 2.2, 2.9, 2.0]
    differences = np.subtract(first, second)
    ours = interval(differences.mean(), paired_error(differences))
    theirs = stats.ttest_rel(first, second).confidence_interval(0.95)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high))
    ours = interval(differences.mean(), unpaired_error(first, second[:4]))
    theirs = stats.ttest_ind(first, second[:4], equal_var=False).confidence_interval(0.95)
    assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low)
    ours = interval(np.mean(first) - 1.0, unpaired_error(first, [1.0]))  # a model as it is
    theirs = stats.ttest_1samp(first, 1.0).confidence_interval(0.95)
    assert ours.high - ours.low == pytest.approx(theirs.high - theirs.low)
    assert interval(1.0, paired_error([1.0])) is None
    assert unpaired_error([1.0], [2.0]) is None


@pytest.mark.full
def test_over_pairs_alone_they_are_scipys_bootstrap():
    random = np.random.default_rng(1)
    gold = random.normal(size=250)
    first, second = (gold + random.normal(size=250) * scale for scale in (0.5, 0.8))

    def difference(gold, first, second):
        return 100 * (stats.spearmanr(first, gold).statistic - stats.spearmanr(second, gold).statistic)

    drawn = spearman_of_draws("task", gold, [first, second], 2000)
    noise = drawn[0] - drawn[1]
    ours = interval(noise[-1], None, noise[:-1] - noise[-1])
    theirs = stats.bootstrap(
        (gold, first, second),
        difference,
        paired=True,
        vectorized=False,
        n_resamples=2000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.07 * width)


def test_seeds_and_pairs_together_reduce_to_either():
    differences, noise = [1.0, 2.0, 1.5, 0.8, 1.9], np.random.default_rng(3).normal(size=1000)
    error = paired_error(differences)
    alone, both = interval(1.44, error), interval(1.44, error, noise * 1e-9)
    assert (both.low, both.high) == pytest.approx((alone.low, alone.high), abs=2e-2)
    alone, both = interval(1.44, None, noise), interval(1.44, paired_error([1.44, 1.44 + 1e-9]), noise)
    assert (both.low, both.high) == pytest.approx((alone.low, alone.high), abs=1e-3)


def test_twelve_seeds_are_told_apart_where_a_permutation_test_tells_them_apart():
    random = np.random.default_rng(4)
    agree = 0
    for _ in range(60):
        differences = random.normal(random.choice([0.0, 0.8]), 1.0, 12)
        p_value = stats.permutation_test(
            (differences,), np.mean, permutation_type="samples", n_resamples=2000, rng=random
        ).pvalue
        agree += interval(differences.mean(), paired_error(differences)).differs == (p_value < 0.05)
    assert agree >= 56


@pytest.mark.full
@pytest.mark.parametrize(
    "seeds,pairs,of_seed", [(5, 150, 0.05), pytest.param(5, 150, 0.3, marks=pytest.mark.slow), (3, 120, 0.2)]
)
def test_nineteen_of_twenty_hold_the_truth(seeds, pairs, of_seed):
    """Similarities are gold scores in noise: of the pair, shared by a row's seeds, and of the run."""
    random = np.random.default_rng(5)
    repeats, held, by_percentile = 250, 0, 0
    scales = np.array([0.7, 0.9])  # of the two rows' own noise

    def population(scale):
        return 100 * 6 / np.pi * np.arcsin(1 / np.sqrt(1 + scale**2) / 2)  # of bivariate normals

    logs = of_seed * np.random.default_rng(6).normal(size=20000)
    truth = np.subtract(*(np.mean(population(scale * np.exp(logs))) for scale in scales))
    for number in range(repeats):
        gold = random.normal(size=pairs)
        own = random.normal(size=(2, pairs))  # what a row makes of a pair, whatever the seed
        strength = np.exp(of_seed * random.normal(size=(2, seeds)))
        of_run = random.normal(size=(2, seeds, pairs))
        shares = np.sqrt([0.7, 0.3])
        noise = shares[0] * own[:, None] + shares[1] * of_run
        runs = gold + (scales[:, None] * strength)[..., None] * noise
        drawn = spearman_of_draws(str(number), gold, [*runs[0], *runs[1]], 200).reshape(2, seeds, -1)
        difference = drawn[0, :, -1] - drawn[1, :, -1]
        of_pairs = (drawn[0] - drawn[1]).mean(0)
        found = interval(difference.mean(), paired_error(difference), of_pairs[:-1] - of_pairs[-1])
        held += found.low <= truth <= found.high
        resampled = difference[random.integers(seeds, size=(200, seeds))].mean(1)
        low, high = np.quantile(resampled, [0.025, 0.975])
        by_percentile += low <= truth <= high
    assert 0.90 <= held / repeats <= 0.98
    assert by_percentile / repeats < 0.85  # why seeds are not resampled
