"""Evaluations with answers are compared example by example, and others say why they are not."""

import json

import numpy as np
import pytest
from browser import require_sound
from commands import call

from finetune import compare as command
from finetune.answers import Answers, answers_file
from finetune.results import Evaluation, TaskResult, write

random = np.random.default_rng(3)
GOLD = random.integers(2, size=400)
AVERAGED = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")


def predicted(share):
    return np.where(random.random(len(GOLD)) < share, GOLD, 1 - GOLD)


def add(evaluation, task, answers, gold=GOLD, data="data"):
    value = 100 * float((answers == gold).mean())
    kept = Answers.of(answers, gold, "accuracy", data)
    evaluation.tasks[task] = TaskResult("accuracy", value, {"accuracy": value}, answers=kept)


def evaluation(name, model, protocol="simcse"):
    return Evaluation(name, model, "mean", "mean", protocol, source=model)


@pytest.fixture
def models(tmp_path):
    """Three folders of results: the second is better, the third is the same but for one task's examples."""
    same = predicted(0.7)
    for model, share in (("plain", 0.0), ("better", 0.9), ("alike", 0.0)):
        found = evaluation("senteval", model)
        for task in AVERAGED:
            add(found, task, predicted(share) if share else same)
        found.add(
            "average of 7 transfer", "mean", {"mean": np.mean([one.value for one in found.tasks.values()])}
        )
        other = model == "alike"
        add(found, "SST5", *((same[:300], GOLD[:300], "other data") if other else (same,)))
        found.tasks["SICK-E"] = TaskResult("accuracy", 50.0, {})  # as files of earlier versions have it
        write(found, tmp_path / model)
    glue = evaluation("glue", "plain", "median of 5 seeds")
    add(glue, "RTE", predicted(0.6))
    write(glue, tmp_path / "plain")
    glue = evaluation("glue", "better", "median of 1 seeds")
    add(glue, "RTE", predicted(0.6))
    write(glue, tmp_path / "better")
    return [str(tmp_path / model) for model in ("plain", "better", "alike")]


def compared(models, tmp_path):
    call(command.compare, *models, out=tmp_path / "out")
    return json.loads((tmp_path / "out" / "compare.json").read_text())["examples"]


def test_differences_have_intervals_over_the_examples(models, tmp_path, capsys):
    found = compared(models, tmp_path)
    tasks = found["senteval"]
    first, better, alike = (tasks["TREC"][name] for name in ("plain", "better", "alike"))
    assert first.keys() == {"metric", "value"}
    assert better["difference"] == pytest.approx(better["value"] - first["value"])
    assert 0 < better["low"] < better["difference"] < better["high"]
    assert (alike["difference"], alike["low"], alike["high"]) == (0, 0, 0)
    average = tasks["average of 7 transfer"]["better"]
    assert average["high"] - average["low"] < better["high"] - better["low"]
    assert average["low"] < average["difference"] < average["high"]
    assert set(found["glue"]["RTE"]) == {"plain", "better"}
    printed = capsys.readouterr().out
    assert "senteval: better, less plain [95% interval]" in printed and "~ +0.00 [+0.00, +0.00]" in printed
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "better less plain" in page and "SST5 (accuracy)" in page
    assert "better was evaluated differently: median of 1 seeds; plain: median of 5 seeds" in page


def test_what_cannot_be_paired_says_why(models, tmp_path):
    tasks = compared(models, tmp_path)["senteval"]
    assert "difference" not in tasks["SST5"]["alike"] and "difference" in tasks["SST5"]["better"]
    assert tasks["SST5"]["alike"]["reason"] == (
        "not the same examples in the same order as the first model's: 300, not 400"
    )
    assert (
        tasks["SICK-E"]["better"]["reason"]
        == "its answers were not kept; evaluate it again (clearly eval --again)"
    )
    page = (tmp_path / "out" / "compare.html").read_text()
    assert "not the same examples" in page


def test_answers_of_other_figures_are_refused(models, tmp_path):
    place = answers_file(next((tmp_path / "better").glob("senteval*.json")))
    place.write_bytes(answers_file(next((tmp_path / "plain").glob("senteval*.json"))).read_bytes())
    tasks = compared(models, tmp_path)["senteval"]
    assert "is not of the figures beside it; evaluate TREC again" in tasks["TREC"]["better"]["reason"]
    assert "not all of its tasks" in tasks["average of 7 transfer"]["better"]["reason"]
    place.write_bytes(place.read_bytes()[:-100])
    assert "cannot be read" in compared(models, tmp_path)["senteval"]["TREC"]["better"]["reason"]
    place.unlink()
    assert "cannot be read" in compared(models, tmp_path)["senteval"]["TREC"]["better"]["reason"]


def test_figures_of_the_named_pooling_are_compared(tmp_path):
    for model in ("one", "other"):
        for pooling, right in (("mean", 300), ("cls", 200)):
            found = Evaluation("senteval", model, pooling, "mean", "simcse", source=model)
            add(found, "TREC", np.where(np.arange(len(GOLD)) < right, GOLD, 1 - GOLD))
            write(found, tmp_path / model)
    models = [str(tmp_path / "one"), str(tmp_path / "other")]
    for flags, value in (({}, 75), ({"pooling": "mean"}, 75), ({"pooling": "cls"}, 50)):
        call(command.compare, *models, out=tmp_path / "out", **flags)
        found = json.loads((tmp_path / "out" / "compare.json").read_text())["examples"]["senteval"]["TREC"]
        assert [one["value"] for one in found.values()] == [value, value]


def test_models_that_share_no_evaluation_are_compared_without(tmp_path):
    for model, name in (("one", "senteval"), ("other", "intents")):
        found = evaluation(name, model)
        add(found, "TREC", predicted(0.5))
        write(found, tmp_path / model)
    assert compared([str(tmp_path / "one"), str(tmp_path / "other")], tmp_path) == {}


def test_the_page_is_sound_in_a_browser(browser, models, tmp_path):
    compared(models, tmp_path)
    browser.get((tmp_path / "out" / "compare.html").as_uri())
    assert "better less plain" in browser.find_element("tag name", "body").text
    require_sound(browser)
