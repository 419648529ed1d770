"""Stages of a preparation, each by itself on a few texts; and sources that are not there."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from datatrove.data import Document

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, Source
from pretrain.data.manifest import SPLITS
from pretrain.prepare import __main__ as command
from pretrain.prepare import buckets as bk
from pretrain.prepare.packing import Packed
from pretrain.prepare.sources.embedded import prose
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.records import records
from pretrain.prepare.sources.structured import COLUMNS, columns_of
from pretrain.prepare.stages.build import _starts_within
from pretrain.prepare.stages.read import Scatter
from pretrain.prepare.stages.records import BuildRecords, ScatterRecords
from pretrain.prepare.stages.running_text import Resolve, _marked, _unmarked
from pretrain.prepare.stages.tokenizer import MakeTokenizer
from pretrain.prepare.work_folder import (
    Columns,
    Decision,
    HashRange,
    ParagraphPairs,
    PreparationPlan,
    SentenceCounts,
)


def planned(work, buckets=1, weights=(1.0,), **settings) -> None:
    sources = [Source(source=f"{n}.txt", weight=weight) for n, weight in enumerate(weights)]
    config = DataConfig(sources=sources, **{"min_letters": 0.0, **settings})
    PreparationPlan(config=config, tasks=[], buckets=buckets, described="a").write(work)


def scatter(work, *texts: str, **settings):
    """Scatter documents; return the texts with whether they are held out, counts, and pairs."""
    planned(work, **settings)
    Scatter(work).run([Document(text, str(n), metadata={"source": 0}) for n, text in enumerate(texts)], 3)
    found = bk.load_texts(bk.open_runs(work / "texts", 1, bk.TEXT_RECORD), 0)
    rows = zip(found.decode(range(len(found.records))), found.records["heldout"].tolist())
    assert HashRange.exists(work, 3)
    return list(rows), SentenceCounts.read(work, 3).root, ParagraphPairs.read(work, 3).root


SENTENCES = [f"Here is the sentence of number {n}." for n in range(20)]


def test_sentences_are_scattered_with_their_counts(tmp_path):
    text = " ".join(SENTENCES[:3]) + "\nToo short.\n\n" + " ".join(SENTENCES[3:5])
    rows, counts, pairs = scatter(tmp_path, text, "None.", heldout=0.0)
    assert rows == [(one, 0) for one in SENTENCES[:5]] and pairs == []
    wanted = {"documents": 2, "characters": len(text) + 5, "sentences": 7, "sentences_not_prose": 2}
    assert Counter(counts) == Counter(wanted | {"documents_heldout": 0})
    for seed in range(40):
        rows, counts, pairs = scatter(tmp_path / f"seed {seed}", text, heldout=0.499, seed=seed)
        if rows[0][1]:
            break
    assert rows == [(one, 1) for one in SENTENCES[:5]] and counts["documents_heldout"] == 1
    assert set(pairs) == {(SENTENCES[0], " ".join(SENTENCES[1:3])), (SENTENCES[3], SENTENCES[4])}


@pytest.mark.parametrize(
    ("count", "share", "held"),
    [
        (20, 0.01, 1),
        (20, 0.1, 2),
        (20, 0.12, 2),
        (20, 0.13, 3),
        (2, 0.4, 1),
        (3, 0.49, 1),
        (1, 0.4, 0),
        (4, 0.499, 2),
    ],
)
@pytest.mark.parametrize("unit", ["sentence", "document"])
def test_the_last_sentences_of_a_single_document_are_held_out(count, share, held, unit, tmp_path):
    """The share of them, rounded, and at least one; of one sentence none."""
    text = "\n".join(SENTENCES[:count])
    key = bk.text_key(text.encode(), 0)
    Decision(key=key, cut=True, heldout=False).write(tmp_path)
    rows, counts, _ = scatter(tmp_path, text, heldout=share, unit=unit, min_prose=0)
    first, last = SENTENCES[: count - held], SENTENCES[count - held : count]
    if unit == "document":
        first, last = (["\n".join(part)] if part else [] for part in (first, last))
    assert sorted(rows) == sorted([*((one, 0) for one in first), *((one, 1) for one in last)])
    assert counts.get("documents_cut", 0) == (count > 1) and counts["documents_heldout"] == 0
    Decision(key=key, cut=False, heldout=True).write(tmp_path / "all")
    rows, counts, _ = scatter(tmp_path / "all", text, heldout=share)
    assert {held for _, held in rows} == {1} and counts["documents_heldout"] == 1


def test_sentences_that_training_has_are_dropped_of_held_out_documents(tmp_path):
    planned(tmp_path, unit="sequence")
    writer = bk.RunWriter(tmp_path / "signatures", "00000", 1, bk.SIGNATURE)
    for key, document, index, heldout in (
        (5, 1, 0, 0),
        (6, 1, 1, 0),
        (5, 2, 7, 1),
        (8, 2, 8, 1),
        (6, 3, 0, 1),
        (5, 2, 7, 1),
    ):
        writer.add((key, document, index, heldout))
    writer.flush()
    Resolve(tmp_path).run(rank=0)
    (run,) = bk.open_runs(tmp_path / "dropped", 1, bk.DROPPED)
    assert run.records(0).tolist() == [(2, 7), (3, 0)]
    assert json.loads((tmp_path / "counts/resolve/00000.json").read_text()) == {
        "heldout_sentences_in_train": 2
    }


def test_marks_of_sentences_and_documents_travel_with_the_tokens():
    sequences = Ragged.from_sequences([[1, 50, 60, 2], [1, 2**29 - 1, 2], [1, 9, 2]])
    packed = Packed(sequences, np.array([1, 2, 5, 8]), np.array([1, 8]))
    tokens = _marked(packed)
    assert tokens.dtype == np.dtype("<i4") and sequences.ids[1] == 50
    records_ = np.array([(n, 4 * len(sequences[n]), 0, 0) for n in range(3)], bk.TEXT_RECORD)
    stored = bk.Texts(records_, tokens.view(np.uint8), 4 * sequences.offsets[:-1])
    found = _unmarked(stored, np.array([2, 0]))
    assert found.sequences == Ragged.from_sequences([[1, 9, 2], [1, 50, 60, 2]])
    assert found.sentence_starts.tolist() == [1, 4, 5] and found.document_starts.tolist() == [1, 4]
    assert _starts_within(np.array([1, 4, 5, 9]), 4, 9).tolist() == [0, 1]
    assert SPLITS == ("train", "heldout")


def test_texts_of_some_records_are_those_of_their_columns(tmp_path):
    planned(tmp_path, unit="record")
    Columns(columns=["text", "negative", "positive2"]).write(tmp_path)
    step = BuildRecords(tmp_path)
    joined = [f"t{n}\np{n}\x1fq{n}\nn{n}\n\n{n}" for n in range(4)]
    texts = SimpleNamespace(decode=lambda rows: [joined[row] for row in rows])
    found = step._texts_of_columns(texts, np.array([3, 1, 0, 2]), 1, 3)
    assert found == ["t1", "n1", "q1", "t0", "n0", "q0"]


def test_every_record_of_a_large_bucket_is_encoded(tmp_path):
    """They are decoded some at a time."""
    planned(tmp_path, unit="record")
    Columns(columns=["text", "positive"]).write(tmp_path)
    asked = []

    def decode(rows):
        asked.append(len(rows))
        return [f"{row}\n{row + 1}\n\n\n" for row in rows]

    def encode(strings):
        return Ragged.from_sequences([[int(text)] for text in strings])

    rows = np.arange(40_000)
    tokens, labels = BuildRecords(tmp_path)._encode_records(SimpleNamespace(decode=decode), rows, encode)
    assert labels is None and np.array_equal(tokens.ids.reshape(-1, 2), np.stack([rows, rows + 1], axis=1))
    assert len(asked) > 1


@pytest.mark.parametrize(("megabytes", "share"), [(1.0, 1.0), (2e-4, None)])
def test_the_sample_for_a_tokenizer_is_of_training_text_by_weight(megabytes, share, tmp_path):
    """Chosen by the hash of each text: below the share of the sample in all that an epoch shows."""
    planned(tmp_path, buckets=2, weights=(2.0, 0.5), tokenizer_megabytes=megabytes)
    writer, rng, made = (
        bk.RunWriter(tmp_path / "texts", "00000", 2, bk.TEXT_RECORD),
        np.random.default_rng(0),
        [],
    )
    for number in range(40):
        text = f"text {number}".encode()
        made.append(((int(rng.integers(2**63)) * 2, len(text), number % 2, number % 5 == 0), text))
        writer.add(*made[-1])
    writer.flush()
    total = sum(len(text) * (2.0, 0.5)[record[2]] for record, text in made)
    part = megabytes * 1e6 / total
    wanted = []
    for (key, _, source, heldout), text in made:
        coin = bk.fraction(np.array([key], np.uint64), bk.SAMPLE_SALT)[0]
        if not heldout and coin < part * (2.0, 0.5)[source]:
            wanted.append(text.decode())
    assert sorted(MakeTokenizer(tmp_path).sample()) == sorted(wanted)
    assert (len(wanted) == 32) == (share == 1.0) and len(wanted) > 2
    with pytest.raises(UserError, match="No text is left of a: check layout"):
        planned(tmp_path / "none")
        list(MakeTokenizer(tmp_path / "none").sample())


# -- sources -------------------------------------------------------------------


ALIASES = {
    "text": ("sent0", "anchor", "query", "question", "sentence1"),
    "positive": ("sent1", "answer", "sentence2", "pos", "positive_passages"),
    "negative": ("hard_neg", "neg", "negatives", "negative_passages"),
}


@pytest.mark.parametrize(
    ("column", "name"), [(column, name) for column, names in ALIASES.items() for name in names]
)
def test_columns_are_known_by_the_names_that_others_give_them(column, name, tmp_path):
    row = {"text": "a", "positive": "b", "negative": "c"}
    row = {name if key == column else key: text for key, text in row.items()}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(row))
    source = Source(source=str(tmp_path / "a.jsonl"))
    found = list(records(plan_tasks([source], records=True)[0], source))
    assert [record.texts for record in found] == [("a", "b", "c", "")] * 2


@pytest.mark.parametrize("first", COLUMNS)
def test_columns_that_belong_together(first, tmp_path):
    path, seconds = tmp_path / "a.csv", COLUMNS[first]
    task, source = ReadTask(0, "csv", str(path), 0, 1, size=1), Source(source=str(path))
    for second in seconds:
        path.write_text(f"{second},{first}\nx,y\n")
        assert columns_of(task, source) == (first, second)
    path.write_text(f"{','.join(reversed(seconds))},{first}\n" + "x," * len(seconds) + "y\n")
    assert columns_of(task, source) == (first, seconds[0])


def test_sources_that_are_not_there_or_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.prepare.sources.embedded.python_files", lambda: ())
    with pytest.raises(UserError, match="there is no Python package here"):
        plan_tasks([Source(source="embedded")])
    monkeypatch.setattr(
        "pretrain.prepare.sources.embedded.python_files", lambda: (("a", 10**9), ("b", 10**9))
    )
    tasks = plan_tasks([Source(source="embedded")])
    assert len(tasks) == 16 and tasks[3].size == 2 * 10**9 // 20 // 16 and tasks[3].stripe == 3
    with pytest.raises(UserError, match="source embedded holds no records"):
        plan_tasks([Source(source="embedded")], records=True)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("text\n")
    assert plan_tasks([Source(source="~/a.txt")])[0].place == str(tmp_path / "a.txt")
    (tmp_path / "a.json").write_text("[" + ",".join(['{"text": "x"}'] * 9) + "]")
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 20)
    found = [len(plan_tasks([Source(source="~/a.json", layout=layout)])) for layout in ("auto", "passages")]
    assert found == [7, 1]  # 128 bytes in parts of 20
    (tmp_path / "none.txt").touch()
    with pytest.raises(UserError, match=r"none\.txt is empty: check the path"):
        plan_tasks([Source(source="~/none.txt")])


def test_what_is_packed_counts_for_more_text_than_is_stored(tmp_path, monkeypatch):
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 50)
    path = tmp_path / "a.parquet"
    table = pyarrow.table({"text": [f"text {n}" for n in range(40)]})
    pyarrow.parquet.write_table(table, path, row_group_size=10)
    tasks = plan_tasks([Source(source=str(path))])
    assert len(tasks) == 4 and tasks[0].size == 2 * path.stat().st_size // 4  # of as many groups
    path = tmp_path / "a.txt.zst"
    path.write_bytes(pyarrow.compress(b"a line\n" * 999, "zstd", asbytes=True))
    size = int(3.3 * path.stat().st_size)
    tasks = plan_tasks([Source(source=str(path))])
    assert (len(tasks), tasks[0].size) == (-(-size // 50), size // -(-size // 50))


@pytest.mark.parametrize(("length", "found"), [(9999, 1), (10000, 1), (10001, 0)])
def test_modules_with_hardly_a_docstring_are_left_out(length, found):
    """Two quotes in ten thousand characters."""
    module = '"""It is the documentation of the module that is here."""\n'
    assert len(prose(module + "#" * (length - len(module)))) == found


def test_pairs_of_documents_are_counted(tmp_path):
    texts = ["A title\nIt is the text of the title.", "Too\nshort", "Another\nIt is a text, too, as it is."]
    (tmp_path / "a.txt").write_text("\n\n".join(texts) + "\n")
    config = DataConfig(sources=[str(tmp_path / "a.txt")], pairs="title", heldout=0.0)
    work, tasks = tmp_path / "work", plan_tasks(config.sources, structure=True)
    PreparationPlan(config=config, tasks=tasks, buckets=1, described="a").write(work)
    ScatterRecords(work).run(rank=0)
    wanted = {
        "documents": 3,
        "records": 2,
        "pairs_of_title": 2,
        "pairs_too_short": 1,
        "records_with_positive": 2,
    }
    wanted["characters"] = len(texts[0]) + len(texts[2]) - 2
    assert Counter(SentenceCounts.read(work).root) == Counter(wanted)


def test_the_short_help_of_the_command_has_flags_that_it_takes():
    flags = {flag.name for flag in command.data_flags()}
    assert "source" in flags and "sources" not in flags
    assert set(command.FIRST) <= flags | {"out", "config", "workers"}
