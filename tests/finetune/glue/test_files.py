"""GLUE: files as they are published, the files of the leaderboard."""

from types import SimpleNamespace

import numpy as np
import pytest
from glue_files import write_glue
from real_data import needs_data

from finetune.glue.__main__ import write_predictions
from finetune.glue.runs import GlueRun
from finetune.results import Evaluation
from finetune.tuning import tasks
from pretrain.common.errors import UserError


def test_every_task_is_read(data):
    for name, task in tasks.TASKS.items():
        loaded = tasks.load(name, str(data))
        for split, rows in loaded.splits.items():
            assert len(rows) == (7 if "test" in split else 24 if "dev" in split else 40)
            assert (rows.targets is None) == ("test" in split)
            assert (rows.second is None) == (task.columns[1] is None)
        assert set(task.sizes) == set(loaded.splits)
        assert len(loaded.notes) == {"MNLI": 3, "AX": 0}.get(name, 2)
    assert tasks.load("MRPC", str(data)).splits["train"].first[0].startswith('" ')  # no quoting
    assert tasks.load("STS-B", str(data)).splits["dev"].targets.max() == pytest.approx(4.5)
    assert "40 rows here, 2,490 as published" in tasks.load("RTE", str(data)).notes[0]


def test_torn_rows_of_qqp_are_left_out_and_those_of_others_are_errors(data, tmp_path):
    write_glue(tmp_path)
    for task in ("QQP", "RTE"):
        file = tmp_path / "GLUE" / task / "train.tsv"
        rows = file.read_text().splitlines()
        rows.insert(3, "9\t1\t2")
        file.write_text("\n".join(rows))
    assert len(tasks.load("QQP", str(tmp_path)).splits["train"]) == 40
    with pytest.raises(UserError, match=r"RTE/train\.tsv, line 4: 3 tab-separated columns, need 4"):
        tasks.load("RTE", str(tmp_path))


def test_bad_data_is_one_message(tmp_path):
    write_glue(tmp_path)
    (tmp_path / "GLUE/RTE/dev.tsv").write_text("index\tsentence1\tsentence2\tlabel\n0\ta\tb\tmaybe\n")
    with pytest.raises(
        UserError, match=r"dev\.tsv, line 2: unknown label 'maybe'; RTE has entailment, not_entailment"
    ):
        tasks.load("RTE", str(tmp_path))
    (tmp_path / "GLUE/SST-2/dev.tsv").write_text("text\tlabel\na\t1\n")
    with pytest.raises(UserError, match="no column 'sentence'"):
        tasks.load("SST-2", str(tmp_path))
    (tmp_path / "GLUE/STS-B/dev.tsv").write_text("sentence1\tsentence2\tscore\na\tb\tnan\n")
    with pytest.raises(UserError, match="'nan' is not a score from 0 to 5"):
        tasks.load("STS-B", str(tmp_path))
    with pytest.raises(UserError, match="did you mean 'STS-B'"):
        tasks.load("STSB", str(tmp_path))


def test_prediction_lines_are_the_leaderboards():
    logits = np.array([[0.1, 2.0, 0.0], [3.0, 0.0, 1.0]])
    assert tasks.prediction_lines(tasks.TASKS["MNLI"], logits) == [
        "index\tprediction",
        "0\tneutral",
        "1\tentailment",
    ]
    assert tasks.prediction_lines(tasks.TASKS["CoLA"], logits[:, :2]) == ["index\tprediction", "0\t1", "1\t0"]
    scores = np.array([[0.5], [1.7], [-0.2]])
    assert tasks.prediction_lines(tasks.TASKS["STS-B"], scores)[1:] == ["0\t2.500", "1\t5.000", "2\t0.000"]


@needs_data(*(f"GLUE/{name}" for name in tasks.TASKS if name != "AX"))
def test_real_files_have_the_published_rows_or_it_is_said():
    for name, task in tasks.TASKS.items():
        loaded = tasks.load(name)
        for split, rows in loaded.splits.items():
            said = any(f"{name}: {split} has" in note for note in loaded.notes)
            assert said == (len(rows) != task.sizes[split])
    assert not tasks.load("CoLA").notes
    mnli = tasks.load("MNLI")
    assert any("no dev_mismatched" in note for note in mnli.notes) == ("dev_mismatched" not in mnli.splits)


def test_every_test_set_is_a_file_of_its_own_run(tmp_path):
    """What was not predicted, has other rows or no test set is a note."""
    runs = {task: GlueRun(task, 1, 1e-5, 16, 0.06) for task in ("MNLI", "RTE", "STS-B")}
    eye, scores = np.eye(3)[[2, 0, 1, 1]], np.array([[0.1], [0.5]])
    logits = {
        "MNLI": {"MNLI/test_matched": eye, "MNLI/test_mismatched": eye[:3], "AX/test": eye[:2]},
        "RTE": None,
        "STS-B": {},
    }
    store = SimpleNamespace(predictions=lambda entry: logits[entry.task])
    result = Evaluation("glue", "m", "cls", None, "p")
    write_predictions(store, runs, tmp_path, result)
    found = {path.name: path.read_text().split("\n") for path in tmp_path.iterdir()}
    assert found == {
        name: [*tasks.prediction_lines(tasks.TASKS[name.split("-")[0].split(".")[0]], values), ""]
        for name, values in (("MNLI-m.tsv", eye), ("MNLI-mm.tsv", eye[:3]), ("AX.tsv", eye[:2]))
    }
    said = "\n".join(result.notes)
    assert "RTE: no predictions on file for RTE seed 1, lr 1e-05, batch 16; the same command" in said
    assert "STS-B: no test set here, so no STS-B.tsv" in said and not result.complete
    assert "MNLI-m.tsv has 4 test rows here, 9,796 as published" in said and "no test_m" not in said
    whole = np.tile(scores, (690, 1))[:1379]
    logits["STS-B"], result = {"STS-B/test": whole}, Evaluation("glue", "m", "cls", None, "p")
    write_predictions(store, {"STS-B": runs["STS-B"]}, tmp_path, result)
    assert result.complete and (tmp_path / "STS-B.tsv").read_text().count("\n") == 1380
