"""Steps that are not finite, planted in one rank's share of real runs: left out, counted, rolled back."""

import json
import shutil
from pathlib import Path

import pytest
from run_helpers import command, curve, finish, records, start

from augment.core.own_code import ALLOWED
from pretrain.checkpoint import store
from pretrain.commands.verify.__main__ import verify

PLANTED = f"{Path(__file__).with_name('planted_faults.py')}:Broken"


def broken(data, run, planted, **flags):
    """The command of a run whose objective breaks: kind of fault -> steps."""
    settings = {"objective__name": PLANTED, "objective__options": json.dumps(planted), "evaluate__every": 0}
    return command(data, run, **settings | {"checkpoint__keep": 99} | flags)


def weights(checkpoint):
    """Every tensor in a checkpoint: parameters, moments and buffers."""
    series = ["parameters", "exp_avg", "exp_avg_sq", "buffers"]
    return {(kind, name): tensor for kind in series for name, tensor in store.read_tensors(checkpoint, kind)}


def same(run, step, other):
    """Whether two checkpoints of a run hold the same numbers."""
    first, second = (weights(run / "checkpoints" / f"step-{number:08d}") for number in (step, other))
    return first.keys() == second.keys() and all(first[key].equal(second[key]) for key in first)


def left_out(run):
    return {row["step"]: row["left_out"] for row in records(run) if "left_out" in row}


def exported(run):
    return (run / "export" / "model.safetensors").read_bytes()


def cut_back(run, copy, step):
    """Copy a run as a kill soon after a checkpoint leaves it."""
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "export")
    for later in (copy / "checkpoints").glob("step-*"):
        if int(later.name[5:13]) > step:
            shutil.rmtree(later)


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, 3, *(pytest.param(zero, marks=pytest.mark.slow) for zero in (0, 2))])
def test_a_fault_of_one_rank_leaves_nothing_behind_on_any(tiny_data, tmp_path, zero):
    run, planted = tmp_path / "run", {"loss": [4], "gradient": [6], "spike": [16]}
    flags = {"train__zero": zero, "train__steps": 18, "checkpoint__every": 1, "train__faults__spikes": "skip"}
    said = finish(start(broken(tiny_data, run, planted, **flags), ranks=2))
    for step in range(1, 18):
        assert same(run, step, step + 1) == (step + 1 in (4, 6, 16)), step
    rows = left_out(run)
    assert list(rows) == [4, 6, 16] and [row["faults"] for row in rows.values()] == [1, 2, 3]
    assert rows[4]["why"] == "the loss is not finite (small, total)"
    assert rows[6]["why"].startswith("a gradient is not finite") and rows[6]["losses"]["small"] > 0
    assert rows[16]["gradient_norm"] > 1e4 and "is above" in rows[16]["why"]
    assert all(len(set(row["sequences"])) == 16 for row in rows.values())
    assert "the loss is not finite (small, total) at step 4: its update was left out, on all ranks" in said
    trained = [row["step"] for row in records(run) if "loss" in row]
    assert trained == [step for step in range(1, 19) if step not in rows]
    progress = store.read_state(run / "checkpoints" / "step-00000018")["progress"]
    assert progress["faults"] == [4, 6, 16] and progress["skipped_steps"] == 3


@pytest.mark.full
@pytest.mark.parametrize("zero", [0, *(pytest.param(zero, marks=pytest.mark.slow) for zero in (1, 2, 3))])
def test_a_whole_batch_loss_that_one_rank_alone_finds_broken_is_left_out_on_all(tiny_data, tmp_path, zero):
    run = tmp_path / "run"
    flags = {"train__zero": zero, "train__steps": 5, "checkpoint__every": 1}
    finish(start(broken(tiny_data, run, {"whole": [3]}, **flags), ranks=2))
    assert [step for step in range(1, 5) if same(run, step, step + 1)] == [2]
    assert left_out(run)[3]["faults"] == 1  # rank 0 has found its own loss finite
    progress = store.read_state(run / "checkpoints" / "step-00000005")["progress"]
    assert progress["faults"] == [3] and progress["skipped_steps"] == 1


@pytest.mark.full
@pytest.mark.parametrize("zero", [2, *(pytest.param(zero, marks=pytest.mark.slow) for zero in (0, 1, 3))])
def test_over_the_budget_a_run_goes_on_from_the_checkpoint_before(tiny_data, tmp_path, monkeypatch, zero):
    """The run, the run killed behind or before the checkpoint that is written then, and a run that is told
    to leave out the same steps are the same."""
    run, late, early, told = (tmp_path / name for name in ("run", "late", "early", "told"))
    within = {"constants": {"pretrain.step.faults.WITHIN": 5}}
    planted = {"loss": [2], "gradient": [8], "vectors": [9], **within}
    flags = {"train__steps": 14, "train__faults__skip": 1, "train__zero": zero}
    said = finish(start(broken(tiny_data, run, planted, **flags), ranks=2))
    assert list(left_out(run)) == [2, 8, 9]
    (row,) = [row for row in records(run) if "rolled_back" in row]
    assert row["step"] == 9 and (row["rolled_back"]["from"], row["rolled_back"]["to"]) == (6, 9)
    assert "steps 7 to 9 are left out (roll-back 1 of 1)" in said
    assert same(run, 6, 9) and not same(run, 9, 12)
    progress = store.read_state(run / "checkpoints" / "step-00000009")["progress"]
    assert [(row["from"], row["to"]) for row in progress["rollbacks"]] == [(6, 9)]
    assert progress["faults"] == []

    for copy, step in ((late, 9), (early, 6)):
        cut_back(run, copy, step)
        again = broken(tiny_data, copy, planted, **flags, checkpoint__resume="auto")
        said = finish(start(again, ranks=2))
        assert ("roll-back 1 of 1" in said) == (copy is early)
        assert curve(copy) == curve(run) and exported(copy) == exported(run)

    finish(
        start(broken(tiny_data, told, {"loss": [2], **within}, **flags, train__faults__jump="7-9"), ranks=2)
    )
    steps = [1, 3, 4, 5, 6, 10, 11, 12, 13, 14]
    assert [row["step"] for row in records(told) if "loss" in row] == steps
    rows, expected = ([{**curve(folder)[step], "ledger": None} for step in steps] for folder in (told, run))
    assert rows == expected  # but for what was read
    assert exported(told) == exported(run)
    monkeypatch.setenv(ALLOWED, "*")  # as `clearly verify --trust`
    assert verify(run) == verify(told) == verify(told, views=True, workers=0) == 0


@pytest.mark.full
@pytest.mark.parametrize("zero", [1, 2, *(pytest.param(zero, marks=pytest.mark.slow) for zero in (0, 3))])
def test_weights_that_are_not_finite_are_no_checkpoint(tiny_data, tmp_path, zero):
    """Losses and gradients are finite, the update is not: what was written before is what is safe."""
    run, fast = tmp_path / "run", tmp_path / "fast"
    flags = {"train__steps": 6, "train__zero": zero, "train__clip": 0, "checkpoint__every": 1}
    flags |= {"checkpoint__keep": 9, "evaluate__every": 0}
    finish(start(command(tiny_data, run, **flags), ranks=2))
    cut_back(run, fast, 3)
    again = command(tiny_data, fast, **flags, train__lr="3e38", checkpoint__resume="auto")
    said = finish(start(again, ranks=2), expect=2)
    assert (
        "the norm of the weights is not finite after step 4. The parameters are those of step-00000003 again"
        in said
    )
    kept = fast / "checkpoints" / "step-00000004"  # written when it rolled back
    assert (
        "What happened: the norm of the weights is not finite after step 5; 1 of 1 roll-backs are done"
        in said
    )
    assert f"What is safe: the last good checkpoint is {kept}" in said and "lower train.lr" in said
    assert same(fast, 3, 4) and store.choose(fast / "checkpoints").path == kept


@pytest.mark.full
def test_a_run_that_rolled_back_ends_with_a_report_and_goes_on_as_told(tiny_data, tmp_path):
    run, planted = tmp_path / "run", {"vectors": [4, 5, 6, 7]}
    planted["constants"] = {"pretrain.step.placement.ABOVE": 99}  # no sequence changes ranks
    flags = {"train__steps": 12, "train__faults__skip": 1}
    said = finish(start(broken(tiny_data, run, planted, **flags), ranks=2), expect=2)
    assert said.count("What happened: ") == 1 and "Traceback" not in said
    told = said[said.index("error: ") :].splitlines()
    (end,) = [i for i, line in enumerate(told) if "--resume auto" in line]  # one advice, and the last line
    assert told[end].startswith("What to type: ")
    told = told[: 1 + end]
    kept = run / "checkpoints" / "step-00000005"  # written when it rolled back to step 3
    assert told[-3].startswith("What happened: the loss is not finite") and "at step 7" in told[-3]
    assert told[-3].endswith("1 of 1 roll-backs are done.")
    assert told[-2].startswith(f"What is safe: the last good checkpoint is {kept}")
    assert "--resume auto, and --train.faults.jump 6-7 (" in told[-1] and "lower train.lr" in told[-1]
    assert any("forward: first not finite on rank 1: encoder.lm" in line for line in told)
    assert not any("rank 0" in line for line in told if "forward" in line)
    assert any("backward: first gradient that is not finite on rank" in line for line in told)
    ids = left_out(run)[7]["sequences"]
    (broken_ones,) = [line for line in told if "sequences whose vectors are not finite" in line]
    assert broken_ones.endswith(": " + ", ".join(map(str, ids[8:])))  # the share of rank 1
    texts = [line.split(": ") for line in told if line.strip().startswith("sequence ")]
    assert len(texts) == 3 and all(int(name.split()[-1]) in ids[8:] for name, _ in texts)
    assert all("the" in text.lower().split() for _, text in texts)
    report = (run / "faults" / "step-00000007.txt").read_text()
    assert ", ".join(map(str, ids)) in report and all(text in report for _, text in texts)

    jump = {"train__faults__jump": "6-7", "checkpoint__resume": "auto"}
    said = finish(start(broken(tiny_data, run, planted, **flags | jump), ranks=2))
    assert "changed    train.faults.jump" in said
    assert [row["step"] for row in records(run) if "loss" in row] == [1, 2, 3, 8, 9, 10, 11, 12]


@pytest.mark.full
def test_without_a_checkpoint_the_first_fault_too_many_ends_the_run(tiny_data, tmp_path):
    flags = {"train__steps": 6, "train__faults__skip": 0, "train__zero": 0, "train__optimizer": "muon"}
    said = finish(start(broken(tiny_data, tmp_path / "run", {"gradient": [2]}, **flags)), expect=2)
    assert "a gradient is not finite (norm nan) at step 2" in said and "nothing yet" in said


@pytest.mark.full
def test_a_dry_run_leaves_nothing_out(tiny_data, tmp_path):
    said = finish(start([*broken(tiny_data, tmp_path / "run", {"loss": [2]}), "--dry-run"]), expect=2)
    assert "the loss is not finite (small, total) at step 2" in said


@pytest.mark.full
def test_a_spike_rolls_back_where_that_is_asked_for(tiny_data, tmp_path):
    run = tmp_path / "run"
    flags = {"train__steps": 18, "train__faults__spikes": "rollback", "train__faults__skip": 3}
    said = finish(start(broken(tiny_data, run, {"spike": [14]}, **flags)))
    assert "at step 14: its update was made" in said and "steps 13 to 14 are left out" in said
    assert same(run, 12, 14) and not (run / "faults" / "step-00000014.txt").read_text().count("forward")
