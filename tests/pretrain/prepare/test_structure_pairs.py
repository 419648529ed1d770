"""Pairs of the documents' own structure as records: counted, shown, filtered, the same by any workers."""

import gzip
import json
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from prepare_helpers import WORDS, config, digest
from test_structure import PAGE, RESTRUCTURED_TEXT

from pretrain.common.errors import UserError
from pretrain.config.data import Source, data_config
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.prepare.__main__ import summary
from pretrain.prepare.run import prepare
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structured import COLUMNS, structured


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Pages in Markdown, some compressed, with a section that each of them has, and one that is too short."""
    folder = tmp_path_factory.mktemp("pages")
    for number in range(40):
        word = WORDS[number % 10]
        text = (
            f"# The {word} number {number}\n\nHere is what the {word} of {number} is for. It is old.\n\n"
            f"## Use\n\nThe {word} of {number} is used by many people.\n\n## Licence\n\nToo short\n"
        )
        path = folder / f"{number}.md"
        path.write_text(text)
        if number % 2:
            path.with_suffix(".md.gz").write_bytes(gzip.compress(text.encode()))
            path.unlink()
    (folder / "tool.rst").write_text(RESTRUCTURED_TEXT)
    (folder / "page.html").write_text(PAGE)
    (folder / "notes.txt").write_text("These are few notes.\n")
    return folder


def pairs(out: Path, split: str = "train") -> set[tuple[str, ...]]:
    """The texts of the records of a split, as tokens spell them."""
    reader, tokenizer = ShardReader(out, split), load_tokenizer(out)
    assert reader.columns == ("text", "positive")
    found = []
    for number in range(reader.num_chunks):
        stored = reader.read(number).stored
        texts = [tokenizer.decode(stored[i], skip_special_tokens=True).strip() for i in range(len(stored))]
        found += list(zip(texts[::2], texts[1::2]))
    assert len(set(found)) == len(found)
    return set(found)


def test_pairs_of_pages_are_counted_and_shown(tmp_path, folder, capsys):
    settings = {"pairs": "structure", "max_length": 96, "heldout": 0}
    manifest = prepare(config(folder, **settings), tmp_path / "out", workers=1, progress=False)
    assert "42 files with headings are read, 1 files of data are not" in capsys.readouterr().err
    found = pairs(tmp_path / "out")
    assert ("The river number 0", "Here is what the river of 0 is for. It is old.") in found
    assert ("The stone number 1: Use", "The stone of 1 is used by many people.") in found
    assert ("The tool: Options: Details", "Values are read from left to right.") in found
    assert ("The tool", "It packs many files & folders into one. A paragraph that nobody ended") in found
    assert not [pair for pair in found if "Licence" in pair[0] or "Too short" in pair[1]]
    counts = manifest["counts"]
    headings = [pair for pair in found if not pair[0].endswith((".", ":")) and ". " not in pair[0]]
    assert counts["records_duplicate"] == 1  # the exit status, of the page and of the text
    assert counts["pairs_of_heading"] == len(headings) + 1 and counts["documents"] == 42
    assert counts["records"] == counts["pairs_of_heading"] + counts["pairs_of_neighbour"]
    assert counts["pairs_too_short"] >= 40 and manifest["unit"] == "record"
    assert set(manifest["pairs"]) == {"heading", "neighbour"} and len(manifest["pairs"]["heading"]) == 5
    said = summary(manifest, tmp_path / "out")
    for first, second in manifest["pairs"]["heading"]:
        assert f"  heading    {first[:40]}" in said and second[:80] in said


def test_titles_of_rows_and_one_kind_alone(tmp_path):
    rows = [
        {"title": f"Of {word} {n}", "text": f"Much is told of {word} {n}. Nobody knows how old it is."}
        for word in WORDS
        for n in range(9)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + rows[:7]))
    columns = {
        "question": [f"who is {n}" for n in range(20)],
        "answer": [f"it is person {n}" for n in range(20)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "b.parquet")
    wanted = {(row["title"], row["text"]) for row in rows} | set(zip(*columns.values()))
    places = tmp_path / "a.jsonl", tmp_path / "b.parquet"
    manifest = prepare(config(*places, pairs="columns", heldout=0), tmp_path / "out", 1, progress=False)
    assert pairs(tmp_path / "out") == wanted and manifest["counts"]["records_duplicate"] == 7
    manifest = prepare(config(places[0], pairs="neighbour"), tmp_path / "next", 1, progress=False)
    assert list(manifest["pairs"]) == ["neighbour"]
    train, heldout = (pairs(tmp_path / "next", split) for split in ("train", "heldout"))
    assert heldout and not {first for first, _ in train} & {first for first, _ in heldout}


def test_workers_do_not_change_a_byte(tmp_path, folder):
    for workers in (1, 2):
        made = config(folder, pairs="structure", vocabulary=300)
        prepare(made, tmp_path / str(workers), workers=workers, progress=False)
    assert digest(tmp_path / "1") == digest(tmp_path / "2") and len(digest(tmp_path / "1")) == 5


def test_other_units_and_files_without_structure_are_refused(tmp_path, folder):
    assert data_config({"pairs": "heading"}).unit == "record"
    with pytest.raises(UserError, match="pairs: heading makes records, and is not for unit document"):
        data_config({"pairs": "heading", "unit": "document"})
    (tmp_path / "damaged.md.gz").write_bytes(gzip.compress(b"# A\n\nText of it.\n" * 99)[:40])
    with pytest.raises(UserError, match=r"damaged\.md\.gz is cut short or damaged"):
        prepare(config(tmp_path / "damaged.md.gz", pairs="structure"), tmp_path / "out", 1, progress=False)
    (tmp_path / "lines.txt").write_text("A line of text that stands alone.\n" * 3)
    with pytest.raises(UserError, match="no pairs of kind heading"):
        prepare(config(tmp_path / "lines.txt", pairs="heading"), tmp_path / "none", 1, progress=False)


def test_a_page_has_the_encoding_that_it_declares_and_other_markup_must_be_utf_8(tmp_path):
    head = (
        '<meta http-equiv="Content-Type" content="text/html; charset={}"><h1>Déjà vu</h1><p>Le café “est” là.'
    )

    def read(name: str, raw: bytes) -> tuple[str, RowFaults]:
        (tmp_path / name).write_bytes(raw)
        source, faults = Source(source=str(tmp_path / name)), RowFaults()
        (task,) = plan_tasks([source], structure=True)
        (document,) = structured(task, source, faults)
        return str(document), faults

    for declared, encoding in (("ISO-8859-1", "cp1252"), ("utf-8", "utf-8"), ("KOI8-R", "utf-8")):
        text, faults = read("page.html", head.format(declared).encode(encoding))
        assert "Déjà vu" in text and "café “est” là" in text and not faults.counts
    text, faults = read("page.html", head.format("utf-8").encode("cp1252"))  # a page that is damaged
    assert "Dj vu" in text and faults.counts == {"documents_not_utf8": 1}
    for name, declared in (
        *(("page.html", charset) for charset in ("", "none-such", "UTF-16", "idna")),
        ("page.md", "ISO-8859-1"),
    ):
        with pytest.raises(UserError, match=rf"{name} is not UTF-8 text .* iconv -f CP1252"):
            read(name, head.format(declared).encode("cp1252"))


def test_a_table_in_utf_16_is_refused_and_an_article_has_the_name_of_its_file(tmp_path):
    (tmp_path / "a.csv").write_bytes("title,text\nA storm,The ship waits in the harbour.\n".encode("utf-16"))
    with pytest.raises(UserError, match=r"perhaps UTF-16\. Convert it: iconv -f UTF-16"):
        plan_tasks([Source(source=str(tmp_path / "a.csv"))], structure=True)
    (tmp_path / "Ada_Lovelace.wiki").write_text("She was born in London.\n== Work ==\nShe wrote notes.\n")
    source = Source(source=str(tmp_path / "Ada_Lovelace.wiki"))
    (document,) = structured(plan_tasks([source], structure=True)[0], source, RowFaults())
    pairs = [("Ada Lovelace", "She was born in London."), ("Ada Lovelace: Work", "She wrote notes.")]
    assert list(document.sections) == pairs


def test_each_held_out_section_is_a_paragraph_to_find(tmp_path):
    page = (
        "# A\n\nHere is the {0} of all. It is an old {0}.\n\n## B\n\nTake the {0} out. Then put {0} away.\n"
    )
    for number in range(30):
        (tmp_path / f"{number}.md").write_text(page.format(f"{WORDS[number % 10]} {number}"))
    prepare(config(tmp_path / "*.md", heldout=0.4), tmp_path / "out", workers=1, progress=False)
    found = json.loads((tmp_path / "out" / "heldout_pairs.json").read_text())
    assert len(found) >= 10 and {query.split()[0] for query, _ in found} == {"Here", "Take"}
    assert {answer.count(".") for _, answer in found} == {1}


GERMAN = "Das Werkzeug wird von vielen benutzt, und es ist nicht neu. Man kann es auch mit der Hand bedienen."
ENGLISH = "The tool is used by many, and it is not new. It may be used by hand, too, if that is wanted."


@pytest.mark.parametrize(
    "language,kept,dropped",
    [
        ("any", {"en", "de", "two"}, {}),
        ("same", {"en", "de"}, {"pairs_dropped_of_two_languages": 1}),
        ("de", {"de"}, {"pairs_dropped_in_en": 2}),
        ("en,de", {"en", "de", "two"}, {}),
    ],
)
def test_pairs_in_other_languages_are_dropped_counted_and_shown(tmp_path, capsys, language, kept, dropped):
    page = "# {}\n\n{}\n"
    headings = {"en": "How this is to be used by all", "de": "Wie das von allen zu benutzen ist"}
    for name, heading, text in (
        ("en", headings["en"], ENGLISH),
        ("de", headings["de"], GERMAN),
        ("two", headings["de"], ENGLISH),
    ):
        (tmp_path / f"{name}.md").write_text(page.format(heading, text))
    settings = {"pairs": "heading", "language": language, "max_length": 96, "heldout": 0}
    manifest = prepare(config(tmp_path, **settings), tmp_path / "out", workers=1, progress=False)
    texts = {
        "en": (headings["en"], ENGLISH),
        "de": (headings["de"], GERMAN),
        "two": (headings["de"], ENGLISH),
    }
    assert pairs(tmp_path / "out") == {texts[name] for name in kept}
    counts = manifest["counts"]
    assert {name: count for name, count in counts.items() if name.startswith("pairs_dropped")} == dropped
    assert counts["pairs_of_heading"] == counts["records"] == len(kept)
    assert len(manifest["pairs"].get("dropped", [])) == 3 - len(kept)
    said = summary(manifest, tmp_path / "out")
    assert ("  dropped    " in said) == bool(dropped)


def test_a_text_in_another_language_alone_is_told(tmp_path):
    (tmp_path / "page.md").write_text(f"# Wie das zu benutzen ist\n\n{GERMAN}\n")
    with pytest.raises(UserError, match="no pairs of kind heading, pairs dropped in de: 1: give other text"):
        prepare(config(tmp_path, pairs="heading", language="fr"), tmp_path / "out", workers=1, progress=False)
    with pytest.raises(UserError, match="'xx' is none of any, same, ar"):
        prepare(config(tmp_path, pairs="heading", language="xx"), tmp_path / "out", workers=1, progress=False)
    with pytest.raises(UserError, match="language: de is for pairs"):
        data_config({"sources": [str(tmp_path)], "language": "de"})


@pytest.mark.parametrize(
    "name,text,found",
    [
        ("Decoy effect.md", "Text.\n", [("Decoy effect", "Text.")]),
        (
            "Decoy effect.md.gz",
            "Text.\n## Life\nMore.\n",
            [("Decoy effect", "Text."), ("Decoy effect: Life", "More.")],
        ),
        ("Decoy effect.md", "## Life\nMore.\n", [("Decoy effect: Life", "More.")]),
        ("Foo bar.md", "Foo bar\n=====\nText.\n", [("Foo bar", "Text.")]),
        ("Foo bar.md", "## Life\nMore.\n# Own\nText.\n", [("Life", "More."), ("Own", "Text.")]),
        ("Foo bar.md", "---\ntitle: Own\n---\nText.\n", [("", "Text.")]),
        (
            "Foo bar.md",
            "---\ntitle: Own\n---\nText.\n## Life\nMore.\n",
            [("Own", "Text."), ("Own: Life", "More.")],
        ),
        *(
            (name, "Text.\n", [("", "Text.")])
            for name in ("2024-01-05 08.30.md", "Untitled 1.md", "Copy of Untitled.md", "read_me.md", "C.mdx")
        ),
    ],
)
def test_a_note_without_a_title_is_called_as_its_file_if_that_has_several_words(tmp_path, name, text, found):
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    source = Source(source=str(tmp_path / name))
    (document,) = structured(plan_tasks([source], structure=True)[0], source, RowFaults())
    assert document.sections == tuple(found)


PUBLISHED = {
    "title": "text body content abstract description article summary",
    "headline": "text body content article description short_description",
    "question": "answer answers response context passage",
    "query": "positive answer document passage text",
    "text": "positive",
    "anchor": "positive",
    "sent0": "sent1",
    "instruction": "response output completion",
    "prompt": "response output completion",
}
"""The names that published data sets have, in the order in which they are looked for."""


def test_columns_belong_together_by_their_names(tmp_path):
    """Each pair of names, whichever column comes first; the first name that is there is asked for first."""
    for first, seconds in COLUMNS.items():
        for second in seconds:
            for names in ((first, second), (second, first)):
                file = tmp_path / "rows.jsonl"
                rows = [{name: f"{name} {number} is a text." for name in names} for number in range(3)]
                file.write_text("".join(json.dumps(row) + "\n" for row in rows))
                (task,) = plan_tasks([Source(source=str(file))], structure=True)
                assert task.columns == (first, second) or (second in COLUMNS and first in COLUMNS[second])
    assert {first: tuple(seconds.split()) for first, seconds in PUBLISHED.items()} == COLUMNS


@pytest.mark.parametrize(
    "names,row,columns",
    [
        ("Domanda;Risposta", "Che cosa è {0}?;È una cosa numero {0}, di tutti.", ("Domanda", "Risposta")),
        (
            "ID;Reparto;Stato;Domanda;Risposta",
            "A-{0};casa;aperto;Che cosa è {0}?;È la cosa {0}, di tutti.",
            ("Domanda", "Risposta"),
        ),
        (
            "Datum;Link;Frage;Antwort",
            "2024-01-{0};https://a.example/x;Was ist {0}?;Es ist etwas, Nummer {0}.",
            ("Frage", "Antwort"),
        ),
        (
            "Produkt;Beschreibung",
            "PFANNE {0} CM;EINE PFANNE VON {0} CM, AUS EISEN",
            ("Produkt", "Beschreibung"),
        ),
        *(
            (
                "Wert;Frage;Antwort",
                f"{value};Was ist {{0}}?;Es ist etwas, Nummer {{0}}.",
                ("Frage", "Antwort"),
            )
            for value in (
                "6ba7b8{0}-9dad-11d1-80b4-00c04fd430c8",
                "q-{0}",
                "2024-01-05 08:{0}",
                "+49 30 {0}",
                "anna{0}@example.org",
                "www.example.org/{0}",
            )
        ),
        ("Kategorie;Satz", "Haus;Das ist der Satz mit der Nummer {0}.", None),
        ("Wort;Klasse", "Wort {0};Das Haus und die Wohnung", None),
        ("Wort;Kürzel", "Wort {0};W {0}", None),
    ],
)
def test_columns_without_known_names_are_the_first_two_of_texts(tmp_path, names, row, columns):
    """Not of numbers, of what has no blank but digits, of addresses and of labels, in most rows."""
    file = tmp_path / "rows.csv"
    file.write_text("\n".join([names, *(row.format(number) for number in range(10, 30))]))
    (task,) = plan_tasks([Source(source=str(file))], structure=True)
    assert task.columns == columns
    first, _, others = row.partition(";")
    if "{0}" in first:  # one without is unknown, say
        file.write_text(f"{file.read_text()}\nunbekannt;{others.format(30)}")
        (task,) = plan_tasks([Source(source=str(file))], structure=True)
        assert task.columns == columns


@pytest.mark.parametrize(
    "names,first,rows,columns",
    [
        ("premise,hypothesis", "The man with the {} walks.", 9, ("premise", "hypothesis")),
        ("Frage,Antwort", "Wozu {}?", 30, ("Frage", "Antwort")),
        ("Stichwort,Beispiel", "{}", 30, ("Stichwort", "Beispiel")),
        ("Stichwort,Beispiel", "{}15", 30, ("Stichwort", "Beispiel")),
        ("Stichwort,Beispiel", "{}", 9, None),
    ],
)
def test_several_texts_of_one_are_columns_of_texts_unless_it_is_a_label(
    tmp_path, names, first, rows, columns
):
    words = [f"{one}{other}" for one in WORDS[:5] for other in WORDS[:6]]
    table = [f"{first.format(words[n // 3])},This is the text with number {n}." for n in range(rows)]
    (tmp_path / "rows.csv").write_text("\n".join([names, *table]))
    (task,) = plan_tasks([Source(source=str(tmp_path / "rows.csv"))], structure=True)
    assert task.columns == columns


@pytest.mark.parametrize(
    "names,cells,columns",
    [
        ("Name,Notiz,desc", lambda n: ("", "Das ist nur hier notiert worden.")[n == 3], ("Name", "desc")),
        ("Name,Notiz,desc", lambda n: ("", "Neu.")[n in (3, 8)], ("Name", "desc")),
        ("Autor,Titel,Inhalt", lambda n: f"Pan {n}", ("Titel", "Inhalt")),
    ],
)
def test_neither_rare_notes_nor_many_authors_are_a_column_of_the_pair(tmp_path, names, cells, columns):
    rows = []
    for n in range(60):
        cell = cells(n)
        middle = (f"Pan {n}", cell) if "Notiz" in names else (f"{'ABCDEFGHIJKL'[n % 12]}. Meier", cell)
        rows.append(",".join([*middle, f"Eine Beschreibung mit der Nummer {n}."]))
    (tmp_path / "rows.csv").write_text("\n".join([names, *rows]))
    (task,) = plan_tasks([Source(source=str(tmp_path / "rows.csv"))], structure=True)
    assert task.columns == columns


def test_one_column_is_no_pair(tmp_path):
    (tmp_path / "rows.csv").write_text("name,about\nPan,A pan.\n")
    with pytest.raises(UserError, match="text_key and positive_key both name 'name'"):
        plan_tasks(
            [Source(source=str(tmp_path / "rows.csv"), text_key="name", positive_key="name")], structure=True
        )


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_columns_that_the_source_names_are_a_pair(tmp_path, name):
    rows = [
        {"sku": f"n{n}", "name": f"Pan {n}", "about": "A pan.", "title": "x", "text": "y"} for n in range(9)
    ]
    table = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    file = tmp_path / name
    file.write_text("\n".join(table if file.suffix == ".csv" else map(json.dumps, rows)) + "\n")
    named = {"source": str(file), "text_key": "name", "positive_key": "about"}
    for whole in (False, True):
        (task,) = plan_tasks([Source(**named)], structure=True, whole=whole)
        assert task.columns == ("name", "about")
    found = [(document.title, document.text) for document in structured(task, Source(**named), RowFaults())]
    assert found == [(f"Pan {n}", "A pan.") for n in range(9)]
    with pytest.raises(
        UserError, match=r"no text in the column 'abuot' .* it has sku, name, about, title, text"
    ):
        plan_tasks([Source(**named | {"positive_key": "abuot"})], structure=True)


@pytest.mark.parametrize(
    "late,wrong", [({}, {"about": 7}), ({"about": ""}, {"about": {"text": "x"}}), ({"about": None}, {})]
)
def test_a_named_column_may_have_its_texts_far_down_but_must_have_texts(tmp_path, late, wrong):
    named = Source(source=str(tmp_path / "rows.jsonl"), text_key="name", positive_key="about")
    for rows in ([late] * 150 + [{"about": "A pan."}], [wrong] * 150):
        (tmp_path / "rows.jsonl").write_text(
            "".join(json.dumps({"name": "Pan"} | row) + "\n" for row in rows)
        )
        if rows[0] == wrong:
            with pytest.raises(UserError, match=r"no text in the column 'about' of any row; it has name"):
                plan_tasks([named], structure=True)
        else:
            (task,) = plan_tasks([named], structure=True)
            assert task.columns == ("name", "about")
            assert [one.text for one in structured(task, named, RowFaults())] == ["A pan."]


def test_long_values_cost_no_quadratic_time(tmp_path):
    begun = time.process_time()
    for part in ("@", "é@", "a://", "1", "-", "www."):
        (tmp_path / "rows.csv").write_text(
            "Frage;Antwort\n" + f"{part * (80_000 // len(part))} é;Es ist so.\n" * 3
        )
        plan_tasks([Source(source=str(tmp_path / "rows.csv"))], structure=True)
    assert time.process_time() - begun < 2
