"""Every kind of source gives the same documents and records; what cannot be read is named by file and line or
row."""

import bz2
import gzip
import io
import json
import lzma
import os
from pathlib import Path

import pytest
from test_prepare import run
from test_records import as_csv, as_jsonl, found_in, plain, read, some_triples

from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, Source
from pretrain.prepare.run import prepare
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import records as records_of
from pretrain.prepare.sources.rows import RowFaults, documents

datasets = pytest.importorskip("datasets")
FIELDS = ("text", "positive", "negative", "augmented", "label")
DEEP = '{"text": ' + "[" * 50_000 + "]" * 50_000 + "}"


def compressed(data: bytes, suffix: str) -> bytes:
    import zstandard

    packers = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.ZstdCompressor().compress,
    }
    return packers[suffix](data) if suffix else data


def put(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(compressed(data, path.suffix if path.suffix in (".gz", ".bz2", ".xz", ".zst") else ""))
    return path


def as_tsv(rows: list[dict], fields: tuple[str, ...]) -> str:
    lines = [[str(row[field]) if row.get(field) is not None else "" for field in fields] for row in rows]
    return "".join("\t".join(line) + "\n" for line in [list(fields), *lines])


def as_parquet(rows: list[dict], fields: tuple[str, ...]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    stream = io.BytesIO()
    table = pyarrow.table({field: [row.get(field) for row in rows] for field in fields})
    pyarrow.parquet.write_table(table, stream, row_group_size=7)
    return stream.getvalue()


def all_kinds(folder: Path, rows: list[dict], fields: tuple[str, ...]) -> dict[str, Source]:
    """The rows as a source of every kind; of the compressed ones not every pair. The hub is stood in for by a
    folder."""
    made = {
        "jsonl": put(folder / "a.jsonl", as_jsonl(rows)),
        "jsonl.bz2": put(folder / "a.jsonl.bz2", as_jsonl(rows)),
        "json": put(folder / "a.json", "\ufeff" + json.dumps(rows)),
        "json.gz": put(folder / "a.json.gz", json.dumps(rows, indent=1, ensure_ascii=False)),
        "objects over lines": put(folder / "b.json", "\n".join(json.dumps(row, indent=1) for row in rows)),
        "csv": put(folder / "a.csv", as_csv(rows, fields)),
        "csv.xz": put(folder / "a.csv.xz", as_csv(rows, fields)),
        "tsv": put(folder / "a.tsv", as_tsv(rows, fields)),
        "tsv.zst": put(folder / "a.tsv.zst", as_tsv(rows, fields)),
        "parquet": put(folder / "a.parquet", as_parquet(rows, fields)),
    }
    table = datasets.Dataset.from_list([{field: row.get(field) for field in fields} for row in rows])
    table.save_to_disk(str(folder / "plain"))
    datasets.DatasetDict({"train": table, "test": table.select(range(2))}).save_to_disk(
        str(folder / "splits")
    )
    made |= {"disk": folder / "plain", "splits": folder / "splits"}
    for part in range(3):
        third = rows[part * len(rows) // 3 : (part + 1) * len(rows) // 3]
        put(folder / f"OWNER/NAME/data/train-{part:05d}-of-00003.parquet", as_parquet(third, fields))
    sources = {name: Source(source=str(place)) for name, place in made.items()}
    for streaming in (True, False):
        sources[f"hub, streaming {streaming}"] = Source(source="hub:OWNER/NAME", streaming=streaming)
    return sources


@pytest.fixture
def at_home(tmp_path, monkeypatch):
    """Small tasks, and hub names found in `tmp_path`."""
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    return tmp_path


def everything(source: Source, faults: RowFaults | None = None) -> list[str]:
    return [text for task in plan_tasks([source]) for text in documents(task, source, faults or RowFaults())]


def test_every_kind_of_source_gives_every_document_once(at_home):
    rows = [{"text": f"Document {number}, \"quoted\" and 'single'.", "other": number} for number in range(90)]
    for name, source in all_kinds(at_home, rows, ("text", "other")).items():
        assert len(plan_tasks([source])) > 1, name
        assert sorted(everything(source)) == sorted(row["text"] for row in rows), name


def test_every_kind_of_source_gives_every_record_once_and_whole(at_home):
    rows = some_triples(90)
    for name, source in all_kinds(at_home, rows, FIELDS).items():
        assert len(plan_tasks([source], records=True)) > 2, name
        assert found_in(read(source.source, streaming=source.streaming)) == plain(rows), name


@pytest.mark.full
@pytest.mark.parametrize("unit", ["sentence", "record"])
def test_the_kind_of_source_and_the_workers_change_no_byte(at_home, unit):
    rows = [
        {"text": f"Here is document {number} of them. It has {number * 7} words or more."}
        for number in range(80)
    ]
    found = {}
    for name, source in all_kinds(at_home, rows, ("text",)).items():
        if name in ("jsonl", "csv.xz", "parquet", "splits", "hub, streaming True"):
            config = DataConfig(sources=[source], unit=unit, vocabulary=320, heldout=0.2)
            workers = 2 if name == "parquet" else 1
            found[name] = prepare(config, at_home / f"out {name}", workers=workers, progress=False)["splits"]
    assert all(splits == found["jsonl"] for splits in found.values())


@pytest.mark.parametrize("size", [1 << 24, 4000])
def test_running_text_in_rows_is_joined_with_its_neighbours(at_home, monkeypatch, size):
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", size)
    lines = [f"Sentence number {number} of a long book." for number in range(3000)]
    for name, source in all_kinds(at_home, [{"text": line} for line in lines], ("text",)).items():
        found = everything(Source(source=source.source, streaming=source.streaming, layout="passages"))
        assert "\n".join(found).split("\n") == lines, name
        assert len(found) > 2 and (size < 1 << 24 or len(found) < 8), name


@pytest.mark.parametrize(
    "name,inflation,most",
    [
        ("a.txt", 1.0, 4096), ("a.jsonl", 1.0, 4096), ("a.csv", 1.0, 8), ("a.tsv", 1.0, 8),
        ("a.txt.gz", 3.3, 8), ("a.jsonl.zst", 3.3, 8), ("a.csv.bz2", 4.0, 8), ("a.TXT.xz", 4.0, 8),
        ("a.md", 1.0, 1), ("a.html.gz", 3.3, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("tasks", [1, 2, 8, 20])
def test_a_source_has_a_task_for_so_much_text_and_not_more_than_may_read_it(
    name, inflation, most, tasks, tmp_path, monkeypatch
):
    stored = 4000
    path = tmp_path / name
    path.write_bytes(b"x" * stored)
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", stored * inflation / tasks)
    monkeypatch.setattr("pretrain.prepare.sources.planning.columns_of", lambda *_: None)
    monkeypatch.setattr("pretrain.prepare.sources.planning.read_head", lambda file: "x\n" * 9)
    monkeypatch.setattr("pretrain.prepare.sources.planning.is_array", lambda file: False)
    monkeypatch.setattr("pretrain.prepare.sources.planning.require_utf8", lambda file: None)
    planned = plan_tasks([Source(source=str(path))], structure=True)
    assert [task.stripe for task in planned] == list(range(min(tasks, most)))
    assert {task.stripes for task in planned} == {len(planned)}
    assert {task.size for task in planned} == {int(stored * inflation) // len(planned)}


def test_a_tsv_file_has_no_quotes(tmp_path):
    path = put(tmp_path / "a.tsv", 'text\tlabel\n"Half a quote\t1\nIt\'s "two"\t0\n')
    assert [record.texts[0] for record in read(path)] == ['"Half a quote', 'It\'s "two"']


def test_a_carriage_return_in_a_long_first_line_ends_no_line(tmp_path):
    """Wherever the first read ends."""
    lines = ["Some\r of \r these " + "long " * 80_000, "A second line."]
    for name in ("a.txt", "a.txt.gz"):
        found = everything(Source(source=str(put(tmp_path / name, "\n".join(lines))), layout="lines"))
        assert [" ".join(text.split()) for text in found] == [" ".join(line.split()) for line in lines]


def test_quotes_of_csv_may_be_escaped(tmp_path):
    path = put(tmp_path / "a.csv", 'text,n\n"He said \\"yes\\", and left.",1\n"A, b",2\n')
    assert everything(Source(source=str(path))) == ['He said "yes", and left.', "A, b"]
    put(path, 'text,n\n"The ""C:\\"" drive, at C:\\",1\n')
    assert everything(Source(source=str(path))) == ['The "C:\\" drive, at C:\\']


def test_fields_of_csv_may_stand_between_semicolons(tmp_path):
    """As spreadsheets write them where a comma is in numbers."""
    path = put(
        tmp_path / "a.csv",
        '\ufeffn;text\r\n1,5;"Ein Satz; mit \\"Marken\\", und Komma."\r\n2;Noch einer.\r\n',
    )
    assert everything(Source(source=str(path))) == ['Ein Satz; mit "Marken", und Komma.', "Noch einer."]
    put(path, 'id;"a note, long";text\n1;x, y;A, b.\n')
    assert everything(Source(source=str(path))) == ["A, b."]
    for header in ("text", "text,a;b"):  # a column alone, and commas
        put(path, f"{header}\nA; b.{',' * header.count(',')}\n")
        assert everything(Source(source=str(path))) == ["A; b."]
    put(path, "anchor;positive\nA, b.;C, d.\n")
    source = Source(source=str(path))
    (found,) = records_of(plan_tasks([source], records=True)[0], source)
    assert found.texts[:2] == ("A, b.", "C, d.")


@pytest.mark.parametrize("rows", ['{"text": null}\n{"text": ""}\n', "text,n\n,1\n,2\n"])
def test_records_without_text_are_counted(tmp_path, rows):
    path = put(tmp_path / f"a.{'jsonl' if rows[0] == '{' else 'csv'}", rows)
    faults = RowFaults()
    assert everything(Source(source=str(path)), faults) == []
    assert (faults.counts["records_without_text"], faults.named) == (2, [])


# ---- faults
# ------------------------------------------------------------------------------------------------------------

GOOD = '{"text": "Good one."}\n'


@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize(
    "line,why",
    [
        (b'{"text": "\\ud800"}', "not Unicode"),
        (b'{"text": "half \\udc12 of it"}', "not Unicode"),
        (b'{"text": "caf\xe9"}', "not Unicode"),
        (DEEP.encode(), "nested too deep"),
        (b'{"text": ', "not JSON"),
        (b"7" * 5000, "not JSON|not a JSON object"),
        (b'["text"]', "not a JSON object"),
        (b'{"text": 5}', "holds no text|not text"),
        (b'{"text": [{"text": "x"}]}', "fields within fields are not read|not text"),
        (b'{"body": "x"}', "no field 'text'|no column"),
        (b'{"text": null}', "holds no text|no text"),
    ],
)
def test_a_broken_line_is_counted_and_named_and_records_refuse_it(tmp_path, line, why, compression):
    path = put(tmp_path / f"a.jsonl{compression}", GOOD.encode() * 3 + line + b"\n" + GOOD.encode() * 2)
    faults = RowFaults()
    if line != b'{"text": null}':  # an empty cell, of which there is nothing to read
        assert everything(Source(source=str(path)), faults) == ["Good one."] * 5
        assert faults.counts == {"broken_records": 1}
        assert len(faults.named) == 1 and faults.named[0].startswith(f"{path}, line 4: ")

    with pytest.raises(UserError, match=rf"a\.jsonl(\.gz)?, line 4: .*({why})"):
        read(path)


def test_it_does_not_matter_where_a_broken_line_stands(tmp_path, monkeypatch):
    """Also as the first of a task; a file of nothing else is refused."""
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 200)
    lines = [GOOD.strip()] * 100
    for number in range(0, 100, 9):
        lines[number] = '{"text": '
    path = put(tmp_path / "a.jsonl", "\n".join(lines))
    faults = RowFaults()
    assert len(everything(Source(source=str(path)), faults)) == 88 and faults.counts["broken_records"] == 12
    put(path, '{"text": \n' * 40)
    with pytest.raises(UserError, match=r"a\.jsonl, line 1: not JSON.*of the format that its name says"):
        everything(Source(source=str(path)))


@pytest.mark.parametrize("size", [200, 270])  # inside an object; between two
def test_an_array_that_is_cut_short_is_refused(tmp_path, size):
    whole = json.dumps([{"text": f"Document {number}."} for number in range(10)], indent=0)
    path = put(tmp_path / "a.json", whole[: whole.rindex("},", 0, size) + 2] if size > 200 else whole[:size])
    for reads in (lambda: everything(Source(source=str(path))), lambda: read(path)):
        with pytest.raises(
            UserError, match=r"a\.json, line \d\d: (not JSON, or|the array has no end:) the file is cut short"
        ):
            reads()


@pytest.mark.parametrize(
    "text, why",
    [
        ('[{"text": "a"},\n{"id": ' + "1" * 5000 + "}]", "line 2: not JSON .*digits.*; it begins"),
        (
            '[{"text": "a"},\n{"id": ' + "[" * 30_000 + "]" * 30_000 + "}]",
            "line 2: JSON that is nested too deep",
        ),
        ('[{"text": "a"}', "line 1: the array has no end: the file is cut short"),
        (
            '[{"text": "a"},\nNone,' + ' {"text": "a"},' * 10_000 + "]",
            r"2: longer than .*not JSON from here: 'None",
        ),
    ],
)
def test_a_damaged_member_of_an_array_is_named(tmp_path, text, why):
    with pytest.raises(UserError, match=why):
        everything(Source(source=str(put(tmp_path / "a.json", text)), line_megabytes=0.1))


def test_an_array_may_be_empty(tmp_path):
    assert everything(Source(source=str(put(tmp_path / "a.json", "[\n]\n")))) == []


def test_two_columns_of_one_name_are_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = put(tmp_path / "a.csv", "text,text\na,b\n")
    pyarrow.parquet.write_table(pyarrow.table([["a"], ["b"]], names=["text"] * 2), tmp_path / "a.parquet")
    for place in (path, tmp_path / "a.parquet"):
        with pytest.raises(UserError, match="two columns 'text'"):
            everything(Source(source=str(place)))
        with pytest.raises(UserError, match="two columns for text"):
            read(place)


@pytest.mark.full
def test_a_line_that_is_too_long_is_refused_by_file_and_line(at_home):
    rows = [{"text": "short"}, {"text": "short again"}, {"text": "long " * 30_000}]
    kinds = all_kinds(at_home, rows, ("text",))
    kinds |= {
        name: Source(source=str(put(at_home / name, rows[-1]["text"]))) for name in ("a.txt", "a.txt.gz")
    }
    for name, source in kinds.items():
        short = source.model_copy(update={"line_megabytes": 0.1})
        for records in (False, True):
            with pytest.raises(UserError, match=r", (line|row) \d+: longer than 0\.1 MB.*line_megabytes: N"):
                if records:
                    read(short.source, streaming=short.streaming, line_megabytes=0.1)
                else:
                    everything(short)
        assert max(map(len, everything(source))) == 150_000, name


def test_rows_in_another_encoding_are_refused_with_what_to_do(tmp_path):
    path = put(tmp_path / "a.jsonl.zst", b'{"text": "caf\xe9"}\n' * 9)
    with pytest.raises(UserError, match=r"a\.jsonl\.zst, line 1: .*not UTF-8.* and UTF-8"):
        everything(Source(source=str(path)))
    put(path, b'{"text": "caf\xe9"}\n' * 12)
    with pytest.raises(
        UserError, match=r"is not UTF-8 text .*: zstd -dc \S+ \| iconv -f LATIN1 -t UTF-8 >\S+"
    ):
        everything(Source(source=str(path)))


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path):
    path = put(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + GOOD.strip().encode() + b"\r\n" + GOOD.encode())
    faults = RowFaults()
    assert everything(Source(source=str(path)), faults) == ["Good one."] * 2 and not faults.counts
    assert [record.texts[0] for record in read(path)] == ["Good one."] * 2


def test_bytes_that_are_not_utf8_are_named_in_text_and_refused_in_records(tmp_path):
    # Behind the first megabyte, which is looked at before anything else.
    lines = [b"A plain line of text, like all the others here."] * 30_000
    lines[25_000] = b"A caf\xe9 of the wrong encoding."
    path = put(tmp_path / "a.txt", b"\n".join(lines))
    faults = RowFaults()
    assert "A caf of the wrong encoding.\n" in everything(Source(source=str(path)), faults)
    assert faults.counts == {"documents_not_utf8": 1} and f"{path}, line 25001: not UTF-8" in faults.named[0]
    with pytest.raises(UserError, match=r"a\.txt, line 25001: the text is not Unicode"):
        read(path)


@pytest.mark.parametrize("suffix", ["csv", "tsv"])
def test_broken_rows_of_tables(tmp_path, suffix):
    mark = {"csv": ",", "tsv": "\t"}[suffix]
    rows = [b"text,label", b"one,1", b"two", b"caf\xe9,1", b"four,0"]
    path = put(tmp_path / f"a.{suffix}", b"\n".join(rows).replace(b",", mark.encode()))
    faults = RowFaults()
    assert everything(Source(source=str(path)), faults) == ["one", "four"]
    assert faults.counts["broken_records"] == 2
    assert [fault.split(": ")[0] for fault in faults.named] == [f"{path}, line 3", f"{path}, line 4"]
    with pytest.raises(UserError, match=rf"a\.{suffix}, line 3: 1 fields where the header has 2"):
        read(path)
    with pytest.raises(UserError, match=r"has no column 'body'; it has text, label"):
        everything(Source(source=str(path), text_key="body"))
    if suffix == "csv":
        put(path, 'text,label\na,1\n"b,1\n')
        with pytest.raises(UserError, match=r"a\.csv, line 3: not csv"):
            everything(Source(source=str(path)))


def test_broken_rows_of_parquet_and_datasets(at_home):
    import pyarrow
    import pyarrow.parquet

    raw = [b"good"] * 30 + [b"caf\xe9"] + [b"good"] * 5
    array = pyarrow.array(raw, pyarrow.binary())
    # arrow does not look at the bytes
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), array.buffers())
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), at_home / "a.parquet", row_group_size=8)
    faults = RowFaults()
    assert everything(Source(source="a.parquet"), faults) == ["good"] * 35
    assert faults.named[0].startswith("a.parquet, row 31: not UTF-8")
    with pytest.raises(UserError, match=r"a\.parquet, row 31: not UTF-8"):
        read(Path("a.parquet"))
    datasets.Dataset.from_dict({"text": [1, 2, 3]}).save_to_disk("numbers")
    with pytest.raises(UserError, match=r"numbers, row 1: field 'text' holds no text, but '1'"):
        everything(Source(source="numbers"))
    datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0.5, 1.0]}).save_to_disk("labels")
    with pytest.raises(UserError, match=r"labels, row 1: the label is 0\.5, not a whole number"):
        read(Path("labels"))
    with pytest.raises(UserError, match=r"labels has no column 'body'; it has text, label"):
        everything(Source(source="labels", text_key="body"))


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.csv.bz2", "a.tsv.xz", "a.txt.bz2", "a.txt.xz", "a.jsonl.zst", "a.parquet"]
)
def test_damaged_files_are_named(tmp_path, name):
    rows = [{"text": os.urandom(30).hex()} for _ in range(2000)]
    contents = {"jsonl": as_jsonl(rows), "csv": as_csv(rows, ("text",)), "tsv": as_tsv(rows, ("text",)),
                "txt": "\n".join(row["text"] for row in rows), "parquet": as_parquet(rows, ("text",
                ))}  # fmt: skip
    path = put(tmp_path / name, contents[name.split(".")[1]])
    whole = path.read_bytes()
    for damaged in (
        whole[: len(whole) // 2],
        whole[: len(whole) // 2] + b"\0" * 4000 + whole[len(whole) // 2 + 4000 :],
    ):
        path.write_bytes(damaged)
        for reads in (lambda: everything(Source(source=str(path))), lambda: read(path)):
            try:
                reads()
            except UserError as error:
                assert str(path) in str(error)
            else:
                # of zeros inside a page arrow may make text
                assert name == "a.parquet" and len(damaged) == len(whole)


def test_broken_lines_stand_in_the_manifest_and_in_what_is_printed(tmp_path, capsys):
    lines = [
        json.dumps({"text": f"Here is document number {number} of all of them."}) for number in range(200)
    ]
    lines[50] = '{"text": "\\ud800"}'
    lines[70] = DEEP
    path = put(tmp_path / "a.jsonl", "\n".join(lines))
    words = [
        "--source",
        str(path),
        "--out",
        str(tmp_path / "out"),
        "--vocabulary",
        "320",
        "--progress",
        "false",
    ]
    assert run(words) == 0
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["counts"]["broken_records"] == 2 and manifest["counts"]["documents"] == 198
    assert [fault.split(": ")[0] for fault in manifest["faults"]] == [f"{path}, line 51", f"{path}, line 71"]
    printed = capsys.readouterr().out
    assert (
        f"not read: {path}, line 51: field 'text' is not Unicode" in printed
        and "line 71: JSON that is nested" in printed
    )
    assert run([*words[:3], str(tmp_path / "records"), *words[4:], "--unit", "record"]) == 2
    assert f"{path}, line 51" in capsys.readouterr().err


def test_all_frames_of_a_zst_file_are_read(tmp_path):
    """pzstd, and files put end to end, have several."""
    lines = [f"Line number {number} of the text." for number in range(20_000)]
    parts = [
        "".join(f"{line}\n" for line in lines[start : start + 5000]).encode()
        for start in range(0, 20_000, 5000)
    ]
    skipped = b"\x50\x2a\x4d\x18\x04\0\0\0size"  # a frame that pzstd puts in front of each
    frames = [skipped + compressed(part, ".zst") for part in parts]
    path = tmp_path / "a.txt.zst"
    path.write_bytes(b"".join(frames))
    assert [text.strip() for text in everything(Source(source=str(path)))] == lines
    path.write_bytes(b"".join(frames)[:-5])
    with pytest.raises(UserError, match=r"a\.txt\.zst is cut short"):
        everything(Source(source=str(path)))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_lines_may_end_in_carriage_returns_alone(at_home, suffix):
    lines = [f"Line {number} of the text." for number in range(300)]
    source = Source(source=str(put(at_home / f"a.txt{suffix}", "\r".join(lines))))
    assert len(plan_tasks([source])) > 1
    assert sorted(text.strip() for text in everything(source)) == sorted(lines)
    rows = [{"text": line} for line in lines]
    for name, text in {"a.jsonl": as_jsonl(rows), "a.csv": as_csv(rows, ("text",))}.items():
        path = put(at_home / f"{name}{suffix}", text.replace("\r", "").replace("\n", "\r"))
        assert sorted(everything(Source(source=str(path)))) == sorted(lines)
