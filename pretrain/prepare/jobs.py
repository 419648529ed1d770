"""Make a folder of prepared data once: lock it, run the stages in its work folder, finish its manifest.

A stage is a pipeline of steps that runs once for each task, in processes of this machine. A step's
`run(stream, rank, tasks)` gets what the step before it returns, as those of datatrove do.
"""

import contextlib
import copy
import itertools
import multiprocessing.resource_tracker
import os
import resource
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from loguru import logger
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from augment.core.errors import AugmentationError
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.data.manifest import MANIFEST, read_manifest
from pretrain.data.shard_writer import naming_full_disk, write_manifest

_LINE_SECONDS = 30.0  # between two lines of progress where no terminal shows bars


@dataclass(frozen=True)
class Job:
    """One stage.

    title: shown before its progress bar. sizes: units of work of each task, estimated if need be.
    """

    name: str
    title: str
    sizes: list[int]
    steps: list[Any]


def make_once(
    out: Path,
    workers: int | None,
    find: Callable[[], dict | None],
    plan: Callable[[Path], list[Job]],
    progress: bool = True,
) -> dict:
    """Make prepared data in the folder `out`, or resume what was interrupted; return its manifest.

    workers: tasks at a time; None: one per core. find: returns the manifest of a finished result, or None.
    plan: returns the jobs to run; it gets the work folder when the folder is locked.

    Where the input is refused before a task has ended, the work folder is removed, and `out` if it is new.
    """
    work = out / ".work"
    if (manifest := find()) is not None:
        if work.is_dir():  # left by a kill after the last stage
            with contextlib.suppress(UserError), folder_lock(out):  # if it is held: its owner tidies up
                if (out / MANIFEST).is_file():
                    files.discard(work)
        return manifest
    workers = workers or len(os.sched_getaffinity(0))
    began, is_new = time.time(), not out.exists()
    make_folder(out)
    with contextlib.ExitStack() as held:
        if is_new:
            held.callback(files.remove_if_empty, out)  # of what was refused; when the lock's file is gone
        held.enter_context(folder_lock(out))
        if (manifest := find()) is not None:  # made by another process before the lock was ours
            return manifest
        resumed = work.is_dir()
        make_folder(work)
        try:
            jobs = plan(work)
            with naming_full_disk(work):  # of a completion mark
                largest = run_jobs(jobs, work, workers, progress)
        except (UserError, AugmentationError):
            if not any(itertools.chain(work.glob("logs/*/completions/*"), work.glob("counts/**/*.json"))):
                files.discard(work)  # refused before any task ended: there is nothing to resume
            raise
        manifest = read_manifest(out)
        manifest["run"] = {
            "seconds": round(time.time() - began, 1),
            "workers": workers,
            "resumed": resumed,  # the seconds are of the last part alone
            "peak_task_bytes": largest,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        write_manifest(out, manifest)
        files.discard(work)
        return manifest


def make_folder(folder: Path) -> None:
    """Make a folder for output."""
    try:
        with naming_full_disk(folder):
            files.make_folder(folder)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be made: {error.strerror}. Choose another folder.") from error


def run_figures(manifest: dict) -> list[str]:
    """Return the line that says what making the folder took, if this is known."""
    run = manifest.get("run")
    if run is None:
        return []
    peak = run["peak_task_bytes"] / 1e6
    return [f"  {run['seconds']} s with {run['workers']} workers, largest task {peak:.0f} MB"]


Advance = Callable[[Job, int, bool], None]
"""Add finished work of a job to what is shown; True: an earlier process has done it."""


@contextlib.contextmanager
def show_progress(jobs: Sequence[Job], enabled: bool = True) -> Iterator[Advance]:
    """Show a progress bar for each stage, or print a line every half minute if there is no terminal."""
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())  # whatever FORCE_COLOR says
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    printed = before = time.monotonic()
    begun: dict[str, float] = {}  # stage -> when the one before it ended
    kept = Counter[str]()  # stage -> what was done before
    with Progress(*columns, console=console, disable=not enabled) as progress:
        bars = {
            job.name: progress.add_task(job.title, total=max(1, sum(job.sizes)), start=False) for job in jobs
        }

        def advance(job: Job, size: int, earlier: bool) -> None:
            nonlocal printed, before
            now = time.monotonic()
            taken, before = now - begun.setdefault(job.name, before), now
            progress.start_task(bars[job.name])
            progress.advance(bars[job.name], size)
            kept[job.name] += size * earlier
            if enabled and not console.is_terminal and now - printed >= _LINE_SECONDS and not earlier:
                printed, task = now, progress.tasks[bars[job.name]]
                made = max(1, task.completed - kept[job.name])
                left = timedelta(seconds=round(taken * (task.remaining or 0) / made))
                line = f"{job.title}: {task.percentage:.0f}%, {timedelta(seconds=round(taken))}, {left} left"
                print(line, file=sys.stderr, flush=True)

        yield advance


def run_jobs(jobs: list[Job], work: Path, workers: int, progress: bool = True) -> int:
    """Run the stages one after another, `workers` tasks at a time; skip tasks that are finished.

    Returns: bytes of the largest process.
    """
    logger.disable("datatrove")  # progress is shown, and errors arrive as exceptions
    try:
        with show_progress(jobs, progress) as advance:
            marks = (work / "logs" / job.name / "completions" for job in jobs)
            return max(_run_job(job, folder, workers, advance) for job, folder in zip(jobs, marks))
    finally:
        logger.enable("datatrove")


def _run_job(job: Job, finished: Path, workers: int, advance: Advance) -> int:
    """Run the tasks of a stage that have no mark in the folder `finished`; the first error ends them all.

    Returns: bytes of the largest process.
    """
    make_folder(finished)
    ranks = [rank for rank in range(len(job.sizes)) if not _mark(finished, rank).exists()]
    if done := sum(job.sizes) - sum(job.sizes[rank] for rank in ranks):
        advance(job, done, True)
    largest = 0
    if workers == 1 or len(ranks) < 2:
        for rank in ranks:
            largest = max(largest, _run_task(job, finished, rank))
            advance(job, job.sizes[rank], False)
        return largest
    # Imported once, in the server that workers are forked from: webdataset brings torch, a second and 200
    # MB, which each worker of each stage would pay again.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretrain.prepare.stages.build", "webdataset"])
    with ProcessPoolExecutor(min(workers, len(ranks)), context, _start_worker) as pool:
        try:
            with _delayed_signals():
                tasks = {pool.submit(_run_task, job, finished, rank): rank for rank in ranks}
                pool.submit(int)  # wakes the pool to watch the worker it started last, too
            for task in as_completed(tasks):
                largest = max(largest, task.result())
                advance(job, job.sizes[tasks[task]], False)
            return largest
        except BaseException as error:
            for process in list(pool._processes.values()):
                process.kill()  # they block SIGTERM, by which the pool would end them
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    f"A process of stage {job.name} was killed, most likely because memory ran out. Use "
                    "fewer --workers, and run the same command again: finished tasks are not redone."
                ) from None
            raise


@contextlib.contextmanager
def _delayed_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM come at the end of the block, and block them in the processes it starts: these
    would print a traceback while they import, or when they find this one gone."""
    if threading.current_thread() is not threading.main_thread():  # which signals do not interrupt
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    came: list[int] = []
    multiprocessing.resource_tracker.ensure_running()  # its start would unblock them
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, handlers)
    try:
        # Other threads have no such mask, and the main thread handles what they receive.
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in reversed(handlers):  # SIGINT last: it may raise at once
            signal.signal(number, handlers[number] or signal.SIG_DFL)
        for one in came:
            signal.raise_signal(one)


def _start_worker() -> None:
    logger.disable("datatrove")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when the preparation has ended: the server that forked it lives as long as a worker."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_task(job: Job, finished: Path, rank: int) -> int:
    stream: Any = None
    for step in copy.deepcopy(job.steps):
        stream = step.run(stream, rank, len(job.sizes))
    deque(stream or (), maxlen=0)  # where the last step yields
    files.replace(_mark(finished, rank), b"")
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux


def _mark(finished: Path, rank: int) -> Path:
    return finished / f"{rank:05d}"
