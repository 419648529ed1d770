"""Show the progress of a preparation by the files that datatrove leaves for finished tasks.

Files, because the tasks may be processes here, on other nodes of a cluster, or left over from before a kill.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

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

_LINE_SECONDS = 30.0  # between two lines of progress where no terminal shows bars
_QUIET = "CLEAR_PREPARE_QUIET"

if os.environ.get(_QUIET):  # in a worker process, which sets up its own logging
    logger.disable("datatrove")


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

    A task counts when it is finished. Bars need a terminal; a log file gets a line every half minute.
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

    def __enter__(self) -> Self:
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
            finished = (self._work / "logs" / stage.name / "completions").glob("*")
            done = sum(stage.sizes[int(path.name)] for path in finished)
            bar = self._bars[stage.name]
            if done and not self._progress.tasks[bar].started:
                self._progress.start_task(bar)
            self._progress.update(bar, completed=done)
