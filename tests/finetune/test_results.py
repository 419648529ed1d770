"""Result files: merged where they are of the same weights by the same protocol, kept apart where they do
not."""

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from finetune.encoders.models import open_model
from finetune.encoders.source import ModelSource
from finetune.results import (
    Evaluation,
    TaskResult,
    folder_for,
    folder_name,
    read,
    run_and_write,
    sample_std,
    table,
    write,
)
from pretrain.common.errors import UserError


def embed(sentences):
    return np.ones((len(sentences), 2))


def evaluation(task, value, protocol="simcse", model=None):
    found = Evaluation.of("senteval", model or open_model(embed), protocol)
    found.tasks[task] = TaskResult("accuracy", value, {"accuracy": value})
    return found


def test_the_standard_deviation_is_that_of_a_sample():
    assert sample_std([1.0, 2.0, 4.0]) == pytest.approx(
        np.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2)
    )
    assert sample_std([3.0]) is None


def test_tasks_of_the_same_model_and_protocol_are_merged(tmp_path):
    write(evaluation("MR", 70.0), tmp_path)
    path = write(evaluation("CR", 80.0), tmp_path)
    path = write(evaluation("MR", 71.0), tmp_path)
    assert {name: task.value for name, task in read(path).tasks.items()} == {"MR": 71.0, "CR": 80.0}
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.parametrize("partial", [("MR",), ("CR",), ("MR", "CR"), ()])
def test_what_is_merged_is_complete_if_all_of_it_is_and_has_all_notes_and_seconds(tmp_path, partial):
    for task in ("MR", "CR"):
        found = evaluation(task, 70.0)
        found.seconds = 2.0
        if task in partial:
            found.incomplete(f"{task} lacks rows")
        path = write(found, tmp_path)
    merged = read(path)
    assert merged.complete == (not partial) and merged.seconds == 4.0
    assert merged.notes == [f"{task} lacks rows" for task in partial]


def test_another_protocol_gets_a_file_of_its_own(tmp_path):
    first = write(evaluation("MR", 70.0), tmp_path)
    other = write(evaluation("MR", 60.0, "clear"), tmp_path)
    again = write(evaluation("CR", 61.0, "clear"), tmp_path)
    assert first != other == again
    assert set(read(other).tasks) == {"MR", "CR"} and read(first).tasks["MR"].value == 70.0


def test_newer_weights_replace_older_results(tmp_path):
    model, out = tmp_path / "model", tmp_path / "out"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"1")
    opened = replace(open_model(embed), source=ModelSource("model", str(model)))
    write(evaluation("MR", 70.0, model=opened), out)
    weights.write_bytes(b"22")
    path = write(evaluation("CR", 80.0, model=opened), out)
    assert set(read(path).tasks) == {"CR"}


def test_nan_is_null_and_other_files_are_refused(tmp_path):
    path = write(evaluation("MR", float("nan")), tmp_path)
    assert json.loads(path.read_text())["tasks"]["MR"]["value"] is None
    assert table(read(path)) == table(evaluation("MR", float("nan"))) and "nan" in table(read(path))
    path.write_text("{}")
    with pytest.raises(UserError, match="not a result"):
        read(path)


@pytest.mark.parametrize(
    ("name", "folder"), [("a/b", "a-b"), ("..", "model"), ("my.py:embed", "my.py-embed"), ("x/", "x")]
)
def test_folder_names(name, folder):
    assert folder_name(name) == folder


def test_results_lie_in_the_runs_report_or_beside_the_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    model = replace(open_model(embed), name="a/b", source=ModelSource("a/b", "a/b", tmp_path / "run"))
    assert folder_for(model) == tmp_path / "run" / "report"
    assert folder_for(model, tmp_path / "own") == tmp_path / "own"
    assert folder_for(open_model(embed)) == Path("results") / "embed"
    assert folder_for(ModelSource("x/y z", "x")) == Path("results") / "x-y-z"


def test_a_result_says_of_which_size_its_set_is_and_where_it_is_not_defined():
    found = evaluation("MR", 70.0)
    found.expect_size("MR", "rows", 1000, 1000)
    assert found.complete and not found.notes
    found.expect_size("MR", "rows", 999, 1000)
    assert not found.complete and found.notes == ["MR has 999 rows here, 1,000 as published"]
    for metric, said in (("accuracy", False), ("spearman_all", True), ("pearson", True)):
        result = evaluation("MR", 1.0)
        result.add("x", metric, {metric: float("nan")})
        assert bool(result.notes) is said
    printed = table(found).splitlines()
    assert printed[1] == "  MR    accuracy  70.00" and "INCOMPLETE" in printed[-1]
    found.add("long name", "f1", {"f1": 3.0, "other": 4.5}, 0.25)
    assert "  long name  f1   3.00 ± 0.25  other 4.50" in table(found)


def test_a_bf16_result_and_another_pooling_are_said(tmp_path):
    model = replace(open_model(embed), precision="bf16")
    assert Evaluation.of("sts", model, "p").notes == ["vectors computed in bf16"]
    assert Evaluation.of("sts", replace(model, pooling="first last"), "p").file_name == "sts-first-last"


def test_a_command_says_how_long_it_took(tmp_path, capsys):
    def evaluate(model):
        time.sleep(0.02)
        return evaluation("MR", 70.0, model=model)

    assert run_and_write(open_model(embed), str(tmp_path), evaluate, lambda one: one.notes.append("end")) == 0
    (path,) = tmp_path.glob("*.json")
    found = read(path)
    assert 0.02 <= found.seconds < 60 and found.notes == ["end"] and str(path) in capsys.readouterr().out
