"""Result files: merged where they are of the same weights by the same protocol, kept apart where they do
not."""

import json
from dataclasses import replace

import numpy as np
import pytest

from finetune.encoders.models import open_model
from finetune.encoders.source import ModelSource
from finetune.results import Evaluation, TaskResult, folder_name, read, sample_std, table, write
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
