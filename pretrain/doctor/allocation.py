"""Examine the Slurm job that this process runs in: its nodes, and the share of a node that a task has."""

import os
import re
import shutil
import subprocess

from pretrain.common.cores import threads_of_user, usable_cores
from pretrain.doctor.findings import Finding

_SECONDS = 10  # of patience with squeue


def allocation(environment: dict[str, str]) -> list[Finding]:
    """Say which job and task this is, and whether the task runs on the processors that the job was given.

    Args:
        environment: of the process, with the variables that Slurm sets (sbatch(1), srun(1)).

    Returns:
        Nothing where there is no Slurm.
    """
    if "SLURM_JOB_ID" not in environment:
        if shutil.which("srun") is None:
            return []
        todo = "to examine nodes: srun --label --nodes 2 --ntasks-per-node 1 clearly doctor --folder DIR"
        return [
            Finding("note", "Slurm is here, but this is no job: all below is of this machine alone", todo)
        ]
    return [Finding("good", _job(environment)), _processors(environment)]


def _job(environment: dict[str, str]) -> str:
    job, step = environment["SLURM_JOB_ID"], environment.get("SLURM_STEP_ID")
    task, tasks = environment.get("SLURM_PROCID", "0"), environment.get("SLURM_NTASKS", "1")
    what = f"Slurm job {job}, partition {environment.get('SLURM_JOB_PARTITION', 'unknown')}"
    what += f", nodes {environment.get('SLURM_JOB_NODELIST', 'unknown')}: "
    what += "the batch script" if step is None else f"task {task} of {tasks} of step {step}"
    what += f", on {environment.get('SLURMD_NODENAME') or os.uname().nodename}"
    # one question to the controller, however many tasks there are
    if task == "0" and (left := _time_left(job)):
        what += f"; time left: {left}"
    return what


def share(environment: dict[str, str]) -> int | None:
    """Return how many CPUs of its node a task of this job has; None outside a job."""
    if "SLURM_JOB_ID" not in environment:
        return None
    given, tasks = _given(environment)
    return max(1, given // tasks)


def _given(environment: dict[str, str]) -> tuple[int, int]:
    """Return the CPUs that the job has on this node, and the tasks of this step on it."""
    node = int(environment.get("SLURM_NODEID", "0"))
    tasks = _at(environment.get("SLURM_STEP_TASKS_PER_NODE", ""), node) or 1
    # a node's number counts those of the step, which may be a part of the job's
    whole = environment.get("SLURM_STEP_NODELIST") in (None, environment.get("SLURM_JOB_NODELIST"))
    given = _at(environment.get("SLURM_JOB_CPUS_PER_NODE", ""), node) if whole else 0
    return given or int(environment.get("SLURM_CPUS_ON_NODE", "1")), tasks


def _processors(environment: dict[str, str]) -> Finding:
    """Compare the CPUs that this task may run on with those that the job has on its node."""
    given, tasks = _given(environment)
    each = max(1, given // tasks)
    usable = len(os.sched_getaffinity(0))
    what = f"the job's part of this node: {_count(given, 'CPU')}"
    if megabytes := environment.get("SLURM_MEM_PER_NODE"):
        what += f", {int(megabytes) / 1024:.0f} GiB"
    if gpus := environment.get("SLURM_GPUS_ON_NODE"):
        what += f", {_count(int(gpus), 'GPU')}"
    what += f", for {_count(tasks, 'task')}; this one may run on {_count(usable, 'CPU')}"
    if usable < each:
        todo = f"srun --cpus-per-task {each}; srun does not take that over from sbatch"
        return Finding("note", what, todo)
    threads = threads_of_user()
    # a CPU of Slurm is a core or a hardware thread, as its nodes are configured: more than both is too many
    if usable_cores() > given and (threads is None or threads > each):
        todo = f"export OMP_NUM_THREADS={each}, as slurm/pretrain_clear.sh does by itself"
        return Finding("note", f"{what}: Slurm does not keep it to its share", todo)
    return Finding("good", what)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _at(counts: str, node: int) -> int:
    """Return the count of a node from Slurm's short form of a list: 3 of "2(x3),1" is 1; 0: not in it."""
    whole: list[int] = []
    for number, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", counts):
        whole += [int(number)] * int(times or 1)
    return whole[node] if node < len(whole) else 0


def _time_left(job: str) -> str:
    """Return what squeue says is left of a job's time ([days-]hours:minutes:seconds); "": no answer."""
    words = ["squeue", "--noheader", "--jobs", job, "--format", "%L"]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # not on the nodes, or the controller is busy
        return ""
    return answer.stdout.strip()
