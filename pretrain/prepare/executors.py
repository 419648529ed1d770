"""Running the stages of a preparation on datatrove's executors: local processes, Slurm job arrays, or Ray."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from datatrove.pipeline.base import PipelineStep
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from augment.core.own_code import ALLOWED
from pretrain.common.errors import UserError
from pretrain.common.processes import python_path
from pretrain.common.typed_values import faults
from pretrain.prepare.progress import Stage, dead_task, forget_workers
from pretrain.prepare.semaphores import name_semaphores


class ExecutorOptions(BaseModel):
    """Where preparation runs. Nothing here changes what the shards are."""

    model_config = ConfigDict(extra="forbid")

    executor: Literal["local", "slurm", "ray"] = Field(
        "local",
        description="where tasks run: local processes, Slurm job arrays or Ray. Start a Slurm "
        "preparation on a login node; Ray must be running",
    )
    workers: int | None = Field(
        None, ge=1, description="tasks at a time; none: the cores of this machine, or 64 on a cluster"
    )
    partition: str | None = Field(None, description="Slurm partition; none: the cluster's default")
    time: str = Field("24:00:00", description="Slurm time limit of a task")
    account: str | None = Field(None, description="Slurm account")
    qos: str | None = Field(None, description="Slurm quality of service")
    memory_gb: int = Field(4, ge=1, description="memory of a task on Slurm or Ray")
    wait: bool = Field(
        True, description="Slurm: wait for the jobs and show progress; false: submit and leave"
    )

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
class Job(Stage):
    """One stage: a run of a pipeline of steps for each task."""

    steps: list[PipelineStep]

    @property
    def tasks(self) -> int:
        return len(self.sizes)


class Unfinished(UserError):
    """Tasks of a stage that ran have no result; the message names their logs, in the work folder."""


def run_jobs(jobs: list[Job], work: Path, options: ExecutorOptions) -> bool:
    """Run the stages one after another; skip what was finished before a kill (datatrove's completion files).

    Returns: whether all is done (False: submitted to Slurm, not waited for).
    Raises: UserError from a task, or naming the logs when a task failed elsewhere.
    """
    if options.executor == "slurm":
        return _run_slurm(jobs, work, options)
    forget_workers(work)
    if options.executor == "local":
        import multiprocess

        name_semaphores(multiprocess.process.current_process())
    for job in jobs:
        executor = _executor(job, work, options)
        with _worker_watch(work, options):
            executor.run()
        _check_complete(executor, job, work)
    return True


_NEVER_STARTS = {"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}
"""Reasons by which a job waits that no waiting ends (squeue(1))."""

_LOST_SIGNAL = getattr(signal, "SIGRTMIN", signal.SIGUSR2)


class _WorkerLost(BaseException):
    """Like KeyboardInterrupt, this passes handlers of ordinary errors."""


@contextlib.contextmanager
def _worker_watch(work: Path, options: ExecutorOptions) -> Iterator[None]:
    """End a local stage when a worker process has died.

    A process pool never notices that the kernel has killed a worker that ran out of memory: it waits for the
    lost task for ever. So a thread looks every few seconds, and interrupts the wait, by a signal of its own:
    SIGINT is ignored in what a shell script starts in the background.

    Raises: UserError naming the task.
    """
    main = threading.current_thread() is threading.main_thread()
    if options.executor != "local" or options.parallel == 1 or not main:
        yield
        return
    done, caller = threading.Event(), threading.get_ident()
    lost: list[str] = []

    def interrupt(number: int, frame: object) -> None:
        raise _WorkerLost

    def watch() -> None:
        # Again and again: a pool whose worker died holding a lock may wait for ever in its own clean-up too.
        while not done.wait(10 if lost else 2):
            task = dead_task(work)
            if task:
                lost.append(task)
                signal.pthread_kill(caller, _LOST_SIGNAL)

    before = signal.signal(_LOST_SIGNAL, interrupt)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    except _WorkerLost:
        raise UserError(
            f"The process of task {lost[0]} was killed, most likely because memory ran out. Use fewer "
            "--workers or a smaller --bucket_megabytes, and run the same command again: finished tasks are "
            "not redone (with a new bucket size, all are)."
        ) from None
    finally:
        done.set()
        watcher.join()
        signal.signal(_LOST_SIGNAL, before)


def _executor(job: Job, work: Path, options: ExecutorOptions) -> Any:
    logs = str(work / "logs" / job.name)
    if options.executor == "local":
        import multiprocess
        from datatrove.executor import LocalPipelineExecutor

        # Imported once, in the server that workers are forked from: webdataset brings torch, a second and 200
        # MB, which each worker of each stage would pay again.
        multiprocess.set_forkserver_preload(["pretrain.prepare.stages.build", "webdataset"])
        workers = min(options.parallel, job.tasks)
        return LocalPipelineExecutor(job.steps, tasks=job.tasks, workers=workers, logging_dir=logs)
    try:
        import ray
        from datatrove.executor import RayPipelineExecutor
    except ImportError as error:
        raise UserError(
            "--executor ray needs Ray: pip install 'ray[default]', and a cluster (ray start)."
        ) from error
    if not ray.is_initialized():
        ray.init(
            runtime_env={"env_vars": {"PYTHONPATH": python_path(), ALLOWED: os.environ.get(ALLOWED, "")}},
            log_to_driver=False,
        )
    return RayPipelineExecutor(
        job.steps,
        tasks=job.tasks,
        workers=options.parallel,
        logging_dir=logs,
        mem_per_cpu_gb=options.memory_gb,
    )


def _check_complete(executor: Any, job: Job, work: Path) -> None:
    missing = executor.get_incomplete_ranks(skip_completed=True)
    if missing:
        raise Unfinished(
            f"Stage {job.name}: {len(missing)} of {job.tasks} tasks did not finish (the first is "
            f"{missing[0]}). Their logs: {work / 'logs' / job.name}. Run the same command again: finished "
            "tasks are not redone."
        )


def _run_slurm(jobs: list[Job], work: Path, options: ExecutorOptions) -> bool:
    from datatrove.executor import SlurmPipelineExecutor

    if shutil.which("sbatch") is None:
        raise UserError(
            "--executor slurm: there is no sbatch here; is this a node of a Slurm cluster? Use --executor "
            "local here."
        )
    os.environ["PYTHONPATH"] = python_path()  # sbatch exports the environment to the tasks
    partition = options.partition or _default_partition()
    previous: Any = None
    executors = []
    for job in jobs:
        previous = SlurmPipelineExecutor(
            job.steps,
            tasks=job.tasks,
            workers=options.parallel,
            time=options.time,
            partition=partition,
            qos=options.qos or "",
            mem_per_cpu_gb=options.memory_gb,
            job_name=f"prepare-{job.name}",
            logging_dir=str(work / "logs" / job.name),
            # what waits for a job that has failed or was cancelled would stay in the queue for ever
            sbatch_args={"kill-on-invalid-dep": "yes"}
            | ({"account": options.account} if options.account else {}),
            # datatrove's handler requeues $SLURM_JOB_ID, which for one of the tasks is the whole array
            requeue_signals=None,
            depends=previous,
        )
        executors.append(previous)
    try:
        previous.run()  # submits what it depends on first
    except subprocess.CalledProcessError as error:
        raise UserError(
            f"sbatch refused the job (exit {error.returncode}); see its message above."
        ) from error
    if not options.wait:
        return False
    ids = [executor.job_id for executor in executors if executor.job_id not in (None, -1)]
    try:
        while incomplete := [e for e in executors if e.get_incomplete_ranks(skip_completed=True)]:
            if not _alive(ids):
                time.sleep(5)  # completion files may lag behind the queue on a network file system
                for executor, job in zip(executors, jobs):
                    if executor in incomplete:
                        _check_complete(executor, job, work)
                break
            time.sleep(3)
    except (KeyboardInterrupt, SystemExit):
        print(f"the jobs go on without it; to end them: scancel {' '.join(ids)}", file=sys.stderr)
        raise
    return True


def _default_partition() -> str:
    try:
        names = subprocess.check_output(["sinfo", "-h", "-o", "%P"], text=True).split()
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise UserError(
            "--executor slurm: sinfo does not name the default partition; give --partition."
        ) from error
    default = [name[:-1] for name in names if name.endswith("*")]
    if not default:
        raise UserError(
            f"--executor slurm: the cluster has no default partition; give --partition ({', '.join(names)})."
        )
    return default[0]


def _alive(ids: list[str]) -> bool:
    """Return whether any job still runs or may yet run; it may where the controller does not answer.

    Raises: UserError where Slurm will start none of them with what was asked for; they are cancelled.
    """
    command = ["squeue", "-h", "-j", ",".join(ids), "-o", "%T|%r"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:  # one job alone that has left the controller's memory is an error to squeue
        return "Invalid job id" not in answer.stderr
    reasons = [line.partition("|")[2] for line in answer.stdout.splitlines()]
    if never := [reason for reason in reasons if reason in _NEVER_STARTS]:
        subprocess.run(["scancel", *ids])
        raise UserError(
            f"Slurm will not start the jobs ({never[0]}), which are cancelled now. Give the same command "
            "with a --time, --partition, --memory_gb, --account or --qos that the cluster takes; "
            "sinfo -o '%P %l' lists the partitions and their longest times."
        )
    return any(reason != "DependencyNeverSatisfied" for reason in reasons)
