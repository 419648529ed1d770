"""Sweeps: what a file asks for, training its runs over interruptions, and the table."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_helpers import TINY

from pretrain.common.errors import UserError
from pretrain.sweep.file import Sweep, expand, read_sweep, replaced, sweep_of
from pretrain.sweep.runs import Plan, identity, last_words, run_of, unequal_inputs
from pretrain.sweep.table import Judged, collect, columns_of, correlations, evaluate, statistics_of, tabulate

ROOT = Path(__file__).parents[3]


# ---- reading and expanding
# ----------------------------------------------------------------------------------------------


def write(folder, **tree):
    tree = {"title": "T", "recipe": str(ROOT / "configs" / "simcse_micro.yaml"), "rows": {"one": {}}} | tree
    path = folder / "sweep.yaml"
    path.write_text(
        yaml.safe_dump({key: value for key, value in tree.items() if value is not None}, sort_keys=False)
    )
    return path


def entries_of(folder, given=None, size="", **tree):
    path = write(folder, **tree)
    return expand(read_sweep(path), path.parent, given or {}, size)


@pytest.mark.parametrize(
    "tree,words",
    [
        ({"rows": {}}, ["rows", "none"]),
        ({"rows": {"one": {"sett": {}}}}, ["rows.one.sett"]),
        ({"seeds": [1, 1]}, ["seeds"]),
        ({"recipe": None}, ["one", "recipe"]),
        (
            {"columns": {"STS-B": "sts.STS-B"}, "rows": {"one": {"paper": {"STS-b": 1.0}}}},
            ["one", "STS-b", "did you mean 'STS-B'"],
        ),
        ({"recipe": "simcse_mikro.yaml"}, ["no recipe", "simcse_mikro.yaml"]),
        ({"rows": {"one": {"set": {"train.lrr": 1}}}}, ["row 'one'", "did you mean 'train.lr'"]),
        (
            {"rows": {"one": {"set": {"augment.positive": "tomorrow"}}}},
            ["row 'one'", "no augmentation 'tomorrow'"],
        ),
        (
            {"rows": {"one": {"set": {"objective.vascl.neighbours": 7}}}},
            ["row 'one'", "in force is simcse", "vascl"],
        ),
        (
            {
                "set": {"checkpoint.resume": "auto"},
                "rows": {"one": {"set": {"objective.simcse.temperature": -1}}},
            },
            ["temperature"],
        ),
    ],
)
def test_a_mistake_is_one_message_that_says_what_and_where(tmp_path, tree, words):
    with pytest.raises(UserError) as caught:
        entries_of(tmp_path, **tree)
    for word in words:
        assert word in str(caught.value)


def test_the_command_line_wins_and_relative_values_multiply_what_it_says(tmp_path):
    rows = {"double": {"set": {"train.global_batch": {"times": 2}}}, "own rate": {"set": {"train.lr": 7e-6}}}
    path = write(tmp_path, set={"train.lr": "3e-5"}, rows=rows)
    plain = [entry.points[0].config(1).train for entry in expand(read_sweep(path), tmp_path, {})]
    assert [(train.global_batch, train.lr) for train in plain] == [(256, 3e-5), (128, 7e-6)]
    given = {"train.lr": "1e-3", "train.global_batch": "64", "steps": "5"}
    told = [entry.points[0].config(1).train for entry in expand(read_sweep(path), tmp_path, given)]
    assert [(train.global_batch, train.lr, train.steps, train.seed) for train in told] == [
        (128, 1e-3, 5, 1),
        (64, 1e-3, 5, 1),
    ]
    assert replaced(read_sweep(path), given) == ["train.lr"]
    with pytest.raises(UserError, match="--seeds"):
        expand(read_sweep(path), tmp_path, {"train.seed": "3"})


def test_flags_of_an_objective_are_of_the_rows_that_have_it(tmp_path):
    rows = {
        "SimCSE": {},
        "VaSCL": {"recipe": str(ROOT / "configs" / "vascl_micro.yaml")},
        "both": {"set": {"objective.name": "simcse+vascl"}},
        "quoted": {"kind": "quoted"},
    }
    given = {"objective.vascl.neighbours": "7", "objective.mlm.weight": "0.5"}
    points = [entry.points[0] for entry in entries_of(tmp_path, given, rows=rows) if entry.points]
    assert ["objective.vascl.neighbours" in point.overrides for point in points] == [False, True, True]
    assert [point.config(1).objective.vascl.neighbours for point in points] == [16, 7, 7]
    assert all(point.config(1).objective.mlm.weight == 0.5 for point in points)
    with pytest.raises(
        UserError, match=r"--objective\.sda\.margin would change nothing: no row has the objective sda"
    ):
        entries_of(tmp_path, {"objective.sda.margin": "1"}, rows=rows)


def test_a_grid_makes_rows_and_a_search_makes_points(tmp_path):
    entries = entries_of(
        tmp_path, grid={"train.lr": [1e-5, 2e-5], "train.steps": [10, 20]}, rows={"a": {}, "b": {}}
    )
    assert [entry.name for entry in entries][:3] == [
        "a, lr 1e-05, steps 10",
        "a, lr 1e-05, steps 20",
        "a, lr 2e-05, steps 10",
    ]
    assert len(entries) == 8 and not any(entry.searched for entry in entries)
    rows = {"a": {}, "b": {"search": {}}, "c": {"kind": "start"}, "d": {"kind": "quoted"}}
    entries = entries_of(tmp_path, search={"train.lr": [1e-5, 2e-5], "train.steps": [10, 20]}, rows=rows)
    assert [len(entry.points) for entry in entries] == [4, 1, 1, 0]
    assert [point.label for point in entries[0].points][1] == "lr 1e-05, steps 20"
    assert len(entries_of(tmp_path, {"train.lr": "1"}, search={"train.lr": [1e-5, 2e-5]})[0].points) == 1


def test_points_of_a_search_that_come_to_the_same_are_one(tmp_path):
    given = {"train.lr": "5e-5"}  # the command line wins over what is searched
    (entry,) = entries_of(
        tmp_path, given, search={"train.lr": [1e-5, 2e-5, 3e-5], "train.warmup_steps": [0, 1]}
    )
    assert sorted(point.config(1).train.warmup_steps for point in entry.points) == [0, 1]
    assert {point.config(1).train.lr for point in entry.points} == {5e-5}


def test_recipes_of_another_size_stand_in(tmp_path):
    recipe = {"recipe": str(ROOT / "configs" / "vascl_roberta.yaml")}
    assert entries_of(tmp_path, size="micro", **recipe)[0].points[0].recipe.name == "vascl_micro.yaml"
    with pytest.raises(UserError, match=r"vascl_huge\.yaml.*vascl_micro\.yaml"):
        entries_of(tmp_path, size="huge", **recipe)


# ---- runs
# ------------------------------------------------------------------------------------------------------------


def point(tmp_path, **given):
    return entries_of(tmp_path, {key.replace("__", "."): str(value) for key, value in given.items()})[
        0
    ].points[0]


def test_a_run_is_known_by_what_makes_it_what_it_is(tmp_path, monkeypatch):
    def digest(seed=1, **given):
        return identity(point(tmp_path, **given).config(seed))

    monkeypatch.chdir(tmp_path)
    plain = digest(data__folder="d")
    assert digest(2, data__folder="d") != plain
    for other in (
        {"train__lr": 1e-5},
        {"objective__simcse__temperature": 0.1},
        {"model__pooling": "cls"},
        {"train__steps": 9},
        {"aug": "crop"},
        {"evaluate__every": 7},
        {"data__lanes": 8},
        {"data__cache": 1},
    ):
        assert digest(**{"data__folder": "d", **other}) != plain, other
    assert digest(data__folder="e") != plain
    for same in (
        {"name": "x"},
        {"train__threads": 2},
        {"train__micro_batch_tokens": 999},
        {"evaluate__sts": "s"},
        {"checkpoint__every": 3},
        {"data__folder": str(tmp_path / "d")},
        {"train__zero": 0},
        {"train__rendezvous_seconds": 9},
        {"train__precision_file": "p"},
    ):
        assert digest(**{"data__folder": "d", **same}) == plain, same


def test_all_runs_of_a_sweep_share_one_choice_of_precision(tmp_path):
    """Each would measure for itself, and on a busy machine the seeds of one row would differ in
    arithmetic."""
    rows = {"auto": {}, "set": {"set": {"train.precision": "bf16"}}}
    plan = Plan(entries_of(tmp_path, rows=rows), [1, 2, 3], tmp_path, lambda run: None)
    runs = [plan.resolve(task) for task in plan.tasks]
    files = [[word for word in run.words(run.folder) if "precision_file" in word] for run in runs]
    assert files[3:] == [[], [], []]
    assert files[:3] == [[f"--train.precision_file={tmp_path / 'runs' / 'precision'}"]] * 3


def test_rows_with_the_same_settings_share_a_run(tmp_path):
    rows = {"mean": {"pooling": "mean"}, "[CLS]": {"pooling": "cls"}, "other": {"set": {"train.lr": 1}}}
    entries = entries_of(tmp_path, rows=rows)
    plan = Plan(entries, [1, 2], tmp_path, lambda run: None)
    assert [(task.entry.name, task.seed) for task in plan.tasks] == [
        ("mean", 1),
        ("mean", 2),
        ("other", 1),
        ("other", 2),
    ]
    folder = plan.chosen(entries[0])[0].folder
    folder.mkdir(parents=True)
    assert plan.chosen(entries[1])[0].folder == folder
    assert folder.name.startswith("mean-seed1-")


def test_the_winner_of_a_search_is_trained_with_the_other_seeds(tmp_path):
    entries = entries_of(
        tmp_path, search={"train.lr": [1e-5, 2e-5, 3e-5]}, rows={"a": {}, "b": {"search": {}}}
    )
    scores = {}
    plan = Plan(entries, [5, 6], tmp_path, lambda run: scores.get(run.config.train.lr))
    kinds = [(task.entry.name, task.point, task.seed) for task in plan.tasks]
    assert kinds == [("a", 0, 5), ("a", 1, 5), ("a", 2, 5), ("b", 0, 5), ("b", 0, 6), ("a", None, 6)]
    assert plan.second == 5
    assert plan.resolve(plan.tasks[-1]) is None and plan.chosen(entries[0]) == []
    scores.update({1e-5: 70.0, 2e-5: 80.0})
    assert plan.resolve(plan.tasks[-1]) is None  # one is still missing
    scores[3e-5] = 75.0
    assert plan.resolve(plan.tasks[-1]).config.train.lr == 2e-5
    assert [run.seed for run in plan.chosen(entries[0])] == [5, 6]
    failed = run_of("a", entries[0].points[1], 5, tmp_path)
    failed.folder.mkdir(parents=True)
    (failed.folder / "failed.txt").write_text("error: the loss is not finite\n")
    assert plan.winner(entries[0]) == 2  # a run that failed does not win, and does not hold the search up


def test_runs_of_a_row_that_read_other_files_are_told_apart(tmp_path):
    plan = Plan(entries_of(tmp_path, rows={"a": {}}), [5, 6, 7], tmp_path, lambda run: None)
    runs = plan.chosen(plan.entries[0])
    for run, table in zip(runs, "xxy"):
        assert unequal_inputs(runs) == []  # up to here they are the same
        (run.folder / "report").mkdir(parents=True)
        inputs = {"shards": "s", "synonyms": table} | ({"rules": "r"} if table == "x" else {})
        (run.folder / "report" / "summary.json").write_text(json.dumps({"inputs": inputs}))
    assert unequal_inputs(runs) == ["synonyms"]


def test_the_last_words_of_a_run_are_its_error(tmp_path):
    log = tmp_path / "log.txt"
    log.write_text("step 1\n\nerror: the loss is not finite\nsomething of a library\n")
    assert last_words(log) == "error: the loss is not finite"
    log.write_text("")
    assert last_words(log) == "it said nothing"


# ---- the command, with a stand-in for pretrain/main.py
# ------------------------------------------------------------------

FAKE = """
import json, sys, time
from pathlib import Path
flags = dict(word[2:].split("=", 1) for word in sys.argv[2:])
run = Path(flags["folder"])
rate, seed = float(flags.get("train.lr", 1e-4)), int(flags["train.seed"])
if flags.get("dry-run") == "true":
    if rate == 13:
        sys.exit("\\nerror: unlucky")
    run.with_name(run.name + ".dry-run").mkdir(parents=True)
    sys.exit(0)
assert flags["checkpoint.resume"] == "auto"
saved = run / "checkpoints" / "step-00000004"
with open(run / "starts.txt", "a") as starts:
    starts.write(f"{saved.exists()}\\n")
if rate == 13:
    sys.exit("\\nerror: unlucky")
if rate == 7 and not saved.exists():  # a long run, which saves when it is asked to leave
    (run / "ready").touch()
    while not (run / "stop").exists():
        time.sleep(0.05)
    saved.mkdir(parents=True)
    (run / "stop").unlink()
    sys.exit(0)
(run / "report").mkdir(parents=True, exist_ok=True)
(run / "sweep").mkdir(exist_ok=True)
(run / "metrics.jsonl").write_text(json.dumps({"step": 4, "evaluation": {"stsb-dev": 70 + 1e5 * rate + seed}}) + "\\n"
                                   + json.dumps({"step": 2, "warning": "collapsing"}) + "\\n")
tasks = ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
scores = {task: {"spearman_all": 60.0 + seed} for task in tasks}
(run / "sweep" / "sts-mean.json").write_text(json.dumps({"results": {"mean": scores}}))
(run / "sweep" / "geometry-mean.json").write_text(json.dumps({"tasks": {
    "alignment": {"value": 0.2, "scores": {}}, "uniformity": {"value": -2.0, "scores": {}}}}))
(run / "report" / "summary.json").write_text(json.dumps({"steps": 8, "seconds": 4.0, "best_step": 4}))
"""


def command(tmp_path, *words):
    fake = tmp_path / "fake.py"
    fake.write_text(FAKE)
    environment = {k: v for k, v in os.environ.items() if k != "CLEAR_DATA"} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    return [
        sys.executable,
        "-m",
        "pretrain.sweep",
        *map(str, words),
        "--out",
        str(tmp_path / "out"),
        "--launch",
        f"{sys.executable} {fake}",
    ], environment


def sweep(tmp_path, *words, expect=0):
    line, environment = command(tmp_path, *words)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_runs_are_trained_once_and_tabulated_beside_the_paper(tmp_path):
    rows = {
        "good": {"set": {"train.lr": 1e-4}, "paper": {"STS-B": 62.5}},
        "bad": {"set": {"train.lr": 13}},
        "of others": {"kind": "quoted", "paper": {"STS-B": 50.0}},
    }
    path = write(
        tmp_path, rows=rows, columns={"STS-B": "sts.STS-B"}, seeds=[1, 3], paper_reports="the best of five"
    )
    # evaluations are there already: the stand-in has written them
    said = sweep(tmp_path, path, "--sts", tmp_path, expect=1)
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
    assert "good, seed 1: 1 alarms, the first at step 2: collapsing" in table
    again = sweep(tmp_path, path, "--sts", tmp_path, expect=1)
    assert "4 runs: 2 done, 0 begun, 2 to do; about" in again
    starts = [
        (folder.name[:4], (folder / "starts.txt").read_text())
        for folder in (tmp_path / "out" / "runs").iterdir()
    ]
    assert sorted(starts) == [("bad-", "False\nFalse\n")] * 2 + [("good", "False\n")] * 2


def test_evaluations_are_announced_one_by_one(tmp_path):
    class Model(Judged):
        def words(self, evaluation, flags):
            done = f"open({str(self.results(evaluation))!r}, 'w')"
            return [
                sys.executable,
                "-c",
                "print('no such model'); raise SystemExit(3)" if evaluation == "sts" else done,
            ]

    models = [Model(f"runs/{name}", "mean", tmp_path / name) for name in "abb"]
    said = []
    for _ in range(2):  # what has failed is tried again
        evaluate(
            models,
            {"sts": "", "geometry": ""},
            environment=dict(os.environ),
            say=said.append,
            leave_if_asked=lambda: None,
        )
    assert [re.sub(r"about \d\d:\d\d", "about", line) for line in said] == [
        "[1/4] sts of runs/a", "  FAILED (3): no such model", "[2/4] geometry of runs/a; about left",
        "[3/4] sts of runs/b; about left", "  FAILED (3): no such model", "[4/4] geometry of runs/b; "
                                                                          "about left",
        "[1/2] sts of runs/a", "  FAILED (3): no such model", "[2/2] sts of runs/b; about left",
        "  FAILED (3): no "
                                                                                                 "such model",
    ]  # fmt: skip


def test_a_search_decides_by_dev_and_its_winner_gets_all_seeds(tmp_path):
    path = write(tmp_path, search={"train.lr": [1e-4, 2e-4]}, seeds=[1, 2, 3])
    said = sweep(tmp_path, path, "--sts", tmp_path)
    assert "4 runs" in said
    found = json.loads((tmp_path / "out" / "sweep" / "results.json").read_text())
    assert found["rows"][0]["search"] == {"by": "dev", "best": "lr 0.0002", "points": 2}
    assert [run["figures"]["STS-B dev"] for run in found["rows"][0]["runs"]] == [91, 92, 93]
    assert "every" not in sweep(tmp_path, path, "--plan")
    lines = [line.split("\t") for line in sweep(tmp_path, path, "--plan").splitlines()]
    assert [(line[0], line[2], line[3], line[4]) for line in lines] == [
        ("0", "1", "done", "first"),
        ("1", "1", "done", "first"),
        ("2", "2", "done", "second"),
        ("3", "3", "done", "second"),
    ]


def test_an_interrupted_sweep_saves_and_goes_on(tmp_path):
    path = write(tmp_path, rows={"long": {"set": {"train.lr": 7}}, "next": {}})
    line, environment = command(tmp_path, path)
    process = subprocess.Popen(
        line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path
    )
    end = time.monotonic() + 60
    while not list((tmp_path / "out" / "runs").glob("long*/ready")):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 143 and "waiting for the run to save" in said and "next" not in said
    said = sweep(tmp_path, path)
    assert "2 runs: 0 done, 1 begun, 1 to do" in said and "from step 4" in said
    long = next((tmp_path / "out" / "runs").glob("long*"))
    assert (long / "starts.txt").read_text() == "False\nTrue\n"


def test_one_recipe_with_several_seeds_and_single_runs_by_number(tmp_path):
    recipe = ROOT / "configs" / "simcse_micro.yaml"
    said = sweep(tmp_path, "--config", recipe, "--seeds", "1,11", "--run_numbers", "1", "--train.lr", "1e-3")
    assert "1 runs" in said and not (tmp_path / "out" / "simcse-micro").exists()
    runs = list((tmp_path / "out" / "runs").iterdir())
    assert len(runs) == 1 and runs[0].name.startswith("simcse-micro-seed11-")
    flags = sweep(
        tmp_path, "--config", recipe, "--seeds", "1,11", "--words_of", "0", "--train.lr", "1e-3"
    ).splitlines()
    assert f"--config={recipe}" in flags and "--train.seed=1" in flags and "--train.lr=1e-3" in flags
    assert (
        sweep(tmp_path, "--config", recipe, "--seeds", "1,11", "--words_of", "1", "--train.lr", "1e-3") == ""
    )
    assert "there are 2 runs" in sweep(
        tmp_path, "--config", recipe, "--seeds", "1,11", "--words_of", "2", expect=2
    )
    assert "did you mean 'train.lr'" in sweep(tmp_path, "--config", recipe, "--train.lrr", "1", expect=2)
    assert "no evaluation" in sweep(tmp_path, "--config", recipe, "--gather")


def test_a_dry_run_says_which_rows_start(tmp_path):
    rows = {"good": {}, "bad": {"set": {"train.lr": 13}}, "as it is": {"kind": "start"}}
    said = sweep(tmp_path, write(tmp_path, rows=rows), "--dry-run", expect=1)
    for line in ("starts  good", "FAILS  bad: error: unlucky", "judged  as it is"):
        assert line in said
    assert "1 rows do not start" in said
    assert not list((tmp_path / "out" / "sweep" / "dry-run").glob("*.dry-run"))
    assert "every row that can run starts" in sweep(
        tmp_path, tmp_path / "sweep.yaml", "--dry-run", "--rows", "good"
    )


# ---- Slurm, with stand-ins for its commands
# -----------------------------------------------------------------------------


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


def test_slurm_submits_an_array_of_what_is_to_do_and_a_last_job(tmp_path, cluster):
    path = write(tmp_path, search={"train.lr": [1e-4, 2e-4]}, seeds=[1, 2])
    words = [ROOT / "slurm" / "sweep.sh", "--gpus=1", "--", path, "--out", tmp_path / "out"]
    done = subprocess.run(list(map(str, words)), env=cluster, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert [call.split(str(ROOT))[0].strip() for call in calls] == [
        "--parsable --gpus=1 --array=0,1",
        "--parsable --gpus=1 --dependency=afterany:101 --job-name=sweep-search --output=slurm-%x-%j.out",
        "--parsable --gpus=1 --dependency=afterany:102 --array=2",
        "--parsable --gpus=1 --dependency=afterany:103 --job-name=sweep-gather --output=slurm-%x-%j.out",
    ]
    assert [call.endswith("--gather") for call in calls] == [False, True, False, True]


def test_a_task_of_the_array_is_a_job_of_the_training_script(tmp_path, cluster):
    project = tmp_path / "project"
    (project / "slurm").mkdir(parents=True)
    (project / "slurm" / "pretrain_clear.sh").write_text('printf "%s\\n" "$@"\n')
    path = write(tmp_path, rows={"a": {"set": {"augment.positive": "crop|repeat"}}})
    environment = cluster | {
        "CLEAR_SWEEP_PROJECT": str(project),
        "SLURM_ARRAY_TASK_ID": "0",
        "SLURM_JOB_ID": "7",
    }
    done = subprocess.run(
        ["bash", str(ROOT / "slurm" / "sweep.sh"), str(path), "--out", str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    flags = done.stdout.splitlines()
    assert "--augment.positive=crop|repeat" in flags
    assert flags[-1].startswith(f"--folder={tmp_path / 'out' / 'runs' / 'a-seed42-'}")


# ---- figures
# ------------------------------------------------------------------------------------------------------------


def test_statistics_are_those_of_a_sample():
    runs = [{"dev": 80.0, "a": 1.0, "b": 5.0}, {"dev": 82.0, "a": 4.0}, {"dev": 81.0, "a": 2.5}]
    found = statistics_of(runs, "dev")
    assert found["mean"]["a"] == 2.5 and found["max"]["a"] == 4.0
    assert found["std"]["a"] == pytest.approx(np.std([1.0, 4.0, 2.5], ddof=1))
    assert "b" not in found["mean"]  # not every seed has it
    assert found["by_dev"] == runs[1]
    assert statistics_of([{"a": 1.0}], "dev") == {
        "mean": {"a": 1.0},
        "std": {},
        "max": {"a": 1.0},
        "by_dev": {},
    }


def test_correlations_are_pearsons():
    values = np.array([[1.0, 2.0, 9.0], [2.0, 1.0, 7.0], [4.0, 5.0, 1.0], [3.0, 3.0, 2.0]])
    rows = [{"mean": dict(zip("abc", row.tolist()))} for row in values]
    text = correlations({"rows": [*rows, {"mean": {}}], "columns": dict.fromkeys("abcd", "")})
    expected = np.corrcoef(values.T)
    for name, row in zip("abc", expected):
        assert f"| {name} | " + " | ".join(f"{value:.2f}" for value in row) + " |" in text
    assert "three rows" in correlations({"rows": rows[:2], "columns": {"a": "", "b": ""}})


def test_metrics_come_from_the_evaluations_files(tmp_path):
    columns = {
        "MNLI-m": "glue.MNLI.matched",
        "RTE": "glue.RTE",
        "Avg": "average",
        "pair": ["glue.RTE", "run.best_step"],
        "CoLA": "glue.CoLA",
    }
    recipe = ROOT / "configs" / "simcse_micro.yaml"
    tree = Sweep.model_validate(
        {"title": "T", "recipe": str(recipe), "rows": {"one": {}}, "columns": columns}
    )
    entries = expand(tree, tmp_path, {})
    plan = Plan(entries, [42], tmp_path, lambda run: None)
    run = plan.chosen(entries[0])[0]
    (run.folder / "report").mkdir(parents=True)
    (run.folder / "report" / "summary.json").write_text(
        json.dumps({"steps": 4, "seconds": 2.0, "best_step": 3})
    )
    (run.folder / "sweep").mkdir()
    (run.folder / "sweep" / "glue-cls.json").write_text(
        json.dumps(
            {
                "tasks": {
                    "MNLI": {"value": 80.0, "scores": {"matched": 79.0}},
                    "RTE": {"value": 61.0, "scores": {}},
                }
            }
        )
    )
    figures = collect(tree, plan, tmp_path)["rows"][0]["runs"][0]["figures"]
    # no average while CoLA is missing
    assert figures == {"MNLI-m": 79.0, "RTE": 61.0, "pair": 32.0, "s/step": 0.5}
    assert list(columns_of(tree)) == [
        *tree.columns,
        "STS-B dev",
        "STS-B",
        "7 STS",
        "alignment",
        "uniformity",
        "s/step",
    ]


def test_a_row_without_runs_is_shown_empty(tmp_path):
    tree = sweep_of(ROOT / "configs" / "simcse_micro.yaml")
    table = tabulate(
        collect(tree, Plan(expand(tree, tmp_path, {}), [1], tmp_path, lambda run: None), tmp_path)
    )
    assert "| simcse_micro | ours, 0 of 1 seeds |  |" in table


@pytest.mark.slow
def test_a_sweep_trains_resumes_and_dry_runs_for_real(tiny_data, tmp_path):
    settings = TINY | {"train.steps": 4, "checkpoint.every": 2}
    tree = {
        "title": "T",
        "recipe": str(ROOT / "configs" / "clear_micro.yaml"),
        "set": settings,
        "rows": {
            "MLM": {"set": {"objective.name": "mlm"}},
            "del-word": {"set": {"aug": "del-word"}},
            "too small": {"set": {"objective.name": "vascl"}},
        },
    }
    path = tmp_path / "real.yaml"
    path.write_text(yaml.safe_dump(tree, sort_keys=False))
    words = [
        sys.executable,
        "-m",
        "pretrain.sweep",
        str(path),
        "--data",
        str(tiny_data),
        "--out",
        str(tmp_path / "out"),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "CLEAR_DATA"} | {
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }

    def sweep(*more):
        return subprocess.run([*words, *more], env=environment, capture_output=True, text=True, timeout=400)

    tried = sweep("--dry-run")
    assert tried.returncode == 1 and "starts  MLM" in tried.stdout and "starts  del-word" in tried.stdout
    assert "FAILS  too small: error: train.global_batch=16 is too small for objective vascl" in tried.stdout
    done = sweep("--rows", "MLM,del-word")
    assert done.returncode == 0 and "2 runs: 0 done" in done.stdout, done.stdout + done.stderr
    runs = sorted((tmp_path / "out" / "runs").iterdir())
    assert [(run / "best" / "config.json").is_file() for run in runs] == [True, True]
    shutil.rmtree(runs[0] / "report")  # as if it had been killed at its end
    again = sweep("--rows", "MLM,del-word")
    assert again.returncode == 0 and "1 done, 1 begun" in again.stdout and "from step 4" in again.stdout
