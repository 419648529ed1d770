"""What tests on a real cluster share: its commands, the marks of a test that needs one, the states of a
job."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "OMP_NUM_THREADS": "1",
}


def command(*words, check=True, cwd=None, environment=ENVIRONMENT):
    """What a command prints."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, env=environment, cwd=cwd
    )
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def partitions():
    """The names of the cluster's partitions; none where no cluster answers."""
    return (
        command("timeout", "10", "sinfo", "-h", "-o", "%R", check=False).split()
        if shutil.which("sbatch")
        else []
    )


needs_a_cluster = [
    pytest.mark.slurm,
    pytest.mark.skipif(not partitions(), reason="no Slurm cluster answers sinfo; point SLURM_CONF at one"),
]

needs_preemption = pytest.mark.skipif(
    "high" not in partitions(), reason="no partition named high, to preempt from"
)


def states(job):
    """The states of a job, or of an array's tasks."""
    return re.findall(r"JobState=(\w+)", command("scontrol", "show", "job", job, check=False))
