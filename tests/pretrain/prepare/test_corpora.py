"""Sources: every format and layout gives each document once, cut into however many tasks; misfits are
named."""

import bz2
import gzip
import json
import lzma
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard

from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, Source
from pretrain.prepare.sources import embedded
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.readers import ReadTask, detect_layout, read_head
from pretrain.prepare.sources.records import records
from pretrain.prepare.sources.rows import RowFaults, _open_dataset, documents
from pretrain.prepare.sources.structured import structured


def everything(source: Source, faults: RowFaults | None = None) -> list[str]:
    faults = faults or RowFaults()
    return [document.whole for task in plan_tasks([source]) for document in structured(task, source, faults)]


def write(path: Path, text: str) -> Path:
    data = text.encode()
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(data))
    elif path.suffix == ".zst":
        path.write_bytes(zstandard.ZstdCompressor().compress(data))
    else:
        path.write_bytes(data)
    return path


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr("pretrain.prepare.sources.planning.TASK_BYTES", 64)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_lines(tmp_path, small_tasks, suffix):
    lines = [f"line number {i} of the text" for i in range(100)]
    path = write(tmp_path / f"a.txt{suffix}", "\n".join(lines))
    source = Source(source=str(path))
    assert len(plan_tasks([source])) > 3
    assert sorted(text.strip() for text in everything(source)) == sorted(lines)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_paragraphs(tmp_path, small_tasks, suffix):
    made = ["\n".join(f"document {i} line {j}" for j in range(1 + i % 4)) for i in range(60)]
    path = write(tmp_path / f"a.txt{suffix}", "\n\n".join(made) + "\n\n\n")
    assert detect_layout(read_head(path)) == "paragraphs"
    assert sorted(text.strip() for text in everything(Source(source=str(path)))) == sorted(made)


def test_every_byte_range_of_any_text_gives_each_document_once(tmp_path):
    """Whatever blanks and breaks a file has, its ranges together give what reading it whole gives."""
    random_ = random.Random(0)
    for trial in range(150):
        pieces = ["a", "bc ", "\n", "\n", "\n\n", " \n", "d\n", "\t", "é"]
        path = write(
            tmp_path / "t.txt", "".join(random_.choice(pieces) for _ in range(random_.randrange(1, 60)))
        )
        size = path.stat().st_size
        for layout in ("lines", "paragraphs"):
            whole = list(
                documents(ReadTask(0, "text", str(path), 0, 1, size, layout), Source(source="x"), RowFaults())
            )
            for stripes in (2, 3, 7):
                cut = []
                for stripe in range(stripes):
                    task = ReadTask(0, "text", str(path), stripe, stripes, size, layout)
                    cut += documents(task, Source(source="x"), RowFaults())
                assert cut == whole, (trial, layout, stripes, path.read_bytes())


def test_passages_keep_running_text_together(tmp_path):
    text = "".join(f"Sentence number {i} of a long book.\n" for i in range(5000))
    path = write(tmp_path / "book.txt", text)
    found = everything(Source(source=str(path), layout="passages"))
    assert "\n".join(found) + "\n" == text and 4 < len(found) < 8
    rows = write(
        tmp_path / "book.jsonl", "".join(json.dumps({"text": line}) + "\n" for line in text.split("\n"))
    )
    assert "\n".join(everything(Source(source=str(rows), layout="passages"))).strip() == text.strip()


def test_files_of_a_folder_that_are_not_read_are_named(tmp_path, capsys):
    for name in ("a.txt", "notes.odt", "b.docx"):
        write(tmp_path / name, "A text of some words.")
    assert everything(Source(source=str(tmp_path))) == ["A text of some words."]
    said = "2 of 3 files are not read, by their names: b.docx, notes.odt"
    assert said in capsys.readouterr().err


def test_files_in_markup_are_read_without_their_marks(tmp_path):
    write(tmp_path / "a.md", "# Title\n\nSome *plain* [words](http://x.y/z) of\na text.\n\n```\ncode\n```\n")
    write(tmp_path / "b.html.gz", "<html><body><nav>Home</nav><h1>Head</h1><p>A &amp; <b>B</b>.</p></body>")
    write(tmp_path / "c.txt", "Not *marked* <b>up</b>.")
    expected = ["Title\nSome plain words of a text.", "Head\nA & B.", "Not *marked* <b>up</b>."]
    assert everything(Source(source=f"{tmp_path}/*")) == expected
    assert everything(Source(source=str(tmp_path))) == expected[2:]  # a README beside data is not the text
    (tmp_path / "c.txt").unlink()
    assert everything(Source(source=str(tmp_path))) == expected[:2]
    assert everything(Source(source=str(tmp_path / "a.md"), format="text")) != expected[:1]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_jsonl(tmp_path, small_tasks, suffix):
    rows = [{"body": f"text {i}\nsecond line", "id": i} for i in range(40)]
    path = write(tmp_path / f"a.jsonl{suffix}", "".join(json.dumps(row) + "\n" for row in rows))
    source = Source(source=str(path), text_key="body")
    assert sorted(everything(source)) == sorted(row["body"] for row in rows)
    with pytest.raises(UserError, match="no field 'text'"):
        everything(Source(source=str(path)))
    with pytest.raises(UserError, match=r"no field 'log\.body' .*within fields are not read: docs/data\.md"):
        everything(Source(source=str(path), text_key="log.body"))


def test_parquet(tmp_path, small_tasks):
    import pyarrow
    import pyarrow.parquet

    texts = [f"text {i}" for i in range(100)]
    table = pyarrow.table({"content": texts, "other": list(range(100))})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=10)
    source = Source(source=str(tmp_path / "a.parquet"), text_key="content")
    assert len(plan_tasks([source])) > 3
    assert sorted(everything(source)) == sorted(texts)
    with pytest.raises(UserError, match="no column 'text'; it has content, other"):
        plan_tasks([Source(source=str(tmp_path / "a.parquet"))])
    write(tmp_path / "b.parquet", "not parquet")
    with pytest.raises(UserError, match="not a readable parquet"):
        plan_tasks([Source(source=str(tmp_path / "b.parquet"))])


def test_a_saved_dataset(tmp_path, small_tasks):
    datasets = pytest.importorskip("datasets")
    texts = [f"text {i}" for i in range(50)]
    made = datasets.Dataset.from_dict({"text": texts})
    made.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": made, "test": made.select(range(2))}).save_to_disk(
        str(tmp_path / "splits")
    )
    for name in ("plain", "splits"):
        source = Source(source=str(tmp_path / name))
        assert len(plan_tasks([source])) > 1
        assert sorted(everything(source)) == sorted(texts)
    assert len(everything(Source(source=str(tmp_path / "splits"), split="test"))) == 2
    with pytest.raises(UserError, match="no split 'dev'"):
        everything(Source(source=str(tmp_path / "splits"), split="dev"))


def test_a_glob_that_matches_folders_says_that_it_reads_no_file_in_them(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    write(tmp_path / "a" / "one.txt", "Ein Satz.\n")
    with pytest.raises(UserError, match=r"folders are not read \(\S+/a\); .*: \S+/\*/\*\*$") as refused:
        plan_tasks([Source(source=str(tmp_path / "*"))])
    remedy = str(refused.value).rpartition(": ")[2]
    assert len(plan_tasks([Source(source=remedy)])) == 1
    assert "folders are not read" not in capsys.readouterr().err
    write(tmp_path / "two.txt", "Ein Satz.\n")
    assert len(plan_tasks([Source(source=str(tmp_path / "*"))])) == 1
    assert f"folders are not read ({tmp_path}/a); ** reaches" in capsys.readouterr().err


def test_folders_and_globs(tmp_path):
    for name in ("a.txt", "b.txt", "sub/c.jsonl", "notes.odt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, '{"text": "x"}\n' if name.endswith("jsonl") else f"text of {name}\n")
    assert len(everything(Source(source=str(tmp_path)))) == 3
    assert len(everything(Source(source=f"{tmp_path}/*.txt"))) == 2
    assert len(everything(Source(source=f"{tmp_path}/**/*.txt"))) == 2
    assert [task.place for task in plan_tasks([Source(source=f"{tmp_path}/[ab].txt")])] == [
        str(tmp_path / "a.txt"),
        str(tmp_path / "b.txt"),
    ]


def test_a_folder_is_read_through_links_to_other_folders_each_once(tmp_path):
    """A corpus on several disks; a link to a folder above ends nowhere else."""
    for name in ("corpus/a.txt", "other disk/b.txt", "other disk/.hidden/c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        write(tmp_path / name, f"text of {name}\n")
    (tmp_path / "corpus" / "link").symlink_to(tmp_path / "other disk")
    (tmp_path / "other disk" / "above").symlink_to(tmp_path / "corpus")
    places = [task.place for task in plan_tasks([Source(source=f"{tmp_path}/corpus")])]
    assert places == [str(tmp_path / "corpus" / "a.txt"), str(tmp_path / "corpus" / "link" / "b.txt")]


def test_sources_are_written_short():
    config = DataConfig(sources="embedded, wiki.txt@0.5,books/*.txt@2")
    assert [(s.source, s.weight) for s in config.sources] == [
        ("embedded", 1),
        ("wiki.txt", 0.5),
        ("books/*.txt", 2),
    ]
    assert DataConfig(sources=[{"source": "a.txt", "weight": 3, "layout": "lines"}]).sources[0].weight == 3
    for bad in ([], "", [{"source": "a", "weight": 0}], [{"sorce": "a"}]):
        with pytest.raises(ValueError):
            DataConfig(sources=bad)


def test_a_comma_in_the_name_of_a_file_that_is_there_separates_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "Grimm, Kinder.txt", "ein Text")
    write(tmp_path / "a,b,c.txt", "a text")
    for given, found in {
        "Grimm, Kinder.txt": ["Grimm, Kinder.txt"],
        "x.txt,a,b,c.txt@2, Grimm, Kinder.txt,y.txt": ["x.txt", "a,b,c.txt@2", "Grimm, Kinder.txt", "y.txt"],
        "Grimm, Maerchen.txt": ["Grimm", "Maerchen.txt"],
    }.items():
        assert [str(source) for source in DataConfig(sources=given).sources] == found


@pytest.mark.parametrize(
    "name,content,message",
    [
        ("gone.txt", None, "no such file"),
        ("empty.txt", "", "is empty"),
        ("what.bin", "x", "give its `format`"),
        ("a book.epub", "x", r"pandoc -t plain '\S*a book.epub' -o '\S*a book.txt'"),
        ("a.PDF", "x", r"pdftotext \S*a.PDF \S*a.txt"),
        ("a.xml", "<a>x</a>", r"of DocBook: pandoc -f docbook -t plain \S*a.xml -o \S*a.txt"),
        ("a.adoc", "x", r"make HTML of it: asciidoctor \S*a.adoc"),
        ("a.tar.gz", "x", "files of .tar are not read; unpack it"),
        ("a.mbox", "x", "files of .mbox are not read; write a row for each message into a .jsonl"),
        ("zero.txt", "no mark\n" * 20, "is a binary file: it has bytes of zero"),
    ],
)
def test_misfits_are_named(tmp_path, name, content, message):
    if content is not None:
        write(tmp_path / name, content)
    if name == "zero.txt":
        (tmp_path / name).write_bytes(content.encode("utf-16-le"))
    with pytest.raises(UserError, match=f"{name}.*{message}|{message}"):
        plan_tasks([Source(source=str(tmp_path / name))])


@pytest.mark.parametrize(
    "name, content",
    [
        (
            "a talk.srt",
            "1\n00:00:01,000 --> 00:00:02,000\nÇa va,\n\n2\n0 --> 1\nNOTE so\n2\n \n3\n1 --> 2\nof us.\n",
        ),
        (
            "a talk.vtt",
            "WEBVTT\nKind: captions\n\nNOTE of whom\nand when\n\nSTYLE\n::cue { color: red }\n\n1\n"
            "00:01.000 --> 00:02.000 align:start\n<v Émile>Ça va,</v>\n\n0:02.000 --> 0:03.000\nNOTE so\n"
            "<i>2</i>\n\nx\n0:03.000 --> 0:04.000\nof us.\n",
        ),
    ],
)
def test_subtitles_become_running_text_by_the_command_in_their_error(tmp_path, name, content):
    file = tmp_path / name
    file.write_bytes(content.replace("\n", "\r\n").encode("cp1252"))
    for place in (file, tmp_path):
        with pytest.raises(UserError, match=r"files of \.(srt|vtt) are not read; make text of it: ") as error:
            plan_tasks([Source(source=str(place))])
    subprocess.run(str(error.value).split("make text of it: ")[1], shell=True, check=True)
    found = file.with_suffix(".txt").read_text(encoding="cp1252")
    assert " ".join(found.split()) == "Ça va, NOTE so 2 of us."


@pytest.mark.parametrize("name", ["a.md", "a.rst", "a.html.gz"])
def test_markup_holds_no_records_and_is_not_proposed_as_text(tmp_path, name):
    (tmp_path / "docs").mkdir()
    write(tmp_path / "docs" / name, "# A heading")
    for place in (tmp_path / "docs" / name, tmp_path / "docs"):
        with pytest.raises(
            UserError, match=f"{name} is .*no records: `clearly prepare --pairs struc"
        ) as error:
            plan_tasks([Source(source=str(place))], records=True)
        assert "format: text" not in str(error.value)


def test_an_address_is_answered_by_how_to_read_what_is_there():
    for address in ("https://host/logs/a.jsonl.zst", "s3://bucket/logs"):
        with pytest.raises(UserError, match=f"source {address} is an address: download it"):
            plan_tasks([Source(source=address)])


@pytest.mark.parametrize("encoding,name", [("latin-1", "LATIN1"), ("cp1252", "CP1252"), ("utf-16", "UTF-16")])
def test_text_that_is_not_utf_8_is_refused_with_the_command_that_converts_it(tmp_path, encoding, name):
    path, converted = tmp_path / "ein text.txt", tmp_path / "ein text-utf8.txt"
    text = ("Ein Satz: „schön“\n" if encoding == "cp1252" else "naïve Sätze\n") * 10
    path.write_bytes(text.encode(encoding))
    with pytest.raises(UserError, match="not UTF-8") as refused:
        plan_tasks([Source(source=str(path))])
    command = str(refused.value).partition("Convert it: ")[2]
    assert command == f"iconv -f {name} -t UTF-8 '{path}' >'{converted}'"
    subprocess.run(command, shell=True, check=True)
    assert converted.read_text("utf-8").removeprefix("\ufeff") == text


@pytest.mark.parametrize(
    "first_line,hint",
    [
        ("Ein Satz ohne Kopf,3", "The first line of a csv file names its columns; add it if it is missing."),
        ("text\tlabel", "Between its fields stands a tab: its format is tsv."),
        ("text\ta; b", "Between its fields stands a tab: its format is tsv."),
    ],
)
def test_a_csv_file_without_the_column_says_what_its_first_line_lacks(tmp_path, first_line, hint):
    source = Source(source=str(write(tmp_path / "a.csv", f"{first_line}\nNoch ein Satz\n")))
    with pytest.raises(UserError, match="no column") as refused:
        everything(source)
    assert hint in str(refused.value)
    with pytest.raises(UserError, match="no column") as refused:
        list(records(plan_tasks([source], records=True)[0], source))
    assert hint in str(refused.value)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.json", "a.txt"])
def test_rows_in_another_encoding_are_refused_and_a_few_that_are_damaged_are_not(tmp_path, name):
    """The header of a table is often ASCII, and so is most of an English text."""
    row = '{"text": "Größe."}\n' if "json" in name else "Größe.\n"
    head = "[" if name == "a.json" else "" if "json" in name else "text\n"
    source = Source(source=str(tmp_path / name), layout="lines" if name == "a.txt" else "auto")
    of_ascii = row.replace("öß", "oss") * 90
    for whole, broken in (0, 9), (11, 10):
        lines = (of_ascii + row * whole).encode() + row.encode("latin-1") * broken
        (tmp_path / name).write_bytes(head.encode() + lines)
        plan_tasks([source])
    (tmp_path / name).write_bytes((head + of_ascii + row * 9).encode("latin-1"))
    plan_tasks([source])
    (tmp_path / name).write_bytes((head + of_ascii + row * 10).encode("latin-1"))
    with pytest.raises(UserError, match=r"is not UTF-8 text \(byte \d+\), perhaps LATIN1. Convert it: iconv"):
        plan_tasks([source])


def test_a_binary_file_is_not_to_be_converted(tmp_path):
    (tmp_path / "book.txt").write_bytes(b"PK\x03\x04\x14\0\x08\xff" * 10)
    with pytest.raises(UserError, match=r"book\.txt is a binary file"):
        plan_tasks([Source(source=str(tmp_path / "book.txt"))])


def test_damaged_archives(tmp_path):
    packers = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    for ending, pack in packers.items():
        (tmp_path / "named.txt").write_bytes(pack("Ein naïver Satz.".encode()))
        with pytest.raises(UserError, match=rf"is compressed.*mv \S+named\.txt \S+named\.txt{ending}$"):
            plan_tasks([Source(source=str(tmp_path / "named.txt"))])
    whole = gzip.compress(random.Random(0).randbytes(5000).hex().encode())
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[:2000])
    with pytest.raises(UserError, match=r"cut\.jsonl\.gz is cut short or damaged"):
        everything(Source(source=str(tmp_path / "cut.jsonl.gz")))
    (tmp_path / "plain.txt.gz").write_text("Ein Satz.")
    with pytest.raises(UserError, match=r"not what its name says .*Download it again, or rename it"):
        everything(Source(source=str(tmp_path / "plain.txt.gz")))
    with pytest.raises(UserError, match="holds no corpus file"):
        (tmp_path / "folder").mkdir()
        plan_tasks([Source(source=str(tmp_path / "folder"))])


def test_hub_names(tmp_path, monkeypatch):
    import datasets

    def offline(name, subset, revision):
        raise ConnectionError(f"cannot reach {name} {subset}")

    monkeypatch.setattr(datasets, "load_dataset_builder", offline)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in ("hub:wikimedia/wikipedia", "wikimedia/wikipedia"):
        with pytest.raises(UserError, match=r"wikimedia/wikipedia.*20231101\.en.*cannot be opened.*network"):
            plan_tasks([Source(source=name, subset="20231101.en")])
    (tmp_path / "texts").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"texts/corpsu: no such file.*below texts\)"):  # asks no hub
        plan_tasks([Source(source="texts/corpsu")])


def test_the_hub_is_asked_for_what_the_source_says(monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *place, **how: asked.append((place, how)))
    for how in ({"split": "dev", "revision": "v1", "streaming": True}, {"split": "train", "revision": "v2"}):
        source = Source(source="hub:OWNER/NAME", subset="en", **how)
        _open_dataset(SimpleNamespace(kind="hub", place="OWNER/NAME"), source)
        assert asked[-1] == (("OWNER/NAME", "en"), {"streaming": source.streaming} | how)


def test_a_hub_dataset_is_streamed_file_by_file(tmp_path, monkeypatch):
    """The hub stood in for by a folder of the same layout, which `datasets` opens the same way, offline."""
    pytest.importorskip("datasets")
    import pyarrow
    import pyarrow.parquet

    texts = [f"text {i}" for i in range(60)]
    (tmp_path / "OWNER/NAME/data").mkdir(parents=True)
    for part in range(3):
        rows = pyarrow.table({"text": texts[part * 20 : (part + 1) * 20]})
        pyarrow.parquet.write_table(rows, tmp_path / f"OWNER/NAME/data/train-{part:05d}-of-00003.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for streaming in (True, False):
        source = Source(source="hub:OWNER/NAME", streaming=streaming)
        assert len(plan_tasks([source])) == (3 if streaming else 16)
        assert sorted(everything(source)) == sorted(texts)
    passage = Source(source="hub:OWNER/NAME", layout="passages")
    assert sorted(everything(passage)) == ["\n".join(texts[i : i + 20]) for i in (0, 20, 40)]
    with pytest.raises(UserError, match="split dev, cannot be opened"):
        plan_tasks([Source(source="hub:OWNER/NAME", split="dev")])


MODULE = '''"""Tools that read and write tables of numbers.

The reader is fast because it never copies a row. It returns an array of floats.

>>> read("x")
[1.0]

Parameters
----------
path : str
    The file to read, which has to exist already.
"""


class Table:
    """A table that holds all of its rows in memory at once.

    Args:
        rows (int): The number of rows that the table has. Defaults to 3.

    Example::

        This is code, it is not a sentence of prose.
    """

    def sort(self):
        """Sort the rows by the column that is named. See :func:`~table.find` for the other way."""


TEXT = """This string is no documentation and must not be found."""
'''


def test_prose_of_a_module():
    docstrings = embedded.prose(MODULE)
    assert docstrings == [
        "Tools that read and write tables of numbers.\n"
        "The reader is fast because it never copies a row. It returns an array of floats.\n"
        "The file to read, which has to exist already.",
        "A table that holds all of its rows in memory at once.\nThe number of rows that the table has.",
        "Sort the rows by the column that is named. See table.find for the other way.",
    ]
    assert embedded.prose("def broken(:") == [] and embedded.prose("x = 1") == []


@pytest.mark.full
def test_the_embedded_corpus_is_the_same_twice_and_prose(monkeypatch):
    files = embedded.python_files()
    assert len(files) > 1000
    monkeypatch.setattr(embedded, "python_files", lambda: files[:: len(files) // 150])
    first = [list(embedded.module_documents(stripe, 4)) for stripe in range(4)]
    assert first == [list(embedded.module_documents(stripe, 4)) for stripe in range(4)]
    sentences = [line for stripe in first for text in stripe if text for line in text.split("\n")]
    assert len(sentences) > 200 and not any(
        mark in line for line in sentences for mark in (">>>", "::", "{", "<")
    )


@pytest.mark.slow
def test_the_embedded_corpus_is_large_enough():
    found = set()
    for stripe in range(16):
        for text in embedded.module_documents(stripe, 16):
            found.update(line for line in text.split("\n") if line)
    assert len(found) >= 100_000


def test_a_name_that_an_ascii_locale_has_taken_apart_is_refused():
    with pytest.raises(ValueError, match=r"gr\\udcc3\\udcb6.*set PYTHONUTF8=1"):
        Source.model_validate("gr\udcc3\udcb6.txt")
    with pytest.raises(ValueError, match=r"gr\\udcf6.*rename it"):  # Latin-1: no locale helps
        Source.model_validate("gr\udcf6.txt")
