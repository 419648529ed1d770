"""The sweep command: training over interruptions, the table, and Slurm."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from forked_python import ForkedPython, forked_children, run_python
from run_helpers import TINY, environment, paths_in, wait_for
from sweep_helpers import ROOT, write_sweep

from pretrain.commands.sweep.__main__ import SweepFlags
from pretrain.commands.sweep.__main__ import sweep as sweep_here
from pretrain.commands.sweep.evaluations import EvaluatedModel, evaluate

FAKE = """
import json, sys, time
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:])
run = Path(flags["folder"])
rate, seed = float(flags.get("train.lr", 1e-4)), int(flags["train.seed"])
assert flags["checkpoint.resume"] == "auto"
saved = run / "checkpoints" / "step-00000004"
with open(run / "starts.txt", "a") as starts:
    starts.write(f"{saved.exists()}\\n")
if rate == 13:
    sys.exit("\\nerror: unlucky")
if rate == 7 and not saved.exists():  # a long run, which saves when it is asked to stop
    (run / "ready").touch()
    while not (run / "stop").exists():
        time.sleep(0.05)
    saved.mkdir(parents=True)
    (run / "stop").unlink()
    sys.exit(0)
(run / "report").mkdir(parents=True, exist_ok=True)
(run / "sweep").mkdir(exist_ok=True)
tasks = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
figures = {task: {"value": 60.0 + seed} for task in [*tasks, "average of 7 STS"]}
(run / "sweep" / "sts-mean.json").write_text(json.dumps({"tasks": figures}))
(run / "sweep" / "geometry-mean.json").write_text(json.dumps({"tasks": {
    "alignment": {"value": 0.2, "scores": {}}, "uniformity": {"value": -2.0, "scores": {}}}}))
(run / "report" / "summary.json").write_text(json.dumps(
    {"steps": 8, "seconds": 4.0, "best_step": 4, "best": {"stsb-dev": 70 + 1e5 * rate + seed}}))
"""


def command(tmp_path, *words):
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    return [
        "-m",
        "pretrain.commands.sweep",
        *map(str, words),
        "--out",
        str(tmp_path / "out"),
        "--launch",
        f"{sys.executable} {fake}",
    ]


def sweep(tmp_path, *words, expect=0):
    done = run_python(command(tmp_path, *words), environment(), tmp_path)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.full
def test_runs_are_trained_once_and_tabulated_beside_the_paper(tmp_path):
    rows = {
        "good": {"set": {"train.lr": 1e-4}, "paper": {"STS-B": 62.5}},
        "bad": {"set": {"train.lr": 13}},
        "of others": {"kind": "quoted", "paper": {"STS-B": 50.0}},
    }
    path = write_sweep(
        tmp_path, rows=rows, columns={"STS-B": "sts.STS-B"}, seeds=[1, 3], paper_reports="the best of five"
    )
    # evaluations are there already: the stand-in has written them
    said = sweep(tmp_path, path, "--eval-data", tmp_path, expect=1)
    assert "4 runs: 0 done, 0 begun, 4 to do" in said
    assert said.count("failed: bad, seed") == 2 and "error: unlucky" in said
    found = json.loads((tmp_path / "out" / "sweep" / "results.json").read_text())
    good = found["rows"][0]
    assert (good["mean"]["STS-B"], good["max"]["STS-B"], good["std"]["STS-B"]) == (
        62,
        63,
        pytest.approx(2**0.5),
    )
    assert (
        good["by_dev"]["STS-B dev"] == 83
        and good["mean"]["s/step"] == 0.5
        and good["mean"]["alignment"] == 0.2
    )
    table = (tmp_path / "out" / "sweep" / "table.md").read_text()
    assert "| good | ours, 2 of 2 seeds | 62.00 ± 1.41 | 82.00 ± 1.41 | 62.00 ± 1.41 | 0.20 ± 0.00 |" in table
    assert (
        "|  | ours, max over seeds | 63.00 |" in table
        and "|  | ours, seed with the best dev | 63.00 |" in table
    )
    assert "|  | paper | 62.50 |" in table and "| of others | paper | 50.00 |" in table
    assert "the best of five" in table
    again = sweep(tmp_path, path, "--eval-data", tmp_path, expect=1)
    assert "4 runs: 2 done, 0 begun, 2 to do" in again
    starts = [
        (folder.name[:4], (folder / "starts.txt").read_text())
        for folder in (tmp_path / "out" / "runs").iterdir()
    ]
    assert sorted(starts) == [("bad-", "False\nFalse\n")] * 2 + [("good", "False\n")] * 2


@pytest.mark.full
def test_evaluations_are_printed_one_by_one(tmp_path):
    class Model(EvaluatedModel):
        def words(self, evaluation, flags):
            done = f"open({str(self.results(evaluation))!r}, 'w').write('{{\"tasks\": {{}}}}')"
            return [
                sys.executable,
                "-c",
                "print('no such model'); raise SystemExit(3)" if evaluation == "sts" else done,
            ]

    models = [Model(f"runs/{name}", "mean", tmp_path / name) for name in "abb"]
    printed = []
    for _ in range(2):  # what has failed is tried again
        environment = dict(os.environ)
        trainer = SimpleNamespace(
            environment=environment, print_line=printed.append, check_for_stop=lambda: None, failures={}
        )
        evaluate(models, {"sts": "", "geometry": ""}, trainer)
    failed = "  FAILED (3): no such model"
    assert printed == [
        *("[1/4] sts of runs/a", failed, "[2/4] geometry of runs/a"),
        *("[3/4] sts of runs/b", failed, "[4/4] geometry of runs/b"),
        *("[1/2] sts of runs/a", failed, "[2/2] sts of runs/b", failed),
    ]


@pytest.mark.full
def test_an_interrupted_sweep_saves_and_goes_on(tmp_path):
    path = write_sweep(tmp_path, rows={"long": {"set": {"train.lr": 7}}, "next": {}})
    line = command(tmp_path, path)
    process = ForkedPython(line, environment(), tmp_path)
    wait_for(lambda: paths_in(tmp_path / "out" / "runs", "long*/ready"), [process], pause=0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert process.returncode == 143 and "waiting for the run to save" in said and "next, seed" not in said
    assert "received SIGTERM: stopped" in said
    assert f"  next: {shlex.join(['clearly', 'sweep', *line[2:]])}\n" in said
    said = sweep(tmp_path, path)
    assert "2 runs: 0 done, 1 begun, 1 to do" in said and "from step 4" in said
    long = next((tmp_path / "out" / "runs").glob("long*"))
    assert (long / "starts.txt").read_text() == "False\nTrue\n"


@pytest.mark.full
def test_the_words_of_a_single_run_by_its_number(tmp_path):
    recipe = ROOT / "configs" / "simcse_micro.yaml"
    seeds = ("--config", recipe, "--seed-list", "1,11")
    flags = sweep(tmp_path, "plan", *seeds, "--words-of", "0", "--train.lr", "1e-3").splitlines()
    assert f"--config={recipe}" in flags and "--train.seed=1" in flags and "--train.lr=1e-3" in flags
    sweep(tmp_path, *seeds, "--train.lr", "1e-3")
    assert sweep(tmp_path, "plan", *seeds, "--words-of", "1", "--train.lr", "1e-3") == ""
    assert "there are 2 runs" in sweep(tmp_path, "plan", *seeds, "--words-of", "2", expect=2)
    assert "did you mean --train.lr?" in sweep(tmp_path, "--config", recipe, "--train.lrr", "1", expect=2)
    assert "no evaluation" in sweep(tmp_path, "gather", "--config", recipe)


# ---- Slurm, with stand-ins for its commands


@pytest.fixture
def cluster(tmp_path):
    """A folder of commands that write down how they were called; sbatch's ids count up from 101."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f'#!/bin/bash\necho "$*" >> {tmp_path}/calls\necho $((100 + $(wc -l < {tmp_path}/calls)))\n'
    )
    (folder / "sbatch").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.full
def test_slurm_submits_an_array_of_what_is_to_do_and_a_last_job(tmp_path, cluster):
    path = write_sweep(tmp_path, grid={"train.lr": [1e-4, 2e-4]}, seeds=[1, 2])
    words = [ROOT / "slurm" / "sweep.sh", "--gpus=1", "--", path, "--out", tmp_path / "out"]
    done = subprocess.run(list(map(str, words)), env=cluster, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split(str(ROOT))[0].strip() for call in calls] == [
        "--parsable --gpus=1 --array=0,1,2,3",
        "--parsable --gpus=1 --dependency=afterany:101 --job-name=sweep-gather --output=slurm-%x-%j.out",
    ]
    assert [" gather " in call for call in calls] == [False, True]


@pytest.mark.full
def test_a_task_of_the_array_is_a_job_of_the_training_script(tmp_path, cluster):
    project = tmp_path / "project"
    (project / "slurm").mkdir(parents=True)
    (project / "slurm" / "pretrain_clear.sh").write_text('printf "%s\\n" "$@"\n')
    path = write_sweep(tmp_path, rows={"a": {"set": {"augment.positive": "crop|repeat"}}})
    variables = cluster | {
        "SLURM_ARRAY_TASK_ID": "0",
        "SLURM_JOB_ID": "7",
    }
    done = subprocess.run(
        [
            "bash",
            str(ROOT / "slurm" / "sweep.sh"),
            f"--project={project}",
            str(path),
            "--out",
            str(tmp_path / "out"),
        ],
        env=variables,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    flags = done.stdout.splitlines()
    assert "--augment.positive=crop|repeat" in flags
    assert flags[-1].startswith(f"--folder={tmp_path / 'out' / 'runs' / 'a-seed42-'}")


@pytest.mark.full
def test_a_sweep_trains_and_resumes_for_real(tiny_data, tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CLEAR_DATA", raising=False)
    tree = {
        "title": "T",
        "recipe": str(ROOT / "configs" / "clear_micro.yaml"),
        "set": TINY | {"train.steps": 4, "checkpoint.every": 2},
        "seeds": [42],
        "rows": {
            "MLM": {"set": {"objective.name": "mlm"}},
            "del-word": {"set": {"aug": "del-word"}},
            "too small": {"set": {"objective.name": "vascl"}},
        },
    }
    path = tmp_path / "real.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))

    def sweep(rows):
        chosen = SweepFlags(out=tmp_path / "out", rows=rows)
        with forked_children():
            code = sweep_here(str(path), flags=chosen, data=str(tiny_data))
        return code, capsys.readouterr().out

    code, said = sweep("MLM,del-word")
    assert code == 0 and "2 runs: 0 done" in said, said
    runs = sorted((tmp_path / "out" / "runs").iterdir())
    assert [(run / "best" / "config.json").is_file() for run in runs] == [True, True]
    shutil.rmtree(runs[0] / "report")  # as if it had been killed at its end
    code, said = sweep("MLM,del-word")
    assert code == 0 and "1 done, 1 begun" in said and "from step 4" in said
    code, said = sweep("too small")
    assert code == 1 and "error: train.global_batch=16 is too small for objective vascl" in said
