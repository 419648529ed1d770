"""Sources at their edges: names of files, layouts, long lines, faults, fields, columns and languages."""

import bz2
import gzip
import json
import lzma
from collections import Counter
from pathlib import Path

import pytest

from pretrain.common.errors import UserError
from pretrain.config.data import Source
from pretrain.prepare.sources import planning, rows
from pretrain.prepare.sources.embedded import is_english_sentence, module_documents
from pretrain.prepare.sources.markup import HTML, MARKDOWN, RESTRUCTURED, WIKITEXT, sections
from pretrain.prepare.sources.planning import TASK_BYTES, files_at, kind_of, plan_tasks
from pretrain.prepare.sources.readers import (
    ReadTask,
    detect_layout,
    is_array,
    numbered_documents,
    open_file,
    passages,
    where,
)
from pretrain.prepare.sources.records import MOST_NEGATIVES, MOST_POSITIVES, TextRecord, records, split_joined
from pretrain.prepare.sources.rows import RowFaults, documents
from pretrain.prepare.sources.structure import MOST_CHARACTERS, Document, pairs_of, require_known, unwanted
from pretrain.prepare.sources.structured import columns_of, structured
from pretrain.prepare.wrapping import margin

PACK = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def task_of(path: Path, kind: str = "text", **more) -> ReadTask:
    return ReadTask(0, kind, str(path), 0, 1, size=1, **more)


# -- planning ------------------------------------------------------------


def test_formats_are_known_by_names_whatever_compresses_them():
    data = {".txt": "text", ".text": "text", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
    data |= {".parquet": "parquet", ".csv": "csv", ".tsv": "tsv"}
    marked = {".md": MARKDOWN, ".markdown": MARKDOWN, ".rst": RESTRUCTURED, ".html": HTML, ".htm": HTML}
    marked |= {".xhtml": HTML, ".wiki": WIKITEXT, ".wikitext": WIKITEXT, ".mediawiki": WIKITEXT}
    for end, kind in (data | marked).items():
        for name in (
            f"a{end}",
            f"b.c{end.upper()}",
            f"a{end}.gz",
            f"a{end}.zst",
            f"a{end}.bz2",
            f"a{end}.xz",
        ):
            assert kind_of(name, marked=True) == kind
            assert kind_of(name) == (kind if end in data else None)
    assert [kind_of(name, True) for name in ("a", "a.gz", "a.zip", "a.txt.zip", "txt", ".txt")] == [None] * 6


def test_a_file_is_cut_by_its_size_and_its_text_when_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(planning, "TASK_BYTES", 100)
    (tmp_path / "a.txt").write_text("One line.\n" * 20)  # 200 bytes
    (tmp_path / "b.txt").write_text("One line.\n" * 20 + "x")
    (tmp_path / "empty.txt").touch()
    tasks = plan_tasks([Source(source=str(tmp_path), line_megabytes=0.5)])
    assert [(Path(t.place).name, t.stripe, t.stripes, t.size) for t in tasks] == [
        *(("a.txt", n, 2, 100) for n in range(2)),
        *(("b.txt", n, 3, 67) for n in range(3)),
    ]
    assert {(t.longest, t.layout, t.kind, t.width, t.source) for t in tasks} == {
        (500_000, "lines", "text", 0, 0)
    }
    for suffix, factor in ((".gz", 3.3), (".bz2", 4.0), (".xz", 4.0)):
        path = tmp_path / f"c.txt{suffix}"
        path.write_bytes(PACK[suffix](b"".join(b"%d %d\n" % (n, n * n) for n in range(400))))
        size = int(path.stat().st_size * factor)
        found = plan_tasks([Source(source=str(path))])
        assert len(found) == min(8, -(-size // 100)) and found[0].size == size // len(found)
    (tmp_path / "d.csv").write_text("text\n" + "some words\n" * 200)
    assert len(plan_tasks([Source(source=str(tmp_path / "d.csv"))])) == 8
    assert len(plan_tasks([Source(source=str(tmp_path / "d.csv"), layout="passages")])) == 1
    assert TASK_BYTES == 16 << 20


def test_hidden_files_and_links_in_a_circle_are_left_out(tmp_path):
    for name in ("a.txt", ".hidden.txt", "sub/b.txt", ".git/c.txt", "sub/deep/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    found = [str(path.relative_to(tmp_path)) for path in files_at(tmp_path)]
    assert found == ["a.txt", "sub/b.txt", "sub/deep/d.txt"]
    assert {path.name for path in files_at(tmp_path / "**" / "*.txt")} >= {"a.txt", "b.txt", "d.txt"}
    assert files_at(tmp_path / "a.txt") == [tmp_path / "a.txt"] and files_at(tmp_path / "none*") == []


@pytest.mark.parametrize(("markdown", "data", "read"), [(50, 49, "md"), (50, 50, "md"), (50, 51, "txt")])
def test_of_a_folder_of_two_sorts_the_larger_is_read(markdown, data, read, tmp_path, capsys):
    (tmp_path / "a.md").write_text("# T\n\n" + "x" * (markdown - 5))
    (tmp_path / "b.txt").write_text("y" * data)
    tasks = plan_tasks([Source(source=str(tmp_path))], records=False, structure=True)
    assert [Path(task.place).suffix for task in tasks] == [f".{read}"]
    assert "1 files with headings" in capsys.readouterr().err
    assert len(plan_tasks([Source(source=str(tmp_path))], structure=True, whole=True)) == 2


# -- readers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "layout"),
    [
        ("a\nb\n", "lines"),
        ("a\n\nb\n", "paragraphs"),
        ("\n\na\nb\n", "lines"),
        ("a\n \t\nb\n", "paragraphs"),
        ("a\n\n", "lines"),
        ("a\n\nb", "lines"),  # the last line may go on
        ("", "lines"),
    ],
)
def test_a_blank_line_between_texts_makes_paragraphs(head, layout):
    assert detect_layout(head) == layout


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[{"a": 1}]', True),
        ('\ufeff \n [\n{"a": 1}]', True),
        ('{\n "a": 1\n}', True),
        (' { \n "a": 1}', True),
        ('{"a": 1}\n', False),
        ("", False),
        ("x[", False),
    ],
)
def test_arrays_are_told_from_objects_a_line(text, found, tmp_path):
    (tmp_path / "a.json").write_text(text, "utf-8")
    assert is_array(tmp_path / "a.json") is found


def test_running_text_is_cut_behind_32_thousand_characters():
    line = "x" * 1023  # 1,024 with its end
    found = list(passages((10 * n, line) for n in range(70)))
    assert [(position, text.count("\n") + 1) for position, text in found] == [(0, 32), (320, 32), (640, 6)]
    assert list(passages([])) == []
    assert [len(text) for _, text in passages([(0, "x" * 40000), (1, "y")])] == [40000, 1]


@pytest.mark.parametrize("suffix", ["", *PACK])
def test_a_line_may_be_as_long_as_the_source_says(suffix, tmp_path):
    path = tmp_path / f"a.txt{suffix}"
    content = b"short\n" + b"x" * 99 + b"\nlast"
    path.write_bytes(PACK[suffix](content) if suffix else content)
    assert [len(text) for _, text in numbered_documents(task_of(path, longest=100))] == [6, 100, 4]
    with pytest.raises(UserError, match=r"line 2: longer than 9\.9e-05 MB.*line_megabytes: N"):
        list(numbered_documents(task_of(path, longest=99)))


def test_lines_that_end_in_returns_alone_are_lines(tmp_path):
    for content, wanted in (
        (b"one\rtwo\rthree", b"one\ntwo\nthree"),
        (b"one\rtwo", b"one\rtwo"),  # one return is no line's end
        (b"one\rtwo\rthree\n", b"one\rtwo\rthree\n"),
        (b"one\r\ntwo\r\n", b"one\r\ntwo\r\n"),
    ):
        (tmp_path / "a.txt").write_bytes(content)
        with open_file(tmp_path / "a.txt") as stream:
            assert stream.read() == wanted


def test_places_are_named_by_line_or_row(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\nfour\n")
    assert where(task_of(path), 0) == f"{path}, line 1" and where(task_of(path), 9) == f"{path}, line 4"
    for kind in ("csv", "tsv"):
        assert where(task_of(path, kind), 9) == f"{path}, line 10"
    assert where(task_of(path, "jsonl", layout="array"), 9) == f"{path}, line 10"
    assert where(task_of(path, "jsonl"), 9) == f"{path}, line 4"
    for kind in ("parquet", "disk", "hub"):
        assert where(task_of(path, kind), 9) == f"{path}, row 10"
    task = ReadTask(0, "hub", "a/b", 1, 3, size=1)
    assert where(task, 9) == "hub:a/b, file or part 2 of 3, row 10"


# -- rows and records ------------------------------------------------------


def test_the_first_faults_are_named_and_all_are_counted(tmp_path, capsys):
    path = tmp_path / "a.txt"
    path.write_text("a\n" * 30)
    faults = RowFaults()
    for number in range(7):
        faults.add("broken_records", task_of(path), 2 * number, "cut")
    assert faults.counts == {"broken_records": 7} and faults.named == [
        f"{path}, line {n}: cut" for n in range(1, 6)
    ]
    faults.counts["documents_not_utf8"] = 1234
    faults.named += ["more"] * 20
    faults.print()
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["note: 7 broken records", "note: 1,234 documents not utf8"] and len(lines) == 22


@pytest.mark.parametrize(("broken", "refused"), [(9, False), (10, True)])
def test_ten_broken_rows_at_the_beginning_are_no_such_file(broken, refused, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("{\n" * broken + '{"text": "good"}\n{\n' + '{"text": null}\n')
    faults = RowFaults()
    task = task_of(path, "jsonl")
    if refused:
        with pytest.raises(
            UserError, match=r"line 1: not JSON .*All rows read are like it. Is the file whole"
        ):
            list(documents(task, Source(source=str(path)), faults))
    else:
        assert list(documents(task, Source(source=str(path)), faults)) == ["good"]
        assert faults.counts["broken_records"] == 10  # what is null is no text, and no fault


def test_one_faulty_file_says_what_to_do(tmp_path):
    path = tmp_path / "a.jsonl"
    for row, said in (
        ({"body": {"text": 1}}, r"no field 'text' \(its fields: body\)\. All rows .*Set its text_key"),
        ({}, r"no field 'text' \(its fields: none\)"),
        ({"text": 5}, r"field 'text' holds no text, but '5'.*Set its text_key"),
        ({"text": "\ud800"}, r"field 'text' is not Unicode.*UTF-8\?"),
    ):
        path.write_text(json.dumps(row) + "\n")
        with pytest.raises(UserError, match=said):
            list(documents(task_of(path, "jsonl"), Source(source=str(path)), RowFaults()))
    with pytest.raises(UserError, match=r"fields within fields are not read: docs/data\.md has the jq"):
        list(documents(task_of(path, "jsonl"), Source(source=str(path), text_key="a.b"), RowFaults()))


@pytest.mark.parametrize(("stripes", "probe"), [(1, 1 << 20), (3, 1 << 20), (1, 7), (2, 1)])
def test_an_array_is_read_whatever_its_blocks(stripes, probe, tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "_PROBE", probe)
    path = tmp_path / "a.json"
    members = [{"text": f"number {n}, \n \\ {{[" * (n % 3 + 1)} for n in range(8)]
    path.write_text("[\n" + ",\n\n".join(json.dumps(one, indent=1) for one in members) + "\n]\n")
    text, found = path.read_text(), {}
    for stripe in range(stripes):
        task = ReadTask(0, "jsonl", str(path), stripe, stripes, size=1, layout="array")
        of_task = list(rows.json_rows(task))
        assert [row for _, row in of_task] == members[stripe::stripes]
        found |= dict(of_task)
    lines = text.splitlines()
    assert sorted(found) == [n for n, line in enumerate(lines) if line == "{"]


def records_in(tmp_path, *of_file: dict, together: bool = False, **source) -> list[TextRecord]:
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in of_file))
    given = Source(source=str(path), **source)
    return list(records(task_of(path, "jsonl"), given, together))


def test_records_may_have_a_hundred_texts_of_a_kind(tmp_path):
    row = {"text": "a", "positive": "b", "negative": [f"n{n}" for n in range(MOST_NEGATIVES)]}
    (one,) = records_in(tmp_path, row)
    assert one.texts[:4] == ("a", "b", "n0", "") and one.texts[4:] == tuple(f"n{n}" for n in range(1, 100))
    row["negative"].append("more")
    with pytest.raises(UserError, match="101 negatives, more than 100"):
        records_in(tmp_path, row)
    row = {"text": "a", "positive": [f"p{n}" for n in range(MOST_POSITIVES)]}
    assert len(records_in(tmp_path, row)) == 100 and len(records_in(tmp_path, row, together=True)) == 1
    row["positive"].append("more")
    assert len(records_in(tmp_path, row)) == 101
    with pytest.raises(UserError, match="101 positives together, more than 100"):
        records_in(tmp_path, row, together=True)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": {"title": "x"}}, r"the text is .*title.*, not text"),
        ({"text": {"text": 5}}, "not text"),
        ({"text": "a", "positive": 5}, "the positive is 5, not text"),
        ({"text": "a", "augmented": ["b"]}, "the augmented is .*, not text"),
        ({"text": ["a"]}, "not text"),
        ({"text": " "}, "the record has no text"),
        ({"text": "a", "label": -1}, "the label is -1, not a whole number"),
        ({"text": "a", "label": 2**31}, "not a whole number"),
        ({"text": "a", "label": True}, "the label is True"),
        ({"text": "a", "label": 1.0}, "not a whole number"),
        ({"text": "a", "positive": "b", "score": True}, "the score is True"),
        ({"text": "a", "positive": "b", "score": 3.5e38}, "not a number of float32"),
        ({"text": "a", "positive": "b", "score": float("nan")}, "not a number of float32"),
        ({"text": "a", "score": 1}, "a score is of a text and one positive"),
        ({"text": "a", "positive": ["b", "c"], "score": 1}, "a score is of a text and one positive"),
        ({"text": "a", "positive": "b", "negative": "c", "score": 1}, "a score is of a text"),
        ({"text": "a", "positive": "b", "label": 1, "score": 1}, "a score is of a text"),
        ({"text": "a", "sent0": "b"}, "there are two columns for text: text, sent0"),
        ({"text": "a", "negative1": "b", "negative_1": "c"}, "there are two columns for negative1"),
        ({"sentence1": "a", "sentence2": "b", "label": 1}, "a label beside sentence2"),
        ({"text": "a", "positiv": "b"}, "did you mean 'positive'"),
        ({"positive": "b"}, "there is no column 'text'; there are positive"),
    ],
)
def test_what_is_no_record_is_refused(row, said, tmp_path):
    with pytest.raises(UserError, match=f"line 1: .*{said}"):
        records_in(tmp_path, row)


def test_edges_of_labels_and_scores_and_passages_are_taken(tmp_path):
    for label in (0, 2**31 - 1):
        assert records_in(tmp_path, {"text": "a", "label": label})[0].label == label
    for score in (-3.4e38, 3.4e38, 0, 1):
        found = records_in(tmp_path, {"text": "a", "positive": "b", "score": score})[0].label
        assert found == score and type(found) is float
    passage = {"text": {"title": "T", "text": "body"}, "positive": {"title": None, "text": " b "}}
    assert records_in(tmp_path, passage)[0].texts == ("T body", "b", "", "")
    row = {"text": "a", "negative_10": "n10", "negative_2": "n2", "negative": "n1"}
    assert records_in(tmp_path, row)[0].texts == ("a", "", "n1", "", "n2", "n10")
    for record in (TextRecord(("a", "b", "c", "d", "e"), 3, 0), TextRecord(("a", "", "", ""), 2.5, 0),
                   TextRecord(("a", "", "", ""), None, 0)):  # fmt: skip
        texts, label = split_joined(record.joined().decode())
        assert (tuple(texts), label, type(label)) == (record.texts, record.label, type(record.label))
    with pytest.raises(UserError, match=r"line 2: this record has no label, and .*line 1 has one"):
        records_in(tmp_path, {"text": "a", "label": 1}, {"text": "b"})
    with pytest.raises(UserError, match=r"line 2: this record has a label, and .*line 1 has none"):
        records_in(tmp_path, {"text": "a"}, {"text": "b", "label": 1})


# -- structure -------------------------------------------------------------


def table(path: Path, rows_: list[dict]) -> Path:
    path.write_text("\n".join([",".join(rows_[0]), *(",".join(row.values()) for row in rows_)]) + "\n")
    return path


@pytest.mark.parametrize(
    ("length", "different", "found"),
    [(20, 2, True), (19, 2, False), (20, 1, False), (25, 4, True)],
)
def test_a_second_column_is_a_text_if_it_is_long_and_differs(length, different, found, tmp_path):
    """Of four rows: 20 characters in the mean, and two different ones."""
    rows_ = [{"name": f"n{n}", "remark": chr(97 + n % different) * length} for n in range(4)]
    path = table(tmp_path / "a.csv", rows_)
    columns = columns_of(task_of(path, "csv"), Source(source=str(path)))
    assert columns == (("name", "remark") if found else None)


def test_columns_that_belong_together_are_known_by_their_names(tmp_path):
    def columns(*names, whole=False, kind="csv", **source):
        path = table(tmp_path / f"a.{kind}", [{name: f"{name}x" for name in names}])
        return columns_of(task_of(path, kind), Source(source=str(path), **source), whole)

    assert columns("id", "body", "title") == ("title", "body") == columns("body", "title", "summary")
    assert columns("answer", "question") == ("question", "answer") and columns("sent1", "sent0") == (
        "sent0",
        "sent1",
    )
    assert columns("text", "positive") == ("text", "positive") and columns("text", "other") is None
    assert columns("title", "body", text_key="title") is None and columns("a") is None
    assert columns("id", "title", "body", "summary", whole=True) == ("title", "body", "summary")
    assert columns("title", "zzz", whole=True) is None
    (tmp_path / "a.csv").write_text("title,text\n1,2\n3,4\n")
    assert columns_of(task_of(tmp_path / "a.csv", "csv"), Source(source="a")) is None  # numbers
    assert columns_of(task_of(tmp_path / "a.csv", "text"), Source(source="a")) is None


@pytest.mark.parametrize(
    ("declared", "encoding", "good"),
    [
        ('<meta charset="iso-8859-1">', "cp1252", True),
        ("<meta charset=latin1>", "cp1252", True),
        ('<?xml encoding="utf-16"?>', "cp1252", False),
        ('<meta charset="nonsense">', "cp1252", False),
        ("<meta charset='iso-8859-5'>", "iso-8859-5", True),
        ("", "cp1252", False),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_declares(declared, encoding, good, tmp_path):
    text = "Д" if encoding == "iso-8859-5" else "é“"
    path = tmp_path / "a.html"
    path.write_bytes((f"<head>{declared}</head><h1>A {text}</h1>").encode(encoding))
    task = task_of(path, HTML)
    if good:
        (document,) = structured(task, Source(source=str(path)), RowFaults())
        assert document.sections == ((f"A {text}", ""),)
    else:
        with pytest.raises(UserError, match="is not UTF-8"):
            list(structured(task, Source(source=str(path)), RowFaults()))
    with pytest.raises(UserError, match="longer than"):
        list(
            structured(task_of(path, HTML, longest=path.stat().st_size - 1), Source(source="a"), RowFaults())
        )


def test_titles_lists_and_lengths_of_pairs_at_their_edges():
    def kinds(text, **more):
        counts = Counter()
        return pairs_of(Document(text, **more), counts=counts), counts

    words = " ".join(["word"] * 15)
    assert kinds(f"{words}\nIt is a text below it.")[0]["title"] == [(words, "It is a text below it.")]
    assert "title" not in kinds(f"{words} more\nIt is a text below it.")[0]
    for end in ".!?:;,…。！？":
        assert "title" not in kinds(f"A title{end}\nIt is a text below it.")[0]
    assert "title" not in kinds("A title\n \n")[0] and "title" not in kinds("\nA title")[0]
    found, counts = kinds("Title\nOne two three four")
    assert "title" not in found and counts["pairs_too_short"] == 2  # no neighbours either
    assert kinds("Title\nOne two three four five")[0] == {"title": [("Title", "One two three four five")]}
    body = "x " * 600
    (pair,) = kinds(body, title="T")[0]["columns"]
    assert pair[0] == "T" and len(pair[1]) <= MOST_CHARACTERS == 1000 and pair[1].endswith("x")
    assert len(pairs_of(Document("y" * 1000, title="a b c"), ["columns"]).get("columns", [])) == 0  # one word
    sections_ = (
        ("See also", "Ships, Boats\nHarbours"),
        ("Body", "It is a text of words here."),
        ("", "No heading."),
    )
    found, counts = kinds("", sections=sections_)
    assert found["heading"] == [("Body", "It is a text of words here.")] and counts["pairs_of_lists"] == 1
    text = "One is here now. Two is here now. Three is here now. Four is so. Five is here too."
    neighbours = kinds(text)[0]["neighbour"]
    assert neighbours == [("One is here now.", "Two is here now.")]  # of four words each; the odd one is left


def test_pairs_of_other_languages_are_dropped():
    german = "Das ist ein ganz gewöhnlicher deutscher Satz über das Wetter."
    english = "This is quite an ordinary sentence about the weather in English."
    assert unwanted((german, english), "", "any") == ""
    assert unwanted((german, english), "", "same") == "of_two_languages"
    assert unwanted((german, german), "", "same") == unwanted(("ok", german), "", "same") == ""
    assert unwanted((german, german), "", "en") == "in_de" and unwanted((german, english), "", "en,de") == ""
    assert unwanted((german, english), "", "de") == "in_en"
    assert unwanted(("ok", "so"), german, "en") == "in_de" and unwanted(("ok", "so"), "", "en") == ""
    for good in ("any", "same", "de", "en,de"):
        require_known(good)
    for bad in ("xx", "de,any", "en,,de"):
        with pytest.raises(UserError, match="is none of any, same"):
            require_known(bad)


def test_a_heading_has_those_above_it_before_it():
    text = "# A\n\nx\n\n### C\n\ny\n\n## B\n\nz\n\n## A\n\n# D\n"
    assert sections(text, MARKDOWN) == [("A", "x"), ("A: C", "y"), ("A: B", "z"), ("A", ""), ("D", "")]
    assert sections("z\n\n# B\n\ny", MARKDOWN, "Top") == [("Top", "z"), ("B", "y")]


@pytest.mark.parametrize(("width", "found"), [(39, 0), (40, 40), (120, 120), (121, 0)])
def test_margins_are_from_40_to_120(width, found):
    """Lines that fill their width exactly, in one paragraph of plain words and commas."""
    lines = []
    for number in range(12):
        line = "some plain, words of the text, and others, " * 4
        lines.append(
            f"{line[: width - 2].rstrip()}{'a' * width}"[: width - 1] + "y" if number < 11 else "the end"
        )
    assert margin("\n".join(lines) + "\n") == found


@pytest.mark.parametrize(
    ("sentence", "good"),
    [
        ("It is of a b cdefghijkl.", True),  # 24 characters
        ("It is of a b cdefghijk.", False),
        *((f"It is {'word ' * 115}{'x' * more}end{mark}", more < 16) for more in (15, 16) for mark in ".!?"),
        ('"It is a sentence of rather long words, quoted."', True),
        ("it is a sentence of words.", False),
        ("It is a sentence of words", False),
        ("It is a sentence of = 5 words.", False),
        ("It is a sentence of f() and words.", False),
        ("It is a sentence of a.b.c and words.", False),
        ("It is a sentence of --flags and words.", False),
        ("It is a sentence of camelCase and otherNames here.", False),
        ("Birds sing songs loudly every morning.", False),  # none of the common words
        ("Birds sing songs loudly at morning.", True),
        ("Everybody understands that sentence.", False),  # four words
        ("It is a 12345 sentence 12345 of words.", False),  # 72% of its characters are letters at least
        ("It is a 123 sentence of words.", False),
        ("It is a 1 sentence of long words and of others.", True),
    ],
)
def test_english_sentences_are_told_at_their_edges(sentence, good):
    assert is_english_sentence(sentence) is good


def test_modules_are_read_stripe_by_stripe(tmp_path, monkeypatch):
    docs = {
        "a.py": '"""It is the first of all the modules that are here."""\n',
        "b.py": b"\xff\xfe broken",
        "c.py": "x = 1\n",
        "d-1.dist-info/METADATA": "Name: d\n\nIt is the description of a package that you may read.\n",
    }
    for name, text in docs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    listed = tuple((str(tmp_path / name), 1) for name in docs)
    monkeypatch.setattr("pretrain.prepare.sources.embedded.python_files", lambda: listed)
    first, third, last = list(module_documents(0, 1))
    assert first == "It is the first of all the modules that are here." and third == ""
    assert last == "It is the description of a package that you may read."
    assert [list(module_documents(n, 3)) for n in range(3)] == [[first, last], [], [third]]
