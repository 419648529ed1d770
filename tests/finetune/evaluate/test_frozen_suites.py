"""The suites of nli_distance, cola_probe, zh_sts and geometry: their figures are those of the commands."""

import csv
import json
import re
import shutil

import pytest
from commands import call
from frozen_files import write_cola, write_nli, write_zh
from model_folders import SENTENCES, make_tokenizer, save_bert, save_run
from sts_layout import write_layout
from suite_command import evaluate

from finetune import cola_probe, nli_distance, zh_sts
from finetune.evaluate.suites import NOT_THERE, SUITES, EvaluationJob, EvaluationRecord
from finetune.geometry.__main__ import MEASURES, geometry
from finetune.results import Evaluation, read, write
from pretrain.common.errors import UserError

CLUSTERED = [f"word {n % 4} and {n}" for n in range(40)]
FROZEN = ("cola_probe", "nli_distance", "zh_sts", "geometry")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What these suites read, and no whole set of another suite."""
    folder = write_layout(tmp_path_factory.mktemp("data"))
    shutil.rmtree(folder / "SentEval" / "STS" / "STS12-en-test")
    write_cola(folder)
    write_nli(folder)
    for split in zh_sts.TASKS.values():
        write_zh(folder / "zh" / "STS-B" / f"cnsd-sts-{split}.txt")
    (folder / "clustering").mkdir()
    with open(folder / "clustering" / "stackoverflow.csv", "w", newline="") as file:
        rows = [[text, n % 4] for n, text in enumerate(CLUSTERED)]
        csv.writer(file).writerows([["text", "label"], *rows])
    return folder


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    """A model whose tokenizer knows the words of all sets: it would give them one vector."""
    folder, (unit,) = tmp_path_factory.mktemp("model"), SUITES["zh_sts"]
    tokenizer = make_tokenizer([*SENTENCES, *CLUSTERED, *zh_sts.read(unit.files(data)[0]).first], 400)
    return save_run(save_bert(folder / "bert", tokenizer), folder / "mine", "mean")


@pytest.mark.full
def test_figures_are_those_of_their_commands(run, data, tmp_path, monkeypatch):
    data, out, alone = shutil.copytree(data, tmp_path / "data"), tmp_path / "out", tmp_path / "alone"
    (data / "NLI" / "mnli_dev.jsonl").unlink()  # a process less, and one for ANLI
    shutil.rmtree(data / "ANLI")
    words = [run, "--eval-data", data, "--out", out, "--vectors", tmp_path / "vectors", "--suite"]
    said = {name: evaluate(*words, name, "--jobs", 2) for name in FROZEN}
    assert "left out: nli_distance MNLI and 1 more: " in said["nli_distance"]
    assert "[1/1] zh_sts STS-B-zh,STS-B-zh-dev" in said["zh_sts"] and "[4/4] " in said["geometry"]
    assert "  geometry sts: alignment " in said["geometry"] and "augmentation/reorder " in said["geometry"]

    monkeypatch.delenv("CLEAR_VECTORS", raising=False)
    call(nli_distance.main, run, tasks="SNLI,triplets", eval_data=data, out=alone)
    for command in (cola_probe, zh_sts):
        call(command.main, run, eval_data=data, out=alone)
    call(geometry, run, eval_data=data, out=alone, measure=",".join(MEASURES))
    for name in FROZEN:
        one, other = (read(folder / f"{name}-mean.json").tasks for folder in (out, alone))
        assert set(one) == set(other)
        for task in one:
            assert one[task].scores == pytest.approx(other[task].scores, rel=1e-4, abs=1e-4), task
    # TensorBoard names its files by time and process
    figures, others = (
        sorted(
            re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder))) for path in folder.rglob("*.*")
        )
        for folder in (out / "geometry-mean", alone / "geometry-mean")
    )
    assert figures == others

    said = evaluate(*words, "geometry")  # nothing is done twice, and texts are encoded once
    assert said.count("done before: geometry ") == len(SUITES["geometry"]) and "[1/" not in said
    evaluate(*words, "cola_probe", "--again")
    assert ": 30 kept from before, 0 encoded" in (out / "eval" / "cola_probe-CoLA.txt").read_text()


@pytest.mark.full
def test_a_retrieval_set_of_ones_own_is_a_unit_of_nanobeir(run, tmp_path):
    folder, words = tmp_path / "NanoBEIR", [run, "--suite", "nanobeir", "--vectors=none", "--eval-data"]
    words += [tmp_path, "--out", tmp_path / "out"]
    rows = {
        "corpus": [{"_id": n, "text": text} for n, text in enumerate(SENTENCES)],
        "queries": [{"_id": 0, "text": SENTENCES[0]}],
        "qrels": [{"query-id": 0, "corpus-id": 0}],
    }
    for name in ("Mine", "Bad", ".cache"):
        (folder / name).mkdir(parents=True)
    for part, lines in rows.items():
        (folder / "Mine" / f"{part}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "Bad" / "corpus.jsonl").write_text("{}")
    said = evaluate(*words, "--tasks", "mine")
    assert "[1/1] nanobeir Mine" in said and "left out" not in said
    assert read(tmp_path / "out" / "nanobeir-mean.json").tasks["Mine"].value == pytest.approx(100)
    said = evaluate(*words)
    assert "done before: nanobeir Mine" in said and "left out: nanobeir NanoArguAna and 12 more: " in said
    assert "left out: nanobeir Bad: " in said and ".cache" not in said
    with pytest.raises(
        UserError, match=r"can be done: \S+/Bad has no queries: expected .* or BEIR's qrels/test.tsv"
    ):
        evaluate(*words, "--tasks", "Bad")
    with pytest.raises(UserError, match="unknown task of --suite nanobeir 'min'; did you mean 'Mine'"):
        evaluate(*words, "--tasks", "min")


def test_a_retrieval_set_without_a_folder_is_not_there_and_one_of_nothing_lacks_a_part(tmp_path):
    unit = EvaluationJob("nanobeir", ("NanoArguAna",))
    assert unit.lacking(tmp_path).endswith(NOT_THERE)
    (tmp_path / "NanoBEIR" / "NanoArguAna").mkdir(parents=True)
    assert "NanoArguAna has no corpus: expected " in unit.lacking(tmp_path)


def test_units_do_with_what_their_commands_do_with(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    units = {unit.name: unit for name in FROZEN for unit in SUITES[name]}
    assert not any(unit.lacking(folder) for unit in units.values())
    for file in ("ANLI/R1/dev.jsonl", "NLI/nli_triplets_from_snli.csv", "GLUE/CoLA/dev.tsv"):
        (folder / file).unlink()
    lacking = {name for name, unit in units.items() if unit.lacking(folder)}
    of_triplets = {"nli_distance triplets", "geometry nli"}
    assert lacking == {"nli_distance ANLI", "cola_probe CoLA"} | of_triplets
    assert "nli_for_simcse.csv is not there" in units["geometry nli"].lacking(folder)
    shutil.copy(data / "NLI" / "nli_triplets_from_snli.csv", folder / "NLI" / "nli_for_simcse.csv")
    shutil.copy(data / "ANLI" / "R1" / "dev.jsonl", folder / "ANLI" / "R1" / "train.jsonl")
    assert {name for name, unit in units.items() if unit.lacking(folder)} == {"cola_probe CoLA"}


def test_geometry_is_computed_in_float32_whatever_the_precision_of_others(data, tmp_path):
    unit = EvaluationJob("geometry", ("nli",))
    assert unit.words == ["--measure", "nli"] and not unit.command.takes_precision
    result = Evaluation("geometry", "m", "mean", None, "p", source="these weights")
    result.add("nli", "share", {"share": 50.0})
    write(result, tmp_path)
    record = EvaluationRecord(tmp_path, "these weights", {"pooling": "mean", "precision": "bf16"})
    record.add(unit, data, 1.0, result)
    assert record.figures(unit, data) == result
    in_float32 = EvaluationRecord(tmp_path, "these weights", {"pooling": "mean", "precision": "fp32"})
    assert in_float32.figures(unit, data) == result
    assert (
        EvaluationRecord(tmp_path, "these weights", {"pooling": "cls", "precision": "fp32"}).figures(
            unit, data
        )
        is None
    )


def test_measures_are_those_of_the_command():
    assert {unit.tasks[0] for unit in SUITES["geometry"]} == set(MEASURES)
    assert [unit.tasks[0] for unit in SUITES["nli_distance"]] == ["SNLI", "MNLI", "ANLI", "triplets"]
