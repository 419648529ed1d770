"""A run folder that is renamed or removed while ranks train: all stop, and nothing is made again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_helpers import command, finish, outputs_of, records, start, wait_for

from pretrain.common import files
from pretrain.common.folder_lock import LOCK
from pretrain.common.run_folder import FolderMoved, guard, moved


def rename(run: Path) -> None:
    run.rename(run.with_name("elsewhere"))


def remove(run: Path) -> None:
    """Remove a folder while files in it come and go."""
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)


@pytest.mark.full
@pytest.mark.parametrize(
    "ranks, lose, track", [(2, rename, "tensorboard,wandb"), (1, remove, "tensorboard,wandb,mlflow")]
)
def test_a_run_whose_folder_is_gone_stops(tiny_data, tmp_path, ranks, lose, track):
    for package in track.split(",")[1:]:
        pytest.importorskip(package)
    run = tmp_path / "run"
    flags = {"train__steps": 5000, "checkpoint__every": 5, "evaluate__every": 7, "track": track}
    words = command(tiny_data, run, **flags)
    processes = start(words, ranks, WANDB_MODE="offline")
    wait_for(lambda: (run / "checkpoints" / "latest").exists() and len(records(run)) > 12, processes)
    lose(run)
    said = "".join(outputs_of(processes, 120))
    assert [process.returncode for process in processes] == [2] * ranks, said
    assert said.count("was renamed or removed while this command wrote into it") == 1
    assert "Traceback" not in said and "WARNING" not in said, said
    assert not run.exists(), list(run.rglob("*"))
    if lose is rename:
        away = run.with_name("elsewhere")
        steps = records(away)[-1]["step"] + 3
        words = command(tiny_data, away, **flags | {"train__steps": steps}, checkpoint__resume="auto")
        finish(start(words, ranks))
        assert [row["step"] for row in records(away) if "loss" in row] == list(range(1, steps + 1))


def test_what_lies_in_a_folder_that_lost_its_name_is_not_written(tmp_path):
    folder, other = tmp_path / "run", tmp_path / "other"
    folder.mkdir()
    (folder / LOCK).write_text("this run's")
    lines = files.AppendedFile(folder / "lines")
    writes = (
        lambda: files.make_folder(folder / "a" / "b"),
        lambda: files.replace_durably(folder / "file", b"x"),
        lambda: files.write_durably(folder / "file", b"x"),
        lambda: files.rename_durably(other / "file", folder / "file"),
        lambda: files.put_in_place(other / "folder", folder / "folder"),
        lambda: lines.append(b"x\n"),
    )
    (other / "folder").mkdir(parents=True)
    (other / "file").touch()
    with guard(folder, LOCK):
        assert moved() is None
        (folder / LOCK).rename(other / LOCK)  # as one who removes a folder begins
        assert isinstance(moved(), FolderMoved)
        shutil.copy(other / LOCK, folder / LOCK)  # another inode, as some file systems give
        assert moved() is None
        folder.rename(tmp_path / "away")
        for again in (False, True):
            if again:
                folder.mkdir()  # another run's
                (folder / LOCK).write_text("another's")
            for write in writes:
                with pytest.raises(FolderMoved, match="was renamed or removed"):
                    write()
            assert moved(other) is None and [path.name for path in folder.glob("*")] == [LOCK] * again
        files.make_folder(tmp_path / "run2")  # another name that begins alike
    lines.close()
    assert sorted(path.name for path in (tmp_path / "away").iterdir()) == [LOCK, "lines"]
    assert moved() is None


LOST_WHILE_MLFLOW_LOADS = """
import shutil, sys
from pathlib import Path
from pretrain.common.folder_lock import LOCK
from pretrain.common.run_folder import guard
from pretrain.telemetry.trackers import Mlflow, Tracking

run = Path(sys.argv[1])

class Remove:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "mlflow.store.tracking.sqlalchemy_store":
            shutil.rmtree(run, ignore_errors=True)

run.mkdir()
(run / LOCK).write_text("this run's")
sys.meta_path.insert(0, Remove)
with guard(run, LOCK):
    tracker = Mlflow(Tracking(("mlflow",), "run", {}), run, False)
    tracker.run()
print(tracker.problem)
"""


@pytest.mark.full
def test_mlflow_does_not_make_a_folder_again_that_goes_while_it_loads(tmp_path):
    pytest.importorskip("mlflow")
    environment = {**os.environ, "MLFLOW_TRACKING_URI": ""}
    words = [sys.executable, "-c", LOST_WHILE_MLFLOW_LOADS, str(tmp_path / "run")]
    said = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert "was renamed or removed" in said.stdout, said
    assert not (tmp_path / "run").exists()
