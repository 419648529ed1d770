"""Hard-wrapped text is found and joined; what only looks like it stays as it is."""

import json
import textwrap
from itertools import cycle
from pathlib import Path

import pytest
from test_rows import everything

from augment.text.cleaning import clean
from pretrain.config.data import Source
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.wrapping import margin, unwrap, words_of

ROOT = Path(__file__).resolve().parents[3]
PARAGRAPHS = [
    "The keeper of the light climbed the stairs at dusk, as he had done for thirty years. Nobody in the "
    "village remembered another keeper, and few had ever seen the lamp that he lit, though every ship that "
    "came home past the reef had steered by it. His sister's well-known temper kept the visitors away.",
    "In winter the sea broke over the rocks below, and salt lay on the windows of the upper room. He wiped "
    "them with a cloth each morning, said the numbers of the ships aloud, and wrote them in a book of which "
    "the first volumes had been lost to damp and mice long before the railway reached the coast.",
    "Then a letter came. It said that the lamp was to be lit by a clock from the spring onwards; the house "
    "could be bought, if anyone should want it, for the price of the land on which it stood.",
]
GERMAN = [
    "Der Erfinder hat das Recht auf das Patent. Haben mehrere gemeinsam eine Erfindung gemacht, so steht "
    "ihnen das Recht auf das Patent gemeinschaftlich zu. Damit die Prüfung der Patentanmeldung durch die "
    "Feststellung des Erfinders nicht verzögert wird, gilt im Verfahren vor dem Patentamt der Anmelder als "
    "berechtigt, die Erteilung des Patents zu verlangen.",
    "Die Vorrichtung umfasst ein Gehäuse mit einer Öffnung, durch die eine Welle geführt ist, sowie eine "
    "Dichtung aus Gummi, die zwischen Welle und Gehäuse angeordnet ist. Hierdurch wird der Austritt von Öl "
    "aus dem Gehäuse auch bei hohen Drehzahlen und Temperaturen sicher vermieden, ohne dass Bauteile wie "
    "Schrauben, Klammern oder Ringe benötigt werden.",
    "Gegen die Beschlüsse der Prüfungsstellen und Patentabteilungen findet die Beschwerde statt. Die "
    "Beschwerde ist innerhalb eines Monats nach Zustellung beim Patentamt einzulegen.",
]
GERMAN_POEM = "\n".join(
    f"Und {line} der {noun} am Ufer, im letzten Licht des Tages"
    for line in ("sinkt", "steigt", "schweigt", "eilt")
    for noun in ("Wald", "Strom", "Mond", "Wind")
)
POEM = "\n".join(
    f"And {line} the {noun} along the darkening shore"
    for line in ("so", "thus", "now", "then")
    for noun in ("waves", "gulls", "winds", "tides")
)


@pytest.mark.parametrize("width", [50, 66, 72, 79, 100])
@pytest.mark.parametrize("indent", ["", "  "])
@pytest.mark.parametrize("paragraphs", [PARAGRAPHS, GERMAN], ids=["English", "German"])
def test_wrapped_paragraphs_come_back_whole(width, indent, paragraphs):
    text = "\n\n".join(textwrap.fill(p, width, initial_indent=indent) for p in paragraphs)
    assert width - 8 <= margin(text) <= width
    assert [clean(p) for p in unwrap(text, margin(text)).split("\n\n")] == paragraphs


def test_paragraphs_wrapped_by_hand_come_back_whole():
    """A writer ends lines some words before the margin, too, as in many manuals and licences."""
    widths, lines = cycle([62, 72, 63, 66, 61, 64, 60]), []
    for paragraph in PARAGRAPHS:
        while paragraph:
            line = textwrap.wrap(paragraph, next(widths))[0]
            lines.append(line)
            paragraph = paragraph[len(line) :].lstrip()
        lines.append("")
    text = "\n".join(lines)
    assert margin(text) == 72
    assert [clean(p) for p in unwrap(text, margin(text)).split("\n\n")] == PARAGRAPHS


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(PARAGRAPHS * 3),  # a paragraph a line
        "\n".join(sentence for p in PARAGRAPHS for sentence in p.split(". ")),
        POEM,
        POEM.lower(),
        GERMAN_POEM,
        "\n".join(sentence for p in GERMAN * 2 for sentence in p.split(". ")),
        "\n".join(  # a list of texts, in lower case and without end marks, of much the same length
            f"a {'very ' * (i % 4)}large picture of a house, number {i} of many by the sea" for i in range(60)
        ),
        "\n".join(f"- the item with the number {number} of this list" for number in range(20)),
        "\n".join(f"{number}   {number * 7:8}   {number * 31:8}   a row of a table" for number in range(20)),
        "\n".join("今天天气很好我们去公园" * 5 for _ in range(20)),
        (ROOT / "pretrain/prepare/sources/readers.py").read_text().split('"""', 2)[2],
        "",
    ],
)
def test_other_text_is_not_taken_for_wrapped(text):
    assert margin(text) == 0


def test_what_stands_apart_stays_apart():
    item = "- one item of a list that goes on as far as the margin, where its line"
    code = (
        "```\ncode is\n~~~\nnot joined, whatever mark of the other kind it has in it, and however\nlong\n```"
    )
    items = f"{item}\n  ends\n- another\n\n{code}\n\nA Heading\nOf Two Lines"
    text = "\n\n".join([*(textwrap.fill(p, 72) for p in PARAGRAPHS), items])
    joined = unwrap(text, margin(text))
    assert joined.split("\n\n")[3:] == [
        f"{item} ends\n- another",
        code,
        "A Heading\nOf Two Lines",
    ]


def test_a_hyphen_goes_only_where_the_whole_word_is_in_the_text():
    text = (
        "his sister's well-\nknown lighthouse, a light-\nhouse of the pre-\nand post-war years, Anglo-\nSaxon"
    )
    assert unwrap(text, 0, words_of(text)) == (
        "his sister's well-known lighthouse, a lighthouse of the pre- and post-war years, Anglo-Saxon"
    )


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.jsonl"])
def test_sources_are_joined_and_say_so(tmp_path, capsys, name):
    import gzip

    text = "\n\n".join(textwrap.fill(p, 70) for p in PARAGRAPHS)
    path = tmp_path / name
    content = json.dumps({"text": text}) if name == "a.jsonl" else text
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    for unwrapping in ("auto", True, False):
        faults = RowFaults()
        documents = everything(Source(source=str(path), unwrap=unwrapping), faults)
        said = capsys.readouterr().err
        assert ("hard-wrapped" in said) == (unwrapping == "auto" and name != "a.jsonl")
        lines = [clean(line) for document in documents for line in document.split("\n") if line.strip()]
        assert (lines == PARAGRAPHS) == (unwrapping is not False)
        assert (faults.counts["documents_unwrapped"] > 0) == (unwrapping is not False)
    if name != "a.jsonl":
        plan_tasks([Source(source=str(path))], records=True)
        assert "a paragraph is one with `layout: paragraphs`" in capsys.readouterr().err


@pytest.mark.parametrize("unwrapping", ["auto", False])
@pytest.mark.parametrize(
    "name,layout,is_wrapped",
    [
        *(("a.txt", layout, layout != "lines") for layout in ("auto", "lines", "paragraphs", "passages")),
        *(("a.jsonl", layout, False) for layout in ("auto", "passages")),
    ],
)
def test_the_margin_of_texts_is_looked_for_where_lines_are_no_documents(
    name, layout, is_wrapped, unwrapping, tmp_path
):
    wrapped = "\n\n".join(textwrap.fill(paragraph, 60) for paragraph in PARAGRAPHS * 9)
    (tmp_path / name).write_text(wrapped)
    (task,) = plan_tasks([Source(source=str(tmp_path / name), layout=layout, unwrap=unwrapping)])
    assert task.width == (margin(wrapped) if is_wrapped and unwrapping == "auto" else 0) and margin(wrapped)
