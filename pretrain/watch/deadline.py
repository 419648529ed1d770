"""A deadline for every step, on every rank: a run that hangs ends, and says who kept it waiting.

Two threads. One publishes this rank's heartbeat (`pretrain.watch.heartbeat`), and may wait for a file system.
The other looks at the clock, touches no file, and when the deadline has passed ends the process within
`REPORT` seconds, whatever the rest of it does.

Only time in which this process ran is counted: a run that is suspended as a whole, and continued, goes on.
A main thread that holds Python's lock forever stops both threads: to the other ranks that one is silent.
"""

import contextlib
import faulthandler
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import torch
import torch.distributed as dist

from pretrain.common.ranks import on_rank_zero
from pretrain.common.shutdown import EXIT_REQUEUE
from pretrain.watch.ending import FOLDER, REPORT, Ending, begin_folder, call_with_timeout
from pretrain.watch.heartbeat import ENDS, heartbeat, silent_ranks, who_is_behind

FLOOR = 300.0
"""Least deadline of a step, in seconds, if none is given: other work on a machine has held one up for
a minute."""
TIMES = 10
"""The deadline of a step in longest of the recent steps, if none is given."""
OUTSIDE = 3600.0
"""Deadline of what is no step, if none is given: of the start, the first step, evaluations, checkpoints
and exports."""
END = 600.0
"""Deadline of the end after an error: a checkpoint that is being written is waited for."""
RANKS_A_SECOND = 50
"""Heartbeats that all ranks together write in a second, at most; each rank beats once a second, at most."""
_TICK = 0.25
_TRACE = "nccl_trace_rank_"


class Watchdog:
    """Watches this rank's progress: a context manager around a run, which also explains how it ends.

    Nothing is watched before `begin`: data may be prepared for days.
    """

    def __init__(self, run_folder: Path, deadline: float | None) -> None:
        """deadline: seconds of a step; 0: none; None: `TIMES` the longest recent step, at least `FLOOR`."""
        self.run_folder, self.deadline = run_folder, deadline
        self.between = max(1.0, dist.get_world_size() / RANKS_A_SECOND)
        self._ending: Ending | None = None
        self._part_of_step: Callable[[], str] = lambda: ""
        self._recent: deque[float] = deque(maxlen=64)
        self._step, self._outside, self._moves = 0, ["start"], 0
        self._idle = 0.0
        self._done, self._fired, self._turn = threading.Event(), threading.Event(), threading.Lock()

    def begin(self, step: int) -> None:
        """Begin to watch, at a number of steps done. Collective."""
        on_rank_zero(lambda: begin_folder(self.run_folder))
        self._step = step
        self._ending = Ending(self.run_folder, dist.get_rank(), dist.get_world_size(), step, self.between)
        self._beats = threading.Thread(target=self._beat, daemon=True)
        self._beats.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def follow(self, part_of_step: Callable[[], str]) -> None:
        """Begin to watch steps. part_of_step: returns which part of a step runs now, "" in none."""
        self._part_of_step = part_of_step
        if "start" in self._outside:  # not if the loop begins anew after a roll-back
            self._outside.remove("start")
        self._moves += 1

    def end_step(self, step: int, seconds: float) -> None:
        """Take note of a step that is done, and of its time."""
        self._step = step
        self._recent.append(seconds)
        self._moves += 1

    @contextlib.contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Enclose what is no step: it has a deadline of its own."""
        self._outside.append(phase)
        self._moves += 1
        try:
            yield
        finally:
            self._outside.remove(phase)
            self._moves += 1

    @contextlib.contextmanager
    def end_after_errors(self) -> Iterator[None]:
        """Enclose what may fail: what is closed after an error is no step any more."""
        try:
            yield
        except Exception:
            self._outside.append(ENDS)
            self._moves += 1
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._ending is None or not isinstance(error, Exception):  # Ctrl-C is no failure
            with self._turn:
                self._done.set()
        if self._fired.is_set():
            time.sleep(2 * REPORT)  # the other thread ends this process
        if self._ending is None:
            return
        if self._done.is_set():
            self._beats.join(2 * self.between)
        elif isinstance(error, Exception):
            with self(ENDS):
                replacement = self._ending.explain(error)
            if replacement is not error:
                raise replacement from None

    @property
    def phase(self) -> str:
        """What this rank does now."""
        if self._outside:
            return self._outside[-1]
        return self._part_of_step() or "the rest of a step"

    def limit(self) -> float:
        """Return the seconds that what runs now may take."""
        if self.deadline == 0:
            return math.inf
        if self._outside and self._outside[-1] == ENDS:
            return END
        if not self._outside and len(self._recent) >= (1 if self.deadline else 3):
            return self.deadline or max(FLOOR, TIMES * max(self._recent))
        return TIMES * self.deadline if self.deadline else OUTSIDE

    def _beat(self) -> None:
        assert self._ending is not None
        for beat in range(1 << 62):
            now = heartbeat(self._ending.rank, beat, self._step, self.phase, self._idle)
            with contextlib.suppress(OSError):
                now.write(self._ending.folder)
            if self._done.wait(self.between):
                return

    def _watch(self) -> None:
        moves, last = self._moves, time.monotonic()
        while not self._done.wait(_TICK):
            now = time.monotonic()
            # a process that was stopped sees one long tick: it counts as a short one
            self._idle += min(now - last, 20 * _TICK)
            last = now
            if moves != self._moves:
                moves, self._idle = self._moves, 0.0
            elif self._idle > self.limit():
                with self._turn:
                    if self._done.is_set():
                        return
                    self._fired.set()
                self._end()

    def _end(self) -> None:
        status = call_with_timeout(self._report, REPORT, None)
        if status is None:
            said = f"\nerror: {self._overdue()}"
            call_with_timeout(lambda: print(said, file=sys.stderr, flush=True), 2.0, None)
        # the kernel ends loader workers, and ranks that a plain command has started, with this process
        os._exit(EXIT_REQUEUE if status is None else status)

    def _overdue(self) -> str:
        return (
            f"nothing has moved on this rank for {self._idle:.0f} s, in {self.phase} after step {self._step} "
            f"(deadline {self.limit():.0f} s: --train.step_deadline)"
        )

    def _report(self) -> int:
        """Leave the stacks, say who keeps the others waiting unless another rank does; return the status."""
        ending = self._ending
        assert ending is not None
        call_with_timeout(self._dump, 5.0, None)
        if not ending.claim() and (verdict := ending.wait_for_verdict(REPORT / 2)):
            return verdict.status
        before, now = ending.look_twice()
        silent = silent_ranks(before, now, ending.ranks)
        what = (
            f"{who_is_behind(before, now, ending.ranks)}. On rank {ending.rank} {self._overdue()}. Stacks of "
            f"all ranks: {ending.folder}/stacks-rank-*"
        )
        status = ending.end(what, EXIT_REQUEUE)
        for rank in silent:  # it cannot end itself; if it is on another machine the launcher does
            if rank in now and rank != ending.rank:
                now[rank].kill()
        return status

    def _dump(self) -> None:
        assert self._ending is not None
        with open(self._ending.folder / f"stacks-rank-{self._ending.rank}", "w") as file:
            print(self._overdue(), file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
        if dist.get_backend() == "nccl":
            recorded = torch._C._distributed_c10d._dump_nccl_trace()
            (self._ending.folder / f"{_TRACE}{self._ending.rank}").write_bytes(recorded)


def record_collectives(run_folder: Path) -> None:
    """Switch NCCL's flight recorder on, unless the user has set it: to be called before ranks meet.

    It keeps the last collectives of each rank, and writes them to RUN/watch when one does not end in time:
    `torchfrtrace RUN/watch -p nccl_trace_rank_` says which rank lacks which.
    """
    if "TORCH_NCCL_TRACE_BUFFER_SIZE" not in os.environ:  # the older name, which torch still reads
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", str(run_folder.absolute() / FOLDER / _TRACE))
