"""AugCSE's check against a plain loop over premises, as its code runs it; the four readers."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from answer_checks import require_answers
from commands import call
from frozen_files import nli_examples, write_nli
from real_data import DATA, needs_data

from finetune import frozen, nli_distance
from finetune.encoders.models import open_model
from finetune.nli_distance import TASKS, compare, load
from finetune.results import read
from pretrain.benchmarks import files
from pretrain.common.errors import UserError


def letters(sentences):
    random = np.random.RandomState(3)
    table = random.randn(128, 6)
    return np.array(
        [np.sum([table[ord(letter) % 128] for letter in sentence], axis=0) for sentence in sentences],
        np.float32,
    )


def plain(rows, nearer):
    """Entailed against other, as in AugCSE's loops: premises in order, every pair."""
    won, lost = 0, 0
    for premise in dict.fromkeys(row[0] for row in rows):
        mine = [row for row in rows if row[0] == premise]
        for _, entailed, label in mine:
            for _, other, kind in mine:
                if label == "e" and kind in "nc":
                    result = nearer(*letters([premise, entailed, other]).astype(np.float64), kind)
                    won, lost = won + (result is True), lost + (result is False)
    return 100 * won / (won + lost)


def cosine(one, two):
    return one @ two / np.linalg.norm(one) / np.linalg.norm(two)


def test_equal_to_loops(tmp_path):
    rows = nli_examples()
    found = compare(rows)
    vectors = [letters(side) for side in (found.premises, found.entailed, found.not_entailed)]
    scores, _ = nli_distance.scores(*vectors, found.contradicts)
    assert scores["as_coded"] == pytest.approx(plain(rows, lambda p, e, o, _: bool(p @ e > p @ o)))
    assert scores["entailment_nearer"] == pytest.approx(
        plain(rows, lambda p, e, o, kind: bool(cosine(p, e) > cosine(p, o)) if kind == "c" else None)
    )
    near = [cosine(p, e) for p, e, c in zip(vectors[0], vectors[1], found.contradicts) if c]
    assert scores["entailment_similarity"] == pytest.approx(np.mean(near), abs=1e-6)


def test_a_tie_is_not_nearer_and_zero_vectors_count_as_zero():
    one = np.ones((2, 3), np.float32)
    zero = np.zeros((2, 3), np.float32)
    assert nli_distance.scores(one, one, one, np.array([True, True]))[0]["entailment_nearer"] == 0
    scores, _ = nli_distance.scores(zero, one, one, np.array([True, False]))
    assert scores["entailment_similarity"] == 0 and scores["entailment_nearer"] == 0


def test_readers_and_what_is_said_of_them(tmp_path):
    data = write_nli(tmp_path)
    same = [load(name, data) for name in ("SNLI", "MNLI")]
    assert same[0].premises == same[1].premises and same[0].not_entailed == same[1].not_entailed
    assert "60 examples here, 9,824 as published" in same[0].remark
    assert load("triplets", data).premises == ["a, b", "d"] and load("triplets", data).contradicts.all()
    assert "train.jsonl is not there" in load("ANLI", data).remark
    train = write_nli(tmp_path / "more", train=True)
    assert "16,946 as published" in load("ANLI", train).remark


def test_command(tmp_path, monkeypatch):
    data = write_nli(tmp_path / "data")
    monkeypatch.setitem(sys.modules, "words", type(sys)("words"))
    sys.modules["words"].embed = letters
    assert call(nli_distance.main, "words:embed", eval_data=str(data), out=str(tmp_path / "out")) == 0
    content = json.loads((tmp_path / "out" / "nli_distance-function.json").read_text())
    require_answers(read(tmp_path / "out" / "nli_distance-function.json"), list(content["tasks"]))
    assert list(content["tasks"]) == list(TASKS) and content["complete"] is False
    assert content["tasks"]["SNLI"]["value"] == content["tasks"]["SNLI"]["scores"]["entailment_nearer"]


def test_every_file_is_read_once(tmp_path, monkeypatch):
    data, opened, lines = write_nli(tmp_path / "data"), [], nli_distance.lines
    for module in (files, nli_distance):
        monkeypatch.setattr(module, "lines", lambda path: opened.append(path) or lines(path))
    monkeypatch.setattr(frozen, "open_model", lambda *_, **__: open_model(letters))
    call(nli_distance.main, "unused", eval_data=str(data), out=str(tmp_path / "out"))
    assert len(opened) == len(set(opened)) == 6


def test_mistakes_are_one_message(tmp_path):
    data = write_nli(tmp_path)
    with pytest.raises(UserError, match="did you mean 'SNLI'"):
        call(nli_distance.main, "unused", tasks="SLNI", eval_data=str(data))
    (data / "NLI" / "mnli_dev.jsonl").write_text('{"premise": "a"}\n')
    with pytest.raises(UserError, match="line 1: expected JSON with the keys premise, hypothesis, label"):
        load("MNLI", data)
    for bad in (
        '{"premise": "a", "hypothesis": null, "label": "neutral"}',
        "[" * 50_000,
        '{"premise": "a", "hypothesis": "\\udfff", "label": "neutral"}',
    ):
        (data / "NLI" / "mnli_dev.jsonl").write_text(bad + "\n")
        with pytest.raises(UserError, match=r"line 1: (expected JSON with the keys premise|no JSON)"):
            load("MNLI", data)
    (data / "NLI" / "mnli_dev.jsonl").write_text(
        '{"premise": "a", "hypothesis": "b", "label": "entailment"}\n'
    )
    with pytest.raises(UserError, match="no premise has an entailed and a contradicting"):
        load("MNLI", data)
    (data / "NLI" / "nli_triplets_from_snli.csv").write_text("sent0,sent1,hard_neg\na,,c\n")
    with pytest.raises(UserError, match="row 1 lacks a sentence"):
        load("triplets", data)
    (data / "NLI" / "nli_triplets_from_snli.csv").write_text("a,b,c\n")
    with pytest.raises(UserError, match="must name sent0, sent1 and hard_neg"):
        load("triplets", data)
    (data / "NLI" / "nli_triplets_from_snli.csv").unlink()
    with pytest.raises(UserError, match=r"nli_for_simcse\.csv is not there; `clearly benchmarks check"):
        load("triplets", data)
    (data / "SentEval" / "SNLI" / "s1.test").write_text("one line\n")
    with pytest.raises(UserError, match="differ in lines"):
        load("SNLI", data)


@needs_data("SentEval/SNLI", "NLI", "GLUE/MNLI")
def test_real_sets():
    assert load("SNLI").remark is None and load("MNLI").remark is None
    assert int(load("SNLI").contradicts.sum()) == 3247
    assert Path(DATA, "ANLI", "R1", "train.jsonl").exists() or load("ANLI").remark
    assert open_model(letters).pooling == "function"
