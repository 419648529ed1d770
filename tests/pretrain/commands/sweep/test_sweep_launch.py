"""A sweep under a launcher of several ranks: our own example, really run, interrupted and gone on with."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from run_helpers import ROOT, TINY, curve, environment, paths_in, wait_for
from sweep_helpers import write_sweep

from pretrain.commands.sweep.__main__ import SweepFlags, plan, sweep
from pretrain.common.errors import UserError

TORCHRUN = f"{Path(sys.executable).with_name('torchrun')} --standalone --nproc-per-node 2"


def start(folder, *words):
    line = [
        sys.executable,
        "-m",
        "pretrain.commands.sweep",
        str(folder / "sweep.yaml"),
        "--out",
        str(folder / "out"),
        *words,
    ]
    return subprocess.Popen(
        line, env=environment(), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def write_tiny(data, folder, steps=60, **keys):
    settings = {key: yaml.safe_load(str(value)) for key, value in TINY.items()} | {
        "data.folder": str(data),
        "train.steps": steps,
        "evaluate.every": 0,
        "checkpoint.every": 0,
    }
    sweep = {
        "title": "T",
        "recipe": str(ROOT / "configs" / "clear_micro.yaml"),
        "set": settings,
        "rows": {"one": {}},
        "columns": {"s/step": "run.seconds_per_step"},
    }
    (folder / "sweep.yaml").write_text(yaml.safe_dump(sweep | keys))


@pytest.mark.slow
def test_torchrun_starts_the_ranks_and_a_signal_to_the_sweep_saves(tiny_data, tmp_path):
    write_tiny(tiny_data, tmp_path, seeds=[1])
    process = start(tmp_path, "--launch", TORCHRUN)

    def run():
        return next(iter(paths_in(tmp_path / "out" / "runs", "one-*")), tmp_path)

    wait_for(lambda: len(curve(run())) > 4, [process], timeout=200, pause=0.02)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert process.returncode == 143 and "waiting for the run to save" in said, said
    log = (run() / "log.txt").read_text()
    assert "2 x CPU" in log and not (run() / "stop").exists() and list((run() / "checkpoints").glob("step-*"))
    process = start(tmp_path, "--launch", TORCHRUN)
    said = process.communicate()[0]
    assert process.returncode == 0 and "ours, 1 of 1 seeds" in said and ", from step" in said, said
    assert max(curve(run())) == 60


@pytest.mark.full
def test_a_launcher_that_is_not_there_is_one_message(tiny_data, tmp_path):
    sweep = {
        "title": "T",
        "recipe": str(ROOT / "configs" / "clear_micro.yaml"),
        "rows": {"one": {"set": {"data.folder": "d"}}},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(sweep))
    process = start(tmp_path, "--launch", "torch-run --nproc-per-node 2")
    said = process.communicate()[0]
    assert process.returncode == 2 and "torch-run cannot be started" in said and "Traceback" not in said, said


PASSING = """
import pathlib, sys
run = pathlib.Path(next(word for word in sys.argv if word.startswith("--folder=")).partition("=")[2])
(run / "watch").mkdir(parents=True)
(run / "watch" / "end").write_text("75\\nrank 1 is lost\\n")
print("error: rank 1 is lost")
sys.exit(75)
"""


@pytest.mark.full
def test_a_fault_of_one_run_that_may_pass_does_not_end_the_sweep(tiny_data, tmp_path):
    """Its status is that of a run which was asked to save and start again."""
    (tmp_path / "launcher.py").write_text(PASSING)
    write_tiny(tiny_data, tmp_path, seeds=[1, 2])
    process = start(tmp_path, "--launch", f"{sys.executable} {tmp_path / 'launcher.py'}")
    said = process.communicate()[0]
    assert said.count("FAILED (75): error: rank 1 is lost") == 2 and "SIGUSR1" not in said, said


def test_a_folder_of_benchmarks_that_is_not_there_is_said_before_any_run(monkeypatch, tmp_path):
    path = write_sweep(tmp_path)
    with pytest.raises(UserError, match=r"no folder of benchmarks \S+nowhere: --eval-data, or CLEAR_DATA"):
        plan(str(path), flags=SweepFlags(), eval_data=str(tmp_path / "nowhere"))
    monkeypatch.setenv("CLEAR_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match="no folder of benchmarks"):
        sweep(str(path), flags=SweepFlags(out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["sts", "no-such"])
def test_an_evaluation_that_the_sweep_does_not_have_is_said_before_any_run(tmp_path, name):
    flags = SweepFlags(out=tmp_path / "out", evaluations=(name,))
    with pytest.raises(UserError, match=rf"'{name}': this sweep has "):
        sweep(str(write_sweep(tmp_path)), flags=flags)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_runs_side_by_side_share_the_cores_and_a_signal_saves_them_all(tiny_data, tmp_path):
    steps = 240  # none ends before the other is under way, also where one starts late
    write_tiny(tiny_data, tmp_path, steps, seeds=[1, 2, 3])
    process = start(tmp_path, "--jobs", "2")

    def runs():
        return paths_in(tmp_path / "out" / "runs", "one-*")

    wait_for(
        lambda: [len(curve(run)) > 4 for run in runs()] == [True] * 2, [process], timeout=200, pause=0.02
    )
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert process.returncode == 143 and said.count("waiting for the run to save") == 2, said
    assert [run.name.split("-")[1] for run in runs()] == ["seed1", "seed2"]  # no third was begun
    for run in runs():
        assert "threads per rank: " in (run / "log.txt").read_text() and list(run.glob("checkpoints/step-*"))
    process = start(tmp_path, "--jobs", "2")
    said = process.communicate()[0]
    assert process.returncode == 0 and "ours, 3 of 3 seeds" in said and said.count(", from step") == 2, said
    assert [max(curve(run)) for run in runs()] == [steps] * 3


@pytest.mark.full
def test_a_killed_sweep_has_its_runs_save_and_end(tiny_data, tmp_path):
    steps = 3000  # more than any does before it learns of its end
    write_tiny(tiny_data, tmp_path, steps, seeds=[1, 2])
    process = start(tmp_path, "--jobs", "2")

    def runs():
        return paths_in(tmp_path / "out" / "runs", "one-*")

    wait_for(
        lambda: [len(curve(run)) > 4 for run in runs()] == [True] * 2, [process], timeout=200, pause=0.02
    )
    process.kill()
    process.communicate()
    wait_for(lambda: all(paths_in(run, "checkpoints/step-*") for run in runs()), [], timeout=100)
    wait_for(lambda: not any((run / ".lock").exists() for run in runs()), [], timeout=100)
    assert all(max(curve(run)) < steps for run in runs())


@pytest.mark.full
def test_runs_side_by_side_are_of_one_process_each(tiny_data, tmp_path):
    write_tiny(tiny_data, tmp_path)
    process = start(tmp_path, "--jobs", "2", "--launch", TORCHRUN)
    said = process.communicate()[0]
    assert process.returncode == 2 and "give it, or --launch" in said, said
