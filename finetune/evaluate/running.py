"""Run units, each in a process of its own, several at a time."""

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from finetune.evaluate.suites import EvaluationJob
from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.common.files import make_folder
from pretrain.common.processes import end_session, failure_line, python_path, start_logged
from pretrain.common.shutdown import Shutdown

SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_END = 20.0
"""What a unit has to save what it can after the budget has ended it, before it is killed."""
_LOOK_SECONDS = 0.1


class ProcessResult(NamedTuple):
    """How a unit's process has ended: its exit status, the error or last line that it printed."""

    code: int
    seconds: float
    line: str
    at_deadline: bool
    """Whether the budget ended it."""


def run_units(
    units: Sequence[EvaluationJob],
    words_of: Callable[[EvaluationJob], list[str]],
    logs: Path,
    environment: dict[str, str],
    jobs: int,
    deadline: float,
    shutdown: Shutdown,
    begun: Callable[[EvaluationJob], None],
) -> Iterator[tuple[EvaluationJob, ProcessResult]]:
    """Run units in order, `jobs` at a time; call `begun` at the start of each, and yield it at its end.

    Each has a GPU of its own, or its share of the cores. After a request to stop nothing is started, and what
    runs gets the signal and is waited for; so it does at the deadline, with SECONDS_TO_END to save.
    """
    make_folder(logs)
    gpus, slots = _gpus(), SimpleQueue[int]()
    for slot in range(jobs):
        slots.put(slot)

    def work(unit: EvaluationJob) -> ProcessResult | None:
        slot = slots.get()
        try:
            if shutdown.requested() or time.monotonic() >= deadline:
                return None
            begun(unit)
            own = environment | _share(jobs, slot, gpus)
            log = logs / f"{unit.name.replace(' ', '-').replace(',', '-')}.txt"
            return _run(unit, words_of(unit), log, own, deadline, shutdown)
        finally:
            slots.put(slot)

    with ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(work, unit): unit for unit in units}
        try:
            for future in as_completed(futures):
                if future.exception() is None and (outcome := future.result()) is not None:
                    yield futures[future], outcome
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for future in futures:
        future.result()  # raises what kept a process from being started


def _run(
    unit: EvaluationJob,
    words: Sequence[str],
    log: Path,
    environment: dict[str, str],
    deadline: float,
    shutdown: Shutdown,
) -> ProcessResult:
    """Run a unit until it ends or the deadline comes; print its last line now and then."""
    started = printed = time.monotonic()
    environment = environment | {"PYTHONPATH": python_path(), "PYTHONUNBUFFERED": "1"}
    process = start_logged([sys.executable, "-m", *words], log, environment)
    said, over = "", False
    while process.poll() is None:
        time.sleep(_LOOK_SECONDS)
        if shutdown.requested():
            end_session(process, math.inf)
        elif time.monotonic() >= deadline:
            over = True
            end_session(process, SECONDS_TO_END)
        elif time.monotonic() - printed > SECONDS_BETWEEN_LINES:
            printed = time.monotonic()
            line = failure_line(log) if log.stat().st_size else said
            if line != said:
                said = line
                print(f"  {unit.name}: {line}", flush=True)
    at_deadline = over and process.returncode != 0 and not shutdown.requested()
    return ProcessResult(process.returncode, time.monotonic() - started, failure_line(log), at_deadline)


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
