"""Sentence losses that begin after some steps of masked language modelling."""

import pytest
from run_helpers import command, curve, finish, records, start

STEPS, FIRST = 4, 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("ranks", "zero", "head_layers"),
    [
        (1, 0, 2),
        (2, 1, 0),
        (2, 3, 2),
        *(pytest.param(2, *pair, marks=pytest.mark.slow) for pair in [(1, 2), (2, 0), (2, 2), (3, 0)]),
    ],
)
def test_until_a_loss_begins_training_is_masked_language_modelling(
    tiny_data, tmp_path, ranks, zero, head_layers
):
    """Losses and gradient norms are those of a run without it, with a head and without."""
    flags = {"train__steps": STEPS, "train__zero": zero, "train__warmup_steps": 0}
    flags |= {"evaluate__every": 0, "checkpoint__every": 0}
    late = {"objective__start_step": FIRST}
    late |= {"objective__contrastive__projection_layers": head_layers}
    finish(start(command(tiny_data, tmp_path / "late", **flags, **late), ranks))
    finish(start(command(tiny_data, tmp_path / "alone", objective="mlm", **flags), ranks))
    with_loss, without = curve(tmp_path / "late"), curve(tmp_path / "alone")
    for step in range(1, FIRST + 1):
        assert with_loss[step]["loss"] == without[step]["loss"]
        assert with_loss[step]["gradient_norm"] == without[step]["gradient_norm"]
    rows = {row["step"]: row["loss"] for row in records(tmp_path / "late") if "loss" in row}
    assert [step for step, loss in rows.items() if "contrastive" in loss] == list(range(FIRST + 1, STEPS + 1))
