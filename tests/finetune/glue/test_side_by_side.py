"""GLUE's runs by several processes at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import call

from finetune.glue import command as glue
from finetune.glue import side_by_side
from finetune.glue.runs import GlueOptions
from finetune.glue.store import RunStore
from finetune.tuning import tasks
from finetune.tuning.recipe import Interrupted
from pretrain.common import memory
from pretrain.common.folder_lock import FolderTakenError

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def two_cores(monkeypatch):
    """Two processes share the runs, as on a machine of two cores where no number of threads is set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 2)
    monkeypatch.setattr(memory, "free_memory", lambda: 8 << 30)


def figures(folder):
    files = sorted((folder / "glue").glob("*.json"))
    return {path.name: json.loads(path.read_text())["curve"] for path in files}


@pytest.mark.full
def test_figures_are_those_of_one_process(folders, data, tmp_path, two_cores, capfd, monkeypatch):
    flags = {"eval_data": data, "tasks": "RTE,MRPC", "seeds": 2, "epochs": 2, "lr": "1e-3"}
    assert call(glue.train, folders["bert"], **flags, out=tmp_path / "two") == 0
    assert "2 processes with a thread each" in capfd.readouterr().err
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert call(glue.train, folders["bert"], **flags, out=tmp_path / "one") == 0
    assert "processes" not in capfd.readouterr().err
    assert len(figures(tmp_path / "one")) == 4
    assert figures(tmp_path / "two") == figures(tmp_path / "one")


@pytest.mark.full
def test_the_command_itself_shares_its_runs(folders, data, tmp_path):
    """Its functions are in no module that a new interpreter leaves out."""
    words = ["--eval-data", data, "--tasks", "RTE", "--seeds", "2", "--epochs", "1", "--out", tmp_path]
    line = [sys.executable, "-m", "finetune.glue", folders["bert"], *words]
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [str(word) for word in line], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert len(figures(tmp_path)) == 2


def test_the_number_of_processes(two_cores, monkeypatch):
    assert side_by_side.choose_processes(runs=5, parameters=10**6) == 2
    assert side_by_side.choose_processes(runs=1, parameters=10**6) == 1
    assert side_by_side.choose_processes(runs=5, parameters=10**12) == 1  # they do not fit into memory
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert side_by_side.choose_processes(runs=5, parameters=10**6) == 1


def test_a_run_that_another_process_computes_is_left_out(source, data, tmp_path):
    options = GlueOptions(seeds=2, epochs=1)
    store = RunStore(source, {"RTE": tasks.load("RTE", str(data))}, options, tmp_path)
    runs = options.runs(["RTE"])
    with store.claimed(runs[0]):
        with pytest.raises(FolderTakenError, match=r"RTE-.*is being written by"):
            glue.compute_all(store, runs)
        assert store.result(runs[0]) is None and store.result(runs[1]) is not None
    glue.compute_all(store, runs)
    assert not store.unfinished(runs)


@pytest.mark.full
def test_a_stop_reaches_the_other_processes(folders, data, tmp_path, two_cores, monkeypatch):
    """The first process stops at once, and the second with it; together they go on where both were."""
    flags = {"eval_data": data, "tasks": "RTE", "seeds": 2, "epochs": 100_000, "lr": "1e-3"}
    take = glue._compute_free

    def stopped(*_, **__):
        raise Interrupted(143)

    monkeypatch.setattr(glue, "_compute_free", stopped)
    assert call(glue.train, folders["bert"], **flags, out=tmp_path) == 143
    monkeypatch.setattr(glue, "_compute_free", take)
    flags["epochs"] = 2
    assert call(glue.train, folders["bert"], **flags, out=tmp_path) == 0
    assert len(figures(tmp_path)) == 2
