"""What a text's own structure says belongs together: headings, titles, columns, neighbours."""

import pytest

from finetune.judge.structure import MARKDOWN, RESTRUCTURED, Document, pairs_of, sections

MARKED_DOWN = """---
title: front matter
---
# The tool

It packs *many* files into [one](https://a.example/b) `archive`.

## Options ##

- first option, as a list
- second option

```sh
# no heading inside of code
```

Exit status
-----------

Zero if all went well and nothing was left out.

| a | b |
|---|---|
"""
RESTRUCTURED_TEXT = """
========
The tool
========

.. contents:: left out

It reads :doc:`many files <files>` and ``joins`` them.

Options
-------

Each option has a value of its own.

Details
^^^^^^^

Values are read from left to right.

Exit status
-----------

Zero if all went well.
"""


def test_sections_of_markdown_have_the_headings_above_them_and_no_marks():
    assert sections(MARKED_DOWN, MARKDOWN) == [
        ("The tool", "It packs *many* files into one archive."),
        ("The tool: Options", "first option, as a list second option"),
        ("The tool: Exit status", "Zero if all went well and nothing was left out.\n| a | b |"),
    ]


def test_levels_of_restructured_text_are_the_marks_in_the_order_of_their_first_use():
    assert sections(RESTRUCTURED_TEXT, RESTRUCTURED) == [
        ("The tool", "It reads many files and joins them."),
        ("The tool: Options", "Each option has a value of its own."),
        ("The tool: Options: Details", "Values are read from left to right."),
        ("The tool: Exit status", "Zero if all went well."),
    ]


LONG = (
    "The ship waits in the harbour for a storm to pass. Nobody knows when it will leave again. So they sing."
)


@pytest.mark.parametrize(
    "document,kinds",
    [
        (Document(LONG, title="Ships"), {"columns", "neighbour"}),
        (Document(f"Ships of the north\n{LONG}"), {"title", "neighbour"}),
        (Document(f"It is already late.\n{LONG}"), {"neighbour"}),  # a sentence is no title
        (Document(f"# Ships\n\n{LONG}", markup=MARKDOWN), {"heading"}),
        (Document("effects of aging on the tissue of the bone in rats"), set()),  # a single sentence
        (Document("too short"), set()),
        (Document("What comes before any heading is no section of one.", markup=MARKDOWN), set()),
    ],
)
def test_kinds_of_pairs_that_a_document_has(document, kinds):
    assert set(pairs_of(document)) == kinds


def test_neighbours_share_no_sentence():
    (pair,) = pairs_of(Document(LONG), ["neighbour"])["neighbour"]
    assert pair == tuple(f"{sentence}." for sentence in LONG[:-1].split(". ")[:2])


def test_a_long_passage_is_cut_between_words():
    ((_, passage),) = pairs_of(Document("word " * 1000, title="Words"), ["columns"])["columns"]
    assert 990 < len(passage) <= 1000 and passage.endswith("word")
