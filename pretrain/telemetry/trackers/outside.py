"""Feed trackers that live outside the run folder's own files, without making training wait or fail."""

import importlib.util
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrain.common.credentials import without_credentials
from pretrain.common.errors import UserError
from pretrain.common.run_folder import moved
from pretrain.telemetry.formats import flatten
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.trackers.tracker import CLOSE_SECONDS, TrackedRun, Tracker

PACKAGES = {
    "tensorboard": "torch.utils.tensorboard",
    "trackio": "trackio",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
"""Tracker -> the module that it needs."""

WAITING = 10_000  # rows that may wait for a tracker: about 10 MB


def require_trackers(names: Iterable[str]) -> None:
    """Check that the packages of the trackers are installed; import none of them.

    Raises:
        UserError: one is not.
    """
    for name in names:
        package = PACKAGES[name].partition(".")[0]
        found = importlib.util.find_spec(package)
        # a folder named wandb/ where the command was started is found too, as a package without a file
        if found is None or found.origin is None:
            raise UserError(
                f"--track {name}: the package {name} is not installed. Install it, pip install "
                f"'sentence-clear[track]', or leave {name} out"
            )


@dataclass
class Feed:
    """One tracker with its thread, and what waits for it."""

    name: str
    tracker: Tracker
    waiting: queue.Queue[dict[str, Any] | None] = field(default_factory=lambda: queue.Queue(WAITING))
    problem: str = ""
    """Why the tracker gets no more rows."""
    thread: threading.Thread | None = None

    def start(self, run: TrackedRun, earlier: Iterable[dict[str, Any]]) -> None:
        """Open the tracker and give it the rows of `earlier` that it lacks, in the background."""
        # a daemon: one that hangs does not keep the process from ending
        self.thread = threading.Thread(target=self._work, args=(run, earlier), daemon=True)
        self.thread.start()

    def put(self, row: dict[str, Any] | None) -> None:
        """Queue a row; None: there are no more."""
        if self.problem:
            return
        try:
            self.waiting.put_nowait(row)
        except queue.Full:
            self.problem = f"it has not taken a row for so long that {WAITING:,} wait"

    def _work(self, run: TrackedRun, earlier: Iterable[dict[str, Any]]) -> None:
        try:
            self.tracker.open(run)
            for row in itertools.chain(earlier, iter(self.waiting.get, None)):
                self._write(row)
        # each library raises its own kinds, and those of the network below it; training must not see them
        except Exception as error:
            said = str(error).strip() or repr(error)
            self.problem = said.splitlines()[0].rstrip(".")
        try:
            self.tracker.close()
        except Exception as error:
            self.problem = self.problem or str(error) or repr(error)

    def _write(self, row: dict[str, Any]) -> None:
        step = row["step"]
        metrics = {key: value for key, value in row.items() if key not in ("step", "wall_time")}
        values = {
            name: value
            for name, value in flatten(metrics)
            if math.isfinite(value) and step > self.tracker.last_step(name)
        }
        if values:
            self.tracker.write(step, row["wall_time"], values)


class Outside:
    """The trackers of a run. None of them can stop or delay it: what fails is said once, and left out.

    What a tracker has missed it gets at the run's next start, from metrics.jsonl.
    """

    def __init__(self, names: Sequence[str], run: TrackedRun, say: Callable[[str], None]) -> None:
        """
        Args:
            names: of `PACKAGES`, without tensorboard.
            say: prints a warning; called in the thread that calls these methods.
        """
        self._run, self._say = run, say
        self._feeds = [Feed(name, make_tracker(name)) for name in names]

    def open(self, metrics: Path) -> None:
        """Start all trackers, with the rows that metrics.jsonl, already cut back, has now."""
        count = sum(1 for _ in read_metrics(metrics)) if self._feeds else 0
        for feed in self._feeds:
            feed.start(self._run, itertools.islice(read_metrics(metrics), count))

    def write(self, row: dict[str, Any]) -> None:
        """Hand a row of metrics.jsonl to all trackers."""
        for feed in self._feeds:
            feed.put(row)
        self._leave_out_failed()

    def close(self) -> None:
        """Wait until the trackers have everything, `CLOSE_SECONDS` at most."""
        for feed in self._feeds:
            feed.put(None)
        end = time.monotonic() + CLOSE_SECONDS
        for feed in self._feeds:
            assert feed.thread is not None  # opened
            feed.thread.join(max(0.0, end - time.monotonic()))
            if feed.thread.is_alive() and not feed.problem:
                feed.problem = f"it has not taken everything within {CLOSE_SECONDS:.0f} s of the end"
        self._leave_out_failed()

    def _leave_out_failed(self) -> None:
        for feed in [feed for feed in self._feeds if feed.problem]:
            self._feeds.remove(feed)
            if moved():  # which ends the run, and is said
                continue
            self._say(
                f"WARNING: tracker {feed.name}: {without_credentials(feed.problem)}. The run goes on without "
                "it; metrics.jsonl has all, and the next start from a checkpoint sends what is missing"
            )


def make_tracker(name: str) -> Tracker:
    """Return a tracker that is not open yet. Its library is imported when it opens."""
    if name == "wandb":
        from pretrain.telemetry.trackers.wandb import Wandb

        return Wandb()
    if name == "mlflow":
        from pretrain.telemetry.trackers.mlflow import Mlflow

        return Mlflow()
    from pretrain.telemetry.trackers.trackio import Trackio

    return Trackio()
