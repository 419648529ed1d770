"""Report a run's progress: metrics.jsonl, trackers, and printed lines."""

import io
import math
import os
import re
import resource
import socket
import sys
import time
from pathlib import Path
from typing import Any, Self, TextIO

import torch

from pretrain.common.errors import UserError
from pretrain.common.files import AppendedFile, make_folder
from pretrain.common.memory import resident_bytes
from pretrain.common.run_folder import FolderMoved
from pretrain.telemetry.formats import flatten, format_count, format_seconds
from pretrain.telemetry.metrics_file import Place, chained, copy_metrics
from pretrain.telemetry.throughput import Throughput
from pretrain.telemetry.trackers import Trackers, Tracking

SECONDS_BETWEEN_LINES = 30.0  # of training at least; the first and the last row of metrics are always printed
SECONDS_AT_A_TERMINAL = 5.0  # the same if somebody watches


class Telemetry:
    """Report one run's progress. On ranks other than 0 every method does nothing.

    Use it as a context manager around the loop: it opens metrics.jsonl and TensorBoard, both cut back to
    `start_step`, and other trackers, and closes them however the loop ends. What a full disk
    refuses waits in memory until `sync`; the run continues. So it does without a tracker that fails.
    """

    def __init__(
        self,
        run_folder: Path,
        total_steps: int,
        rank: int = 0,
        start_step: int = 0,
        start_place: Place | None = None,
        throughput: Throughput | None = None,
        stream: TextIO | None = None,
        tracking: Tracking | None = None,
    ) -> None:
        """start_step, start_place: of the checkpoint resumed from; metrics.jsonl is cut there."""
        self.run_folder, self.total_steps = Path(run_folder), total_steps
        self.throughput = throughput or Throughput()
        self._active = rank == 0
        self._start_step = self._step = start_step
        self._stream = stream or sys.stdout
        self._between = SECONDS_AT_A_TERMINAL if self._stream.isatty() else SECONDS_BETWEEN_LINES
        self._last_line = -math.inf
        self._metrics: AppendedFile | None = None
        self._place = start_place or {}
        self._board: Board | None = None
        tracking = tracking or Tracking()
        self._has_board = "tensorboard" in tracking.names
        self._trackers = Trackers(tracking, self.run_folder, start_step > 0, self._print)
        self._refused = False

    # -- life ------------------------------------------------------------

    def __enter__(self) -> Self:
        if not self._active:
            return self
        path = self.run_folder / "metrics.jsonl"
        try:
            make_folder(self.run_folder)
            self._place, whole = copy_metrics(path, path, self._start_step, self._place)
            self._metrics = AppendedFile(path)
            if self._has_board:
                purge = self._start_step + 1 if self._start_step else 0
                self._board = Board(self.run_folder / "tensorboard", purge)
        except OSError as error:
            raise UserError(f"cannot write {error.filename or path}: {error.strerror or error}") from error
        if not whole:
            self.say(f"WARNING: {path} is not as the checkpoint recorded it. clearly verify says where")
        self._trackers.open(path)
        self.throughput.begin(self._start_step)
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files():
            try:
                file.close()
            except OSError as error:
                self._warn_of(error)
        self._board = self._metrics = None
        self._trackers.close()

    # -- the loop's calls --------------------------------------------------

    def advance(self, step: int, tokens: int, sequences: int = 0, ended: float | None = None) -> None:
        """Count a step, and its tokens and sequences over all ranks (`Throughput.add`)."""
        self._step = step
        if self._active:
            self.throughput.add(step, tokens, sequences, ended)

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Write a record: {"step", "wall_time", ...metrics}.

        A record of training (it has "loss") gets the rates since the last such record: tokens_per_second,
        sequences_per_second, mfu, hfu, eta_seconds, and the memory of this process.
        """
        self._step = max(self._step, step)
        if not self._active:
            return
        if "loss" in metrics:
            metrics = metrics | self.throughput.figures(self.total_steps) | {"memory": memory_use()}
            self._print_line(step, metrics)
            self.throughput.reset()
        elif "evaluation" in metrics:
            scores = [f"{name} {value:.4g}" for name, value in flatten(metrics["evaluation"])]
            self._print("  ".join([f"step {step}  evaluation:", *scores]))
        self._write(step, metrics)
        # records of steps are written while the next step is under way, whose time has begun
        if not metrics.keys() & {"loss", "left_out"}:
            self.throughput.pause()

    def say(self, text: str) -> None:
        """Print a line."""
        if self._active:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, and keep it in metrics.jsonl and TensorBoard."""
        if not self._active:
            return
        self._print(f"WARNING at step {self._step}: {text}")
        self._write(self._step, {"warning": text})

    def sync(self) -> Place:
        """Make all records so far durable; return the place in metrics.jsonl, for a checkpoint.

        The checkpoint continues behind them, also after a power cut. On rank 0 alone.
        """
        for file in self._files():
            try:
                file.sync()
            except OSError as error:
                raise UserError(
                    f"no checkpoint is written at step {self._step}: {len(file.waiting)} records before it "
                    f"cannot be written to {file.path} ({error.strerror or error}). Free some space"
                ) from error
        self._end_warning()
        return self._place

    # -- parts -------------------------------------------------------------

    def _print_line(self, step: int, metrics: dict[str, Any]) -> None:
        """Print what a row says of a step, the most important first: metrics.jsonl has more."""
        now = self.throughput.clock()
        if now - self._last_line < self._between and step < self.total_steps:
            return
        self._last_line = now
        losses = metrics["loss"] if isinstance(metrics["loss"], dict) else {"total": metrics["loss"]}
        parts = [f"loss {losses['total']:.3f}"] if "total" in losses else []
        parts += [f"{name} {value:.3f}" for name, value in losses.items() if name != "total"]
        parts += [f"lr {metrics.get('lr', math.nan):.2e}"]
        parts += [f"{format_count(metrics['tokens_per_second'])} tok/s"]
        parts += [f"mfu {100 * metrics['mfu']:.1f}%"] if "mfu" in metrics else []
        parts += [f"eta {format_seconds(metrics.get('eta_seconds'))}"]
        self._print("  ".join([f"step {step}/{self.total_steps}", *parts]))

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _files(self) -> list[AppendedFile]:
        """Return the files that this process writes records to."""
        board = [] if self._board is None else [self._board.file]
        return board if self._metrics is None else [self._metrics, *board]

    def _write(self, step: int, metrics: dict[str, Any]) -> None:
        if self._metrics is None:
            return
        row = {"step": step, "wall_time": time.time()} | metrics
        self._trackers.write(row)
        line, self._place = chained(row, self._place)
        try:
            try:
                self._metrics.append(line)
            finally:
                if self._board is not None:
                    self._board.write(step, row["wall_time"], metrics)
        except OSError as error:
            self._warn_of(error)
        else:
            self._end_warning()

    def _warn_of(self, error: OSError) -> None:
        """Print once, until records can be written again, that they cannot; not that the folder has gone."""
        if not (self._refused or isinstance(error, FolderMoved)):
            waiting = "they wait in memory until the next checkpoint"
            self._print(f"WARNING: records can't be written ({error}): {waiting}")
        self._refused = True

    def _end_warning(self) -> None:
        if self._refused:
            self._print(f"records are written to {self.run_folder} again; none was lost")
        self._refused = False


class Board:
    """Metrics as TensorBoard reads them, in an event file of one start of a run, and never half a record.

    The library's own writer has a thread that ends, with a traceback, at the first error of the disk, and
    takes with it what it had not written. purge: the step from which earlier files' records are hidden.
    """

    def __init__(self, folder: Path, purge: int) -> None:
        # a second to import, which users of the other functions of telemetry should not wait for
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        make_folder(folder)
        # files are read in order of their names: behind those of earlier starts, whatever the clock says
        starts = [re.match(r"events\.out\.tfevents\.(\d+)\.", path.name) for path in folder.iterdir()]
        began = max([int(time.time()), *(int(start[1]) + 1 for start in starts if start)])
        name = f"events.out.tfevents.{began:010d}.{socket.gethostname()}.{os.getpid()}.0"
        self.file = AppendedFile(folder / name)
        log = SessionLog(status=SessionLog.START)
        version = Event(wall_time=time.time(), file_version="brain.Event:2")
        self._append(version, Event(wall_time=time.time(), step=purge, session_log=log))

    def write(self, step: int, wall_time: float, metrics: dict[str, Any]) -> None:
        """Append all numbers of a record, and its warning. Raises: OSError; they wait then."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard.summary import text

        values = [Summary.Value(tag=name, simple_value=value) for name, value in flatten(metrics)]
        if "warning" in metrics:
            values += text("warning", metrics["warning"]).value
        self._append(Event(wall_time=wall_time, step=step, summary=Summary(value=values)))

    def _append(self, *events: Any) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        buffer = io.BytesIO()
        for event in events:
            RecordWriter(buffer).write(event.SerializeToString())
        self.file.append(buffer.getvalue())


def memory_use() -> dict[str, float]:
    """Return this process's resident memory now and at its peak, and the GPU's peak, in GB."""
    use = {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}
    if resident := resident_bytes():
        use["resident_gb"] = resident / 1e9
    if torch.cuda.is_available():
        use["gpu_peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return use
