"""Show a run in an experiment tracker: Weights & Biases, MLflow.

metrics.jsonl is the run's own record; a tracker is a view of it. Every tracker is fed from a thread of its
own, first with the rows of metrics.jsonl that it does not have yet, then with the new ones, so that none can
stop or delay training. What a server has been sent it keeps: steps done again after a resume stay there as
they were sent first. TensorBoard's files are written by the telemetry itself.
"""

import importlib.util
import itertools
import math
import os
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pretrain.common.credentials import without_credentials
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, rename_durably, replace_durably
from pretrain.common.run_folder import moved
from pretrain.telemetry.formats import flatten
from pretrain.telemetry.metrics_file import read_metrics

PROJECT = "sentence-clear"
"""What runs are grouped under, if a tracker's own environment variable says nothing else."""
CLOSE_SECONDS = 60.0
"""For all trackers to send what still waits, at the end of a run."""
WAITING = 10_000  # rows that may wait for a tracker: about 10 MB
_MLFLOW_TEXT = 500  # characters of a parameter that every version of MLflow takes


@dataclass(frozen=True)
class Tracking:
    """What is asked of trackers. settings: the recipe that they show, dotted key -> value."""

    names: Sequence[str] = ("tensorboard",)
    run_name: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


class Tracker(threading.Thread, ABC):
    """One tracker, for one run: a thread, in which it is opened and works, and the rows that wait for it.

    tracked: the library's own run, None until it is open. last: metric -> the last step that the tracker has;
    -1: none. place: the folder of trackers' files. problem: why it gets no more rows.
    """

    def __init__(self, tracking: Tracking, run_folder: Path, continued: bool) -> None:
        """continued: the run resumes from a checkpoint; from step 0 on it is a new run to the tracker."""
        # a daemon: one that hangs does not keep the process from ending
        super().__init__(name=type(self).__name__, daemon=True)
        self.tracked: Any = None
        self.last: defaultdict[str, int] = defaultdict(lambda: -1)
        self.title, self.settings = tracking.run_name or run_folder.name, tracking.settings
        self.place, self._continued = run_folder / "trackers", continued
        self.problem = ""
        self.earlier: Iterable[dict[str, Any]] = ()
        """Rows of which the tracker gets those that it lacks, before those that are put."""
        self._waiting: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING)

    @abstractmethod
    def open(self) -> None:
        """Begin a tracked run, or continue the one that an earlier start of the same run began."""

    def identity(self, new: Callable[[], str]) -> tuple[str, bool]:
        """Return by what the tracker knows this run, made by `new` or by an earlier start, and which."""
        path = self.place / f"{type(self).__name__.lower()}.id"
        if self._continued and path.is_file():
            return path.read_text().strip(), True
        identity = new()
        make_folder(self.place)
        replace_durably(path, f"{identity}\n".encode())
        return identity, False

    @abstractmethod
    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """Write metrics of a step. wall_time: seconds since 1970."""

    def close(self) -> None:
        """End this start of the run. Also called after a failure, then it may fail, too."""
        if self.tracked is not None:
            self.tracked.finish()

    def put(self, row: dict[str, Any] | None) -> None:
        """Queue a row; None: there are no more."""
        try:
            self._waiting.put_nowait(row)
        except queue.Full:
            self.problem = self.problem or f"it has not taken a row for so long that {WAITING:,} wait"

    def run(self) -> None:
        # each library raises its own kinds, and those of the network below it; training must not see them
        try:
            self.open()
            for row in itertools.chain(self.earlier, iter(self._waiting.get, None)):
                self._write_new(row)
        except Exception as error:
            self.problem = (str(error).strip() or repr(error)).splitlines()[0].rstrip(".")
        try:
            self.close()
        except Exception as error:
            self.problem = self.problem or str(error) or repr(error)

    def _write_new(self, row: dict[str, Any]) -> None:
        step = row["step"]
        values = {
            name: value
            for name, value in flatten({key: row[key] for key in row.keys() - {"step", "wall_time"}})
            if math.isfinite(value) and step > self.last[name]
        }
        if values:
            self.write(step, row["wall_time"], values)


class Wandb(Tracker):
    """A run of Weights & Biases. WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY ... are the library's own.

    Without WANDB_MODE and without an API key it is offline: `wandb sync RUN/trackers/wandb/offline-run-*`
    uploads it. An offline run is written anew from metrics.jsonl at each start, and the files of the start
    before are moved to replaced/, where `wandb sync` does not look.
    """

    def open(self) -> None:
        import wandb

        identity, _ = self.identity(lambda: uuid4().hex[:8])
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        if mode == "offline":
            folder = self.place / "wandb"
            for old in sorted(folder.glob(f"offline-run-*-{identity}")):
                make_folder(folder / "replaced")
                rename_durably(old, folder / "replaced" / old.name)
        self.tracked = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self.title,
            id=identity,
            resume=None if mode == "offline" else "allow",
            config=dict(self.settings),
            dir=str(self.place),
            mode=mode,
            # the console is the run's own: its lines must not go through another program
            settings=wandb.Settings(silent=True, console="off", finish_timeout=CLOSE_SECONDS),
        )
        last = self.tracked.step - 1  # a server's next one; offline 0
        self.last = defaultdict(lambda: last)

    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        self.tracked.log({**values, "_timestamp": wall_time}, step=step)


class Mlflow(Tracker):
    """A run of MLflow, at MLFLOW_TRACKING_URI or in RUN/trackers/mlflow.db.

    The experiment is MLFLOW_EXPERIMENT_NAME's. tracked: the run's id.
    """

    def open(self) -> None:
        import mlflow

        place, server = self.place.resolve(), os.environ.get("MLFLOW_TRACKING_URI")
        if not server:  # seconds, in which the run folder may go: the library would make it again
            importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
        make_folder(self.place)
        self._client = mlflow.MlflowClient(server or f"sqlite:///{place / 'mlflow.db'}")
        # a server keeps artifacts where it wants; the local database would beside the working folder
        artifacts = None if server else f"file://{place}/mlflow"
        self.tracked, continued = self.identity(lambda: self._create(artifacts))
        if continued:
            self._client.update_run(self.tracked, status="RUNNING")
            for name in self._client.get_run(self.tracked).data.metrics:
                history = self._client.get_metric_history(self.tracked, name)
                self.last[name] = max(metric.step for metric in history)

    def _create(self, artifacts: str | None) -> str:
        from mlflow.entities import Param

        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            number = self._client.create_experiment(name, artifact_location=artifacts)
        else:
            number = experiment.experiment_id
        run_id: str = self._client.create_run(number, run_name=self.title).info.run_id
        settings = [Param(key, str(value)[:_MLFLOW_TEXT]) for key, value in self.settings.items()]
        self._client.log_batch(run_id, params=settings)
        return run_id

    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, round(1000 * wall_time), step) for name, value in values.items()]
        self._client.log_batch(self.tracked, metrics=metrics)

    def close(self) -> None:
        if self.tracked is not None:
            self._client.set_terminated(self.tracked)


TRACKERS: dict[str, Callable[[Tracking, Path, bool], Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}
"""Name, which is the package's, too -> tracker. Its library is imported when it opens."""


def require_trackers(names: Iterable[str]) -> None:
    """Check that the packages of the trackers are installed; import none of them."""
    for name in set(names) & TRACKERS.keys():
        found = importlib.util.find_spec(name)
        # a folder named wandb/ where the command was started is found too, as a package without a file
        if found is None or found.origin is None:
            raise UserError(f"--track {name} is not installed: pip install 'sentence-clear[track]'")


class Trackers:
    """The trackers of a run. What fails is said once, and left out.

    What a tracker has missed it gets at the run's next start, from metrics.jsonl.
    """

    def __init__(
        self, tracking: Tracking, run_folder: Path, continued: bool, say: Callable[[str], None]
    ) -> None:
        """continued: as `Tracker` takes it. say: prints a warning, in the thread that calls these methods."""
        names = [name for name in tracking.names if name in TRACKERS]
        self._make = lambda: {name: TRACKERS[name](tracking, run_folder, continued) for name in names}
        self._open: dict[str, Tracker] = {}
        self._say = say

    def open(self, metrics: Path) -> None:
        """Start all trackers, with the rows that metrics.jsonl, already cut back, has now."""
        self._open = self._make()  # rank 0 alone opens them
        count = sum(1 for _ in read_metrics(metrics)) if self._open else 0
        for tracker in self._open.values():
            tracker.earlier = itertools.islice(read_metrics(metrics), count)
            tracker.start()

    def write(self, row: dict[str, Any]) -> None:
        """Hand a row of metrics.jsonl to all trackers."""
        for tracker in self._open.values():
            tracker.put(row)
        self._leave_out_failed()

    def close(self) -> None:
        """Wait until the trackers have everything, `CLOSE_SECONDS` at most."""
        for tracker in self._open.values():
            tracker.put(None)
        end = time.monotonic() + CLOSE_SECONDS
        for tracker in self._open.values():
            tracker.join(max(0.0, end - time.monotonic()))
            if tracker.is_alive() and not tracker.problem:
                tracker.problem = f"it has not taken everything within {CLOSE_SECONDS:.0f} s of the end"
        self._leave_out_failed()

    def _leave_out_failed(self) -> None:
        for name in [name for name, tracker in self._open.items() if tracker.problem]:
            problem = self._open.pop(name).problem
            if not moved():  # which ends the run, and is said
                self._say(
                    f"WARNING: tracker {name}: {without_credentials(problem)}. The run goes on without it; "
                    "the next start from a checkpoint sends what is missing"
                )
