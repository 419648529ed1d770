"""Which step `best/` is of: higher STS, or lower held-out loss, first come where they are equal."""

import pytest

from pretrain.trainer import Progress


def best_of(rows: list[dict[str, float]]) -> int:
    """The step that a run keeps whose evaluations are the rows, at steps 10, 20 ..."""
    progress, kept = Progress(), 0
    for number, scores in enumerate(rows, 1):
        progress.step = 10 * number
        if progress.note_scores(scores):
            kept = progress.step
        assert progress.best_step == kept
    return kept


@pytest.mark.parametrize("name, values, step", [
    ("heldout_mlm_loss", [5.0, 3.0, 4.0], 20), ("heldout_mlm_loss", [3.0, 4.0, 5.0], 10),
    ("heldout_mlm_loss", [5.0, 4.0, 3.0], 30),
    ("stsb-dev", [50.0, 70.0, 60.0], 20), ("stsb-dev", [70.0, 60.0, 50.0], 10), ("stsb-dev", [-3.0, -2.0, -1.0], 30),
    ("stsb-dev", [70.0, 70.0], 10), ("heldout_mlm_loss", [3.0, 3.0], 10),
])
def test_the_best_step_of_one_score(name, values, step):
    assert best_of([{name: value} for value in values]) == step


def test_sts_decides_where_there_is_some():
    rows = [{"stsb-dev": 60.0, "heldout_mlm_loss": 3.0}, {"stsb-dev": 70.0, "heldout_mlm_loss": 5.0},
            {"stsb-dev": 65.0, "heldout_mlm_loss": 1.0}]
    assert best_of(rows) == 20
