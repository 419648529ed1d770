"""slurm/pretrain_clear.sh on a real cluster: preemption, time limit, stop file, cancelling, failures, loops.

Needs a cluster that these commands reach (SLURM_CONF) with two free nodes, on which this folder and pytest's
temporary folder are visible; the test of preemption needs a partition "high" that preempts the default one.
"""

import functools
import json
import random
import subprocess
import sys
import time

import pytest
import slurm_cluster
from slurm_cluster import ENVIRONMENT, ROOT, needs_a_cluster, needs_preemption

pytestmark = needs_a_cluster
SCRIPT = ROOT / "slurm" / "pretrain_clear.sh"
# no STS evaluation in between
WITHOUT_DATA = {name: value for name, value in ENVIRONMENT.items() if name != "CLEAR_DATA"}
command = functools.partial(slurm_cluster.command, environment=WITHOUT_DATA)
RECIPE = """
model: {type: bert, layers: 2, hidden_size: 64, heads: 2, max_positions: 64, pooling: mean}
data: {lanes: 4, workers: 1}
train: {steps: 400, global_batch: 64, lr: 1.0e-3, warmup_steps: 5, precision: fp32, log_every: 1}
evaluate: {every: 0, heldout_sequences: 20, partners: 20}
checkpoint: {every: 100}
"""


class Job:
    """A submitted job in a folder of its own."""

    def __init__(self, folder, *words, name="test", sbatch=()):
        self.folder, self.name = folder, name
        flags = ["--parsable", f"--job-name={name}", f"--chdir={folder}", "--time=30", *sbatch]
        self.id = command("sbatch", *flags, SCRIPT, *words)
        self.run = folder / "runs" / f"{name}-{self.id}"

    @property
    def output(self):
        file = self.folder / f"slurm-{self.name}-{self.id}.out"
        return file.read_text() if file.exists() else ""

    def field(self, key):
        for word in command("scontrol", "show", "job", self.id).split():
            if word.startswith(key + "="):
                return word.split("=", 1)[1]
        raise KeyError(key)

    @property
    def state(self):
        return self.field("JobState")

    @property
    def restarts(self):
        return int(self.field("Restarts"))

    def metrics(self):
        file = self.run / "metrics.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    @property
    def step(self):
        return max((line["step"] for line in self.metrics()), default=0)

    def wait(self, condition, seconds=600):
        until = time.monotonic() + seconds
        while not condition(self):
            assert time.monotonic() < until, f"waited {seconds} s in state {self.state}:\n{self.output}"
            time.sleep(0.3)

    def wait_for_end(self, seconds=1200):
        self.wait(lambda job: job.state in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), seconds)

    def hasten(self, restarts):
        """Start a requeued job before its two minutes of waiting are over."""
        self.wait(lambda job: job.state == "PENDING" and job.restarts == restarts)
        time.sleep(6)  # sooner, and the nodes refuse it: they still hold its last credential as revoked
        command("scontrol", "update", f"jobid={self.id}", "StartTime=now")


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The flags that every run here has in common: a tiny recipe and prepared data."""
    folder = tmp_path_factory.mktemp("data")
    draw = random.Random(1)
    words = ["the", "man", "woman", "child", "horse", "city", "river", "old", "young", "sings", "reads"]
    with open(folder / "corpus.txt", "w") as corpus:
        for _ in range(300):
            for _ in range(8):
                sentence = " ".join(draw.choices(words, k=draw.randint(6, 18)))
                corpus.write(sentence.capitalize() + ".\n")
            corpus.write("\n")
    prepare = [sys.executable, "-m", "pretrain.prepare", "--source", folder / "corpus.txt"]
    prepare += ["--out", folder / "data", "--vocabulary", "600", "--unit", "sentence", "--max_length", "64"]
    subprocess.run([str(word) for word in prepare], check=True, cwd=ROOT, env=WITHOUT_DATA)
    (folder / "tiny.yaml").write_text(RECIPE)
    return ["--config", folder / "tiny.yaml", "--data", folder / "data"]


@pytest.fixture
def submit(tmp_path, flags):
    jobs = []

    def submit(*words, **options):
        jobs.append(Job(tmp_path, *flags, *words, **options))
        return jobs[-1]

    yield submit
    for job in jobs:
        command("scancel", job.id, check=False)
        job.wait_for_end(60)


def losses(job):
    return {line["step"]: line["loss"] for line in job.metrics() if "loss" in line}


@needs_preemption
def test_a_preempted_run_is_requeued_once_and_ends_as_one_that_never_was(submit):
    straight = submit(name="straight")
    straight.wait_for_end()
    assert straight.state == "COMPLETED", straight.output
    assert straight.restarts == 0

    job = submit(name="preempted")
    job.wait(lambda job: job.step >= 20)
    command("sbatch", "-p", "high", "-N2", "--time=1", "-o", "/dev/null", "--wrap", "srun sleep 1")
    job.hasten(restarts=1)
    saved = sorted(path.name for path in (job.run / "checkpoints").glob("step-*"))[-1]
    assert 20 <= int(saved[5:]) < 400
    assert int(saved[5:]) % 100, "saved when it was asked to, not at a step where it saves anyway"
    job.wait_for_end()
    assert job.state == "COMPLETED", job.output
    assert job.restarts == 1
    assert f"requeueing {job.id} (preempted at" in job.output
    assert f"newest checkpoint in runs/{job.name}-{job.id}: {saved}" in job.output
    assert losses(job) == losses(straight)  # bitwise
    assert len(losses(job)) == 400


def test_a_run_at_its_time_limit_saves_and_is_requeued(submit):
    job = submit("--train.steps", "100000", sbatch=["--time=2", "--signal=B:USR1@60"])
    job.wait(lambda job: job.state == "PENDING" and job.restarts == 1, 200)
    assert "the time limit is near (USR1)" in job.output
    assert f"requeueing {job.id} (time-limit" in job.output
    assert list((job.run / "checkpoints").glob("step-*"))


def test_usr1_to_the_steps_saves_and_requeues(submit):
    job = submit("--train.steps", "100000", name="usr1", sbatch=["--export=PATH,OMP_NUM_THREADS"])
    job.wait(lambda job: job.step >= 5)
    command("scancel", "--signal=USR1", job.id)
    job.wait(lambda job: job.state == "PENDING" and job.restarts == 1)
    assert f"requeueing {job.id} (asked to save, or its storage failed, exit status 75)" in job.output


def test_the_stop_file_ends_the_job_for_good(submit):
    job = submit("--train.steps", "100000", name="stop")
    job.wait(lambda job: job.step >= 5)
    (job.run / "stop").touch()
    job.wait_for_end(60)
    assert job.state == "COMPLETED"
    assert job.restarts == 0
    assert list((job.run / "checkpoints").glob("step-*"))


def test_a_cancelled_job_saves_and_stays_cancelled(submit):
    job = submit("--train.steps", "100000", name="cancelled")
    job.wait(lambda job: job.step >= 5)
    command("scancel", job.id)
    job.wait(lambda job: "not requeued" in job.output, 60)
    job.wait_for_end(60)
    assert job.state == "CANCELLED"
    assert list((job.run / "checkpoints").glob("step-*"))
    again = submit("--train.steps", "100000", "--run", job.run, name="again")
    again.run = job.run
    step = job.step
    again.wait(lambda job: job.step > step + 5)


def test_a_run_that_fails_is_not_requeued(submit):
    job = submit("--train.step", "100", name="failed")
    job.wait_for_end()
    assert job.state == "FAILED"
    assert job.restarts == 0
    assert "train.steps" in job.output  # main.py's own message names the nearest key
    assert "failed (exit status 2): not requeued" in job.output


def test_restarts_without_progress_come_to_an_end(submit):
    job = submit(name="loop")
    for restart in (1, 2, 3):
        job.wait(lambda job, starts=restart: job.output.count("pretrain_clear: start") == starts)
        command("scontrol", "requeue", job.id)
        job.hasten(restart)
    assert "Slurm has requeued the job" in job.output and "not requeued" not in job.output
    job.wait_for_end()
    assert job.state == "FAILED"
    assert "stopped: 3 restarts without a new checkpoint" in job.output


def test_a_node_that_is_taken_away_leaves_the_rest_to_go_on(submit):
    job = submit("--checkpoint.every", "20", "--train.log_every", "1", name="elastic", sbatch=["--nodes=1-2"])
    job.wait(lambda job: job.step >= 30)
    assert "2 nodes x 1 processes" in job.output
    node = command("scontrol", "show", "hostnames", job.field("NodeList")).split()[-1]
    try:
        for state in ("down", "drain"):  # a node that answers is up again at once, unless it is drained
            command("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        job.hasten(restarts=1)
        job.wait_for_end()
    finally:
        command("scontrol", "update", f"nodename={node}", "state=resume", check=False)
    assert job.state == "COMPLETED", job.output
    assert "1 nodes x 1 processes" in job.output and "requeueing" not in job.output  # Slurm itself did
    rows = [line for line in job.metrics() if "loss" in line]
    read: dict[int, set[int]] = {line["step"]: set() for line in rows}
    for line in rows:
        read[line["step"]].add(line["tokens"])
    assert all(len(found) == 1 for found in read.values())  # steps done again read the same batches
    assert len(read) == 400
