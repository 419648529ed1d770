"""`clearly compare`: differences are those of the pairs, and the page has recipes, curves and scores."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from browser import require_sound
from commands import call
from model_folders import save_bert, save_run
from scipy import stats
from sts_layout import write_layout

from finetune import compare as command
from finetune import sts
from finetune.answers import Answers
from finetune.compare import example_differences
from finetune.results import Evaluation, TaskResult
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.common.errors import UserError


def sts_of(golds, noise, seed):
    random = np.random.default_rng(seed)
    found = Evaluation("sts", "m", "mean", None, "p")
    for task, gold in golds.items():
        predicted = gold + noise * random.normal(size=len(gold))
        value = 100 * stats.spearmanr(predicted, gold).statistic
        answers = Answers.of(predicted, gold, "spearman", task)
        found.tasks[task] = TaskResult("spearman", value, {}, answers=answers)
    mean = np.mean([one.value for one in found.tasks.values()])
    found.tasks["average of 7 STS"] = TaskResult("mean", mean, {})
    return found


def test_differences_are_of_the_same_pairs_and_their_interval_is_scipys_bootstrap():
    golds = {task: np.random.default_rng(number).normal(size=150) for number, task in enumerate(SEVEN_TASKS)}
    models = {"one": sts_of(golds, 1.0, 1), "other": sts_of(golds, 0.5, 2), "same": sts_of(golds, 1.0, 1)}
    found = example_differences({name: {"sts": one} for name, one in models.items()})["sts"]
    assert found["STS12"]["one"].difference is None
    same = found["STS12"]["same"].difference
    assert same is not None and (same.mean, same.low, same.high) == (0, 0, 0) and not same.differs
    ours = found["STS12"]["other"].difference
    predicted = [models[name].tasks["STS12"].answers.predicted[0] for name in ("other", "one")]
    theirs = stats.bootstrap(
        [*predicted, golds["STS12"]],
        lambda a, b, gold: 100 * (stats.spearmanr(a, gold).statistic - stats.spearmanr(b, gold).statistic),
        paired=True,
        vectorized=False,
        method="percentile",
        n_resamples=1000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = theirs.high - theirs.low
    assert ours.differs and ours.low == pytest.approx(theirs.low, abs=0.1 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.1 * width)
    wide, narrow = found["STS12"]["other"].difference, found["average of 7 STS"]["other"].difference
    assert narrow.high - narrow.low < wide.high - wide.low


@pytest.fixture
def two_runs(tmp_path):
    """Two runs of the same weights that differ in their rate and their curves."""
    bert = save_bert(tmp_path / "bert")
    runs = []
    for number, rate in enumerate((1e-4, 3e-4)):
        run = save_run(bert, tmp_path / f"run{number}", "mean")
        (run / "config.yaml").write_text(f"train: {{lr: {rate}, seed: 1}}\n")
        rows = [{"step": step, "loss": {"mlm": 3.0 - number - step / 10}} for step in (1, 2, 3)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.append(str(run))
    return runs


def test_the_page_has_scores_recipes_and_curves(two_runs, tmp_path, capsys):
    data = write_layout(tmp_path / "data")
    for run in two_runs:
        call(sts.main, run, pooling="mean", eval_data=data)
    call(command.compare, *two_runs, out=tmp_path / "out")
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "train.lr" in page and "0.0003" in page and "<svg" in page and "less run0" in page
    content = json.loads((tmp_path / "out" / "compare.json").read_text())
    for one in content["examples"]["sts"].values():
        assert list(one) == ["run0", "run1"]
        assert one["run1"]["difference"] == pytest.approx(0, abs=1e-6)  # the same weights
    assert f"page: {tmp_path / 'out' / 'compare.html'}" in capsys.readouterr().out


def test_the_page_is_sound_in_a_browser(browser, two_runs, tmp_path):
    data = write_layout(tmp_path / "data")
    for run in two_runs:
        call(sts.main, run, pooling="mean", eval_data=data)
    call(command.compare, *two_runs, out=tmp_path / "out")
    browser.get((tmp_path / "out" / "compare.html").as_uri())
    assert "run1" in browser.find_element("tag name", "body").text
    require_sound(browser)


def test_what_is_no_model_is_not_compared(two_runs, tmp_path):
    with pytest.raises(UserError, match="run2: there is no such folder, and no results in"):
        call(command.compare, two_runs[0], tmp_path / "run2", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("models", [[], ["one"], ["one", "one"], ["one", "one/"], ["./one", "one"]])
def test_one_model_is_no_comparison(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one").mkdir()
    with pytest.raises(UserError, match=r"two or more|MODELS is missing"):
        call(command.compare, *models, out=tmp_path)


def test_figures_without_an_interval_say_why(tmp_path):
    draw = np.random.default_rng(0)
    gold = draw.integers(2, size=30)

    def made(**metrics):
        found = Evaluation("senteval", "m", "mean", None, "p")
        for task, (metric, value, scored_by) in metrics.items():
            answers = Answers.of(draw.integers(2, size=30), gold, scored_by, "d")
            found.tasks[task] = TaskResult(metric, value, {}, answers=answers)
        return {"senteval": found}

    plain = ("accuracy", 50.0, "accuracy")
    first = made(A=plain, B=plain, C=plain, D=plain, E=plain)
    other = made(
        A=plain, B=("f1", 40.0, "accuracy"), C=("accuracy", None, "accuracy"), D=("accuracy", 60.0, "f1")
    )
    found = example_differences({"one": first, "other": other})["senteval"]
    assert list(found) == ["A", "B", "C", "D"]  # E has one model alone
    assert found["A"]["other"].difference is not None and found["A"]["other"].plain()["difference"] == 0
    for task, why in {
        "B": "f1 here, accuracy of the first",
        "C": "a figure is not a number",
        "D": "scored by f1, not by accuracy",
    }.items():
        one = found[task]["other"]
        assert one.difference is None and one.reason == why and one.text == f"no interval: {why}"
        assert one.plain()["reason"] == why and "difference" not in one.plain()
    assert found["A"]["one"].plain() == {"metric": "accuracy", "value": 50.0}
    assert example_differences({"one": first, "other": {}}) == {}


def test_the_pooling_that_is_compared_is_the_named_the_trained_or_any():
    def subject(trained, *poolings):
        found = {("sts", one): Evaluation("sts", "m", one, trained, "p") for one in poolings}
        return SimpleNamespace(evaluations=found)

    def chosen(one, pooling=""):
        return command.choose_poolings({"x": one}, pooling)["x"]["sts"].pooling

    both = subject("cls", "cls", "mean", "last-two")
    assert (chosen(both), chosen(both, "mean"), chosen(both, "last-two")) == ("cls", "mean", "last-two")
    assert (
        chosen(subject(None, "cls", "mean")) == "mean"
        and chosen(subject("cls", "mean"), "last-two") == "mean"
    )
    assert chosen(subject("last-two", "cls", "mean")) == "cls"
