"""Which steps have read a document: the answer is that of a scan of all batches of the run."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import call
from loader_helpers import write_folder

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.commands.verify.__main__ import _keys, verify
from pretrain.commands.verify.replay import Replay
from pretrain.commands.verify.seen import Phrases, find_matches
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config
from pretrain.data.batch import BatchSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.tokenizer import load_tokenizer, save_tokenizer, tokenizer_hash, train_tokenizer
from pretrain.objectives import view_specs

WORDS = ("the", "old", "lamp", "lights", "a", "small", "ship", "at", "night", "while", "rain", "falls", "on")
STEPS = 40


def some_texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(3, 25))).capitalize() + "." for _ in range(count)]


def write_run(folder: Path, sequences: Ragged, tokenizer, unit: str = "sentence", columns=("text",)) -> Path:
    """A run of 40 steps, of which nothing but the recipe and one row of metrics is there."""
    data, run = folder / "data", folder / "run"
    save_tokenizer(tokenizer, data / "tokenizer")
    hashed = tokenizer_hash(data / "tokenizer")
    splits = {"train": sequences, "heldout": sequences.slice(0, 2 * len(columns))}
    write_folder(data, splits, len(tokenizer), 64, unit, hashed, chunk_tokens=600, columns=columns)
    run.mkdir()
    settings = {
        "data": {"folder": str(data), "lanes": 4},
        "model": {"max_positions": 64},
        "objective": {"name": "clear"},
        "train": {"global_batch": 24, "steps": STEPS, "warmup_steps": 1},
    }
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    (run / "metrics.jsonl").write_text(json.dumps({"step": STEPS, "loss": {"total": 1.0}}) + "\n")
    return run


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return some_texts(300, 0)


@pytest.fixture(scope="module", params=["wordpiece", "bpe", "unigram"])
def sentences_run(request, texts, tmp_path_factory) -> Path:
    tokenizer = train_tokenizer(iter(texts), request.param, 300)
    sequences = Ragged.from_sequences(tokenizer(texts)["input_ids"])
    return write_run(tmp_path_factory.mktemp(request.param), sequences, tokenizer)


def scanned(run: Path, phrase: str) -> Counter[tuple[int, int]]:
    """(step, sequence) -> times, by decoding every sequence of every batch that training reads."""
    config = load_config(run / "config.yaml", {})
    replay = Replay(config, [])
    tokenizer = load_tokenizer(replay.reader.tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    spec = BatchSpec(view_specs(config), Masking.of(config.objective), vocabulary)
    found: Counter[tuple[int, int]] = Counter()
    for batch in Loader(replay.reader, spec, LoaderSettings.of(config), Position(0, STEPS)):
        for row, number in enumerate(batch.sequence_ids.tolist()):
            if phrase in tokenizer.decode(batch.original[row], skip_special_tokens=True):
                found[batch.step + 1, number] += 1
    return found


def table(path: Path) -> list[dict]:
    names, *lines = (line.split("\t") for line in path.read_text().splitlines())
    rows = [dict(zip(names, line, strict=True)) for line in lines]
    numbers = ("sentence", "sequence", "step", "epoch", "times")
    return [
        row | {name: int(row[name]) for name in numbers} | {"roles": row["roles"].split(",")} for row in rows
    ]


def answered(run: Path, document: str, out: Path, **flags) -> list[dict]:
    assert call(verify, run, seen=document, out=out, keys=_keys(), **flags) == 0
    return table(out)


def test_the_answer_is_that_of_a_scan_of_all_batches(sentences_run, texts, tmp_path, capsys):
    for document in (texts[7], texts[7] + " " + texts[123] + " The whale was never here.", "lamp lights"):
        rows = answered(sentences_run, document, tmp_path / "seen.tsv")
        said = capsys.readouterr().out
        expected: Counter[tuple[int, int]] = Counter()
        for phrase in (texts[7], texts[123]) if "whale" in document else (document,):
            for key, times in scanned(sentences_run, phrase).items():
                expected[key] = times
        assert {(row["step"], row["sequence"]): row["times"] for row in rows} == expected
        assert {tuple(row["roles"]) for row in rows} == {("masked", "anchor", "positive")}
        steps = {step for step, _ in expected}
        assert f"read at {len(steps)} of them" in said and expected
        if "whale" in document:
            assert "2 of 3 sentences are in the data" in said and "not found: The whale was" in said


def test_a_span_of_steps_and_a_table(sentences_run, texts, tmp_path):
    document = tmp_path / "letter.txt"
    document.write_text(f"{texts[3]}\n\n{texts[4]} {texts[5]}\n")
    out = tmp_path / "seen.tsv"
    assert verify(sentences_run, seen=str(document), out=out, **{"from": "11", "to": "30"}) == 0
    rows = table(out)
    expected = {
        (step, number)
        for text in texts[3:6]
        for step, number in scanned(sentences_run, text)
        if 11 <= step <= 30
    }
    assert {(row["step"], row["sequence"]) for row in rows} == expected
    assert all(row["roles"] == ["masked", "anchor", "positive"] for row in rows)
    whole = answered(sentences_run, f"id:{rows[0]['sequence']}", tmp_path / "seen.tsv")
    assert {row["step"] for row in whole} >= {
        int(row["step"]) for row in rows if row["sequence"] == rows[0]["sequence"]
    }


def test_what_is_not_there_is_said(sentences_run, capsys):
    assert verify(sentences_run, seen="The whale was never here.") == 0
    said = capsys.readouterr().out
    assert "0 of 1 sentences" in said and "not read, and not in the data" in said
    with pytest.raises(UserError, match="numbers of sequences are 0 to 299"):
        verify(sentences_run, seen="id:300")
    with pytest.raises(UserError, match="the document has no sentence"):
        verify(sentences_run, seen=" ")


def test_columns_of_records_have_the_roles_that_are_made_of_them(texts, tmp_path):
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 300)
    encoded = tokenizer(texts)["input_ids"]
    rows = [part for k in range(0, 300, 2) for part in (encoded[k], encoded[k + 1] if k % 4 else [])]
    run = write_run(tmp_path, Ragged.from_sequences(rows), tokenizer, "record", ("text", "positive"))
    with_positive = answered(run, texts[10], tmp_path / "a.tsv")
    assert {tuple(row["roles"]) for row in with_positive} == {("masked", "anchor")}
    as_positive = answered(run, texts[11], tmp_path / "b.tsv")
    assert {(row["column"], *row["roles"]) for row in as_positive} == {("positive", "positive")}
    # a record without a positive: another view of its text
    without = answered(run, texts[12], tmp_path / "c.tsv")
    assert {tuple(row["roles"]) for row in without} == {("masked", "anchor", "positive")}
    assert {row["sequence"] for row in with_positive} == {5} == {row["sequence"] for row in as_positive}


def test_sentences_are_found_inside_running_text_and_not_across_sequences(texts, tmp_path):
    tokenizer = train_tokenizer(iter(texts), "wordpiece", 300)
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    rows = [[first, *encoded[k], *encoded[k + 1], last] for k in range(0, 200, 2)]
    run = write_run(tmp_path, Ragged.from_sequences(rows), tokenizer, "sequence")
    replay = Replay(load_config(run / "config.yaml", {}), [])

    def matches(sentence: str) -> list[int]:
        return [match.sequence for match in find_matches(replay, Phrases(tokenizer, [sentence], 62))]

    assert 5 in matches(texts[10]) and 5 in matches(texts[11])
    assert matches(f"{texts[10]} {texts[11]}") == [5]
    assert matches(f"{texts[11]} {texts[12]}") == []
