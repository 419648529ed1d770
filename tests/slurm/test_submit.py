"""What the scripts that are started on a login node say where sbatch was given them. No Slurm is needed."""

import re
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


@pytest.mark.parametrize("exported", ["NONE", "HOME,PATH"])
def test_ranks_have_the_scripts_environment_whatever_sbatch_exported(submit, tmp_path, exported):
    done, _ = submit(SLURM_EXPORT_ENV=exported)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "rank").read_text().split() == ["0", "0", "1", "10.0.0.1"]
    steps = [
        line
        for path in SCRIPTS.glob("*.sh")
        for line in re.findall(r"^[^#]*srun --.*", path.read_text(), re.M)
    ]
    assert len(steps) == 4 and all("srun --export=ALL " in line for line in steps)


@pytest.mark.parametrize(
    "kept,stops", [("none SLURM_JOB_ID[$(touch${IFS}ran)]", False), ("none 9", True), ("none 2", True)]
)
def test_the_count_of_restarts_is_read_as_digits_alone(submit, tmp_path, kept, stops):
    run = tmp_path / "runs" / "test-7"
    run.mkdir(parents=True)
    (run / "slurm-restarts").write_text(kept + "\n")
    done, _ = submit(SLURM_RESTART_COUNT="1")
    assert ("restarts without a new checkpoint" in done.stderr) == stops and done.returncode == int(stops)
    assert not list(tmp_path.glob("**/ran"))
