"""Run the stages of a preparation as datatrove pipelines: in processes here, or as Slurm job arrays."""

import contextlib
import copy
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

from datatrove.pipeline.base import PipelineStep
from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn

from pretrain.common.errors import UserError
from pretrain.common.processes import die_with, python_path
from pretrain.common.typed_values import faults


class ExecutorOptions(BaseModel):
    """Where preparation runs. Nothing here changes what the shards are."""

    model_config = ConfigDict(extra="forbid")

    executor: Literal["local", "slurm"] = Field(
        "local",
        description="where tasks run: local processes, or Slurm job arrays, started on a login node",
    )
    workers: int | None = Field(
        None, ge=1, description="tasks at a time; none: the cores of this machine, or 64 on Slurm"
    )
    partition: str | None = Field(None, description="Slurm partition; --executor slurm needs it")
    time: str = Field("24:00:00", description="Slurm time limit of a task")
    account: str | None = Field(None, description="Slurm account")
    qos: str | None = Field(None, description="Slurm quality of service")
    memory_gb: int = Field(4, ge=1, description="memory of a task on Slurm")

    @classmethod
    def checked(cls, **options: Any) -> Self:
        """Return the options. Raises: UserError for one that is unknown or wrong."""
        try:
            return cls(**options)
        except ValidationError as error:
            message = faults(error, lambda key: f"there is no option {key}")
            raise UserError(f"execution: {message}") from None

    @property
    def parallel(self) -> int:
        """Return `workers` with the default resolved."""
        if self.workers:
            return self.workers
        return len(os.sched_getaffinity(0)) if self.executor == "local" else 64


@dataclass(frozen=True)
class Job:
    """One stage: a pipeline of steps that runs once for each task.

    title: shown before its progress bar. sizes: units of work of each task, estimated if need be.
    """

    name: str
    title: str
    sizes: list[int]
    steps: list[PipelineStep]

    @property
    def tasks(self) -> int:
        return len(self.sizes)


_LINE_SECONDS = 30.0  # between two lines of progress where no terminal shows bars


Advance = Callable[[Job, int], None]
"""Add finished work of a job to what is shown."""


@contextlib.contextmanager
def show_progress(jobs: Sequence[Job], enabled: bool = True) -> Iterator[Advance]:
    """Show a progress bar for each stage, or print a line every half minute if there is no terminal."""
    console = Console(stderr=True, force_terminal=sys.stderr.isatty())  # whatever FORCE_COLOR says
    columns = (*Progress.get_default_columns(), TimeElapsedColumn())
    printed = time.monotonic()
    with Progress(*columns, console=console, disable=not enabled) as progress:
        bars = {
            job.name: progress.add_task(job.title, total=max(1, sum(job.sizes)), start=False) for job in jobs
        }

        def advance(job: Job, size: int) -> None:
            nonlocal printed
            progress.start_task(bars[job.name])
            progress.advance(bars[job.name], size)
            if enabled and not console.is_terminal and time.monotonic() - printed >= _LINE_SECONDS:
                printed, task = time.monotonic(), progress.tasks[bars[job.name]]
                taken = timedelta(seconds=round(task.elapsed or 0))
                left = timedelta(seconds=task.time_remaining or 0)
                line = f"{job.title}: {task.percentage:.0f}%, {taken}, {left} left"
                print(line, file=sys.stderr, flush=True)

        yield advance


def run_jobs(jobs: list[Job], work: Path, options: ExecutorOptions, progress: bool = True) -> int | None:
    """Run the stages one after another; skip what was finished before a kill (datatrove's completion files).

    Returns: bytes of the largest process; None: submitted to Slurm, and not waited for.
    Raises: UserError from a task.
    """
    if options.executor == "slurm":
        _submit(jobs, work, options)
        return None
    logger.disable("datatrove")  # progress is shown, and errors arrive as exceptions
    try:
        with show_progress(jobs, progress) as advance:
            return max(_run_here(job, work, options.parallel, advance) for job in jobs)
    finally:
        logger.enable("datatrove")


def _run_here(job: Job, work: Path, workers: int, advance: Advance) -> int:
    """Run the tasks of a stage that are not finished, `workers` at a time; the first error ends them all.

    Returns: bytes of the largest process.
    """
    from datatrove.executor import LocalPipelineExecutor

    executor = LocalPipelineExecutor(job.steps, job.tasks, logging_dir=str(work / "logs" / job.name))
    ranks = executor.get_incomplete_ranks()
    if finished := sum(job.sizes) - sum(job.sizes[rank] for rank in ranks):
        advance(job, finished)
    largest = 0
    if workers == 1 or len(ranks) < 2:
        for rank in ranks:
            largest = max(largest, _run_task(copy.deepcopy(executor), rank))
            advance(job, job.sizes[rank])
        return largest
    # Imported once, in the server that workers are forked from: webdataset brings torch, a second and 200
    # MB, which each worker of each stage would pay again.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretrain.prepare.stages.build", "webdataset"])
    with ProcessPoolExecutor(min(workers, len(ranks)), context, _start_worker) as pool:
        try:
            tasks = {pool.submit(_run_task, executor, rank): rank for rank in ranks}
            for task in as_completed(tasks):
                largest = max(largest, task.result())
                advance(job, job.sizes[tasks[task]])
            return largest
        except BrokenProcessPool:
            raise UserError(
                f"A process of stage {job.name} was killed, most likely because memory ran out. Use fewer "
                "--workers or a smaller --bucket-megabytes, and run the same command again: finished tasks "
                "are not redone (with a new bucket size, all are)."
            ) from None
        except BaseException:
            for process in list(pool._processes.values()):
                process.kill()
            raise


def _start_worker() -> None:
    logger.disable("datatrove")
    die_with(os.getppid())  # the server ends with the preparation; a worker alone would wait forever


def _run_task(executor: Any, rank: int) -> int:
    executor._run_for_rank(rank)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux


def _submit(jobs: list[Job], work: Path, options: ExecutorOptions) -> None:
    """Submit the stages to Slurm, a job array each, of which each waits for the one before."""
    from datatrove.executor import SlurmPipelineExecutor

    if shutil.which("sbatch") is None:
        raise UserError("--executor slurm: there is no sbatch here; use --executor local.")
    if options.partition is None:
        raise UserError("--executor slurm needs --partition NAME; sinfo -o '%P %l' lists them.")
    os.environ["PYTHONPATH"] = python_path()  # sbatch exports the environment to the tasks
    last: Any = None
    for job in jobs:
        last = SlurmPipelineExecutor(
            job.steps,
            tasks=job.tasks,
            workers=options.parallel,
            time=options.time,
            partition=options.partition,
            qos=options.qos or "",
            mem_per_cpu_gb=options.memory_gb,
            job_name=f"prepare-{job.name}",
            logging_dir=str(work / "logs" / job.name),
            # what waits for a job that has failed or was cancelled would stay in the queue forever
            sbatch_args={"kill-on-invalid-dep": "yes"}
            | ({"account": options.account} if options.account else {}),
            # datatrove's handler requeues $SLURM_JOB_ID, which for one of the tasks is the whole array
            requeue_signals=None,
            depends=last,
        )
    try:
        last.run()  # submits what it depends on first
    except subprocess.CalledProcessError as error:
        raise UserError(f"sbatch refused the job (exit {error.returncode}), see above.") from error
