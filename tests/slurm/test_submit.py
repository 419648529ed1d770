"""What the scripts that are started on a login node say where sbatch was given them. No Slurm is needed."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "slurm"


@pytest.mark.parametrize("name", ["sweep", "finetune_glue"])
def test_a_script_of_the_login_node_does_not_run_as_a_batch_script(name, tmp_path):
    copy = shutil.copy(SCRIPTS / f"{name}.sh", tmp_path / "slurm_script")  # as Slurm does in its spool folder
    done = subprocess.run(
        ["bash", copy, "--", "x", "--data", "d"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and not done.stdout
    assert f"not by sbatch: slurm/{name}.sh [flags of sbatch] -- " in done.stderr
