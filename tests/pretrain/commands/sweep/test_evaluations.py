"""Figures of a sweep's runs: names of metrics, what a run started from."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from commands import call
from loader_helpers import has_ended
from run_helpers import wait_for
from sweep_helpers import ROOT, entries_of, write_sts, write_sweep

from augment.core.errors import AugmentationError
from augment.core.own_code import ALLOWED
from augment.spec.grammar import parse
from finetune.answers import Answers
from pretrain.commands.sweep import evaluations
from pretrain.commands.sweep.__main__ import plan
from pretrain.commands.sweep.evaluations import EvaluatedModel, evaluate, metric, models_of
from pretrain.commands.sweep.file import expand, read_sweep
from pretrain.commands.sweep.runs import StopRequested, SweepPlan
from pretrain.commands.sweep.table import collect
from pretrain.common.errors import UserError
from pretrain.common.shutdown import TERMINATE

TASKS = {
    "augmentation/delete": {"value": 0.9, "std": 0.2, "scores": {"cosine": 0.9, "rate=0.05": 5.0}},
    "augmentation/delete:rate=0.05": {"value": 0.8, "std": 0.1, "scores": {"cosine": 0.8, "svg": 2.0}},
    "SNIPS-5": {"value": 70.0, "std": 4.0, "scores": {"accuracy": 70.0}},
}


def evaluated(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-mean.json").write_text(json.dumps({"tasks": TASKS}))
    return EvaluatedModel("m", "mean", folder)


def finish(run):
    (run.folder / "report").mkdir(parents=True)
    summary = {"steps": 4, "seconds": 2.0, "best_step": 4}
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary))


def test_names_of_tasks_and_scores_may_hold_dots(tmp_path):
    model = evaluated(tmp_path, "geometry-wdel")
    for name, expected in (
        ("augmentation/delete", 0.9),
        ("augmentation/delete.cosine", 0.9),
        ("augmentation/delete:rate=0.05", 0.8),
        ("augmentation/delete:rate=0.05.svg", 2.0),
        ("augmentation/reorder", None),
    ):
        assert metric(model, f"geometry-wdel.{name}") == expected


def test_an_evaluation_with_a_label_is_kept_apart(tmp_path):
    words = EvaluatedModel("m", "cls", tmp_path).words("geometry-nli", "--measure nli")
    assert words[2:] == [
        *("finetune.geometry", "m", "--measure", "nli", "--label", "nli", "--pooling", "cls", "--out"),
        str(tmp_path),
    ]
    assert "--label" not in EvaluatedModel("m", "cls", tmp_path).words("senteval-dev", "--setting dev")


def test_columns_may_be_of_what_a_run_started_from_and_of_where_a_row_is(tmp_path):
    rows = {"a": {"at": {"kind": "delete"}}, "b": {"at": {"kind": "reorder"}, "set": {"train.lr": 1e-3}}}
    rows["c"] = {"set": {"train.lr": 2e-3}}
    path = write_sweep(
        tmp_path,
        rows=rows,
        set={"model.init": str(tmp_path)},
        columns={"cosine": "start.geometry-x.augmentation/{kind}.cosine"},
        of_start={"geometry-x": "--measure augmentation"},
    )
    sweep = read_sweep(path)
    plan = SweepPlan(expand(sweep, tmp_path, {}), [42], tmp_path / "out")
    models = []
    for entry in plan.entries:
        finish(plan.runs_of(entry)[0])
        models += models_of(entry, plan.runs_of(entry), plan.out)
    (start,) = {model.start for model in models}
    assert start.model == str(tmp_path) and start.folder.parent == tmp_path / "out" / "start"
    evaluated(start.folder, "geometry-x")
    rows = collect(sweep, plan, plan.out)["rows"]
    assert [row["mean"].get("cosine") for row in rows] == [0.9, None, None]
    assert "cosine" not in (rows[1].get("difference") or {"columns": {}})["columns"]


def test_two_starts_with_names_that_begin_alike_are_two_models(tmp_path):
    folders = []
    for name in ("é", "è", "x" * 80 + "1", "x" * 80 + "2"):
        (tmp_path / name).mkdir()
        path = write_sweep(
            tmp_path, rows={"start": {"kind": "start"}}, set={"model.init": str(tmp_path / name)}
        )
        plan = SweepPlan(expand(read_sweep(path), tmp_path, {}), [42], tmp_path / "out")
        (model,) = models_of(plan.entries[0], [], plan.out)
        assert model.model == str(tmp_path / name)
        folders.append(model.folder)
    assert len(set(folders)) == 4


LONG = """
import os, pathlib, signal, time
signal.signal(signal.SIGINT, signal.{how})
child = os.fork()
pathlib.Path(f"{{'child' if child == 0 else 'parent'}}").write_text(str(os.getpid()))
time.sleep(600)
"""


def test_what_has_no_figures_yet_is_evaluated_once(tmp_path, monkeypatch):
    done, model = evaluated(tmp_path / "done", "sts"), EvaluatedModel("n", "cls", tmp_path / "n")
    twice, started, printed = EvaluatedModel("n", "cls", tmp_path / "n"), [], []

    def start(words, log, environment):
        log.write_text("error: no luck\n")
        started.append((words[2], words[-1], log.name, environment["KEY"]))
        return words[2]

    monkeypatch.setattr(evaluations, "start_logged", start)
    monkeypatch.setattr(evaluations, "wait_for_end", lambda process, look: 3 * ("geometry" in process))
    trainer = SimpleNamespace(
        environment={"KEY": "it"}, print_line=printed.append, check_for_stop=lambda: None, failures={}
    )
    evaluate([done, model, twice], {"sts": "", "geometry": "--measure sts"}, trainer)
    where = {name: str(tmp_path / name) for name in ("done", "n")}
    assert started == [
        ("finetune.geometry", where["done"], "geometry.txt", "it"),
        ("finetune.sts", where["n"], "sts.txt", "it"),
        ("finetune.geometry", where["n"], "geometry.txt", "it"),
    ]
    assert printed == [
        "[1/3] geometry of m",
        "  FAILED (3): error: no luck",
        "[2/3] sts of n",
        "[3/3] geometry of n",
        "  FAILED (3): error: no luck",
    ]
    # so that the sweep ends with status 1
    assert trainer.failures == {f"geometry of {name}": "error: no luck" for name in "mn"}


@pytest.mark.full
@pytest.mark.parametrize("how", ["SIG_DFL", "SIG_IGN"])
def test_a_request_to_stop_ends_an_evaluation_and_its_children(tmp_path, monkeypatch, how):
    monkeypatch.chdir(tmp_path)
    numbers = [tmp_path / name for name in ("parent", "child")]

    class Model(EvaluatedModel):
        def words(self, evaluation, flags):
            return [sys.executable, "-S", "-c", LONG.format(how=how)]

    def check():
        if all(path.exists() and path.read_text() for path in numbers):
            raise StopRequested(TERMINATE)

    started, printed = [Model("m", "mean", tmp_path), Model("n", "mean", tmp_path / "n")], []
    with pytest.raises(StopRequested):
        trainer = SimpleNamespace(environment={}, print_line=printed.append, check_for_stop=check)
        evaluate(started, {"sts": ""}, trainer)
    assert printed == ["[1/2] sts of m"]
    processes = [int(path.read_text()) for path in numbers]
    wait_for(lambda: all(map(has_ended, processes)), [])


def test_random_weights_are_no_model_to_start_from(tmp_path):
    entries = entries_of(tmp_path)
    plan = SweepPlan(entries, [42], tmp_path / "out")
    finish(plan.runs_of(entries[0])[0])
    (model,) = models_of(entries[0], plan.runs_of(entries[0]), plan.out)
    assert model.start is None and metric(model, "start.sts.STS-B") is None


def test_a_start_has_no_words_pooling(tmp_path, capsys):
    folder = tmp_path / "start"
    folder.mkdir()
    rows = {"start": {"kind": "start", "set": {"init": str(folder), "model.pooling": "words"}}}
    (entry,) = entries_of(tmp_path, rows=rows)
    assert models_of(entry, [], tmp_path / "out") == []
    call(plan, write_sweep(tmp_path, rows=rows), out=tmp_path / "out")
    said = "not evaluated: start: words pooling is of runs that were trained so; give the row another"
    assert said in capsys.readouterr().err
    rows["start"]["pooling"] = "mean"
    (model,) = models_of(entries_of(tmp_path, rows=rows)[0], [], tmp_path / "out")
    assert (model.model, model.pooling) == (str(folder), "mean")


def test_a_sweep_file_starts_no_code_that_the_command_does_not_name(tmp_path, monkeypatch):
    code = tmp_path / "embed.py"
    code.write_text("def embed(texts):\n    return []\n")
    (entry,) = entries_of(tmp_path, rows={"start": {"kind": "start", "set": {"init": f"{code}:embed"}}})
    with pytest.raises(AugmentationError, match="only where the command itself names it"):
        models_of(entry, [], tmp_path / "out")
    monkeypatch.setenv(ALLOWED, str(code))
    (model,) = models_of(entry, [], tmp_path / "out")
    assert model.model == f"{code}:embed"


def test_a_row_may_be_of_the_last_step(tmp_path):
    entries = entries_of(tmp_path, rows={"best": {}, "last": {"weights": "export"}})
    plan = SweepPlan(entries, [42], tmp_path / "out")
    finish(plan.runs_of(entries[0])[0])  # one run for both
    (best,), (last,) = (models_of(entry, plan.runs_of(entry), plan.out) for entry in entries)
    assert (best.run.folder / "export", best.run.folder / "best") == (Path(last.model), Path(best.model))
    assert best.results("sts") != last.results("sts")


def test_columns_name_augmentations_as_results_do():
    """Without what is at its default: `delete`, not `delete:rate=0.1`."""
    named = 0
    for path in sorted((ROOT / "configs" / "sweeps").glob("*.yaml")):
        metrics = [name for name in read_sweep(path).columns.values() if isinstance(name, str)]
        for name in (name for name in metrics if ".augmentation/" in name and "{" not in name):
            specification = name.split(".augmentation/")[1].removesuffix(".cosine")
            assert str(parse(specification)) == specification, path
            named += 1
    assert named == 9


def test_answers_are_those_that_the_evaluation_kept(tmp_path):
    model = EvaluatedModel("m", "mean", tmp_path)
    assert model.answers("STS12") is None
    gold = np.arange(3, dtype=np.float32)
    write_sts(tmp_path, {"STS12": 50.0, "STS13": 40.0}, {"STS12": Answers.of(gold + 2, gold, "spearman", "")})
    found = model.answers("STS12")
    assert np.array_equal(found.gold, gold) and np.array_equal(found.predicted, [gold + 2])
    assert model.answers("STS13") is None and model.answers("STS14") is None
    assert metric(model, "sts.STS12") == 50.0
    (tmp_path / "sts-mean.answers.npz").write_bytes(b"torn")
    with pytest.raises(UserError, match=r"evaluate STS12 again: remove .*sts-mean.json"):
        model.answers("STS12")


def test_figures_of_training_are_those_of_its_summary(tmp_path):
    (entry,) = entries_of(tmp_path)
    (run,) = SweepPlan([entry], [42], tmp_path / "out").runs
    finish(run)
    summary = {"steps": 4, "seconds": 2.0, "best_step": 3, "trained": {"stsb-dev": 70.0}}
    summary["best"] = {"stsb-dev": 71.0, "heldout_mlm_loss": 2.5}
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary))
    (model,) = models_of(entry, [run], tmp_path / "out")
    for name, figure in {
        "dev": 71.0,
        "dev.last": 70.0,
        "run.seconds_per_step": 0.5,
        "run.best_step": 3,
        "run.heldout_mlm_loss": 2.5,
        "run.nothing": None,
        "sts.average": None,
    }.items():
        assert metric(model, name) == figure, name
    assert metric(model, ["dev", "dev.last"]) == 70.5 and metric(model, ["dev", "sts.STS-B"]) is None
    write_sts(model.folder, {"STS-B-dev": 60.0, "average of 7 STS": 55.0, "STS-B": 50.0})
    assert metric(model, "sts.average") == 55.0 and metric(model, ["dev", "sts.STS-B"]) == 60.5
    start = EvaluatedModel("m", "mean", model.folder)
    assert (metric(start, "dev"), metric(start, "dev.last"), metric(start, "run.best_step")) == (
        60.0,
        None,
        None,
    )
    (run.folder / "report" / "summary.json").write_text(json.dumps(summary | {"steps": 0}))
    assert metric(model, "run.seconds_per_step") is None
    (model.folder / "sts-mean.json").write_text("{}")
    with pytest.raises(UserError, match="is of an earlier version: remove it"):
        metric(model, "sts.STS-B")


def test_fine_tuned_figures_are_found_by_any_pooling_and_take_none(tmp_path):
    model = EvaluatedModel("m", "mean", tmp_path)
    assert model.results("glue").name == "glue-mean.json"
    for name in ("glue-cls.json", "anli-cls.json", "sts-cls.json"):
        (tmp_path / name).write_text("{}")
    assert [model.results(name).name for name in ("glue", "anli", "sts")] == [
        "glue-cls.json",
        "anli-cls.json",
        "sts-mean.json",
    ]
    assert model.words("glue", "--tasks RTE")[2:] == [
        "finetune.glue",
        "m",
        "--tasks",
        "RTE",
        "--out",
        str(tmp_path),
    ]
    assert model.words("sts", "")[2:] == ["finetune.sts", "m", "--pooling", "mean", "--out", str(tmp_path)]


def test_an_average_is_of_the_papers_columns_once_all_are_there(tmp_path):
    columns = {"A": "sts.STS-B", "B": "sts.SICK-R", "mean": "average"}
    path = write_sweep(tmp_path, columns=columns)
    sweep = read_sweep(path)
    plan = SweepPlan(expand(sweep, tmp_path, {}), [42], tmp_path / "out")
    (run,) = plan.runs
    finish(run)
    (model,) = models_of(plan.entries[0], [run], plan.out)
    write_sts(model.folder, {"STS-B": 50.0})
    (row,) = collect(sweep, plan, plan.out)["rows"]
    assert row["mean"]["A"] == 50.0 and "mean" not in row["mean"]
    write_sts(model.folder, {"STS-B": 50.0, "SICK-R": 60.0})
    (row,) = collect(sweep, plan, plan.out)["rows"]
    assert row["mean"]["mean"] == 55.0
