"""Preparation on a real cluster: the batch script gives the bytes of a local run, preempted or not.

Needs a cluster that these commands reach (SLURM_CONF) with a free node, on which this folder and pytest's
temporary folder are visible; the test of preemption needs a partition "high" that preempts the default one.
"""

import hashlib
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from slurm_cluster import ENVIRONMENT, ROOT, command, needs_a_cluster, needs_preemption

pytestmark = needs_a_cluster
SCRIPT = ROOT / "slurm" / "prepare_data.sh"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def field(job: str, key: str) -> str:
    words = command("scontrol", "show", "job", job).split()
    return next(word.split("=", 1)[1] for word in words if word.startswith(key + "="))


def wait(condition, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s"
        time.sleep(0.2)


def digest(folder: Path) -> dict[str, str]:
    """sha256 of the shards and the tokenizer."""
    files = [*folder.rglob("*.tar"), folder / "tokenizer" / "tokenizer.json"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """(flags, digest of a local run): 30 MB in 60 reading tasks, a file each: time enough to interrupt it."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(1)
    words = ["the", "man", "woman", "child", "horse", "city", "river", "old", "young", "sings", "reads"]
    (folder / "texts").mkdir()
    for number in range(60):
        sentences = [
            " ".join(draw.choices(words, k=draw.randint(6, 18))).capitalize() + "." for _ in range(8000)
        ]
        lines = [" ".join(sentences[start : start + 8]) for start in range(0, len(sentences), 8)]
        (folder / "texts" / f"{number:02d}.txt").write_text("\n".join(lines) + "\n")
    flags = ["--source", folder / "texts", "--vocabulary", "600", "--heldout", "0.02"]
    prepare = [sys.executable, "-m", "pretrain.prepare", *flags, "--out", folder / "local", "--workers", "1"]
    subprocess.run([str(word) for word in prepare], check=True, cwd=ROOT, env=ENVIRONMENT)
    return flags, digest(folder / "local")


@pytest.fixture
def submit(tmp_path):
    jobs: list[str] = []

    def submit(*words: object) -> str:
        where = [f"--chdir={tmp_path}", f"--output={tmp_path}/log", "--time=30", "--job-name=prepare-test"]
        jobs.append(command("sbatch", "--parsable", *where, SCRIPT, *words, "--out", tmp_path / "out"))
        return jobs[-1]

    yield submit
    for job in jobs:
        command("scancel", job, check=False)


def test_the_batch_script_gives_the_bytes_of_a_local_run(tmp_path, prepared, submit):
    flags, expected = prepared
    job = submit(*flags)
    wait(lambda: field(job, "JobState") in ENDED)
    assert field(job, "JobState") == "COMPLETED", (tmp_path / "log").read_text()
    assert digest(tmp_path / "out") == expected


@needs_preemption
@pytest.mark.parametrize("cause", ["preemption", "time limit"])
def test_it_is_requeued_and_ends_with_the_same_bytes(tmp_path, prepared, submit, cause):
    flags, expected = prepared
    job = submit(*flags)
    completions = tmp_path / "out" / ".work" / "logs" / "read" / "completions"
    wait(lambda: completions.is_dir() and len(list(completions.iterdir())) >= 5)
    if cause == "preemption":
        node = field(job, "NodeList")
        command(
            "sbatch",
            "-p",
            "high",
            "-w",
            node,
            "--exclusive",
            "--time=1",
            "-o",
            "/dev/null",
            "--wrap",
            "srun sleep 1",
        )
    else:
        command("scancel", "--batch", "--signal=USR1", job)  # what --signal=B:USR1@60 sends
    wait(lambda: field(job, "JobState") == "PENDING" and field(job, "Restarts") == "1", 120)
    assert not (tmp_path / "out" / "manifest.json").exists()
    time.sleep(6)  # sooner, and the node refuses it: it still holds the job's last credential as revoked
    command("scontrol", "update", f"jobid={job}", "StartTime=now")
    wait(lambda: field(job, "JobState") in ENDED)
    assert field(job, "JobState") == "COMPLETED", (tmp_path / "log").read_text()
    assert digest(tmp_path / "out") == expected


def test_a_cancelled_job_stays_cancelled_and_the_next_goes_on(tmp_path, prepared, submit):
    flags, expected = prepared
    job = submit(*flags)
    completions = tmp_path / "out" / ".work" / "logs" / "read" / "completions"
    wait(lambda: completions.is_dir() and len(list(completions.iterdir())) >= 5)
    command("scancel", job)
    wait(lambda: field(job, "JobState") in ENDED)
    assert field(job, "JobState") == "CANCELLED" and field(job, "Restarts") == "0"
    assert not (tmp_path / "out" / "manifest.json").exists()
    again = submit(*flags)
    wait(lambda: field(again, "JobState") in ENDED)
    assert field(again, "JobState") == "COMPLETED" and digest(tmp_path / "out") == expected


def test_bad_flags_are_not_requeued(tmp_path, prepared, submit):
    job = submit(*prepared[0], "--unit", "word")
    wait(lambda: field(job, "JobState") in ENDED)
    assert field(job, "JobState") == "FAILED" and field(job, "Restarts") == "0"
    assert "failed (exit status 2): not requeued" in (tmp_path / "log").read_text()
