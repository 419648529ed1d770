"""Show the progress of a preparation: tasks leave heartbeats in the work folder, one display reads them.

Files, because the tasks may be processes here, on other nodes of a cluster, or left over from before a kill.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from loguru import logger
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pretrain.common.files import make_folder

_INTERVAL = 0.5  # seconds between two heartbeats of a task
_LINE_SECONDS = 30.0  # between two lines of progress where no terminal shows bars
_QUIET = "CLEAR_PREPARE_QUIET"

if os.environ.get(_QUIET):  # in a worker process, which sets up its own logging
    logger.disable("datatrove")


class Heartbeat:
    """How far a task is: `with Heartbeat(work, stage, rank) as h: h.advance(units)`.

    Written at most twice a second."""

    def __init__(self, work: Path, stage: str, rank: int):
        self._path = work / "progress" / stage / f"{rank:05d}"
        self._done, self._last = 0, 0.0

    def __enter__(self) -> Heartbeat:
        make_folder(self._path.parent)
        return self

    def advance(self, units: int) -> None:
        self._done += units
        now = time.monotonic()
        if now - self._last >= _INTERVAL:
            self._last = now
            with contextlib.suppress(OSError):  # a full disk is reported by the write that matters
                self._path.write_text(str(self._done))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux
        with contextlib.suppress(OSError):
            self._path.write_text(str(self._done))
            self._path.with_suffix(".memory").write_text(str(peak * 1024))


def peak_memory(work: Path) -> int:
    """Return the largest resident memory of any task so far, in bytes."""
    return max((int(path.read_text() or 0) for path in (work / "progress").glob("*/*.memory")), default=0)


@contextlib.contextmanager
def quiet_tasks() -> Iterator[None]:
    """Keep datatrove's log lines out of the terminal, which shows progress; errors arrive as exceptions."""
    os.environ[_QUIET] = "1"
    logger.disable("datatrove")
    try:
        yield
    finally:
        os.environ.pop(_QUIET)
        logger.enable("datatrove")


@dataclass(frozen=True)
class Stage:
    """A line of the display. `sizes`: units of each task, estimated where they cannot be known."""

    name: str
    title: str
    sizes: list[int]


class Display:
    """A progress bar per stage with the time left, fed from the work folder by a thread.

    A finished task counts with its full size and a running one with its heartbeat, so that estimated sizes
    even out. Bars need a terminal; a log file gets a line every half minute.
    """

    def __init__(self, work: Path, stages: Sequence[Stage], enabled: bool = True):
        self._work, self._stages = work, stages
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True, force_terminal=sys.stderr.isatty()),  # whatever FORCE_COLOR says
            disable=not enabled,
        )
        self._bars = {
            s.name: self._progress.add_task(s.title, total=max(1, sum(s.sizes)), start=False) for s in stages
        }
        self._lines = enabled and not self._progress.console.is_terminal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Display:
        self._progress.__enter__()
        self._thread.start()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._update()
        self._progress.__exit__(*failure)

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(0.25):
            self._update()
            if self._lines and time.monotonic() - last >= _LINE_SECONDS:
                last = time.monotonic()
                self._print_line()

    def _print_line(self) -> None:
        for task in reversed(self._progress.tasks):  # the last stage that has begun
            if task.started:
                left = (
                    "" if task.time_remaining is None else f", {timedelta(seconds=task.time_remaining)} left"
                )
                taken = timedelta(seconds=round(task.elapsed or 0))
                print(
                    f"{task.description}: {task.percentage:.0f}%, {taken}{left}", file=sys.stderr, flush=True
                )
                return

    def _update(self) -> None:
        for stage in self._stages:
            done = stage_progress(self._work, stage)
            bar = self._bars[stage.name]
            if done and not self._progress.tasks[bar].started:
                self._progress.start_task(bar)
            self._progress.update(bar, completed=done)


def stage_progress(work: Path, stage: Stage) -> int:
    """Return how many units of a stage are done, never more than its total."""
    completed = _names(work / "logs" / stage.name / "completions")
    done = sum(stage.sizes[int(name)] for name in completed)
    for name in _names(work / "progress" / stage.name) - completed:
        with contextlib.suppress(OSError, ValueError):
            done += min(int((work / "progress" / stage.name / name).read_text() or 0), stage.sizes[int(name)])
    return done


def _names(folder: Path) -> set[str]:
    try:
        return {name for name in os.listdir(folder) if name.isdigit()}
    except FileNotFoundError:
        return set()
