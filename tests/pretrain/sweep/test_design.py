"""Designed experiments: draws, and effects against formulas and simulations that know the truth."""

import itertools
from collections import Counter

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from pretrain.sweep.design import Design, analyse

FACTORS = {
    "a": {"low": {"train.lr": 1}, "high": {"train.lr": 2}},
    "b": {"x": {"train.steps": 1}, "y": {"train.steps": 2}, "z": {"train.steps": 3}},
}


def complete(copies):
    """Every combination of levels, so many times."""
    return [dict(zip(FACTORS, pair)) for pair in itertools.product(*FACTORS.values())] * copies


def test_levels_are_equally_frequent_and_factors_nearly_independent():
    factors = {
        name: {str(level): {} for level in range(count)} for name, count in zip("abcdef", (2, 3, 4, 2, 4, 3))
    }
    drawn = Design(runs=48, factors=factors).drawn()
    for name, levels in factors.items():
        assert Counter(run[name] for run in drawn) == {level: 48 // len(levels) for level in levels}
    for one, other in itertools.combinations(factors, 2):
        table = stats.contingency.crosstab([run[one] for run in drawn], [run[other] for run in drawn]).count
        assert stats.contingency.association(table, method="cramer") < 0.35, (one, other)
    assert drawn == Design(runs=48, factors=factors).drawn()
    assert drawn != Design(runs=48, draw=1, factors=factors).drawn()


def test_effects_of_a_complete_design_are_differences_of_plain_means():
    design, levels = Design(runs=12, factors=FACTORS, interactions=[("a", "b")]), complete(2)
    response = np.random.default_rng(0).normal(size=12)
    found = analyse(design, levels, response)
    means = {
        (a, b): np.mean([y for run, y in zip(levels, response) if (run["a"], run["b"]) == (a, b)])
        for a, b in itertools.product(*FACTORS.values())
    }
    grand = np.mean(list(means.values()))
    for b in "xyz":
        own = (means["low", b] + means["high", b]) / 2
        assert found.effects["b"][b].mean == pytest.approx(own - grand)
        of_a = np.mean([means["low", other] for other in "xyz"]) - grand
        beyond = means["low", b] - grand - of_a - (own - grand)
        assert found.effects["a x b"][f"low, {b}"].mean == pytest.approx(beyond)
    assert found.mean == pytest.approx(grand)


def test_one_factor_is_the_two_sample_t_test():
    rng = np.random.default_rng(1)
    first, second = rng.normal(0, 1, 9), rng.normal(1, 1, 9)
    design = Design(runs=18, factors={"a": FACTORS["a"]})
    found = analyse(design, [{"a": "low"}] * 9 + [{"a": "high"}] * 9, [*first, *second])
    theirs = stats.ttest_ind(second, first).confidence_interval(0.95)
    effect = found.effects["a"]["high"]
    assert (2 * effect.low, 2 * effect.high) == pytest.approx(tuple(theirs))
    between = 4.5 * ((first.mean() - second.mean()) ** 2)
    assert found.shares["a"] == pytest.approx(between / (np.var([*first, *second]) * 18))
    assert found.shares["a"] == pytest.approx(found.explained)


def test_intervals_hold_the_truth_in_95_of_100_designs():
    design, rng = Design(runs=24, factors=FACTORS), np.random.default_rng(2)
    levels = design.drawn()
    truth = {"low": -1.0, "high": 1.0, "x": 0.5, "y": 0.0, "z": -0.5}
    held = []
    for _ in range(400):
        response = [truth[run["a"]] + truth[run["b"]] + rng.normal() for run in levels]
        found = analyse(design, levels, response)
        held += [
            effect.low <= truth[level] <= effect.high
            for effects in found.effects.values()
            for level, effect in effects.items()
        ]
    assert 0.93 < np.mean(held) < 0.97


def test_too_few_runs_that_are_done_give_no_effects():
    design, levels = Design(runs=12, factors=FACTORS), complete(2)
    assert analyse(design, levels[:4], [1.0, 2.0, 3.0, 4.0]) is None
    assert analyse(design, [run for run in levels if run["b"] != "z"], [1.0] * 8) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"runs": 8}, "8 runs are too few for 4 effects; give 9 or more"),
        ({"factors": FACTORS | {"c": {"only": {}}}}, "factor 'c' has 1 level"),
        (
            {"factors": FACTORS | {"c": {"1": {"train.lr": 1}, "2": {}}}},
            "train.lr is set by two factors, 'a' and 'c'",
        ),
        ({"interactions": [("a", "q")]}, "an interaction names 'q', which is no factor; there are a, b"),
        ({"interactions": [("a", "a")]}, "an interaction of 'a' with itself"),
    ],
)
def test_a_design_that_cannot_be_estimated_is_refused(change, said):
    with pytest.raises(ValidationError, match=said):
        Design(**{"runs": 12, "factors": FACTORS} | change)
