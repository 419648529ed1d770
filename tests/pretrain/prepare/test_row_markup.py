"""HTML in the fields of rows is named, and read without its marks where the source says so."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_rows import as_csv, as_jsonl, as_parquet, put

from finetune.judge.heldout import make_test, training_sources
from finetune.texts import read_split
from pretrain.common.errors import UserError
from pretrain.config.data import Source, data_config
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import records
from pretrain.prepare.sources.rows import RowFaults, documents
from pretrain.prepare.sources.structured import note_tags, structured

HTML = "<p>Die Pumpe f&ouml;rdert <b>&Ouml;l</b>.</p><nav>A</nav><p>Sie ist dicht,\nwenn p < 3.</p>"
PLAIN = "Die Pumpe fördert Öl.\nSie ist dicht, wenn p < 3."
ROWS = [{"title": f"Pumpe {n} &amp; Ventil", "text": HTML} for n in range(12)]
FIELDS = ("title", "text")


@pytest.fixture(params=["a.jsonl", "a.json", "a.csv", "a.parquet"])
def place(tmp_path, request):
    write = {
        "a.jsonl": lambda rows, _: as_jsonl(rows),
        "a.json": lambda rows, _: json.dumps(rows),
        "a.csv": as_csv,
        "a.parquet": as_parquet,
    }
    return str(put(tmp_path / request.param, write[request.param](ROWS, FIELDS)))


def test_texts_are_read_as_files_of_html_are(place, capsys):
    source = Source(source=place, markup="html")
    (task,) = plan_tasks([source])
    assert set(documents(task, source, RowFaults())) == {PLAIN}
    (task,) = plan_tasks([source], structure=True)
    found = [(one.title, one.text) for one in structured(task, source, RowFaults())]
    assert found == [(f"Pumpe {n} & Ventil", PLAIN) for n in range(12)]
    pairs = Source(source=place, markup="html", text_key="title", positive_key="text")
    (task,) = plan_tasks([pairs], records=True)
    assert next(records(task, pairs)).texts[:2] == ("Pumpe 0 & Ventil", PLAIN.replace("\n", " "))
    assert "HTML" not in capsys.readouterr().err


@pytest.mark.parametrize("how", [{}, {"structure": True}, {"records": True}])
def test_tags_that_stay_are_named(place, capsys, how):
    keys = {"text_key": "title", "positive_key": "text"} if "records" in how else {}
    source = Source(source=place, **keys)
    note_tags(plan_tasks([source], **how), [source], **({"records": True} if keys else {}))
    said = (
        f"note: {place}: texts in 'text' have HTML tags, which stay, unless the source has `markup: html`\n"
    )
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("records", [False, True])
def test_a_column_that_is_not_read_and_a_few_tags_are_not_named(tmp_path, capsys, records):
    rows = [{"text": "Ein <b>Wort</b>." if n == 7 else "Wenn a < b.", "page": HTML} for n in range(20)]
    source = Source(source=str(put(tmp_path / "a.jsonl", as_jsonl(rows))), other_fields="ignore")
    note_tags(plan_tasks([source], records), [source], records)
    assert capsys.readouterr().err == ""


def test_tags_that_the_source_says_to_keep_are_not_named(place, capsys):
    source = Source(source=place, markup="none")
    note_tags(plan_tasks([source]), [source])
    assert capsys.readouterr().err == ""


def test_a_search_and_a_fit_name_tags(place, capsys):
    read_split(place)
    assert f"note: {place}: texts in 'text' have HTML tags" in capsys.readouterr().err
    assert read_split(f"[{{source: {place}, markup: html}}]")[1:3] == PLAIN.splitlines()
    assert capsys.readouterr().err == ""


def test_an_adaptation_names_tags_once(tmp_path, capsys):
    """And not those of its own file again, which it prepares next."""
    rows = [
        {"title": f"Pumpe {n} in Halle {n * n}", "text": f"<p>{n} Liter, {n * 7} Bar</p>"} for n in range(999)
    ]
    sources = [Source(source=str(put(tmp_path / "a.jsonl", as_jsonl(rows))))]
    make_test(sources, tmp_path / "judge", 0, records=False)
    assert capsys.readouterr().err.count("HTML tags") == 1
    again = data_config({"sources": training_sources(sources, tmp_path / "judge")}).sources
    note_tags(plan_tasks(again), again)
    assert "</p>" in Path(again[0].source).read_text() and capsys.readouterr().err == ""


def test_passages_with_a_title_are_named_and_read(tmp_path, capsys):
    """As of BEIR: {"title": ..., "text": ...}."""
    rows = [
        {"query": "dicht?", "positive_passages": [{"title": "A &amp; B", "text": HTML}]} for _ in range(9)
    ]
    place = str(put(tmp_path / "a.jsonl", as_jsonl(rows)))
    for source in (Source(source=place), Source(source=place, markup="html")):
        tasks = plan_tasks([source], records=True)
        note_tags(tasks, [source], records=True)
        assert ("'positive_passages' have HTML tags" in capsys.readouterr().err) == (source.markup == "none")
    assert next(records(tasks[0], source)).texts[1] == f"A & B {PLAIN}".replace("\n", " ")


def test_rows_of_several_names_and_columns_that_nobody_reads(tmp_path, capsys):
    """Of a parquet file, one of dates that Python has not: it is not read."""
    rows = [{"query" if n % 2 else "question": f"dicht {n}?", "pos": HTML} for n in range(9)]
    pairs = Source(source=str(put(tmp_path / "a.jsonl", as_jsonl(rows))))
    far = pa.array([2**50] * 9, pa.timestamp("s"))
    pq.write_table(pa.table({"text": [HTML] * 9, "when": far}), tmp_path / "b.parquet")
    texts = Source(source=str(tmp_path / "b.parquet"))
    note_tags(plan_tasks([pairs], records=True), [pairs], records=True)
    note_tags(plan_tasks([texts]), [texts])
    first, second = capsys.readouterr().err.splitlines()
    assert "a.jsonl: texts in 'pos'" in first and "b.parquet: texts in 'text'" in second


def test_a_row_that_is_nested_too_deep_is_broken(tmp_path):
    deep = json.dumps({"text": "Die Pumpe ist dicht."})[:-1] + ', "tree": ' + "[" * 900 + "]" * 900 + "}"
    rows = "\n".join([deep, *(as_jsonl(ROWS).splitlines() * 20)])
    source = Source(source=str(put(tmp_path / "a.jsonl", rows)), markup="html")
    faults = RowFaults()
    found = [text for task in plan_tasks([source]) for text in documents(task, source, faults)]
    assert set(found) == {PLAIN}


def test_lines_of_a_text_without_tags_are_joined_as_those_of_html(tmp_path):
    rows = [{"text": "Die Pumpe\nist dicht."}, {"text": "Die Pumpe\nist <b>dicht</b>."}]
    source = Source(source=str(put(tmp_path / "a.jsonl", as_jsonl(rows))), markup="html")
    (task,) = plan_tasks([source])
    assert set(documents(task, source, RowFaults())) == {"Die Pumpe ist dicht."}


def test_a_text_file_has_no_fields(tmp_path):
    source = Source(source=str(put(tmp_path / "a.txt", HTML)), markup="html")
    with pytest.raises(UserError, match=r"`markup` is of rows with fields; name HTML a\.html instead"):
        plan_tasks([source])


def test_a_long_row_that_the_source_allows_is_read_for_its_columns(tmp_path):
    rows = [{"title": "Ein Titel", "text": "Wort " * 2_000_000}]
    place = str(put(tmp_path / "a.jsonl", as_jsonl(rows)))
    (task,) = plan_tasks([Source(source=place, line_megabytes=20)], structure=True)
    assert task.columns == FIELDS
