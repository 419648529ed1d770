"""Means since the last row of metrics."""

import json
import math
import random

import pytest

from pretrain.step.log import Window


def story(count: int, seed: int = 0) -> list[tuple]:
    """Steps as the loop sees them: the contrastive loss begins at step 5, some steps are skipped (no finite
    norm)."""
    rng = random.Random(seed)
    steps = []
    for i in range(count):
        losses = {"mlm": rng.random() * 9} | ({"contrastive": rng.random()} if i >= 5 else {})
        norm = rng.choice([math.inf, math.nan]) if i % 7 == 3 else rng.random()
        steps.append(
            (
                losses | {"total": sum(losses.values())},
                norm,
                {"accuracy": rng.random()} if i % 2 else {},
                rng.randrange(1, 900),
                (rng.randrange(1, 4), 2),
            )
        )
    return steps


@pytest.mark.parametrize("first,stop", [(0, 3), (3, 12), (12, 13), (0, 40)])
def test_a_row_is_the_mean_of_its_steps(first, stop):
    window, steps = Window(), story(40)[first:stop]
    for step in steps:
        window.add(*step)
    row = window.close()
    weights = {"mlm": lambda step: step[3], "contrastive": lambda step: 1, "total": lambda step: 1}
    for name, value in row["loss"].items():
        having = [step for step in steps if name in step[0]]
        whole = sum(weights[name](step) for step in having)
        assert value == pytest.approx(sum(step[0][name] * weights[name](step) for step in having) / whole)
    assert row["loss"].keys() == {name for step in steps for name in step[0]}
    finite = [step[1] for step in steps if math.isfinite(step[1])]
    if finite:
        assert row["gradient_norm"] == pytest.approx(sum(finite) / len(finite)) and row[
            "gradient_norm_max"
        ] == max(finite)
    else:
        assert math.isnan(row["gradient_norm"]) and math.isnan(row["gradient_norm_max"])
    measured = [step[2]["accuracy"] for step in steps if step[2]]
    assert row.get("accuracy") == (pytest.approx(sum(measured) / len(measured)) if measured else None)
    assert row["steps"] == len(steps) and row["micro_batches"][1] == 2
    assert row["masked_tokens"] == pytest.approx(sum(step[3] for step in steps) / len(steps))


def test_a_checkpoint_between_two_rows_changes_no_bit():
    steps = story(40, seed=1)
    for cut in range(40):
        whole, before = Window(), Window()
        for step in steps:
            whole.add(*step)
        for step in steps[:cut]:
            before.add(*step)
        after = Window(json.loads(json.dumps(before.state())))
        for step in steps[cut:]:
            after.add(*step)
        assert after.close() == whole.close()


def test_a_closed_window_begins_anew():
    window, steps = Window(), story(9)
    for step in steps:
        window.add(*step)
    window.close()
    assert window.state() == Window().state()
    window.add(*steps[6])
    assert window.close()["loss"] == pytest.approx(steps[6][0])
