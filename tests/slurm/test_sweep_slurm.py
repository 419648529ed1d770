"""slurm/sweep.sh on a real cluster: an array over rows and seeds, the table, and the same command again.

Needs a cluster that these commands reach (SLURM_CONF), on which this folder and pytest's temporary folder are
visible.
"""

import functools
import json
import re
import sys
import time

import pytest
import slurm_cluster
import yaml
from run_helpers import TINY, curve, preparation_of, write_corpus
from slurm_cluster import ENVIRONMENT, ROOT, needs_a_cluster, states

SCRIPT = ROOT / "slurm" / "sweep.sh"
# No model is evaluated: the table has what the runs recorded.
WITHOUT_DATA = {name: value for name, value in ENVIRONMENT.items() if name != "CLEAR_DATA"}
command = functools.partial(slurm_cluster.command, environment=WITHOUT_DATA)

pytestmark = needs_a_cluster


@pytest.fixture
def file(tmp_path):
    """A sweep of two rows and two seeds over a small model and corpus."""
    corpus, data = write_corpus(tmp_path / "corpus.txt"), tmp_path / "data"
    command(*preparation_of(corpus, data), cwd=ROOT)
    settings = {key: yaml.safe_load(str(value)) for key, value in TINY.items()} | {
        "data.folder": str(data),
        "train.steps": 4,
        "evaluate.every": 2,
        "checkpoint.every": 2,
    }
    rows = {"slow": {"set": {"train.lr": 1e-4}}, "fast": {"set": {"train.lr": 1e-3}}}
    sweep = {
        "title": "Two rates",
        "recipe": str(ROOT / "configs" / "clear_micro.yaml"),
        "seeds": [1, 2],
        "set": settings,
        "columns": {"STS-B dev": "dev", "s/step": "run.seconds_per_step"},
        "rows": rows,
    }
    path = tmp_path / "rates.yaml"
    path.write_text(yaml.safe_dump(sweep, sort_keys=False))
    return path


def submit(folder, file, *flags):
    options = ("--export=PATH,OMP_NUM_THREADS", "--time=60", "--ntasks=1", "--mem=2G", "--oversubscribe")
    printed = command(SCRIPT, *options, "--", file, "--out", "out", *flags, cwd=folder)
    return re.findall(r"job (\d+)", printed), printed


def wait(job, folder, seconds=500):
    until = time.monotonic() + seconds
    while set(states(job)) - {"COMPLETED"}:
        logs = "\n".join(path.read_text()[-1500:] for path in folder.glob("slurm-*.out"))
        assert time.monotonic() < until and "FAILED" not in states(job), f"after {seconds} s:\n{logs}"
        time.sleep(1)


def test_an_array_trains_what_one_process_trains_and_the_table_follows(tmp_path, file):
    jobs, printed = submit(tmp_path, file)
    try:
        assert len(jobs) == 2 and "(0,1,2,3)" in printed
        wait(jobs[-1], tmp_path)
        table = (tmp_path / "out" / "rates" / "table.md").read_text()
        assert table.count("ours, 2 of 2 seeds") == 2
        found = json.loads((tmp_path / "out" / "rates" / "results.json").read_text())
        assert [row["name"] for row in found["rows"]] == ["slow", "fast"]
        alone = ("--out", tmp_path / "alone", "--rows", "fast", "--seed-list", "2")
        command(sys.executable, "-m", "pretrain.commands.sweep", file, *alone, cwd=ROOT)
        run = next((tmp_path / "alone" / "runs").iterdir())
        assert curve(run) == curve(tmp_path / "out" / "runs" / run.name)
        jobs, printed = submit(tmp_path, file)
        assert len(jobs) == 1 and "all runs are done; gathering" in printed
        wait(jobs[-1], tmp_path)
    finally:
        for job in jobs:
            command("scancel", job, check=False)


def test_a_task_that_is_requeued_leaves_the_others_of_its_array_alone(tmp_path, file):
    text = (
        file.read_text()
        .replace("train.steps: 4", "train.steps: 100000")
        .replace("evaluate.every: 2", "evaluate.every: 0")
    )
    file.write_text(text.replace("checkpoint.every: 2", "checkpoint.every: 0"))
    jobs, _ = submit(tmp_path, file, "--seed-list", "1")
    logs = [tmp_path / f"slurm-sweep-{jobs[0]}_{task}.out" for task in (0, 1)]

    def wait_for(condition, seconds=300):
        until = time.monotonic() + seconds
        while not condition():
            said = "\n".join(log.read_text()[-1500:] for log in logs if log.exists())
            assert time.monotonic() < until, f"after {seconds} s:\n{said}"
            time.sleep(0.5)

    try:
        wait_for(lambda: all(log.exists() and re.search(r"^step +\d", log.read_text(), re.M) for log in logs))
        # The id of the whole array is also $SLURM_JOB_ID of one of its tasks: that one is asked to save.
        last = next(
            task
            for task in (0, 1)
            if f"JobId={jobs[0]} " in command("scontrol", "show", "job", f"{jobs[0]}_{task}")
        )
        command("scancel", "--signal=USR1", f"{jobs[0]}_{last}")
        wait_for(lambda: f"requeueing {jobs[0]}_{last} (asked to save" in logs[last].read_text())
        wait_for(lambda: states(f"{jobs[0]}_{last}") == ["PENDING"])
        assert states(f"{jobs[0]}_{1 - last}") == ["RUNNING"]
        assert "Restarts=0" in command("scontrol", "show", "job", f"{jobs[0]}_{1 - last}")
    finally:
        for job in jobs:
            command("scancel", job, check=False)
