"""Run units, each in a process of its own, so many at a time."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from finetune.evaluate.suites import Unit
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.files import make_folder
from pretrain.common.processes import die_with, failure_line, python_path
from pretrain.common.shutdown import Shutdown

SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_END = 20.0
"""What a unit has to save what it can after the budget has ended it, before it is killed."""
_LOOK_SECONDS = 0.1


@dataclass
class Running:
    """A unit that a process computes."""

    unit: Unit
    process: subprocess.Popen
    log: Path
    slot: int
    started: float
    said: str = ""
    told_to_end: float | None = None
    """When it got the budget's signal."""

    def signal(self, number: signal.Signals) -> None:
        """Send its process and those that it has started a signal."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def keep_to(self, deadline: float) -> None:
        """Once the deadline is over, tell it to end, and kill it if it does not."""
        now = time.monotonic()
        if self.told_to_end is None and now >= deadline:
            self.told_to_end = now
            self.signal(signal.SIGINT)
        elif self.told_to_end is not None and now >= self.told_to_end + SECONDS_TO_END:
            self.signal(signal.SIGKILL)


def run_units(
    take: Callable[[Sequence[Running]], Unit | None],
    words_of: Callable[[Unit], list[str]],
    logs: Path,
    environment: dict[str, str],
    jobs: int,
    *,
    finished: Callable[[Unit, int, float, str], None],
    ended: Callable[[Unit, float], None],
    deadline: float,
    shutdown: Shutdown,
    print_line: Callable[[str], None],
) -> int:
    """Run the units that `take` gives, `jobs` at a time; return the request to stop, or 0 (`shutdown`).

    Where there are GPUs, each process sees one of them; without one, each has its share of the cores. After a
    request to stop nothing is started, what runs gets the signal, and is waited for: it saves what it can. So
    it does at the deadline, after which it has SECONDS_TO_END.

    Args:
        take: what runs -> the next unit to start; None: there is none.
        words_of: unit -> what follows `python -m`.
        logs: folder, which gets a file for each unit with all that it prints.
        finished: is told of a unit's exit status, seconds and log's last line, or its error.
        ended: is told of a unit that the deadline has ended, and its seconds, in place of `finished`.
        deadline: as `time.monotonic` has it.
        print_line: takes a line of progress of a unit, now and then.
    """
    make_folder(logs)
    gpus, running = _gpus(), list[Running]()
    stopping, said = False, time.monotonic()
    while True:
        if shutdown.requested() and not stopping:
            stopping = True
            for one in running:
                one.signal(signal.SIGINT)
        while not stopping and len(running) < jobs and (unit := take(running)) is not None:
            slot = min(set(range(jobs)) - {one.slot for one in running})
            own = environment | _share(jobs, slot, gpus)
            running.append(_start(unit, words_of(unit), logs, own, slot))
        if not running:
            return shutdown.requested()
        time.sleep(_LOOK_SECONDS)
        for one in list(running):
            if not stopping:
                one.keep_to(deadline)
            if (code := one.process.poll()) is not None:
                running.remove(one)
                seconds = time.monotonic() - one.started
                if code and one.told_to_end is not None and not stopping:
                    one.signal(signal.SIGKILL)  # what it has started and left behind
                    ended(one.unit, seconds)
                else:
                    finished(one.unit, code, seconds, failure_line(one.log))
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            for one in running:
                line = failure_line(one.log) if one.log.stat().st_size else ""
                if line and line != one.said:
                    one.said = line
                    print_line(f"  {one.unit.name}: {line}")


def _start(unit: Unit, words: Sequence[str], logs: Path, environment: dict[str, str], slot: int) -> Running:
    log = logs / f"{unit.name.replace(' ', '-').replace(',', '-')}.txt"
    parent = os.getpid()
    with open(log, "wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # Ctrl-C reaches it through this process only
            preexec_fn=lambda: die_with(parent),
        )
    return Running(unit, process, log, slot, time.monotonic())


def _share(jobs: int, slot: int, gpus: Sequence[str]) -> dict[str, str]:
    """Return the variables by which a process takes its share of the machine."""
    if gpus:
        return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if jobs > 1 else {}
    if jobs == 1 or threads_of_user():
        return {}
    return {"OMP_NUM_THREADS": str(max(1, usable_cores() // jobs))}


def _gpus() -> list[str]:
    """Return the names of the GPUs that processes may be given."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
