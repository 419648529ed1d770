"""Run the stages of a preparation as datatrove pipelines: in processes here, or as Slurm job arrays."""

import copy
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from datatrove.pipeline.base import PipelineStep
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pretrain.common.errors import UserError
from pretrain.common.processes import die_with, python_path
from pretrain.common.typed_values import faults
from pretrain.prepare.progress import Stage


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
    partition: str | None = Field(None, description="Slurm partition; none: the cluster's default")
    time: str = Field("24:00:00", description="Slurm time limit of a task")
    account: str | None = Field(None, description="Slurm account")
    qos: str | None = Field(None, description="Slurm quality of service")
    memory_gb: int = Field(4, ge=1, description="memory of a task on Slurm")
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


def run_jobs(jobs: list[Job], work: Path, options: ExecutorOptions) -> int | None:
    """Run the stages one after another; skip what was finished before a kill (datatrove's completion files).

    Returns: bytes of the largest process (0 on Slurm); None: submitted to Slurm, and not waited for.
    Raises: UserError from a task, or naming the logs when a task failed on the cluster.
    """
    if options.executor == "slurm":
        return 0 if _run_slurm(jobs, work, options) else None
    return max(_run_here(job, work, options.parallel) for job in jobs)


def _run_here(job: Job, work: Path, workers: int) -> int:
    """Run the tasks of a stage that are not finished, so many at a time; the first error ends them all.

    Returns: bytes of the largest process.
    """
    from datatrove.executor import LocalPipelineExecutor

    executor = LocalPipelineExecutor(job.steps, job.tasks, logging_dir=str(work / "logs" / job.name))
    ranks = executor.get_incomplete_ranks()
    if workers == 1 or len(ranks) < 2:
        return max((_run_task(copy.deepcopy(executor), rank) for rank in ranks), default=0)
    # Imported once, in the server that workers are forked from: webdataset brings torch, a second and 200
    # MB, which each worker of each stage would pay again.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pretrain.prepare.stages.build", "webdataset"])
    with ProcessPoolExecutor(min(workers, len(ranks)), context, _start_worker) as pool:
        try:
            tasks = as_completed([pool.submit(_run_task, executor, rank) for rank in ranks])
            return max(task.result() for task in tasks)
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
    die_with(os.getppid())  # the server ends with the preparation; a worker alone would wait for ever


def _run_task(executor: Any, rank: int) -> int:
    executor._run_for_rank(rank)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux


_NEVER_STARTS = {"PartitionTimeLimit", "PartitionNodeLimit", "BadConstraints", "InvalidAccount", "InvalidQOS"}
"""Reasons by which a job waits that no waiting ends (squeue(1))."""


def _check_complete(executor: Any, job: Job, work: Path) -> None:
    missing = executor.get_incomplete_ranks(skip_completed=True)
    if missing:
        raise UserError(
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
            "with a --time, --partition, --memory-gb, --account or --qos that the cluster takes; "
            "sinfo -o '%P %l' lists the partitions and their longest times."
        )
    return any(reason != "DependencyNeverSatisfied" for reason in reasons)
