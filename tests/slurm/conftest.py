"""Slurm and the ranks as stand-ins, for what slurm/pretrain_clear.sh itself does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SLURM = Path(__file__).resolve().parents[2] / "slurm"
# As its manual says of SLURM_EXPORT_ENV, which sbatch --export sets.
SRUN = """exported=${SLURM_EXPORT_ENV:-ALL}
while [[ $1 == -* ]]; do [[ $1 == --export=* ]] && exported=${1#*=}; shift; done
export SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=1
[[ $exported == ALL* ]] || for name in $(compgen -e); do
  [[ $name == PATH || $name == SLURM_* ]] || unset "$name"
done
exec "$@"
"""
SCONTROL = """case "$1 $2" in
  "show hostnames") echo node1 ;;
  "show node") echo "NodeName=node1 NodeAddr=10.0.0.1" ;;
  requeue*) echo "$2" >>requeued ;;
  *)
    echo "JobId=7 JobName=test"
    echo "   JobState=RUNNING Restarts=0 PreemptTime=None"
    for task in 0 1; do echo "   Command=$SCRIPT --config /slurm/a.yaml"; done
    echo "   WorkDir=$PWD" ;;
esac
"""
# What stands for Python, alone or in the container: writes how it was called. Asked to stop, it ends like a
# rank that has saved. ENDS: commands by which it ends otherwise.
RANK = """printf '%s\\n' "$(basename "$0")" "$@" >words
echo "$RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR" >rank
[[ -z ${ENDS:-} ]] || eval "$ENDS"
[[ -n ${STAYS:-} ]] || exit 0
trap 'exit 75' USR1
kill -USR1 "$BATCH"
while :; do read -rt 0.05 _ <>waits; done
"""


@pytest.fixture
def submit(tmp_path):
    """Run slurm/pretrain_clear.sh as Slurm would, on one node; what is called comes from stand-ins."""
    commands = tmp_path / "bin"
    commands.mkdir()
    os.mkfifo(tmp_path / "waits")
    (tmp_path / "clearly.sif").touch()
    stubs = {"srun": SRUN, "scontrol": SCONTROL, "apptainer": RANK, "python": RANK, "sleep": ""}
    for name, text in stubs.items():
        (commands / name).write_text("#!/usr/bin/env bash\n" + text)
        (commands / name).chmod(0o755)
    # a copy of the scripts, so that no environment of this folder is entered
    project = tmp_path / "the project"
    shutil.copytree(SLURM, project / "slurm")
    script = project / "slurm" / "pretrain_clear.sh"
    (project / "pretrain").mkdir()
    (project / "pretrain" / "main.py").touch()

    def submit(*flags, **variables):
        environment = {"PATH": f"{commands}:/usr/bin:/bin", "SCRIPT": str(script), "HOME": str(tmp_path)}
        environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NAME": "test", "SLURM_JOB_NUM_NODES": "1"}
        environment |= {"SLURM_JOB_NODELIST": "node1", "SLURM_CPUS_ON_NODE": "4"}
        environment |= {"SLURM_SUBMIT_DIR": str(tmp_path)} | variables
        start = 'BATCH=$$ exec bash "$@"'
        done = subprocess.run(
            ["bash", "-c", start, "batch", script, *flags],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        words = tmp_path / "words"
        return done, words.read_text().splitlines() if words.exists() else []

    return submit
