"""GLUE's figures: of which runs, by which metrics, and what is said of a result that is not the papers'."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call
from glue_files import write_glue
from scipy import stats
from sklearn import metrics

from finetune.answers import to_text
from finetune.glue import __main__ as glue
from finetune.glue.runs import GRID, GlueOptions, GlueRun, choose
from finetune.glue.store import RunStore, _dev_scores
from finetune.results import Evaluation, read
from finetune.tuning import tasks
from finetune.tuning.recipe import Interrupted
from finetune.tuning.tasks import TABLE_1, TASKS, LabelledExamples
from pretrain.common.errors import UserError


def drawn_logits(task, rows, draw):
    return draw.normal(size=(rows, len(TASKS[task].labels) or 1)).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in TASKS if name != "AX"])
def test_dev_figures_are_scikit_learns(name):
    """CLEAR's Table 1: MNLI's mean of both sets, MRPC's and QQP's of accuracy and F1, STS-B's of both."""
    draw, task = np.random.default_rng(1), TASKS[name]
    splits, gold = task.dev_splits(), {}
    for number, split in enumerate(splits):
        count = 60 + 30 * number
        gold[split] = draw.integers(0, len(task.labels), count) if task.labels else draw.random(count)
    logits = {split: drawn_logits(name, len(rows), draw) for split, rows in gold.items()}
    value, scores, answers = _dev_scores(name, {split: (logits[split], gold[split]) for split in splits})
    given = {split: one.argmax(1) if task.labels else one[:, 0] for split, one in logits.items()}
    np.testing.assert_array_equal(answers, np.concatenate([given[split] for split in splits]))
    accuracies = {split: 100 * np.mean(given[split] == gold[split]) for split in splits}
    sides = gold[splits[0]], given[splits[0]]
    if name == "MNLI":
        both = accuracies["dev_matched"], accuracies["dev_mismatched"]
        expected = {"accuracy": sum(both) / 2, "matched": both[0], "mismatched": both[1]}
    elif name in ("MRPC", "QQP"):
        expected = {"accuracy": accuracies["dev"], "f1": 100 * metrics.f1_score(*sides)}
    elif name == "STS-B":
        expected = {"pearson": 100 * stats.pearsonr(*sides)[0], "spearman": 100 * stats.spearmanr(*sides)[0]}
    elif name == "CoLA":
        expected = {"matthews": 100 * metrics.matthews_corrcoef(*sides)}
    else:
        expected = {"accuracy": accuracies["dev"]}
    if len(expected) == 2:
        expected["mean"] = sum(expected.values()) / 2
    assert scores == pytest.approx(expected) and list(scores) == list(expected)
    assert value == pytest.approx(expected.get("mean", next(iter(expected.values()))))


@pytest.fixture
def filled(source, data, tmp_path, monkeypatch):
    """Return a function that makes a store whose runs have drawn answers, and their results."""

    def make(options, absent=(), whole=True):
        found = {name: tasks.load(name, str(data)) for name in TASKS}
        if whole:
            found = {name: replace(one, notes=[]) for name, one in found.items()}
        store, results = RunStore(source, found, options, tmp_path), {}
        for number, run in enumerate(store.runs):
            draw, splits = np.random.default_rng(number), found[run.task].splits
            dev = {split: splits[split] for split in TASKS[run.task].dev_splits()}
            outcome = _dev_scores(
                run.task,
                {name: (drawn_logits(run.task, len(rows), draw), rows.targets) for name, rows in dev.items()},
            )
            best = {"value": outcome[0], "scores": outcome[1], "epoch": 1.0}
            results[run] = {"best": best, "answers": to_text(outcome[2]), "seconds": 2.0}
            results[run]["cut"] = {"train": run.seed, "dev": 1} if run.task == "RTE" else {}
        for run in store.runs:
            if (run.task, run.seed) in absent:
                del results[run]
        monkeypatch.setattr(store, "result", results.get)
        return store, results

    return make


def test_a_whole_result_has_medians_over_seeds_answers_and_the_average(filled):
    store, results = filled(GlueOptions())
    found, best = glue.summarise(store, [])
    trained = [name for name in TASKS if name != "AX"]
    assert list(found.tasks) == [*trained, "average of 8"] and found.complete
    for name in trained:
        of_task = {run: one["best"] for run, one in results.items() if run.task == name}
        values = [one["value"] for one in of_task.values()]
        task = found.tasks[name]
        assert len(values) == 5 and task.value == statistics.median(values)
        assert task.std == pytest.approx(np.std(values, ddof=1))
        assert task.metric == ("accuracy" if name == "MNLI" else TASKS[name].headline)
        for key, score in task.scores.items():
            assert score == statistics.median(one["scores"][key] for one in of_task.values())
        assert best[name] == max(of_task, key=lambda run: of_task[run]["value"])
        assert list(task.details["seeds"]) == ["1", "2", "3", "4", "5"]
        settings = f"lr {best[name].lr:g}, batch {best[name].batch_size}"
        assert task.details["settings"] == {settings: task.value}
        assert (task.details["lr"], task.details["batch_size"]) == TASKS[name].recipe[:2]
    require_answers(found, trained)
    mean = statistics.mean(found.tasks[name].value for name in TABLE_1)
    assert found.tasks["average of 8"].value == pytest.approx(mean)
    assert found.seconds == 2.0 * len(results) == 2.0 * 5 * 9
    assert found.protocol == "RoBERTa's recipe, median of 5 seeds, best epoch each, fp32"
    said = "\n".join(found.notes)
    assert "RTE: texts cut at 64 tokens: 5 of train, 1 of dev" in said
    assert "AX: the leaderboard has its labels" in said and "WNLI: plain pair" in said
    assert len(found.notes) == 3


def test_what_is_not_the_papers_setting_is_said(filled):
    options = GlueOptions(seeds=2, epochs=3, max_train=9, lr=1e-3, batch_size=8, predict=True)
    store, results = filled(options, absent={("CoLA", 1), ("QQP", 1), ("QQP", 2)}, whole=False)
    found, best = glue.summarise(store, ["SST-2 left out: no train set here"])
    said, data = "\n".join(found.notes), store.data
    for words in (
        "SST-2 left out: no train set here",
        "median of 2 seeds; published figures are of 5",
        "3 epochs in place of 10",
        "at most 9 training examples a task",
        "lr 0.001 and batch 8 in place of the recipe's",
        "CoLA: 1 of 2 runs are done",
        "QQP: 0 of 2 runs are done",
        data["MRPC"].notes[0],
    ):
        assert words in said
    assert not found.complete and "QQP" not in found.tasks and "average of 8" not in found.tasks
    assert "AX:" not in said and best["CoLA"].seed == 2 and found.tasks["CoLA"].std is None
    assert found.seconds == 2.0 * len(results)
    del results[best["RTE"]]["answers"]  # of an earlier version
    assert glue.summarise(store, [])[0].tasks["RTE"].answers is None
    swept, _ = glue.summarise(filled(GlueOptions(sweep=True))[0], [])
    assert swept.protocol.startswith("RoBERTa's grid, median of 5 seeds") and swept.complete


def test_the_average_needs_all_eight_tasks():
    result = Evaluation("glue", "m", "cls", None, "p")
    for number, name in enumerate(TABLE_1):
        glue.add_average(result)
        assert "average of 8" not in result.tasks
        result.add(name, "accuracy", {"accuracy": float(number)})
    glue.add_average(result)
    assert result.tasks["average of 8"].value == 3.5


def test_runs_have_fairseqs_settings_and_the_grid_is_robertas():
    shares = {"MNLI": 7432 / 123873, "QNLI": 1986 / 33112, "QQP": 28318 / 113272, "RTE": 122 / 2036}
    shares |= {"SST-2": 1256 / 20935, "MRPC": 137 / 2296, "CoLA": 320 / 5336, "STS-B": 214 / 3598}
    runs = GlueOptions(seeds=2).runs([*shares, "AX"])
    assert [(run.task, run.seed) for run in runs] == [(name, seed) for name in shares for seed in (1, 2)]
    assert {run.task: run.warmup for run in runs} == pytest.approx(shares)
    (own,) = GlueOptions(seeds=1, lr=1e-3, batch_size=8).runs(["RTE"])
    assert (own.lr, own.batch_size, own.warmup) == (1e-3, 8, 122 / 2036)
    assert sorted(GRID) == sorted((lr, batch, 0.06) for lr in (1e-5, 2e-5, 3e-5) for batch in (16, 32))
    options = GlueOptions()
    assert (options.seeds, options.epochs, options.sweep, options.predict) == (5, 10, False, False)
    assert (options.precision, options.max_train, options.token_budget) == ("auto", 0, 16384)


def test_a_setting_with_seeds_to_come_does_not_win():
    def run(lr, batch, seed):
        return GlueRun("RTE", seed, lr, batch, 0.06)

    values = {run(1e-5, 16, 1): 99.0, run(2e-5, 16, 1): 40.0, run(2e-5, 16, 2): 60.0}
    values |= {run(2e-5, 32, 1): 49.0, run(2e-5, 32, 2): 50.0}
    medians, reported, best = choose({one: {"best": {"value": value}} for one, value in values.items()})
    assert medians == {(1e-5, 16): 99.0, (2e-5, 16): 50.0, (2e-5, 32): 49.5}
    assert reported == [run(2e-5, 16, 1), run(2e-5, 16, 2)] and best == run(2e-5, 16, 2)


def test_tasks_that_are_not_there_are_said_or_refused(data, tmp_path):
    found, notes = glue._load_tasks((), str(data))
    assert list(found) == list(TASKS) and not notes
    place = write_glue(tmp_path) / "GLUE"
    (place / "RTE" / "dev.tsv").unlink()
    for split in ("train", "dev"):
        (place / "CoLA" / f"{split}.tsv").unlink()
    (place / "MNLI" / "dev_matched.tsv").unlink()  # the other one is left
    found, notes = glue._load_tasks((), str(tmp_path))
    assert set(TASKS) - set(found) == {"RTE", "CoLA"}
    assert notes == ["RTE left out: no dev set here", "CoLA left out: no train and no dev set here"]
    assert list(glue._load_tasks(("sst-2", "mrpc", "SST-2"), str(tmp_path))[0]) == ["SST-2", "MRPC"]
    with pytest.raises(UserError, match="RTE: no dev set; leave the task out, or fetch it"):
        glue._load_tasks(("RTE",), str(tmp_path))
    (place / "MNLI" / "train.tsv").unlink()
    found, notes = glue._load_tasks((), str(tmp_path))
    assert not {"AX", "MNLI"} & set(found) and not any(note.startswith("AX") for note in notes)
    with pytest.raises(UserError, match="AX is answered by the model of MNLI: add MNLI to --tasks"):
        glue._load_tasks(("AX",), str(tmp_path))
    (place / "diagnostic" / "diagnostic.tsv").unlink()
    with pytest.raises(UserError, match="AX: no diagnostic set"):
        glue._load_tasks(("AX",), str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no GLUE task is there; --eval-data names a folder"):
        glue._load_tasks((), str(tmp_path / "empty"))


def test_a_request_to_stop_is_heard_before_a_run_begins(source, data, tmp_path):
    found = {"RTE": tasks.load("RTE", str(data))}
    store = RunStore(source, found, GlueOptions(seeds=1, epochs=1), tmp_path, lambda: 75)
    with pytest.raises(Interrupted) as raised:
        glue.compute_all(store)
    assert raised.value.code == 75 and not list(tmp_path.iterdir())


def test_the_command_trains_reports_and_predicts(folders, data, tmp_path, capsys):
    flags = {"eval_data": data, "tasks": "RTE", "out": tmp_path, "max_train": 16}
    words = {"seeds": 1, "epochs": 1, "predict": True}
    assert call(glue.glue, folders["bert"], **flags, **words) == 0
    found = read(tmp_path / "glue-cls.json")
    require_answers(found, ["RTE"])
    assert "at most 16 training examples a task" in found.notes and found.seconds > 0
    assert (tmp_path / "predictions" / "RTE.tsv").read_text().count("\n") == 8
    assert "RTE seed 1, lr 2e-05, batch 16: 16 examples" in capsys.readouterr().err
    for number in (-1, 1):
        with pytest.raises(UserError, match=rf"--run-numbers {number}: `plan` lists runs 0 to 0"):
            call(glue.train, folders["bert"], run_numbers=str(number), **flags, seeds=1, epochs=1)
    assert call(glue.plan, folders["bert"], **flags, **words) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0\tRTE\t1\t2e-05\t16\tdone"


def test_a_limit_keeps_the_same_rows_in_their_order(data):
    rows = LabelledExamples([f"t{n}" for n in range(9)], [f"s{n}" for n in range(9)], np.arange(9))
    some = rows.limited(4)
    places = [int(text[1:]) for text in some.first]
    assert len(set(places)) == 4 and places == sorted(places) and places != [0, 1, 2, 3]
    assert some.second == [f"s{n}" for n in places] and some.targets.tolist() == places
    assert rows.limited(4).first == some.first and len(rows.limited(8)) == 8
    assert rows.limited(0) is rows.limited(9) is rows.limited(10) is rows
    limited = tasks.load("MNLI", str(data)).limited(5)
    assert {name: len(one) for name, one in limited.splits.items()} == {
        "train": 5, "dev_matched": 24, "dev_mismatched": 24, "test_matched": 7, "test_mismatched": 7
    }  # fmt: skip


@pytest.mark.parametrize(
    "score,fits", [("0", True), ("5", True), ("5.001", False), ("-0.1", False), ("x", 0)]
)
def test_scores_are_from_0_to_5_and_blank_lines_no_rows(tmp_path, score, fits):
    (tmp_path / "STS-B").mkdir()
    row = f"a\tb\t{score}\n"
    (tmp_path / "STS-B" / "train.tsv").write_text(f"sentence1\tsentence2\tscore\n\n{row}")
    if fits:
        assert tasks.read_split(TASKS["STS-B"], "train", tmp_path).targets.tolist() == [float(score)]
    else:
        with pytest.raises(UserError, match=rf"line 3: '{score}' is not a score from 0 to 5"):
            tasks.read_split(TASKS["STS-B"], "train", tmp_path)
    (tmp_path / "STS-B" / "train.tsv").write_text("sentence1\tsentence2\tscore\n\n")
    with pytest.raises(UserError, match=r"train\.tsv has no rows"):
        tasks.read_split(TASKS["STS-B"], "train", tmp_path)
