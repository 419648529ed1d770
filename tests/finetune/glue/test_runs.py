"""GLUE: runs that resume, medians and sweeps, and results that are not taken for others."""

import re
import types

import numpy as np
import pytest
from glue_files import write_glue
from real_data import needs_data

from finetune.glue import __main__ as glue
from finetune.glue import store as store_module
from finetune.glue.runs import GlueOptions, choose
from finetune.glue.store import RunStore
from finetune.tuning import finetuning, tasks
from finetune.tuning.recipe import Interrupted


def stop_at(limit):
    """Return a stop_code that requests a stop when it is asked for the `limit`th time."""
    asked = types.SimpleNamespace(times=0)

    def stop_code():
        asked.times += 1
        return 75 if asked.times == limit else 0

    return stop_code


@pytest.mark.parametrize("task", ["RTE", "STS-B"])
def test_a_stopped_run_goes_on_and_ends_as_one_that_never_was(source, data, tmp_path, monkeypatch, task):
    found = {task: tasks.load(task, str(data))}
    options = GlueOptions(seeds=1, epochs=3, predict=True)
    run = options.runs([task])[0]
    straight = RunStore(source, found, options, tmp_path / "straight")
    straight.compute(run, "")
    broken = tmp_path / "broken"
    for limit in (2, 3):  # in the first epoch, at its end, then through
        with pytest.raises(Interrupted):
            RunStore(source, found, options, broken, stop_at(limit)).compute(run, "")
        assert not list(broken.glob("*.json"))
        assert len(list(broken.glob("*.checkpoint"))) == 1

    def dies():
        dies.asked += 1
        if dies.asked == 3:
            raise KeyboardInterrupt
        return 0

    dies.asked = 0
    # not in good order: it goes on from the last checkpoint, one step back
    monkeypatch.setattr(finetuning, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        RunStore(source, found, options, broken, dies).compute(run, "")
    resumed = RunStore(source, found, options, broken)
    resumed.compute(run, "")
    assert not list(broken.glob("*.checkpoint"))
    for key in ("best", "curve", "settings"):
        assert resumed.result(run)[key] == straight.result(run)[key]  # bitwise
    for name, logits in straight.predictions(run).items():
        np.testing.assert_array_equal(resumed.predictions(run)[name], logits)


def test_seeds_differ_and_results_of_other_circumstances_are_not_taken(source, data, tmp_path):
    found = {"RTE": tasks.load("RTE", str(data))}
    options = GlueOptions(seeds=2, epochs=1, lr=1e-3)
    store = RunStore(source, found, options, tmp_path)
    first, second = options.runs(["RTE"])
    store.compute(first, "")
    store.compute(second, "")
    assert store.result(first)["best"]["loss"] != store.result(second)["best"]["loss"]
    others = (
        GlueOptions(epochs=2, lr=1e-3),
        GlueOptions(epochs=1, lr=1e-3, max_train=20),
        GlueOptions(epochs=1, lr=1e-3, precision="bf16"),
    )
    for other in others:
        assert RunStore(source, found, other, tmp_path).result(other.runs(["RTE"])[0]) is None
    assert (
        RunStore(source, found, GlueOptions(seeds=5, epochs=1, lr=1e-3), tmp_path).result(first) is not None
    )


def test_sweep_takes_the_setting_with_the_best_median(source, data, tmp_path, monkeypatch):
    found = {"CoLA": tasks.load("CoLA", str(data))}
    options = GlueOptions(seeds=3, sweep=True)
    store = RunStore(source, found, options, tmp_path)
    runs = options.runs(["CoLA"])
    assert len(runs) == 18
    assert {(run.lr, run.batch_size) for run in runs} == {
        (lr, batch) for lr in (1e-5, 2e-5, 3e-5) for batch in (16, 32)
    }

    def result(run):
        value = (
            {1: 90.0, 2: 10.0, 3: 20.0}[run.seed]
            if run.lr == 1e-5
            else 30.0 + run.batch_size / 16 + 1e5 * run.lr
        )
        best = {"value": value, "epoch": 1.0, "scores": {"matthews": value}}
        return {"best": best, "seconds": 1.0}

    monkeypatch.setattr(store, "result", result)
    evaluation, chosen = glue.summarise(store, [])
    assert evaluation.tasks["CoLA"].value == pytest.approx(35.0)  # 1e-5 has the best seed, and a median of 20
    assert (chosen["CoLA"].lr, chosen["CoLA"].batch_size) == (3e-5, 32)


def test_predictions_are_of_the_best_epoch(source, data, tmp_path, monkeypatch):
    found, options = {"RTE": tasks.load("RTE", str(data))}, GlueOptions(seeds=1, epochs=2, predict=True)
    (run,), logits = options.runs(["RTE"]), []
    for figures in ((90.0, 10.0), (10.0, 90.0)):
        given = iter(figures)
        monkeypatch.setattr(
            store_module, "_dev_scores", lambda *_, given=given: (next(given), {}, np.zeros(1))
        )
        store = RunStore(source, found, options, tmp_path / str(figures[0]))
        store.compute(run, "")
        logits.append(store.predictions(run)["RTE/test"])
    assert not np.allclose(*logits, atol=1e-5)  # the training is the same: so are the last epoch's


def trained(capsys):
    """(task, learning rate, seed) of the runs that were fine-tuned since the last call, as the command says
    them."""
    said = re.findall(r"(\S+) seed (\d+), lr (\S+), batch \d+: [\d,]+ examples", capsys.readouterr().err)
    return [(task, float(lr), int(seed)) for task, seed, lr in said]


def test_a_run_is_done_only_if_what_is_asked_for_is_there(source, data, tmp_path, capsys):
    """Figures first; then predictions and AX, each asked for later, repeat a task's best run alone."""
    write_glue(tmp_path / "data")
    found = {name: tasks.load(name, str(tmp_path / "data")) for name in ("RTE", "MNLI", "AX")}
    without_ax = {name: found[name] for name in ("RTE", "MNLI")}
    common = {"seeds": 2, "epochs": 1, "lr": 1e-3}

    def store(of=without_ax, **asked):
        return RunStore(source, of, GlueOptions(**common, **asked), tmp_path / "out")

    def file_of(run, ending):
        (path,) = (tmp_path / "out").glob(f"{run.task}-*seed{run.seed}-*{ending}")
        return path

    runs = GlueOptions(**common).runs(["RTE", "MNLI"])
    glue.compute_all(store())
    assert not store().unfinished(runs) and len(trained(capsys)) == 4
    _, _, best = choose({run: store().result(run) for run in runs if run.task == "RTE"})
    _, _, best_mnli = choose({run: store().result(run) for run in runs if run.task == "MNLI"})
    asked = store(predict=True)
    assert set(asked.unfinished(runs)) == {best, best_mnli}  # of each task the best seed predicts
    glue.compute_all(asked)
    assert trained(capsys) == [("RTE", 1e-3, best.seed), ("MNLI", 1e-3, best_mnli.seed)]
    assert set(asked.predictions(best_mnli)) == {"MNLI/test_matched", "MNLI/test_mismatched"}
    lost = file_of(best, ".json")
    figures = lost.read_bytes()
    lost.unlink()  # while the best of a task is not known, each of its runs must have predictions
    assert asked.unfinished(runs) == [run for run in runs if run.task == "RTE"]
    lost.write_bytes(figures)
    both = store(found, predict=True)
    assert both.unfinished(runs) == [best_mnli]  # AX's test rows are to be predicted too
    glue.compute_all(both)
    assert trained(capsys) == [("MNLI", 1e-3, best_mnli.seed)] and "AX/test" in both.predictions(best_mnli)
    assert not both.unfinished(runs)


def test_predictions_of_other_test_rows_are_not_taken(source, tmp_path):
    found = {"RTE": tasks.load("RTE", str(write_glue(tmp_path / "data")))}
    options = GlueOptions(seeds=1, epochs=1, predict=True)
    store, (run,) = RunStore(source, found, options, tmp_path), options.runs(["RTE"])
    store.compute(run, "")
    assert not store.unfinished([run])
    file = tmp_path / "data/GLUE/RTE/test.tsv"
    file.write_text(file.read_text().replace("the", "a"))  # as many rows
    store = RunStore(source, {"RTE": tasks.load("RTE", str(tmp_path / "data"))}, options, tmp_path)
    assert store.result(run) is not None and store.unfinished([run]) == [run]


def test_a_checkpoint_without_the_best_model_does_not_serve_predictions(source, data, tmp_path):
    """Saved by a command that did not ask for predictions, it does not know the model of an epoch that was
    the best."""
    found = {"RTE": tasks.load("RTE", str(data))}
    without, with_them = (
        GlueOptions(seeds=1, epochs=3, lr=1e-3, predict=predict) for predict in (False, True)
    )
    (run,) = without.runs(["RTE"])
    straight = RunStore(source, found, with_them, tmp_path / "straight")
    straight.compute(run, "")
    with pytest.raises(Interrupted):
        RunStore(source, found, without, tmp_path / "broken", stop_at(7)).compute(run, "")
    resumed = RunStore(source, found, with_them, tmp_path / "broken")
    resumed.compute(run, "")
    np.testing.assert_array_equal(resumed.predictions(run)["RTE/test"], straight.predictions(run)["RTE/test"])
    assert resumed.result(run)["curve"] == straight.result(run)["curve"]


@pytest.mark.full
@needs_data("GLUE/SST-2")
def test_a_few_updates_on_real_rte_and_a_learnable_task(source, tmp_path):
    """SST-2's words decide its label: even a random encoder learns some of it in a few hundred updates."""
    found = {"SST-2": tasks.load("SST-2")}
    options = GlueOptions(seeds=1, epochs=2, lr=2e-3, max_train=1500)
    store = RunStore(source, found, options, tmp_path)
    run = options.runs(["SST-2"])[0]
    store.compute(run, "")
    curve = store.result(run)["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
