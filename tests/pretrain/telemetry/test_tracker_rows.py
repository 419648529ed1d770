"""What trackers are given, in which order, and what becomes of one that fails; and what libraries are asked,
as stand-ins of them record it."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from pretrain.telemetry import trackers
from pretrain.telemetry.metrics_file import to_line
from pretrain.telemetry.trackers import Mlflow, Tracker, Trackers, Tracking, Wandb


class Kept(Tracker):
    """A tracker that keeps what it is given, and fails where it is told to."""

    def __init__(self, tracking=None, folder=Path("somewhere/mine"), continued=False, fails=""):
        super().__init__(tracking or Tracking(), folder, continued)
        self.fails, self.rows, self.closed = fails, [], 0

    def open(self):
        if self.fails == "open":
            raise ConnectionError("no route to host.\n at line 7")

    def write(self, step, wall_time, values):
        if self.fails == "write":
            raise ConnectionError()
        self.rows.append((step, wall_time, values))

    def close(self):
        self.closed += 1
        if self.fails:
            raise OSError("cannot close")


def row(step, **values):
    return {"step": step, "wall_time": 100.0 + step, **values}


def worked(tracker, *rows):
    for one in (*rows, None):
        tracker.put(one)
    tracker.run()
    return tracker


def test_a_tracker_gets_the_numbers_that_it_lacks_in_order():
    tracker = Kept()
    tracker.earlier = [row(1, loss={"mlm": 3.0}), row(2, loss={"mlm": 2.5, "total": float("nan")})]
    tracker.last["loss/mlm"], tracker.last["lr"] = 1, 3
    worked(tracker, row(3, lr=0.5, lines=7), row(3, warning="text"), row(4, lr=0.25, seconds=float("inf")))
    assert tracker.rows == [
        (2, 102.0, {"loss/mlm": 2.5}),
        (3, 103.0, {"lines": 7.0}),
        (4, 104.0, {"lr": 0.25}),
    ]
    assert tracker.closed == 1 and tracker.problem == "" and tracker.daemon and tracker.last["new"] == -1
    worked(first := Kept(), row(0, evaluation={"mine": 1.0}))
    assert first.rows == [(0, 100.0, {"evaluation/mine": 1.0})]


def test_the_first_problem_is_the_one_that_is_told():
    assert worked(Kept(fails="open"), row(1, lr=1.0)).problem == "no route to host"
    assert worked(Kept(fails="write"), row(1, lr=1.0)).problem == "ConnectionError()"
    closes = worked(Kept(fails="close"), row(1, lr=1.0))
    assert closes.problem == "cannot close" and closes.rows and closes.closed == 1


def test_rows_wait_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(trackers, "WAITING", 2)
    tracker = Kept()
    for step in (1, 2):
        tracker.put(row(step))
    assert tracker.problem == ""
    tracker.put(row(3))
    assert "so long that 2 wait" in tracker.problem
    monkeypatch.undo()
    assert Kept()._waiting.maxsize == 10_000


def test_a_continued_run_keeps_its_identity_and_a_new_one_gets_another(tmp_path):
    names = iter(["first", "second"])
    run = tmp_path / "mine"
    assert Kept(folder=run, continued=True).identity(lambda: next(names)) == ("first", False)
    assert (run / "trackers" / "kept.id").read_text() == "first\n"
    assert Kept(folder=run, continued=True).identity(lambda: next(names)) == ("first", True)
    assert Kept(folder=run).identity(lambda: next(names)) == ("second", False)
    assert Kept(folder=run, continued=True).identity(lambda: next(names)) == ("second", True)
    assert Kept(folder=run).title == "mine" and Kept(Tracking(run_name="named"), run).title == "named"


def test_trackers_are_fed_the_file_and_then_the_rows_and_a_failed_one_is_left_out(tmp_path, monkeypatch):
    metrics, said, made = tmp_path / "metrics.jsonl", [], {}

    def make(fails):
        def one(tracking, folder, continued):
            made[fails] = Kept(tracking, folder, continued, fails)
            return made[fails]

        return one

    monkeypatch.setattr(trackers, "TRACKERS", {"good": make(""), "bad": make("open"), "other": make("write")})
    tracking = Tracking(["tensorboard", "bad", "good"], "named", {"a": 1})
    several = Trackers(tracking, tmp_path / "run", True, said.append)
    metrics.write_text("".join(to_line(row(step, lr=step / 2)) for step in (1, 2)))
    assert made == {}  # ranks that open none make none
    several.open(metrics)
    assert list(made) == ["open", ""]
    with metrics.open("a") as file:
        file.write(to_line(row(9, lr=9.0)))
    made["open"].join(60)
    several.write(row(3, lr=1.5))
    (warning,) = said
    assert warning.startswith("WARNING: tracker bad: no route to host. The run goes on without it")
    several.write(row(4, lr=2.0))
    several.close()
    assert [step for step, _, _ in made[""].rows] == [1, 2, 3, 4] and len(said) == 1
    assert made[""].closed == 1 and made[""].title == "named" and made[""].settings == {"a": 1}


def test_a_problem_is_told_without_credentials_and_not_of_a_folder_that_has_gone(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(trackers, "TRACKERS", {"bad": lambda *given: Kept(*given)})
    for gone in (None, OSError("moved")):
        several = Trackers(Tracking(["bad"]), tmp_path, False, said.append)
        several.open(tmp_path / "metrics.jsonl")
        several._open["bad"].problem = "cannot reach https://me:secret@host/x"
        monkeypatch.setattr(trackers, "moved", lambda gone=gone: gone)
        several.close()
        several.write(row(1))
    assert len(said) == 1 and "secret" not in said[0] and "host/x" in said[0]


# -- the libraries


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in of Weights & Biases that records its calls."""
    calls = SimpleNamespace(init=[], log=[], finished=0, key=False, step=0)

    class Run:
        step = property(lambda self: calls.step)

        def log(self, values, step):
            calls.log.append((step, values))

        def finish(self):
            calls.finished += 1

    module = ModuleType("wandb")
    module.login = lambda prompt: calls.key and not prompt
    module.Settings = lambda **settings: settings
    module.init = lambda **settings: calls.init.append(settings) or Run()
    monkeypatch.setitem(sys.modules, "wandb", module)
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return calls


def test_wandb_without_a_key_is_written_anew_offline(tmp_path, wandb):
    place = tmp_path / "run" / "trackers"
    first = worked(
        Wandb(Tracking(["wandb"], "named", {"train.lr": 0.1}), tmp_path / "run", False), row(1, lr=0.5)
    )
    (settings,) = wandb.init
    identity = (place / "wandb.id").read_text().strip()
    assert first.problem == "" and len(identity) == 8 and int(identity, 16) >= 0
    assert wandb.log == [(1, {"lr": 0.5, "_timestamp": 101.0})] and wandb.finished == 1
    limits = settings.pop("settings")
    assert limits == {"silent": True, "console": "off", "finish_timeout": trackers.CLOSE_SECONDS}
    assert settings == {
        "project": "sentence-clear",
        "name": "named",
        "id": identity,
        "resume": None,
        "config": {"train.lr": 0.1},
        "dir": str(place),
        "mode": "offline",
    }
    names = [f"offline-run-1-{identity}", f"offline-run-2-{identity}", "offline-run-1-otherone"]
    for name in names:
        (place / "wandb" / name).mkdir(parents=True)
    worked(Wandb(Tracking(["wandb"]), tmp_path / "run", True), row(1, lr=0.5))
    there = {path.name for path in (place / "wandb").iterdir()}
    assert there == {names[2], "replaced"} and wandb.init[1]["id"] == identity
    assert {path.name for path in (place / "wandb" / "replaced").iterdir()} == set(names[:2])


def test_wandb_with_a_key_continues_the_servers_run(tmp_path, wandb, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "ours")
    wandb.key, wandb.step = True, 3
    worked(Wandb(Tracking(["wandb"]), tmp_path / "run", True), *(row(step, lr=0.5) for step in (1, 2, 3, 4)))
    assert [step for step, _ in wandb.log] == [3, 4], "the server has steps 0 to 2"
    (settings,) = wandb.init
    assert (settings["mode"], settings["resume"], settings["project"]) == ("online", "allow", "ours")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    worked(Wandb(Tracking(["wandb"]), tmp_path / "run", True))
    assert wandb.init[1]["mode"] == "disabled"


@pytest.fixture
def mlflow(monkeypatch):
    """A stand-in of MLflow's client: experiments and runs in memory."""
    server = SimpleNamespace(places=[], experiments={}, runs={}, loaded=0)

    class Client:
        def __init__(self, place):
            server.places.append(place)

        def get_experiment_by_name(self, name):
            return server.experiments.get(name)

        def create_experiment(self, name, artifact_location):
            number = f"number {len(server.experiments)}"
            server.experiments[name] = SimpleNamespace(experiment_id=number, place=artifact_location)
            return number

        def create_run(self, number, run_name):
            found = SimpleNamespace(number=number, name=run_name, params={}, metrics=[], status="RUNNING")
            server.runs[f"run {len(server.runs)}"] = found
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run {len(server.runs) - 1}"))

        def log_batch(self, run_id, params=(), metrics=()):
            server.runs[run_id].params |= dict(params)
            server.runs[run_id].metrics += metrics

        def update_run(self, run_id, status):
            server.runs[run_id].status = status

        def get_run(self, run_id):
            names = {name for name, *_ in server.runs[run_id].metrics}
            return SimpleNamespace(data=SimpleNamespace(metrics=names))

        def get_metric_history(self, run_id, name):
            return [SimpleNamespace(step=one[3]) for one in server.runs[run_id].metrics if one[0] == name]

        def set_terminated(self, run_id):
            server.runs[run_id].status = "FINISHED"

    entities = SimpleNamespace(Param=lambda *pair: pair, Metric=lambda *values: values)
    for name, module in {
        "mlflow": SimpleNamespace(MlflowClient=Client),
        "mlflow.entities": entities,
        "mlflow.store": SimpleNamespace(),
        "mlflow.store.tracking": SimpleNamespace(),
        "mlflow.store.tracking.sqlalchemy_store": SimpleNamespace(),
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    return server


def test_mlflow_gets_a_run_of_its_own_in_the_run_folder_and_continues_it(tmp_path, mlflow, monkeypatch):
    run = tmp_path / "run"
    long = "x" * 501
    tracking = Tracking(["mlflow"], "named", {"train.lr": 0.1, "long": long})
    first = worked(Mlflow(tracking, run, False), row(1, lr=0.5), row(2, lr=0.25, loss={"mlm": 3.0}))
    place = (run / "trackers").resolve()
    assert first.problem == "" and place.is_dir() and mlflow.places == [f"sqlite:///{place}/mlflow.db"]
    experiment = mlflow.experiments["sentence-clear"]
    assert experiment.place == f"file://{place}/mlflow"
    kept = mlflow.runs["run 0"]
    assert (kept.name, kept.number, kept.status) == ("named", experiment.experiment_id, "FINISHED")
    assert kept.params == {"train.lr": "0.1", "long": long[:500]}
    assert set(kept.metrics) == {
        ("lr", 0.5, 101000, 1),
        ("lr", 0.25, 102000, 2),
        ("loss/mlm", 3.0, 102000, 2),
    }
    again = Mlflow(tracking, run, True)
    worked(again, row(2, lr=0.9, loss={"mlm": 9.0}), row(2, late=1.0), row(3, lr=0.125))
    assert again.last["lr"] == 2 and len(mlflow.runs) == 1 and kept.status == "FINISHED"
    assert kept.metrics[3:] == [("late", 1.0, 102000, 2), ("lr", 0.125, 103000, 3)]

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://server")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "ours")
    worked(Mlflow(tracking, tmp_path / "other", False))
    worked(Mlflow(tracking, tmp_path / "third", False))
    assert mlflow.places[2:] == ["https://server"] * 2 and mlflow.experiments["ours"].place is None
    assert [mlflow.runs[f"run {n}"].number for n in (1, 2)] == [mlflow.experiments["ours"].experiment_id] * 2


def test_a_tracker_that_was_not_opened_is_not_closed(tmp_path, mlflow):
    sys.modules["mlflow"].MlflowClient = None
    assert "NoneType" in worked(Mlflow(Tracking(), tmp_path, False)).problem
    base = Kept()
    base.tracked = SimpleNamespace(finish=lambda: base.rows.append("finished"))
    Tracker.close(base)
    assert base.rows == ["finished"]
