"""Warnings of what does nothing: from rows in succession, in any order of resumes; and in runs."""

import pytest
import torch
from inert_row import inert_in
from run_helpers import command, finish, records, start
from safetensors.torch import load_file

from pretrain.telemetry.monitors import AT_ONCE, Monitor

SHARE = "vadvcse_adversarial_gradient_share"
DEAD, ALIVE = {SHARE: 1e-4}, {SHARE: 0.3}
ROW = {
    "loss": {"vadvcse": 0.2, "total": 0.2},
    "lr": 0.1,
    "time": {"data": 0.1},
    "vadvcse_gradient_share": 1.0,
}


def told(rows):
    monitor = Monitor()
    return [
        (number, text)
        for number, row in enumerate(rows)
        for text in monitor.alarms_of_row(number, {}, ROW | row)
    ]


def test_a_loss_that_trains_nothing_is_named_once_with_figure_threshold_and_remedy():
    ((row, text),) = told([DEAD] * 30)
    assert row == AT_ONCE - 1
    assert "the loss vadvcse_adversarial has 0.0001" in text and "below 0.001" in text and "Raise its" in text


def test_nothing_is_said_of_one_that_is_alive_or_absent():
    assert told([ALIVE] * 30) == [] == told([{}] * 30)
    assert told([DEAD] * (AT_ONCE - 1)) == []


@pytest.mark.parametrize("share, said", [(0.0, True), (1e-4, False), (0.5, False), (0.95, True)])
def test_a_guide_that_masks_nothing_or_nearly_everything_is_named(share, said):
    monitor, row = Monitor(), {"simcse_masked_share": share}
    warnings = [text for step in range(AT_ONCE) for text in monitor.alarms_of_row(step, {}, row)]
    assert ["objective.false_negatives.margin" in text for text in warnings] == [True] * said


def test_rows_in_succession_decide():
    assert told([ALIVE if i % AT_ONCE == 2 else DEAD for i in range(30)]) == []
    assert [row for row, _ in told([ALIVE] * 7 + [DEAD] * 9)] == [7 + AT_ONCE - 1]


@pytest.mark.parametrize("share, said", [(2e-3, 0), (9e-4, 1), (0.0, 1)])
def test_a_loss_without_a_share_of_the_gradient_is_named(share, said):
    assert len(told([{SHARE: share}] * 20)) == said


@pytest.mark.full
@pytest.mark.parametrize("step_size, alive", [("1e-3", False), ("1e3", True)])
def test_a_run_writes_the_figures(tiny_data, tmp_path, step_size, alive):
    flags = {
        "objective": "vadvcse",
        "objective__mlm__weight": 0,
        "objective__vadvcse__step_size": step_size,
        "objective__vadvcse__adversarial_weight": "0.1",
        "evaluate__every": 0,
        "train__steps": AT_ONCE + 1,
        "aug": "none",
    }
    finish(start(command(tiny_data, tmp_path / "run", **flags)))
    rows = [row for row in records(tmp_path / "run") if "loss" in row]
    assert len(rows) == AT_ONCE + 1
    for row in rows:
        assert row["vadvcse_gradient_share"] == 1.0 and row["vadvcse_adversarial_gradient_share"] > 1e-3
        assert ("vadvcse" not in inert_in(row)) == alive


@pytest.mark.full
def test_a_sum_has_the_figures_of_all_its_objectives(tiny_data, tmp_path):
    """Each loss's share is of the first one's gradient."""
    flags = {"objective": "clear+vascl+vadvcse", "objective__vascl__neighbours": 4, "train__steps": 3}
    flags |= {"evaluate__every": 0, "objective__start_step": 2}
    finish(start(command(tiny_data, tmp_path / "run", **flags)))
    *early, last = (row for row in records(tmp_path / "run") if "loss" in row)
    assert last["contrastive_gradient_share"] == 1.0 and last["vascl_gradient_share"] > 0.0
    assert last["vascl_neighbourhood_gradient_share"] == 0.0  # it trains the head alone
    assert {"vascl_gradient_cosine", "vadvcse_adversarial_over_random"} <= last.keys()
    assert not [name for row in early for name in row if name.startswith("vascl") and name.endswith("share")]


@pytest.mark.full
def test_measuring_changes_nothing_that_is_trained(tiny_data, tmp_path):
    """Weights, statistics of batch norm and the queue, bit by bit, whether each step or few end a row."""
    flags = {"objective": "clear+augcse+vadvcse+esimcse+vascl", "objective__vascl__neighbours": 4}
    flags |= {"augment__augmented": "del-word|reorder", "train__steps": 4, "evaluate__every": 0}
    saved = []
    for every in (1, 100):
        run = tmp_path / f"every-{every}"
        finish(start(command(tiny_data, run, train__log_every=every, **flags)))
        saved.append(sorted((run / "checkpoints" / "step-00000004").glob("*.safetensors")))
    assert len(saved[0]) == len(saved[1]) > 0
    for first, second in zip(*saved):
        one, other = load_file(first), load_file(second)
        assert one.keys() == other.keys()
        assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []
