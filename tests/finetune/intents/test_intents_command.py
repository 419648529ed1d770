"""The command: a task for every number of shots, each independent of the others."""

import json
import sys

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call
from intent_files import layout

from finetune import frozen
from finetune.encoders.models import open_model
from finetune.intents import __main__ as intents
from finetune.intents import sets
from finetune.intents.sets import read
from finetune.results import read as read_result
from pretrain.common.errors import UserError


def embed(sentences):
    return np.array([[s.count(str(n)) for n in range(10)] + [len(s)] for s in sentences], np.float32)


def test_the_protocol_is_that_of_the_published_figures():
    assert "Adam 0.0001, batch 32, 1000 iterations, best of every 100 on K" in intents.EVALUATION.protocol
    assert "5 fixed splits of ours (seed 0;" in intents.EVALUATION.protocol


def test_command_writes_a_task_for_every_number_of_shots(tmp_path, monkeypatch, capsys):
    data = layout(tmp_path / "data")
    monkeypatch.setattr(intents, "ITERATIONS", 10)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = embed
    flags = {"tasks": "SNIPS,HWU64", "eval_data": data, "out": tmp_path / "out"}
    assert call(intents.main, "words:embed", **flags) == 0
    content = json.loads((tmp_path / "out" / "intents-function.json").read_text())
    assert list(content["tasks"]) == [f"{name}-{k}" for name in ("SNIPS", "HWU64") for k in (5, 10, 20)]
    require_answers(read_result(tmp_path / "out" / "intents-function.json"), list(content["tasks"]))
    task = content["tasks"]["SNIPS-5"]
    assert (
        task["value"] == pytest.approx(np.mean(task["details"]["splits"])) and task["details"]["train"] == 15
    )
    assert task["std"] == pytest.approx(np.std(task["details"]["splits"], ddof=1))
    assert content["complete"] is False
    notes = " ".join(content["notes"])
    assert "60 examples to sample from" in notes
    assert "SNIPS, 20-shot: 3 of 3 classes have fewer than 40" in notes
    assert "10-shot: " not in notes  # the 20 examples of a class are just enough
    assert "SNIPS: 5-shot" in capsys.readouterr().err


def test_every_file_is_read_once(tmp_path, monkeypatch):
    data, opened, lines = layout(tmp_path / "data"), [], sets.lines
    monkeypatch.setattr(sets, "lines", lambda path, *rest: opened.append(path) or lines(path, *rest))
    monkeypatch.setattr(intents, "ITERATIONS", 5)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    monkeypatch.setattr(frozen, "open_model", lambda *_, **__: open_model(embed))
    call(intents.main, "unused", tasks="SNIPS,HWU64", eval_data=str(data), out=str(tmp_path / "out"))
    assert opened and len(opened) == len(set(opened))


def test_result_does_not_depend_on_other_sets(tmp_path, monkeypatch):
    data = layout(tmp_path)
    model = open_model(embed)
    monkeypatch.setattr(intents, "ITERATIONS", 10)
    monkeypatch.setattr(intents, "VALIDATE_EVERY", 5)
    loaded = {name: read(name, data) for name in ("SNIPS", "CLINC150")}
    together = intents.EVALUATION.evaluate(model, loaded)
    alone = intents.EVALUATION.evaluate(model, {"CLINC150": loaded["CLINC150"]})
    assert together.tasks["CLINC150-10"] == alone.tasks["CLINC150-10"]


def test_mistakes_are_one_message(tmp_path):
    data = layout(tmp_path)
    with pytest.raises(UserError, match="did you mean 'BANKING77'"):
        call(intents.main, "unused", tasks="banking", eval_data=str(data))
    labels = data / "intents" / "SNIPS" / "train" / "label"
    whole, texts = labels.read_text(), labels.with_name("seq.in")
    labels.write_text(whole.replace("class1\n", " \n", 1))
    with pytest.raises(UserError, match=r"SNIPS/train, example \d+: no label"):
        read("SNIPS", data)
    labels.write_text(whole)
    before = texts.read_text()
    texts.write_text(" \n" + before.partition("\n")[2])
    with pytest.raises(UserError, match="SNIPS/train, example 1: no text"):
        read("SNIPS", data)
    texts.write_text(before)
    for part in ("train", "valid"):
        file = data / "intents" / "SNIPS" / part / "label"
        file.write_text("one\n" * len(file.read_text().splitlines()))
    with pytest.raises(UserError, match=r"SNIPS: 1 classes and \d+ test examples; a file is damaged"):
        read("SNIPS", data)
    (data / "intents" / "SNIPS" / "test" / "label").write_text("class0\n")
    with pytest.raises(UserError, match=r"31 lines in seq\.in but 1 in label"):
        read("SNIPS", data)
    (data / "intents" / "HWU64" / "test" / "label").unlink()
    with pytest.raises(UserError, match=r"files seq\.in and label"):
        read("HWU64", data)
    (data / "intents" / "BANKING77" / "train.csv").write_text("text,intent\na,b\n")
    with pytest.raises(UserError, match="must name text and category"):
        read("BANKING77", data)
    for bad in ('{"train": []}', "[" * 50_000, '{"train": [["\\ud800", "a"]], "val": [], "test": []}'):
        (data / "intents" / "CLINC150" / "data_full.json").write_text(bad)
        with pytest.raises(UserError, match="not CLINC150's json"):
            read("CLINC150", data)
