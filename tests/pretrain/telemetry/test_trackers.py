"""A run in a tracker: one run with each step once, whatever ends it between; and a tracker that fails."""

import importlib.util
import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from forked_python import ForkedPython, run_python
from run_helpers import ROOT, command, environment, finish, kill, records, start, wait_for
from tracker_helpers import mlflow_rows, wandb_rows

from pretrain.common.errors import UserError
from pretrain.telemetry import trackers
from pretrain.telemetry.formats import flatten
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.trackers import Tracker, require_trackers

WORKER = Path(__file__).with_name("tracker_worker.py")


def installed(tracker: str, *marks: pytest.MarkDecorator):
    """A parameter that is left out where the tracker is not installed."""
    absent = importlib.util.find_spec(tracker) is None
    reason = f"{tracker} is not installed (pip install 'sentence-clear[track]')"
    return pytest.param(tracker, marks=(pytest.mark.skipif(absent, reason=reason), *marks))


TRACKERS = [installed("wandb"), installed("mlflow", pytest.mark.slow)]


@pytest.fixture
def own_places(tmp_path, monkeypatch) -> dict[str, str]:
    """Variables that keep trackers offline and in this test's folder; returns them."""
    places = {"WANDB_MODE": "offline", "HOME": str(tmp_path)}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return places


def report(*words: object) -> str:
    """Run tracker_worker.py in a process of its own, as every start of a run is; return what it prints."""
    return run_python([str(WORKER), *map(str, words)], worker_environment()).stdout


def worker_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}


def shown(tracker: str, folder: Path):
    """The identities of the tracked runs, and (metric, step) -> values."""
    return {"wandb": wandb_rows, "mlflow": mlflow_rows}[tracker](folder)


def expected(folder: Path) -> dict[tuple[str, int], float]:
    """(metric, step) -> value of metrics.jsonl."""
    values = {}
    for row in read_metrics(folder / "metrics.jsonl"):
        step, _ = row.pop("step"), row.pop("wall_time")
        values |= {(name, step): value for name, value in flatten(row)}
    return values


@pytest.mark.full
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_killed_and_resumed_run_is_one_run_with_each_step_once(tracker, tmp_path, own_places):
    folder = tmp_path / "run"
    process = ForkedPython([str(WORKER), str(folder), tracker, "0", "100000"], worker_environment())
    try:
        named = folder / "trackers" / f"{tracker}.id"
        wait_for(
            lambda: named.is_file() and any(step > 17 for _, step in shown(tracker, folder)[1]),
            [process],
            pause=0.5,
        )
    finally:
        kill([process])
    seen = shown(tracker, folder)[0]
    reached = list(read_metrics(folder / "metrics.jsonl"))[-1]["step"]
    report(folder, tracker, 15, reached + 10)  # the checkpoint was of step 15
    names, values = shown(tracker, folder)
    assert names == seen and len(names) == 1
    assert {key: len(found) for key, found in values.items()} == dict.fromkeys(expected(folder), 1)
    assert all(found == [step] for (name, step), found in values.items() if name == "loss/total")
    assert {step for name, step in values if name == "evaluation/stsb-dev"} == set(range(5, reached + 11, 5))


@pytest.mark.full
@pytest.mark.parametrize("tracker", TRACKERS)
def test_a_tracker_named_later_gets_the_whole_run_and_a_new_run_is_new(tracker, tmp_path, own_places):
    folder = tmp_path / "run"
    report(folder, "tensorboard", 0, 10)
    report(folder, tracker, 10, 12)
    first, values = shown(tracker, folder)
    assert {step for name, step in values if name == "loss/total"} == set(range(1, 13))
    report(folder, tracker, 0, 3)
    assert len(shown(tracker, folder)[0] - first) == 1


@pytest.mark.full
def test_the_command_shows_its_run_and_continues_it_after_a_kill(tiny_data, tmp_path, own_places):
    pytest.importorskip("wandb")
    folder = tmp_path / "run"
    words = command(tiny_data, folder, checkpoint__resume="auto", track="tensorboard,wandb")
    variables = own_places | {"PYTHONPATH": environment()["PYTHONPATH"]}
    processes = start(words, **variables)
    wait_for(lambda: any(row["step"] > 6 for row in records(folder)), processes)
    kill(processes)
    seen = wandb_rows(folder)[0]
    output = finish(start(words, **variables))
    assert "tracker wandb" not in output
    names, values = wandb_rows(folder)
    assert len(names) == 1 and seen <= names
    assert values.keys() == expected(folder).keys() and {len(found) for found in values.values()} == {1}
    assert values["loss/total", 10] == [expected(folder)["loss/total", 10]]


class Gone(Tracker):
    """A tracker whose network goes away, or hangs, after three rows."""

    def __init__(self, hangs: bool) -> None:
        super().__init__(trackers.Tracking(), Path(), continued=False)
        self.hangs, self.rows = hangs, 0

    def open(self) -> None:
        pass

    def write(self, step, wall_time, values) -> None:
        self.rows += 1
        if self.rows == 3 and self.hangs:
            threading.Event().wait()
        if self.rows == 3:
            raise ConnectionError("network is unreachable\nand more")

    def close(self) -> None:
        raise ConnectionError("still unreachable")


def test_ranks_but_the_first_open_no_tracker(tmp_path, monkeypatch):
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", lambda *_: pytest.fail("made"))
    with Telemetry(tmp_path, 5, rank=1, tracking=trackers.Tracking(["mlflow"])) as telemetry:
        telemetry.log(1, {"loss": {"total": 1.0}})


@pytest.mark.full
@pytest.mark.parametrize(("hangs", "said"), [(False, "network is unreachable."), (True, "has not taken")])
def test_training_goes_on_without_a_tracker_that_fails(hangs, said, tmp_path, monkeypatch):
    gone, stream = Gone(hangs), io.StringIO()
    monkeypatch.setitem(trackers.TRACKERS, "mlflow", lambda *_: gone)
    monkeypatch.setattr(trackers, "CLOSE_SECONDS", 3.0 if hangs else 60.0)
    with Telemetry(tmp_path, 50, stream=stream, tracking=trackers.Tracking(["mlflow"])) as telemetry:
        for step in range(1, 51):
            telemetry.log(step, {"loss": {"total": step}})
            time.sleep(0.001)
    warnings = [line for line in stream.getvalue().splitlines() if line.startswith("WARNING: tracker mlflow")]
    assert len(warnings) == 1 and said in warnings[0] and gone.rows == 3
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 51))
    assert not (tmp_path / "tensorboard").exists()


def test_all_trackers_together_have_the_seconds_at_the_end(tmp_path, monkeypatch):
    now, said = [0.0], []

    class Hanging(SimpleNamespace):
        def join(self, seconds: float) -> None:
            now[0] += seconds

    def hanging(*_) -> Hanging:
        return Hanging(problem="", start=lambda: None, put=lambda row: None, is_alive=lambda: True)

    monkeypatch.setattr(trackers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(trackers.TRACKERS, name, hanging)
    several = trackers.Trackers(trackers.Tracking(["wandb", "mlflow"]), tmp_path, False, said.append)
    several.open(tmp_path / "metrics.jsonl")
    several.close()
    assert now == [trackers.CLOSE_SECONDS] and len(said) == 2


@pytest.mark.full
def test_without_a_network_a_run_ends_with_one_warning(tmp_path, own_places, monkeypatch):
    pytest.importorskip("wandb")
    variables = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    for name, value in (variables | {"WANDB_INIT_TIMEOUT": "5"}).items():
        monkeypatch.setenv(name, value)
    assert report(tmp_path / "run", "wandb", 0, 20).count("WARNING: tracker wandb:") == 1
    assert len(expected(tmp_path / "run")) > 40
    monkeypatch.setenv("WANDB_MODE", "offline")
    report(tmp_path / "run", "wandb", 20, 22)  # gets what it has missed
    assert {step for name, step in wandb_rows(tmp_path / "run")[1] if name == "loss/total"} == set(
        range(1, 23)
    )


def test_a_tracker_that_is_not_installed_is_refused(tmp_path, monkeypatch):
    require_trackers(["tensorboard"])
    (tmp_path / "absent_tracker").mkdir()  # as the folder wandb/ that its runs leave
    monkeypatch.syspath_prepend(tmp_path)
    for package in ("absent_tracker", "no_such_tracker"):
        monkeypatch.setitem(trackers.TRACKERS, package, Tracker)
        with pytest.raises(UserError, match=rf"--track {package} is not installed.*sentence-clear\[track\]"):
            require_trackers(["tensorboard", package])


@pytest.mark.full
def test_trackers_are_imported_by_those_who_use_them_only(tmp_path):
    code = (
        "import sys, pathlib; from pretrain.telemetry.run import Telemetry\n"
        "with Telemetry(pathlib.Path(sys.argv[1]), 10) as telemetry: telemetry.log(1, {'loss': 1.0})\n"
        "print({'wandb', 'mlflow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
