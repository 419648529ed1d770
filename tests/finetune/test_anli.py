"""ANLI: its files, Nie et al.'s resampling, figures by round and pooled, resuming."""

import json

import numpy as np
import pytest
from anli_files import SIZES, write_anli
from answer_checks import require_answers
from commands import call
from finetuning_helpers import save_model
from real_data import needs_data

from finetune import anli
from finetune.tuning.labelled import open_source
from finetune.tuning.recipe import Interrupted
from pretrain.common.errors import UserError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_source(save_model(tmp_path_factory.mktemp("model"), "roberta"))


def test_recipe_is_nie_et_als():
    recipe = anli.RECIPE
    assert (recipe.lr, recipe.batch_size, recipe.epochs, recipe.warmup) == (1e-5, 128, 2, 0.1)
    assert (recipe.eps, recipe.weight_decay, recipe.clip, anli.MAX_LENGTH) == (1e-8, 0.0, 1.0, 156)
    assert [corpus.weight for corpus in anli.TRAINING] == [1, 1, 1, 10, 20, 10]
    assert (anli.AnliOptions().seeds, anli.AnliOptions().recipe) == (1, recipe)


def test_training_sets_of_every_format_are_found(tmp_path):
    sets = anli.load_sets(write_anli(tmp_path))
    assert {name: len(rows) for name, rows in sets.train.items()} == {
        # SNLI's four "-" are left out
        "SNLI": 12,
        "MNLI": 16,
        "FEVER": 5,
        "ANLI R1": 4,
        "ANLI R2": 4,
        "ANLI R3": 4,
    }
    assert sets.train["FEVER"].first[0] == "text"
    assert sets.train["FEVER"].second[0] == "claim"
    assert sets.train["FEVER"].targets.tolist() == [0, 1, 2, 0, 1]
    assert sets.train["ANLI R1"].targets.tolist() == [0, 1, 2, 0]
    assert "SNLI: 12 training examples here, 549,367 as published" in sets.notes
    assert not any("trained without" in note for note in sets.notes)
    assert sum("ANLI R" in note and "dev has" in note for note in sets.notes) == 3


def test_every_epoch_repeats_the_rounds(tmp_path):
    rows = anli.epoch_rows([12, 5, 4], [1, 10, 20], seed=1, epoch=0)
    assert np.bincount(rows).tolist() == [1] * 12 + [10] * 5 + [20] * 4
    assert not np.array_equal(rows, anli.epoch_rows([12, 5, 4], [1, 10, 20], seed=1, epoch=1))
    assert sorted(rows) == sorted(anli.epoch_rows([12, 5, 4], [1, 10, 20], seed=2, epoch=1))


def test_missing_training_sets_are_named_and_none_is_an_error(tmp_path):
    sets = anli.load_sets(write_anli(tmp_path / "some", ("mnli",)))
    assert "trained without SNLI, FEVER, ANLI R1, ANLI R2, ANLI R3, which are not here" in sets.notes
    with pytest.raises(UserError, match="nothing to train on"):
        anli.load_sets(write_anli(tmp_path / "none", ()))
    (tmp_path / "some/ANLI/R2/test.jsonl").unlink()
    with pytest.raises(UserError, match=r"R2/test\.jsonl is not there"):
        anli.load_sets(str(tmp_path / "some"))


def test_damaged_rows_are_one_message(tmp_path):
    file = tmp_path / "dev.jsonl"
    keys = ("context", "hypothesis", "label")
    file.write_text('{"context": "a", "hypothesis": "b", "label": "e"}\n{"premise": "a"}\n')
    with pytest.raises(
        UserError, match=r"dev\.jsonl, line 2: expected JSON with the keys context, hypothesis, label"
    ):
        anli.read_jsonl(file, keys)
    good = '{"context": "a", "hypothesis": "b", "label": "e"}\n'
    for bad in (
        '{"context": "a"',
        '"text"',
        "3",
        '{"context": null, "hypothesis": "b", "label": "e"}',
        '{"context": "a", "hypothesis": "b", "label": ["e"]}',
        "[" * 50_000,
        '{"context": "\\ud800", "hypothesis": "b", "label": "e"}',
    ):
        file.write_text(good + bad + "\n")
        with pytest.raises(UserError, match=r"dev\.jsonl, line 2: (expected|no JSON)"):
            anli.read_jsonl(file, keys)
    file.write_text('{"context": "a", "hypothesis": "b", "label": "x"}\n')
    with pytest.raises(UserError, match="unknown label 'x'"):
        anli.read_jsonl(file, keys)
    file.write_text("")
    with pytest.raises(UserError, match="has no rows"):
        anli.read_jsonl(file, keys)


def test_figures_and_a_stopped_run(source, tmp_path):
    sets = anli.load_sets(write_anli(tmp_path / "data"))
    options = anli.AnliOptions(lr=1e-3, batch_size=16, seeds=2)
    straight = anli.evaluate(source, sets, options, tmp_path / "straight")
    assert list(straight.tasks) == ["R1", "R2", "R3", "all"]
    assert not straight.complete
    for split in ("dev", "test"):
        scores = [straight.tasks[name].scores[split] for name in ("R1", "R2", "R3")]
        pooled = np.average(scores, weights=list(SIZES.values()))
        assert straight.tasks["all"].scores[split] == pytest.approx(pooled)
    require_answers(straight, ["R1", "R2", "R3", "all"])
    asked = iter([0] * 4 + [75] + [0] * 1000)
    with pytest.raises(Interrupted):
        anli.evaluate(source, sets, options, tmp_path / "broken", stop_code=lambda: next(asked))
    assert len(list((tmp_path / "broken").glob("*.checkpoint"))) == 1
    resumed = anli.evaluate(source, sets, options, tmp_path / "broken")
    assert resumed.tasks == straight.tasks
    for content, why in (('{"best": ', "damaged .*:"), ("[]", "not a run's result;")):
        damaged = next((tmp_path / "broken").glob("seed1-*.json"))
        damaged.write_text(content)
        with pytest.raises(UserError, match=f"{damaged} is {why} remove it"):
            anli.evaluate(source, sets, options, tmp_path / "broken")


def test_a_request_to_stop_is_heard_before_a_run_begins(source, tmp_path):
    sets = anli.load_sets(write_anli(tmp_path / "data"))
    with pytest.raises(Interrupted) as raised:
        anli.evaluate(source, sets, anli.AnliOptions(), tmp_path / "out", stop_code=lambda: 75)
    assert raised.value.code == 75 and not (tmp_path / "out").exists()


def test_figures_are_means_over_seeds_and_those_of_an_earlier_version_keep_no_answers(tmp_path):
    sets = anli.load_sets(write_anli(tmp_path / "data"))
    entries = [
        {"test": {"R2": value}, "best": {"scores": {"R2": value + 1}}, "test_answers": "0 " * 99}
        for value in (30.0, 50.0)
    ]
    del entries[1]["test_answers"]
    found = anli._task_result("R2", entries, sets)
    assert (found.metric, found.value, found.scores) == ("test", 40.0, {"test": 40.0, "dev": 41.0})
    assert found.std == pytest.approx(200**0.5) and found.answers is None
    assert found.details == {"test": [30.0, 50.0], "dev": [31.0, 51.0]}


@pytest.mark.parametrize(
    "present,examples",
    [
        (("anli", "snli"), 12 + 4 * (10 + 20 + 10)),
        (("anli",), 4 * (10 + 20 + 10)),
        (("mnli", "anli"), 16 + 4 * (10 + 20 + 10)),
    ],
)
def test_a_round_keeps_its_weight_where_other_sets_are_missing(source, tmp_path, capsys, present, examples):
    sets = anli.load_sets(write_anli(tmp_path / "data", present))
    anli.evaluate(source, sets, anli.AnliOptions(lr=1e-3, batch_size=64, epochs=1), tmp_path / "out")
    assert f"seed 1: {examples:,} examples per epoch" in capsys.readouterr().err


def test_another_recipe_is_asked_for_and_said(source, tmp_path):
    data = write_anli(tmp_path / "data", training=("snli",))
    words = {"epochs": "1", "lr": "1e-3", "batch_size": "8", "max_train": "6"}
    call(anli.main, str(source.model.source.folder), eval_data=data, out=str(tmp_path / "out"), **words)
    result = json.loads(next((tmp_path / "out").glob("anli*.json")).read_text())
    said = "\n".join(result["notes"])
    for words in (
        "at most 6 ",
        "epochs 1 in place of 2",
        "lr 0.001 in place of 1e-05",
        "batch_size 8 in place of 128",
    ):
        assert words in said
    settings = json.loads(next((tmp_path / "out" / "anli").glob("*.json")).read_text())["settings"]
    assert (settings["epochs"], settings["lr"], settings["batch_size"]) == (1, 1e-3, 8)


def test_a_default_place_that_cannot_be_written_is_refused_before_training(source, tmp_path, monkeypatch):
    data = write_anli(tmp_path / "data", training=("snli",))
    (tmp_path / "results").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(anli, "evaluate", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(UserError, match=r"without --out, results go to results/.*/results is not a folder"):
        call(anli.main, source.model.source.folder, eval_data=data)


@needs_data("ANLI")
def test_real_rounds_have_the_published_rows():
    sets = anli.load_sets()
    assert sum(len(rows) for name, rows in sets.evaluation.items() if name.endswith("dev")) == 3200
    assert not any("ANLI" in note and ("dev has" in note or "test has" in note) for note in sets.notes)
    for rows in sets.evaluation.values():
        assert np.bincount(rows.targets).min() > 250  # about a third each
