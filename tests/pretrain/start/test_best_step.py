"""Which step `best/` is of: higher STS, or lower held-out loss, first come where they are equal; also after a
resume."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from export_helpers import make_run
from run_helpers import command, finish, start

from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.export.folder import export, read_policy
from pretrain.export.sums import changed_files
from pretrain.start.checkpoints import Checkpoints
from pretrain.step.progress import Progress


def best_of(rows: list[dict[str, float]]) -> int:
    """The step that a run keeps whose evaluations are the rows, at steps 10, 20 ..."""
    progress, kept = Progress(), 0
    for number, scores in enumerate(rows, 1):
        progress.step = 10 * number
        if progress.note_scores(scores):
            kept = progress.step
        assert progress.best_step == kept
    return kept


@pytest.mark.parametrize(
    "name, values, step",
    [
        ("heldout_mlm_loss", [5.0, 3.0, 4.0], 20),
        ("heldout_mlm_loss", [3.0, 4.0, 5.0], 10),
        ("heldout_mlm_loss", [5.0, 4.0, 3.0], 30),
        ("stsb-dev", [50.0, 70.0, 60.0], 20),
        ("stsb-dev", [70.0, 60.0, 50.0], 10),
        ("stsb-dev", [-3.0, -2.0, -1.0], 30),
        ("stsb-dev", [70.0, 70.0], 10),
        ("heldout_mlm_loss", [3.0, 3.0], 10),
        ("heldout_mlm_loss", [math.nan, 5.0, 6.0], 20),
        ("stsb-dev", [50.0, math.nan, 40.0], 10),
    ],
)
def test_the_best_step_of_one_score(name, values, step):
    assert best_of([{name: value} for value in values]) == step


def test_sts_decides_where_there_is_some():
    rows = [
        {"stsb-dev": 60.0, "heldout_mlm_loss": 3.0},
        {"stsb-dev": 70.0, "heldout_mlm_loss": 5.0},
        {"stsb-dev": 65.0, "heldout_mlm_loss": 1.0},
    ]
    assert best_of(rows) == 20


# -- after a resume
# --------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def best_of_run(run, best_step: int) -> Progress:
    """Repair best/ of a run whose checkpoint records this best step; returns what the run goes on with."""
    progress = Progress(step=7, best_step=best_step, best_score=-3.0, best_by="heldout_mlm_loss")
    WithoutEngine(run).repair_best(progress)
    return progress


class WithoutEngine(Checkpoints):
    """The checkpoints of a run whose untrained model is one of `make_run`."""

    def __init__(self, run: Path) -> None:
        self.config = SimpleNamespace(run_folder=run)

    def save_progress(self, progress, root=None, wait=False, say=None) -> Path:
        return checkpoint_of_start(root)


def checkpoint_of_start(root) -> Path:
    make_run(root.parent, steps=(0,))
    return root / "step-00000000"


@pytest.mark.parametrize("damage", ["empty", "list", "gone", "bit", "other step"])
def test_a_best_that_is_not_the_recorded_one_is_exported_again(tmp_path, alone, capfd, damage):
    run = tmp_path / "run"
    make_run(run, steps=(3, 5))
    mark = export(run, run / "best", 5 if damage == "other step" else 3) / "clear.json"
    mark.with_name("README.md").write_text("The card may be edited.")
    if damage == "gone":
        mark.unlink()
    elif damage == "bit":
        weights = mark.with_name("model.safetensors")
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    elif damage != "other step":
        mark.write_text("" if damage == "empty" else "[]")
    assert best_of_run(run, 3).best_score == -3.0
    assert read_policy(run / "best")["step"] == 3 and not changed_files(run / "best")
    assert (run / "best.damaged").is_dir() == (damage == "gone") == ("best.damaged" in capfd.readouterr().err)


@pytest.mark.parametrize("best_step", [3, 4])
@pytest.mark.parametrize("damage", ["", "empty", "missing"])
def test_a_best_that_cannot_be_made_again_is_set_aside_and_the_next_evaluation_is_the_best(
    tmp_path, alone, capfd, best_step, damage
):
    """The checkpoint of step 3 is damaged, that of step 4 was removed."""
    run = tmp_path / "run"
    make_run(run, steps=(3, 5))
    best = export(run, run / "best", 5)
    (run / "checkpoints" / "step-00000003" / "state.json").write_text("{}")
    if damage == "empty":
        (best / "clear.json").write_text("")
    elif damage == "missing":
        shutil.rmtree(best)
    progress = best_of_run(run, best_step)
    said = capfd.readouterr().err
    kept = {"": "best.abandoned", "empty": "best.damaged", "missing": None}[damage]
    assert not best.exists() and [path.name for path in run.glob("best*")] == [kept] * (kept is not None)
    assert (
        said.count("warning:") == 1
        and (kept or "is missing") in said
        and "next evaluation counts as the best" in said
    )
    WithoutEngine(run).repair_best(progress)  # a second resume, before an evaluation
    assert capfd.readouterr().err == ""
    assert progress.note_scores({"heldout_mlm_loss": 9.0}) and progress.best_step == 7


@pytest.mark.parametrize("damage", ["", "empty", "gone", "missing", "other step"])
def test_the_start_is_the_best_again_though_it_has_no_checkpoint(tmp_path, alone, capfd, damage):
    run = tmp_path / "run"
    make_run(run, steps=(3, 5))
    best = export(checkpoint_of_start(tmp_path / "other" / "checkpoints"), run / "best")
    if damage == "empty":
        (best / "clear.json").write_text("")
    elif damage == "gone":
        (best / "clear.json").unlink()
    elif damage == "missing":
        shutil.rmtree(best)
    elif damage == "other step":
        export(run, best, 5)
    assert best_of_run(run, 0).best_score == -3.0 and read_policy(best)["step"] == 0
    assert not (run / ".start").exists()
    said = capfd.readouterr().err
    assert ("exported again from the start" in said) == (damage == "gone")


def test_a_best_whose_checkpoint_cannot_be_read_now_stays(tmp_path, alone):
    run = tmp_path / "run"
    make_run(run, steps=(3, 5))
    best = export(run, run / "best", 5)
    (run / "checkpoints" / "step-00000003" / "state.json").unlink()
    (run / "checkpoints" / "step-00000003" / "state.json").symlink_to("state.json")
    with pytest.raises(UserError, match=r"step-00000003, which cannot be read now: .*same command again"):
        best_of_run(run, 3)
    assert read_policy(best)["step"] == 5
    export(run, best, 5)
    assert best_of_run(run, 5).best_score == -3.0 and read_policy(best)["step"] == 5


@pytest.mark.slow
def test_a_run_on_two_ranks_goes_on_with_a_best_that_was_lost(tiny_data, tmp_path):
    """The start was the best, and its export is lost: all ranks make it again."""
    run = tmp_path / "run"
    worse = {
        "train__lr": 3.0,
        "train__steps": 6,
        "train__warmup_steps": 0,
        "evaluate__every": 3,
        "checkpoint__every": 2,
    }
    finish(start(command(tiny_data, run, **worse), ranks=2))
    assert read_policy(run / "best")["step"] == 0
    for path in (run / "checkpoints").glob("step-0000000[56]"):
        shutil.rmtree(path)
    before = sha256_of(run / "best" / "model.safetensors")
    (run / "best" / "clear.json").write_text("")
    output = finish(start(command(tiny_data, run, **worse, checkpoint__resume="auto"), ranks=2))
    assert "the next evaluation counts as the best" not in output and "Traceback" not in output
    assert read_policy(run / "best")["step"] == 0
    assert sha256_of(run / "best" / "model.safetensors") == before
