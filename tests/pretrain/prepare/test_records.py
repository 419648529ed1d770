"""Records: read whole or refused by file and line, kept together on the way into the shards."""

from __future__ import annotations

import csv
import io
import json
import random
from collections import Counter
from pathlib import Path

import pytest
from prepare_helpers import digest
from test_corpora import write
from test_prepare import run as run_command

from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, Source
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.run import prepare
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import COLUMNS, Record, records, split_joined
from pretrain.prepare.stages.records import BuildRecords
from pretrain.prepare.work_folder import SentenceCounts

WORDS = ["river", "stone", "cloud", "winter", "garden", "letter", "music", "window", "forest", "market"]
FIELDS = ("text", "positive", "negative", "augmented", "label")


def some_triples(count: int = 300, labels: int = 3, seed: int = 0) -> list[dict]:
    """Some have no positive or no negative, some share their text, some occur twice."""
    choose = random.Random(seed)

    def sentence() -> str:
        return (
            f"The {' '.join(choose.choices(WORDS, k=choose.randrange(2, 9)))} was {choose.randrange(10**6)} "
            "years old."
        )

    made: list[dict] = []
    for _ in range(count):
        text = made[-1]["text"] if made and choose.random() < 0.2 else sentence()
        row = {
            "text": text,
            "positive": sentence(),
            "negative": sentence(),
            "augmented": None,
            "label": choose.randrange(labels),
        }
        for column, absent in (("positive", 0.2), ("negative", 0.4)):
            if choose.random() < absent:
                row[column] = None
        made.append(row)
    return made + made[::15]


def as_jsonl(rows: list[dict]) -> str:
    return "".join(
        json.dumps({key: value for key, value in row.items() if value is not None}) + "\n" for row in rows
    )


def as_csv(rows: list[dict], fields: tuple[str, ...] = FIELDS, names: tuple[str, ...] | None = None) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(names or fields)
    writer.writerows([row.get(field) for field in fields] for row in rows)
    return stream.getvalue()


def read(place: Path, **settings) -> list[Record]:
    source = Source(source=str(place), **settings)
    return [record for task in plan_tasks([source], records=True) for record in records(task, source)]


def plain(rows: list[dict], fields: tuple[str, ...] = FIELDS) -> list[tuple]:
    return sorted(
        (*(row.get(name) or "" if name in fields else "" for name in COLUMNS), row.get("label"))
        for row in rows
    )


def found_in(found: list[Record]) -> list[tuple]:
    return sorted((*record.texts, record.label) for record in found)


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 700)


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_every_record_is_read_once_and_whole(tmp_path, small_tasks, kind, compression):
    rows = some_triples(60)
    path = write(tmp_path / f"a.{kind}{compression}", as_jsonl(rows) if kind == "jsonl" else as_csv(rows))
    assert len(plan_tasks([Source(source=str(path))], records=True)) > 3
    assert found_in(read(path)) == plain(rows)


def test_simcse_and_other_headers(tmp_path):
    rows = some_triples(20)
    triple = ("text", "positive", "negative")
    simcse = write(tmp_path / "simcse.csv", as_csv(rows, triple, ("sent0", "sent1", "hard_neg")))
    unlabelled = [{**row, "label": None} for row in rows]
    assert found_in(read(simcse)) == plain(unlabelled)
    pairs = [{"query": row["text"], "title": row["positive"], "id": 7} for row in rows]
    path = write(tmp_path / "pairs.jsonl", as_jsonl(pairs))
    keys = {"text_key": "query", "positive_key": "title"}
    assert found_in(read(path, other_fields="ignore", **keys)) == plain(unlabelled, ("text", "positive"))
    with pytest.raises(
        UserError, match=r"pairs\.jsonl, line 1: there is no column 'id' \(columns are query, title"
    ):
        read(path, **keys)


def test_csv_as_csv_files_are(tmp_path):
    """A byte order mark, commas, quotes and line breaks inside a field, blank rows, CRLF."""
    text = '\ufeffsent0,sent1\r\n"One, two\r\nand ""three"".",Yes.\r\n\r\nFour., \r\n'
    first, second = read(write(tmp_path / "a.csv", text))
    assert first.texts == ('One, two and "three".', "Yes.", "", "") and first.position == 1
    assert second.texts == ("Four.", "", "", "") and second.position == 4


def test_lines_of_text_are_records_as_they_are(tmp_path, small_tasks):
    """wiki1m_for_simcse: neither split into sentences nor filtered, blank lines or not."""
    lines = ["YMCA in South Australia", "One. Two! Three?", "1 2 3", "  spaced   out ", "\u200b"] * 30
    path = write(tmp_path / "a.txt", "\n\n".join(lines))
    found = Counter(record.texts[0] for record in read(path))
    assert found == {"YMCA in South Australia": 30, "One. Two! Three?": 30, "1 2 3": 30, "spaced out": 30}


def test_joined_records_come_apart_again():
    for texts, label in ((("a b", "", "", ""), None), (("a", "b", "c", "d"), 0), (("a", "", "c", ""), 12)):
        assert split_joined(Record(texts, label, 0).joined().decode()) == (list(texts), label)


GOOD = '{"text": "Good.", "label": 1}\n'


@pytest.mark.parametrize(
    "name,content,message",
    [
        (
            "a.jsonl",
            GOOD * 3 + '{"text": "x", "label": "1"}\n',
            r"a\.jsonl, line 4: the label is '1', not a whole number",
        ),
        ("a.jsonl", GOOD * 2 + '{"text": "x", "label": 1.0}\n', r"line 3: the label is 1\.0, not"),
        ("a.jsonl", '{"text": "x", "label": true}\n', r"line 1: the label is True, not"),
        ("a.jsonl", '{"text": "x", "label": -1}\n', r"line 1: the label is -1, not a whole number from 0 on"),
        (
            "a.jsonl",
            GOOD + '{"text": "x"}\n',
            r"line 2: this record has no label, and the one in .*a\.jsonl, line 1 has one",
        ),
        (
            "a.jsonl",
            '{"text": "x"}\n' + GOOD,
            r"line 2: this record has a label, and the one in .*line 1 has none",
        ),
        (
            "a.jsonl",
            GOOD + '{"positive": "x", "label": 1}\n',
            r"line 2: there is no column 'text'; there are positive, label",
        ),
        ("a.jsonl", GOOD + '{"text": "\\u200b ", "label": 1}\n', r"line 2: the record has no text"),
        ("a.jsonl", GOOD + '{"text": null, "label": 1}\n', r"line 2: the record has no text"),
        ("a.jsonl", GOOD + '{"text": ["x"], "label": 1}\n', r"line 2: the text is \['x'\], not text"),
        (
            "a.jsonl",
            GOOD + '{"text": "x", "postive": "y"}\n',
            r"line 2: there is no column 'postive'; did you mean 'positive'",
        ),
        ("a.jsonl", '{"text": "x", "sent0": "y"}\n', r"line 1: the text is there twice: text, sent0"),
        ("a.jsonl", GOOD + "\n\n" + '{"text": \n', r"line 4: not JSON"),
        ("a.jsonl", GOOD + '"text"\n', r"line 2: not a JSON object"),
        (
            "a.csv",
            "sent0,sent_1\na,b\n",
            r"a\.csv, line 1: there is no column 'sent_1'; did you mean 'sent1'",
        ),
        ("a.csv", "a,b\nc,d\n", r"line 1: there is no column 'a'"),
        ("a.csv", "positive\nc\n", r"line 1: there is no column 'text'; there are positive"),
        (
            "a.csv",
            'text,positive\n"two\nlines",b\nc\n',
            r"line 4: 1 fields where the header has 2 \(text, positive\)",
        ),
        ("a.csv", "text,label\na,1\nb,two\n", r"line 3: the label is 'two', not a whole number"),
        ("a.csv", "text,label\na,1\nb,\n", r"line 3: this record has no label"),
        ("a.csv", "text,positive\na,b\n,c\n", r"line 3: the record has no text"),
        ("a.csv", 'text,positive\na,b\n"c,d\n', r"line 3: not csv"),
        ("a.csv", "", r"is empty"),
    ],
)
@pytest.mark.parametrize("compression", ["", ".gz"])
def test_what_is_no_record_is_refused_by_file_and_line(tmp_path, name, content, message, compression):
    path = write(tmp_path / (name + compression), content)
    if not content and compression:
        message = "there is no column 'text'; there are none"
    with pytest.raises(
        UserError, match=message.replace(r"\.jsonl,", r"\.jsonl(\.gz)?,").replace(r"\.csv,", r"\.csv(\.gz)?,")
    ):
        read(path)


@pytest.mark.parametrize("compression", ["", ".gz"])
def test_the_line_is_right_in_a_file_of_several_tasks(tmp_path, small_tasks, compression):
    lines = [json.dumps({"text": f"text {i}"}) for i in range(100)]
    lines[73] = '{"text": 5}'
    path = write(tmp_path / f"a.jsonl{compression}", "\n".join(lines))
    assert len(plan_tasks([Source(source=str(path))], records=True)) > 1
    with pytest.raises(UserError, match=r"line 74: the text is 5, not text"):
        read(path)


def test_sources_without_records(tmp_path):
    with pytest.raises(UserError, match="embedded holds no records"):
        plan_tasks([Source(source="embedded")], records=True)
    with pytest.raises(UserError, match="holds no corpus file"):
        plan_tasks([Source(source=str(tmp_path))])
    write(tmp_path / "a.csv", "text\nx\n")
    for records_ in (False, True):
        assert len(plan_tasks([Source(source=str(tmp_path))], records=records_)) == 1


# ---- into shards -------------------------------------------------------------------------------------------


def config(*places: object, **settings) -> DataConfig:
    settings = {"vocabulary": 320, "heldout": 0.15, "chunk_tokens": 400, **settings}
    return DataConfig(sources=[str(place) for place in places], unit="record", **settings)


def shard_records(folder: Path, split: str) -> list[tuple]:
    """(text, positive, negative, augmented, label) as decoded; what a record lacks is ""."""
    reader, tokenizer = ShardReader(folder, split), load_tokenizer(folder)
    found = []
    for number in range(reader.num_chunks):
        chunk = reader.read(number)
        texts = {name: [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in chunk.column(name)]
                 for name in reader.columns}  # fmt: skip
        for row in range(len(chunk.sequence_ids)):
            columns = (texts[name][row] if name in texts else "" for name in COLUMNS)
            found.append((*columns, None if chunk.labels is None else int(chunk.labels[row])))
    return found


@pytest.fixture(scope="module")
def triples(tmp_path_factory) -> tuple[Path, list[dict]]:
    rows = some_triples()
    return write(tmp_path_factory.mktemp("triples") / "triples.jsonl", as_jsonl(rows)), rows


def test_shards_hold_every_record_once(tmp_path, triples, several_tasks):
    path, rows = triples
    manifest = prepare(config(path, max_length=96), tmp_path / "out", workers=1, progress=False)
    assert manifest["buckets"] > 2 and (manifest["columns"], manifest["labels"]) == (list(COLUMNS[:3]), 3)
    train, heldout = (shard_records(tmp_path / "out", split) for split in ("train", "heldout"))
    assert sorted(train + heldout) == sorted(set(plain(rows)))
    # No text of training is held out too, whatever its partners are.
    assert heldout and not {record[0] for record in train} & {record[0] for record in heldout}
    counts = manifest["counts"]
    assert counts["records"] == len(rows) and counts["records_duplicate"] == len(rows) - len(set(plain(rows)))
    assert counts["records_with_negative"] == sum(row["negative"] is not None for row in rows)
    assert manifest["splits"]["train"]["sequences"] == len(train)
    assert counts["texts_truncated"] == 0


def test_workers_do_not_change_a_byte(tmp_path, triples, several_tasks):
    for workers in (1, 2):
        prepare(config(triples[0]), tmp_path / str(workers), workers=workers, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") and len(digest(tmp_path / "1")) > 6


@pytest.mark.parametrize("step,method", [(SentenceCounts, "write"), (BuildRecords, "_encode_records")])
def test_interrupted_it_ends_with_the_same_bytes(tmp_path, triples, several_tasks, step, method):
    calls, real = [], getattr(step, method)

    def failing(self, *arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("killed")
        return real(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, method, failing)
        with pytest.raises(RuntimeError, match="killed"):
            prepare(config(triples[0]), tmp_path / "killed", workers=1, progress=False)
    with pytest.raises(UserError, match="did not finish"):
        ShardReader(tmp_path / "killed")
    for name in ("killed", "whole"):
        prepare(config(triples[0]), tmp_path / name, workers=1, progress=False)
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_columns_are_those_that_any_record_has(tmp_path, several_tasks):
    rows = some_triples(100)
    texts = write(tmp_path / "texts.txt", "".join(f"{row['text']}\n" for row in rows))
    manifest = prepare(config(texts, heldout=0), tmp_path / "texts", workers=1, progress=False)
    assert (
        manifest["columns"] == ["text"]
        and "labels" not in manifest
        and ShardReader(tmp_path / "texts").columns == ("text",)
    )
    assert sorted(record[0] for record in shard_records(tmp_path / "texts", "train")) == sorted(
        {row["text"] for row in rows}
    )
    negatives = write(tmp_path / "negatives.csv", as_csv(rows, ("text", "negative")))
    manifest = prepare(
        config(texts, negatives, heldout=0, max_length=96), tmp_path / "both", workers=1, progress=False
    )
    assert manifest["columns"] == ["text", "negative"]
    wanted = {(row["text"], "", row["negative"] or "", "", None) for row in rows}
    wanted |= {(row["text"], "", "", "", None) for row in rows}
    assert sorted(shard_records(tmp_path / "both", "train")) == sorted(wanted)


def test_an_augmented_text_is_a_column_of_its_own(tmp_path):
    """AugCSE's cached pairs."""
    rows = [{"text": f"The text number {i}.", "augmented": f"Number {i}.", "label": i % 4} for i in range(50)]
    manifest = prepare(
        config(write(tmp_path / "a.csv", as_csv(rows)), heldout=0),
        tmp_path / "out",
        workers=1,
        progress=False,
    )
    assert (manifest["columns"], manifest["labels"]) == (["text", "augmented"], 4)
    assert sorted(shard_records(tmp_path / "out", "train")) == plain(rows)


def test_labels_in_one_file_and_none_in_another(tmp_path, triples):
    other = write(tmp_path / "other.csv", as_csv(some_triples(5), ("text", "positive")))
    with pytest.raises(
        UserError, match=r"triples\.jsonl, line 1 has a label, that in .*other\.csv, line 2 has none"
    ):
        prepare(config(triples[0], other), tmp_path / "out", workers=1, progress=False)


@pytest.mark.parametrize("policy", ["auto", "drop"])
def test_long_texts_are_cut_or_their_records_dropped(tmp_path, policy):
    long = "A very long text " + " ".join(f"word{i}" for i in range(60)) + "."
    rows = [
        {"text": f"A short text number {i}.", "positive": long if i < 3 else "A short one."}
        for i in range(50)
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    made = config(path, max_length=32, heldout=0, long_sentences=policy)
    counts = prepare(made, tmp_path / "out", workers=1, progress=False)["counts"]
    found = shard_records(tmp_path / "out", "train")
    if policy == "drop":
        assert counts["records_dropped_too_long"] == 3 and len(found) == 47
    else:
        assert counts["texts_truncated"] == 3 and counts["tokens_truncated"] > 30 and len(found) == 50
        assert sum(long.startswith(record[1]) for record in found) == 3
        assert max(ShardReader(tmp_path / "out").read(0).stored.lengths) == 32


def test_weights_and_duplicates(tmp_path):
    for name in "ab":
        write(
            tmp_path / f"{name}.jsonl",
            as_jsonl([{"text": f"{name} {i}", "positive": "the same"} for i in range(200)] * 2),
        )
    places = (f"{tmp_path}/a.jsonl@2.5", f"{tmp_path}/b.jsonl@0.25")
    prepare(config(*places, heldout=0), tmp_path / "out", workers=1, progress=False)
    found = Counter(shard_records(tmp_path / "out", "train"))
    assert {count for record, count in found.items() if record[0][0] == "a"} == {2, 3}
    assert {count for record, count in found.items() if record[0][0] == "b"} == {1} and 200 < len(found) < 300
    prepare(
        config(tmp_path / "a.jsonl", heldout=0, dedup="none"), tmp_path / "all", workers=1, progress=False
    )
    assert set(Counter(shard_records(tmp_path / "all", "train")).values()) == {2}


def test_an_own_tokenizer_and_its_sample(tmp_path):
    """Trained on all columns of training records, and on nothing else: no separator, no label."""
    rows = [{"text": "aaaa aaaa", "positive": "bbbb bbbb", "negative": "cccc cccc", "label": 7}] + [
        {"text": f"aaaa {i}", "positive": "bbbb", "negative": "cccc", "label": 3} for i in range(40)
    ]
    path = write(tmp_path / "a.jsonl", as_jsonl(rows))
    trained = config(path, heldout=0, tokenizer_type="wordpiece", exact_vocabulary=True)
    prepare(trained, tmp_path / "out", workers=1, progress=False)
    vocabulary = load_tokenizer(tmp_path / "out").get_vocab()
    assert {"aaaa", "bbbb", "cccc"} <= set(vocabulary) and "\n" not in "".join(vocabulary)
    given = config(path, heldout=0, tokenizer=str(tmp_path / "out/tokenizer"), seed=1)
    manifest = prepare(given, tmp_path / "again", workers=1, progress=False)
    assert (
        manifest["tokenizer_hash"] == ShardReader(tmp_path / "out").tokenizer_hash and manifest["labels"] == 8
    )


def test_settings_that_do_not_fit_records():
    for setting in ({"long_sentences": "split"}, {"dedup": "minhash"}):
        with pytest.raises(ValueError, match="is not for unit record"):
            config("a.jsonl", **setting)
    with pytest.raises(ValueError, match="layout: passages is not for unit record"):
        DataConfig(sources=[{"source": "a.txt", "layout": "passages"}], unit="record")


def test_the_command(tmp_path, triples, capsys):
    arguments = [
        "--source",
        str(triples[0]),
        "--unit",
        "record",
        "--vocabulary",
        "320",
        "--progress",
        "false",
    ]
    assert run_command([*arguments, "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "columns: text, positive, negative; 3 labels" in shown and " records " in shown
    write(tmp_path / "a.jsonl", GOOD + "{}\n")
    assert (
        run_command(["--source", f"{tmp_path}/a.jsonl", "--unit", "record", "--out", str(tmp_path / "bad")])
        == 2
    )
    error = capsys.readouterr().err
    assert "a.jsonl, line 2: there is no column 'text'" in error and "Traceback" not in error
    assert not (tmp_path / "bad" / "manifest.json").exists()
