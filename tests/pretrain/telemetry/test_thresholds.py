"""Where alarms begin, to the digit, after how many rows, and what a step's measures are of."""

import math

import pytest
import torch

from pretrain.telemetry.monitors import Monitor

SOUND = {"uniformity": -2.0, "negative_cosine": 0.1, "length_variance": 0.1, "effective_negatives": 99.0}
CHANCE = math.log(100)


def first_alarm(metrics, losses=None, rows=40, risen=True, every=1):
    """Return the row (from 1) and the text of the only alarm that rows like these raise; (0, ""): none."""
    monitor, found = Monitor(), []
    for row in range(1, rows + 1):
        found += [
            (row, text) for text in monitor.alarms_of_row(every * row, losses or {}, SOUND | metrics, risen)
        ]
    assert len(found) <= 1
    return found[0] if found else (0, "")


@pytest.mark.parametrize(
    "name, below, above, rows",
    [
        ("uniformity", -0.2, -0.199, 5),
        ("negative_cosine", 0.95, 0.951, 5),
        ("length_variance", 0.5, 0.501, 5),
        ("effective_negatives", 1.0, 0.999, 5),
        ("a_gradient_share", 1e-3, 0.999e-3, 5),
        ("a_masked_share", 0.9, 0.901, 5),
        ("a_masked_share", 1e-9, 0.0, 5),
    ],
)
def test_alarms_begin_at_their_thresholds(name, below, above, rows):
    assert first_alarm({name: below}) == (0, "")
    row, text = first_alarm({name: above}, every=10)
    assert row == rows and ("since step 10" in text) == (not name.endswith("_share")), text


@pytest.mark.parametrize("share, row", [(0.979, 0), (0.981, 20), (0.0101, 0), (0.0099, 5)])
def test_a_loss_is_compared_with_chance(share, row):
    losses = {"contrastive": share * CHANCE}
    found, text = first_alarm({}, losses)
    assert found == row
    if row == 20:
        assert f"{share * CHANCE:.3f} (chance: {CHANCE:.3f})" in text
    assert first_alarm({"effective_negatives": 0.0}, {"contrastive": 5.0})[1].startswith(
        "an anchor has 0 negatives"
    )


def test_shares_wait_until_all_losses_have_risen_and_others_do_not():
    assert first_alarm({"a_gradient_share": 0.0}, risen=False) == (0, "")
    assert first_alarm({"length_variance": 0.9}, risen=False)[0] == 5


def test_an_alarm_is_raised_again_only_after_its_condition_has_ended():
    monitor, found = Monitor(), []
    values = [0.9] * 7 + [0.1] + [0.9] * 4 + [0.1] + [0.9] * 6
    for step, value in enumerate(values, 1):
        if step == 15:
            monitor = Monitor(state=monitor.memory())
        found += [
            (step, "since step 14" in t) for t in monitor.alarms_of_row(step, {}, {"length_variance": value})
        ]
    assert found == [(5, False), (18, True)]


def test_a_dead_loss_is_known_for_the_row_that_says_so():
    monitor = Monitor()
    dead = []
    for step in range(1, 24):
        monitor.alarms_of_row(step, {"contrastive": CHANCE}, SOUND)
        dead.append(monitor.dead_loss)
    assert dead.index(True) == 19 and dead.count(True) == 1


def test_a_gradient_explodes_beside_the_running_median():
    monitor = Monitor(explosion=4.0, advice="do less", quiet=5)
    assert [monitor.alarm_of_step(step, 1000.0) for step in range(1, 11)] == [None] * 10, "too few to compare"
    monitor = Monitor(explosion=4.0, advice="do less", quiet=5)
    for step in range(1, 11):
        assert monitor.alarm_of_step(step, float(step % 2 + 1)) is None  # the upper of the middle two: 2
    assert monitor.alarm_of_step(11, 8.0) is None
    said = monitor.alarm_of_step(12, 8.4)
    assert "gradient norm 8.4, 4 times the running median 2" in said and "do less" in said
    assert monitor.alarm_of_step(13, 9.0) is None, "the same episode"
    assert monitor.alarm_of_step(14, 1.0) is None
    assert monitor.alarm_of_step(16, 9.0) is None, "so soon"
    assert monitor.alarm_of_step(17, 1.0) is None
    assert monitor.alarm_of_step(18, 9.0) is not None
    assert len(monitor.memory()["norms"]) == 17
    for step in range(19, 150):
        monitor.alarm_of_step(step, 1.0)
    assert len(monitor.memory()["norms"]) == 100 and monitor.memory()["last_explosion"] == 18


@pytest.mark.parametrize(
    "count, spectrum", [(1, True), (2, True), (63, True), (64, True), (64, False), (1030, True)]
)
def test_measures_are_of_evenly_spaced_rows_and_of_enough(count, spectrum):
    generator = torch.Generator().manual_seed(count)
    views = torch.randn(2, count, 8, generator=generator)
    lengths = torch.randint(3, 30, (count,), generator=generator)
    found = Monitor().measure(views, lengths, 7.5, spectrum)
    names = {"alignment", "positive_cosine", "effective_negatives"}
    names |= {"uniformity", "negative_cosine"} if count > 1 else set()
    names |= {"length_variance"} if count >= 64 else set()
    names |= {"effective_rank"} if count >= 64 and spectrum else set()
    assert found.keys() == names and found["effective_negatives"] == 7.5
    rows = torch.arange(count) if count <= 512 else torch.linspace(0, count - 1, 512).round().long()
    first, second = torch.nn.functional.normalize(views[:, rows], dim=-1)
    assert float(found["positive_cosine"]) == pytest.approx(float((first * second).sum(1).mean()), abs=1e-6)
    if count > 1:
        apart = [
            -2 * ((one[:, None] - one) ** 2).sum(-1)[*torch.triu_indices(len(one), len(one), 1)]
            for one in (first, second)
        ]
        expected = sum(float(one.exp().mean().log()) for one in apart) / 2
        assert float(found["uniformity"]) == pytest.approx(expected, abs=1e-4)
        cosines = first @ second.T
        others = (cosines.sum() - cosines.diagonal().sum()) / (len(rows) * (len(rows) - 1))
        assert float(found["negative_cosine"]) == pytest.approx(float(others), abs=1e-5)
    if count >= 64:
        x, y = (first - first.mean(0)).double(), (lengths[rows] - lengths[rows].double().mean()).double()
        share = ((y @ x) ** 2).sum() / (y**2).sum() / (x**2).sum()
        assert float(found["length_variance"]) == pytest.approx(float(share), rel=1e-5)
    assert "effective_negatives" not in Monitor().measure(views, lengths, None)
