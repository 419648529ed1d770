"""What a text's own structure says belongs together: headings, titles, columns, neighbours."""

import time
from collections import Counter

import pytest

from pretrain.config.data import Source
from pretrain.prepare.sources import markup, structure
from pretrain.prepare.sources.markup import HTML, MARKDOWN, RESTRUCTURED, WIKITEXT, sections
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import Document, pairs_of
from pretrain.prepare.sources.structured import structured

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


@pytest.mark.parametrize(
    "text,expected",
    [
        ("+++\ntitle = 'npm'\n+++\n## Usage\nText.\n", [("npm", ""), ("npm: Usage", "Text.")]),
        ("---  \ntitle: npm\n---\nText.\n", [("", "Text.")]),  # no headings: nothing to stand above
        ("# A\nWrite `<!--`.\n## B\nRead `-->`.\n", [("A", "Write <!--."), ("A: B", "Read -->.")]),
        ("# A\nA `Vec<T>` &amp; 2 * 3 * 4\\_5.\n", [("A", "A Vec<T> & 2 * 3 * 4_5.")]),
        ("# A {#a}\nText.[^1]\n\n[^1]: A note.\n\n[b]: /c\n", [("A", "Text.\nA note.")]),
        ("# A\na | b\n--|--\nc | d\n\nText:\n\n    code\n", [("A", "Text:")]),
        ("A title over\ntwo lines\n---\nText.\n", [("A title over two lines", "Text.")]),
        (
            "# A\n!!! note\n    Text.\n\n:::tip\nMore.\n:::\n> [!NOTE]\n> Last.\n",
            [("A", "Text.\nMore.\nLast.")],
        ),
        ("# A\n- [x] done\n- [b](c)\n\n[![d](e)](f)\n", [("A", "done\nb")]),
        ("# A\n## B\nText.\n##\nMore.\n", [("A", ""), ("A: B", "Text."), ("A", "More.")]),
        ("> " * 150 + "Text.\n\n# A\n\nMore.\n", [("", "Text."), ("A", "More.")]),
        # marks that belong to a heading
        (
            "# C#\n## § 433 X\n### #include\n",
            [("C#", ""), ("C#: § 433 X", ""), ("C#: § 433 X: #include", "")],
        ),
        ("# A\n## Note\nText.\n", [("A", ""), ("A: Note", "Text.")]),
        # notes of mkdocs: of a file without a last line end, by a tab, in each other, in a list
        ("# A\n!!! note\n    Text.", [("A", "Text.")]),
        ("# A\n??? tip\n\tText.\n\n\tMore.\n", [("A", "Text.\nMore.")]),
        (
            '# A\n??? question "Why?"\n    Text.\n\n    !!! tip\n        Inner.\n',
            [("A", "Why?\nText.\nInner.")],
        ),
        ("# A\n- b\n\n    !!! tip\n        C.\n\n    D.\n", [("A", "b\nC.\nD.")]),
        ("# A\n!!! Wow this is important text\n", [("A", "!!! Wow this is important text")]),
        ("Title\n=== \nText.\n", [("Title", "Text.")]),
        ('# A\n=== "B"\n\n    Text.\n', [("A", "B\nText.")]),
        # footnotes
        (
            "# A\nAs shown[^1] or[^b]: `[^/]+`.\n\n[^1]: https://x\n",
            [("A", "As shown or: [^/]+.\nhttps://x")],
        ),
        # of notes that link each other, and of site generators
        (
            "# A\n![[b.png]] See [[Page#Part|that]], [[Other\\|it]] and [[Page]] `[[x|y]]` ==now==.\n",
            [("A", "See that, it and Page [[x|y]] now.")],
        ),
        (
            "# A\n[[1]](b) [[2]][c] [[1, 2], [3]] [[ -f x ]] a == b == c, x==y or z==1.\n\n[c]: d\n",
            [("A", "[1] [2] [[1, 2], [3]] [[ -f x ]] a == b == c, x==y or z==1.")],
        ),
        ("# A\n![[build]](https://ci/x.png) Text.\n", [("A", "Text.")]),
        ('# A\n==**so**==, ==all of it==: =="it"==\n', [("A", 'so, all of it: "it"')]),
        *(
            (f"# A\n{text}\n", [("A", text)])
            for text in (
                'In R x[[1]], l[["a"]], f(x)[[2]][[3]], in numpy a[[0, 2]] or array([[0, 2]]).',
                "Of [[:alpha:]] and [[-f x]], if a ==b and c== d or x ==1 or y== 2.",
                "A page of [[Datei:Bild.png|mini|Text]].",
                "Write {{< and >}} or {% oder %} around it, {{%s}}, {{%d %}} or {%d %}.",
                "import your bookmarks from 'Firefox' first.",
            )
        ),
        *(
            (f"# A\n{mark}{rest} Text.\n", [("A", f"{shown}{rest} Text.".strip())])
            for mark, shown in (
                ("[[# Part]]", "# Part"),
                ("[[1984]]", "1984"),
                ("[[a| - b]]", "- b"),
                ("![[c.png]] ", ""),
                ("{{< d >}}", ""),
                ("{%- e -%} ", ""),
                ("==3==", "==3=="),
                ("- [[7]]", "7"),
            )
            for rest in (".", "- b", "1984. It", "# It")
        ),
        ("> [!tip]- Why?\n> So.\n", [("", "Why? So.")]),
        (
            '# A\n{{< tip text="Pods" id="b" >}} and {{% note %}}this{{% /note %}}{% raw %} is {{ x }}.\n',
            [("A", "Pods and this is {{ x }}.")],
        ),
        # front matter, or a rule
        ("---\ntitle:\nauthor: X\n---\n## A\nText.\n", [("A", "Text.")]),
        ("---\ntitle: >\n  B\n---\n## A\nText.\n", [("A", "Text.")]),
        ("---\n\nText.\n\n---\n# A\nMore.\n", [("", "Text."), ("A", "More.")]),
        ("# A\n<details><summary>Why?</summary>\n\nText.\n</details>\n", [("A", "Why?\nText.")]),
        (
            "# A\n[x] marks the spot.\n\n- [ ] to do\n\n- [x] done\n",
            [("A", "[x] marks the spot.\nto do\ndone")],
        ),
    ],
)
def test_markdown_is_read_as_it_is_rendered(text, expected):
    assert sections(text, MARKDOWN) == expected


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


@pytest.mark.parametrize(
    "text,expected",
    [
        ("===\nTop\n===\n\nPart\n====\nText.\n", [("Top", ""), ("Top: Part", "Text.")]),  # over and under
        (
            "A long title\n=====\n\nText [1]_ of [Ada15]_.\n\n.. [1] left out\n",
            [("A long title", "Text of.")],
        ),
        (
            "Part\n====\n\n=====  =====\nA      B\n=====  =====\nc      d\n=====  =====\n\nText.\n",
            [("Part", "Text.")],
        ),
        (
            "== ==\nText.\n\nPart\n====\n\nMore.\n\n== ==\na  b\n== ==\n",
            [("", "Text."), ("Part", "More.")],
        ),
        ("Part\n====\n\n>>> 1 + 1\n2\n\n#. An item.\n\n| A line.\n", [("Part", "An item.\nA line.")]),
    ],
)
def test_marks_of_restructured_text_that_are_no_text(text, expected):
    assert sections(text, RESTRUCTURED) == expected


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


@pytest.mark.parametrize(
    "page,expected",
    [
        (
            "<table><tr><td><h1>A</h1>Text.<table><tr><td>1</table></td></tr></table>",
            [("A", "Text.")],
        ),  # layout
        ("<form><h1>A</h1><p>Text.</form><nav>B<p>More.", [("A", "Text.\nB\nMore.")]),  # nothing ends nav
        ("<title>A &amp; b</title><h2>C</h2>Text.", [("A & b", ""), ("A & b: C", "Text.")]),
        ("<title>A</title>Text.", [("", "Text.")]),
        (
            "<h1>A<a class='headerlink'>¶</a></h1><div class='navheader'>C</div>Text."
            '<div class="toc">1. A</div><h3 class="title">Note</h3>D.',
            [("A", "Text.\nNote\nD.")],
        ),
        ("<h1>A</h1><h2>Tip<span><a class=mark>#</a></span></h2>B.", [("A", ""), ("A: Tip", "B.")]),
        # an end that is missing takes nothing along
        ("<h1>A</h1><p class=navigation>B<p>C.", [("A", "B\nC.")]),
        ("<h1>A</h1><nav>B<p>C.<nav>D</nav>", [("A", "B\nC.\nD")]),
        ("<div><div role=navigation>B<div><h1>A</h1>C.</div></div>", [("A", "C.")]),
        ("<div role=navigation>B<p>C.<div>D</div>", [("", "B\nC.\nD")]),
        ("<head><title>B</title><style>c</style><body><h1>A</h1>C.", [("A", "C.")]),
        ("<h1>A</h1><button>B<p>C.<button>D</button>", [("A", "B\nC.D")]),
        # a class of the whole
        ("<body class='search toc'><div class='page navigation'><h1>A</h1>B.</div></body>", [("A", "B.")]),
        ("<h1>A</h1><details><summary>Why?</summary>So.</details>", [("A", "Why?\nSo.")]),
        (
            "<!-- <title>B</title> --><svg><title>C</title></svg><title>D</title><h2>E</h2>F.",
            [("D", ""), ("D: E", "F.")],
        ),
        ("<h1><div>A<br>B</div></h1>C.<div>D</div>", [("A B", "C.\nD")]),
    ],
)
def test_pages_as_people_have_them(page, expected):
    assert sections(page, HTML) == expected


def test_sections_of_wikitext_have_no_templates_links_tables_or_categories():
    assert sections(WIKI, WIKITEXT) == [
        ("", "Ada was a mathematician of London."),
        ("Life", "She was born in London in 1815.\nshe wrote notes"),
        ("Life: Notes", "They describe a machine."),
        ("References", ""),
    ]
    shown = "{{lang|de|Haus}}, {{convert|5|km|mi}} of {{nowrap|[[a|b c]]}}.<ref>{{x|{{y}}}}</ref>&nbsp;{{z}}"
    assert sections(shown, WIKITEXT) == [("", "Haus, 5 km of b c.")]
    nested = "== A ==\n{|\n| b\n{|\n| c\n|}\n| d\n|}\nText.\n"
    assert sections(nested, WIKITEXT) == [("A", "Text.")]
    tokenised = " = Ada = \n \n She wrote . \n = = Life = = \n Born in 1815 . \n"
    assert sections(tokenised, WIKITEXT) == [("Ada", "She wrote ."), ("Ada: Life", "Born in 1815 .")]


@pytest.mark.parametrize(
    "text,expected",
    [
        ("[[A|a b\n== C ==\nOf [[d|e]].", [("", "[[A|a b"), ("C", "Of e.")]),
        ("[[File:a.jpg|b\n== C ==\nOf [[d]].", [("", "[[File:a.jpg|b"), ("C", "Of d.")]),
        ("A.<ref name=b>\n== C ==\nD.<ref>e</ref>", [("", "A."), ("C", "D.")]),
        ("{{blockquote|author=X|To be}}", [("", "To be")]),
        ("{{quote\n| text = To be\n| author = X\n}}", [("", "To be")]),
        (
            "{{lang|1=de|2=Haus}}, {{transl|ja|ISO|Tokyo}}, {{transl|ja|Oto|italic=no}}",
            [("", "Haus, Tokyo, Oto")],
        ),
        ("{{convert|5|to|10|km}}, {{convert|5|km|mi|1}}", [("", "5 to 10 km, 5 km")]),
        ("{{cvt|5|km}}, {{convert|5|-|7|km}}, {{Convert|5|–|7|km}}", [("", "5 km, 5 - 7 km, 5 – 7 km")]),
        *(
            (f"1{{{{{name}|2|3}}}}4.", [("", f"1{shown}4.")])
            for names, shown in (
                ("lang transl", "3"),
                ("lang-de lang-grc nowrap nobr small abbr ill quote blockquote NoWrap", "2"),
                ("ndash snd spnd mdash", " – "),
                ("'", "'"),
                ("infobox cite refn", ""),
            )
            for name in names.split()
        ),
        (
            "Use &lt;br&gt; or <code>ls</code>, a&lt;b or c&gt;d &amp;amp;.",
            [("", "Use <br> or ls, a<b or c>d &amp;.")],
        ),
    ],
)
def test_wikitext_loses_no_text(text, expected):
    assert sections(text, WIKITEXT) == expected


@pytest.mark.parametrize(
    "name,title",
    [
        ("en.wikipedia.org_Ada.wiki", "en.wikipedia.org Ada"),
        ("A=[[B.MediaWiki", "A=[[B"),
        ("C.wikitext", "C"),
    ],
)
def test_an_article_is_called_as_its_file(tmp_path, name, title):
    (tmp_path / name).write_text("Text.\n== Life ==\nMore.\n")
    source = Source(source=str(tmp_path / name))
    (task,) = plan_tasks([source], structure=True)
    (document,) = structured(task, source, RowFaults())
    assert document.sections == ((title, "Text."), (f"{title}: Life", "More."))


@pytest.mark.parametrize(
    "part,markup",
    [
        ("== ==\na\n", RESTRUCTURED),
        ("\n\n", RESTRUCTURED),
        ("[[", WIKITEXT),
        ("[x://y", WIKITEXT),
        ("[[A:b ", WIKITEXT),
        ("[[a|b", WIKITEXT),
        ("<ref>", WIKITEXT),
        ("a {#", MARKDOWN),
        ("`", MARKDOWN),
        ("!!! a\n    \n", MARKDOWN),
        ("<nav>", HTML),
        ("<div role=navigation>", HTML),
    ],
)
def test_marks_that_repeat_cost_no_quadratic_time(part, markup):
    begun = time.process_time()
    sections(part * (20_000 // len(part)), markup)
    assert time.process_time() - begun < 2


def test_what_notes_and_generators_put_in_costs_no_quadratic_time():
    parts = '[[ [[a [[a| [[1 ![[ ![[a]]* == ==aa. ==aa* {{< {{<a {{%/ {%- {%-_a text=" {{<a>}}*_'
    begun = time.process_time()
    for begin in ("", "[[", "==aa", "{{< a ", "{% a"):
        for part in parts.split():
            markup._MARKS.sub(markup._unmarked, begin + f"{part} " * (20_000 // (len(part) + 1)))
            markup._MARKS.sub(markup._unmarked, begin + part * (20_000 // len(part)))
    assert time.process_time() - begun < 2


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


@pytest.mark.parametrize(
    "passage,is_kept",
    [
        ("- npm help\n- package.json\n- npm config of it\n", False),
        ("ALTER TABLE, CREATE TABLE, DROP TABLE, SELECT", False),
        ("set up a cursor by a query and its parameters", True),
        ("- npm help\n- It stops.\n- npm config\n", True),
        ("安装软件包、运行测试程序和文档", True),
        ("a, b, c, d, e ។", True),
        ("a, b, c, d, e．」", True),
    ],
)
def test_lists_of_names_are_no_passages(passage, is_kept):
    counts = Counter()
    found = pairs_of(Document.marked(f"# See also\n\n{passage}", MARKDOWN), ["heading"], counts)
    assert bool(found) == is_kept and counts["pairs_of_lists"] == 1 - is_kept


def test_neighbours_share_no_sentence():
    (pair,) = pairs_of(Document(LONG), ["neighbour"])["neighbour"]
    assert pair == tuple(f"{sentence}." for sentence in LONG[:-1].split(". ")[:2])


def test_a_long_passage_is_cut_between_words():
    ((_, passage),) = pairs_of(Document("word " * 1000, title="Words"), ["columns"])["columns"]
    assert 990 < len(passage) <= 1000 and passage.endswith("word")


def words(count: int, end: str = ".") -> str:
    return " ".join(f"word{'abcdefghijklmnopqrstuvwxyz'[n % 26]}" for n in range(count)) + end


@pytest.mark.parametrize(
    "kind,first,second", [("columns", 1, 3), ("heading", 1, 5), ("title", 1, 5), ("neighbour", 4, 4)]
)
def test_pairs_have_so_many_words_at_least(kind, first, second):
    counts: Counter[str] = Counter()
    enough = (words(first), words(second))
    assert list(structure._sound(kind, [enough], counts)) == [enough] and not counts
    for short in ((words(first - 1, "." if first > 1 else ""), words(9)), (words(9), words(second - 1))):
        assert not list(structure._sound(kind, [short], counts)) and not list(
            structure._sound(kind, [short], None)
        )
    assert counts == {"pairs_too_short": 2}


def test_lists_are_no_sections_and_passages_are_cut_at_a_word():
    counts: Counter[str] = Counter()
    names = ("See also", "one name\nother name, and name\n")
    assert not list(structure._sound("heading", [names], counts)) and counts == {"pairs_of_lists": 1}
    assert [
        structure._is_list(text) for text in (words(4, ""), words(5, ""), "One. Two.", words(3, "") + ".")
    ] == [*(True, False, False, False)]
    # in the mean: of 4 and of 6 words
    assert not structure._is_list(f"{words(4, '')}\n{words(6, '')}")
    assert structure._is_list(f"{words(4, '')}, {words(5, '')}")
    ((_, text),) = structure._sound("title", [("Title", words(400))], counts)
    assert words(400).startswith(f"{text} ") and 990 < len(text) <= 1000
    exact = "a" * 500 + " " + "b" * 499
    assert structure._cut(exact) == exact and structure._cut(f"{exact}b") == "a" * 500


@pytest.mark.parametrize("length,found", [(1, True), (15, True), (16, False)])
def test_a_title_is_a_short_first_line_that_ends_no_sentence(length, found):
    title = words(length, "")
    document = structure.Document(f"{title}\nThe rest.\nMore.")
    assert structure._titled(document) == ([(title, "The rest.\nMore.")] if found else [])
    for end in ".!?:;,…。！？":
        assert not structure._titled(structure.Document(f"{title}{end}\nThe rest."))
    assert not structure._titled(structure.Document(title)) and not structure._titled(
        structure.Document(f"{title}\n ")
    )
    assert not structure._titled(structure.Document(f"{title}\nThe rest.", title="Own"))


def test_each_sentence_is_the_neighbour_of_one_other():
    text = "One is here. Two is here. Three is here. Four is here. Five is here."
    assert structure._neighbours(structure.Document(text)) == [
        ("One is here.", "Two is here."),
        ("Three is here.", "Four is here."),
    ]
    parted = structure.Document.of_sections(
        [("Head", "One is here. Two is here."), ("Other", "Three is here.")]
    )
    assert structure._neighbours(parted) == [("One is here.", "Two is here.")]
