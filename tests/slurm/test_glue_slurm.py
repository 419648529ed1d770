"""slurm/finetune_glue.sh on a real cluster: an array over tasks and seeds, preemption, gathering, going on.

Needs a cluster that these commands reach (SLURM_CONF), on which this folder and pytest's temporary folder are
visible.
"""

import json
import re
import shutil
import subprocess
import sys
import time

import pytest
from finetuning_helpers import save_model
from glue_files import write_glue
from slurm_cluster import ENVIRONMENT, ROOT, command, needs_a_cluster, states

SCRIPT = ROOT / "slurm" / "finetune_glue.sh"

pytestmark = needs_a_cluster


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """Model and data of all runs here: a tiny model, GLUE's files with a few rows."""
    model = save_model(tmp_path_factory.mktemp("model"), "bert")
    data = write_glue(tmp_path_factory.mktemp("data"))
    return [model, "--eval-data", data, "--precision", "fp32"]


@pytest.fixture
def submit(tmp_path, words):
    jobs = []

    def submit(*flags, sbatch=()):
        options = [
            "--export=PATH,OMP_NUM_THREADS",
            "--time=10",
            "--ntasks=1",
            "--mem=1G",
            "--oversubscribe",
            *sbatch,
        ]
        printed = command(SCRIPT, *options, "--", *words, "--out", tmp_path / "out", *flags, cwd=tmp_path)
        found = re.findall(r"(?:array job|job) (\d+)", printed)
        jobs.extend(found)
        return found, printed

    yield submit
    for job in jobs:
        command("scancel", job, check=False)


def wait(condition, folder, seconds=400):
    until = time.monotonic() + seconds
    while not condition():
        logs = "\n".join(path.read_text()[-1500:] for path in folder.glob("slurm-*.out"))
        assert time.monotonic() < until, f"waited {seconds} s:\n{logs}"
        time.sleep(0.5)


def figures(folder):
    content = json.loads((folder / "glue-cls.json").read_text())
    return {
        name: task["details"]["seeds"]
        for name, task in content["tasks"].items()
        if "seeds" in task["details"]
    }


def test_an_array_gives_what_one_process_gives(submit, tmp_path, words):
    flags = ("--tasks", "RTE,CoLA", "--seeds", "2", "--epochs", "2", "--predict")
    jobs, printed = submit(*flags)
    assert len(jobs) == 2
    assert "(0,1,2,3)" in printed
    wait(lambda: states(jobs[-1]) == ["COMPLETED"], tmp_path)
    alone = [sys.executable, "-m", "finetune.glue", *words, *flags, "--out", tmp_path / "alone"]
    command(*alone, cwd=ROOT)
    assert figures(tmp_path / "out") == figures(tmp_path / "alone")
    for name in ("RTE.tsv", "CoLA.tsv"):
        ours = (tmp_path / "out" / "predictions" / name).read_text()
        assert ours == (tmp_path / "alone" / "predictions" / name).read_text()
    jobs, printed = submit(*flags)  # nothing is left to do but to gather
    assert len(jobs) == 1
    assert "all runs are done" in printed


def test_a_run_that_is_asked_to_stop_is_requeued_and_continues(submit, tmp_path):
    jobs, _ = submit("--tasks", "CoLA", "--seeds", "1", "--epochs", "2000")
    log = tmp_path / f"slurm-glue-{jobs[0]}_0.out"
    wait(lambda: log.exists() and "epoch 3 of" in log.read_text(), tmp_path)
    command("scancel", "--signal=USR1", f"{jobs[0]}_0")
    wait(lambda: "requeueing" in log.read_text() and "PENDING" in states(f"{jobs[0]}_0"), tmp_path)
    assert list((tmp_path / "out" / "glue").glob("*.checkpoint"))
    time.sleep(6)  # sooner, and the node refuses it: it still holds its last credential as revoked
    command("scontrol", "update", f"jobid={jobs[0]}_0", "StartTime=now")
    wait(lambda: "continuing at update" in log.read_text(), tmp_path)


def test_a_run_that_fails_is_not_requeued(submit, tmp_path, words):
    broken = tmp_path / "data"
    shutil.copytree(words[2], broken)
    flags = ("--eval-data", broken, "--tasks", "CoLA,STS-B", "--seeds", "1", "--epochs", "1")
    jobs, _ = submit(*flags, sbatch=["--begin=now+15"])
    (broken / "GLUE" / "CoLA" / "dev.tsv").write_text("damaged\n")
    wait(lambda: jobs and set(states(jobs[0])) == {"FAILED"}, tmp_path)
    assert "not requeued" in "".join(path.read_text() for path in tmp_path.glob("slurm-glue-*_*.out"))


def test_bad_flags_are_refused_before_anything_is_queued(tmp_path, words):
    flags = [str(word) for word in ("--", *words, "--tasks", "MRCP")]
    done = subprocess.run([SCRIPT, *flags], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean 'MRPC'" in done.stderr
