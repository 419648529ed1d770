"""What a text's own structure says belongs together: headings, titles, columns, neighbours."""

import pytest

from pretrain.prepare.sources.markup import HTML, MARKDOWN, RESTRUCTURED, WIKITEXT, sections
from pretrain.prepare.sources.structure import Document, pairs_of

MARKED_DOWN = """---
title: front matter
---
# The tool

It packs *many* files into [one](https://a.example/b) `archive`.

## Options ##

- first option, as a list
- second option

> said by one
> who left

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

It reads
:doc:`many files <files>` and ``joins`` them.

Options
-------

Each option has a value of its own, as :var:`N_<LANG> <the-n>`::

    option = value

.. code-block:: sh

   tool --option value

.. note:: A note is text

   and goes on.

Details
^^^^^^^

Values are read from left to right.

Exit status
-----------

Zero if all went well.
"""


def test_sections_of_markdown_have_the_headings_above_them_and_no_marks():
    assert sections(MARKED_DOWN, MARKDOWN) == [
        ("The tool", "It packs many files into one archive."),
        ("The tool: Options", "first option, as a list\nsecond option\nsaid by one who left"),
        ("The tool: Exit status", "Zero if all went well and nothing was left out."),
    ]


def test_levels_of_restructured_text_are_the_marks_in_the_order_of_their_first_use():
    assert sections(RESTRUCTURED_TEXT, RESTRUCTURED) == [
        ("The tool", "It reads many files and joins them."),
        (
            "The tool: Options",
            "Each option has a value of its own, as N_<LANG>:\nA note is text\nand goes on.",
        ),
        ("The tool: Options: Details", "Values are read from left to right."),
        ("The tool: Exit status", "Zero if all went well."),
    ]


PAGE = """<!DOCTYPE html><html><head><title>left out</title><style>p { color: red }</style></head><body>
<nav><h2>Menu</h2><a href="/">Home</a></nav><div role="navigation"><p>up <div>next</div></p></div>
<input role="search"><br role="banner">
<h1>The tool<a class="headerlink" href="#t">¶</a></h1>
<p>It packs <em>many</em> files &amp; folders
into <a href="b">one</a>.<p>A paragraph that nobody ended
<h2>Options</h2><ul><li>first option<li>second option</ul><pre># no heading</pre>
<h3>Details</h3>Read from left<br>to right.
<h2>Exit status</h2><table><tr><td>1</td></tr></table>
<p>Zero if all went well.</p><script>if (a < b) {}</script>
</body></html>"""
WIKI = """'''Ada''' was a [[Maths|mathematician]]{{sfn|Smith}} of [[London]].<ref name="a">left out</ref>
[[File:ada.jpg|thumb|Ada, by [[someone]]]]
{{Infobox
| name = {{lang|en|Ada}}
}}
== Life ==
She was born in [https://a.example/b London] <!-- when? -->in 1815.
* she wrote ''notes''
=== Notes ===
{| class="wikitable"
|-
| a || b
|}
They describe a machine.
[[Category:Mathematicians]]
== References ==
"""
LONG = (
    "The ship waits in the harbour for a storm to pass. Nobody knows when it will leave again. So they sing."
)


def test_sections_of_a_page_are_its_blocks_without_code_tables_and_navigation():
    assert sections(PAGE, HTML) == [
        ("The tool", "It packs many files & folders into one.\nA paragraph that nobody ended"),
        ("The tool: Options", "first option\nsecond option"),
        ("The tool: Options: Details", "Read from left\nto right."),
        ("The tool: Exit status", "Zero if all went well."),
    ]


def test_sections_of_wikitext_have_no_templates_links_tables_or_categories():
    assert sections(WIKI, WIKITEXT) == [
        ("", "Ada was a mathematician of London."),
        ("Life", "She was born in London in 1815.\nshe wrote notes"),
        ("Life: Notes", "They describe a machine."),
        ("References", ""),
    ]
    tokenised = " = Ada = \n \n She wrote . \n = = Life = = \n Born in 1815 . \n"
    assert sections(tokenised, WIKITEXT) == [("Ada", "She wrote ."), ("Ada: Life", "Born in 1815 .")]


@pytest.mark.parametrize(
    "document,kinds",
    [
        (Document(LONG, title="Ships"), {"columns", "neighbour"}),
        (Document(f"Ships of the north\n{LONG}"), {"title", "neighbour"}),
        (Document(f"It is already late.\n{LONG}"), {"neighbour"}),  # a sentence is no title
        (Document.marked(f"# Ships\n\n{LONG}", MARKDOWN), {"heading", "neighbour"}),
        (Document("effects of aging on the tissue of the bone in rats"), set()),  # a single sentence
        (Document("too short"), set()),
        (Document.marked("What comes before any heading is no section of one.", MARKDOWN), set()),
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
