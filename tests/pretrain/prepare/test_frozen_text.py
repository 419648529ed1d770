"""What preparation makes of text: that of its version, for texts drawn of pieces that meet every rule.

Other sentences, sections or paragraphs are other shards: with such a change `PREPARATION` and these digests
become others. What is right and what is wrong, the other tests here say.
"""

import hashlib
import random
from collections.abc import Callable, Iterable

import pytest

from augment.text.cleaning import clean
from pretrain.data.manifest import PREPARATION
from pretrain.prepare.sentences import count_words, is_prose, sentences_of, split_sentences
from pretrain.prepare.sources.embedded import prose, prose_paragraphs
from pretrain.prepare.sources.markup import HTML, MARKDOWN, RESTRUCTURED, WIKITEXT, sections
from pretrain.prepare.sources.structure import Document, pairs_of
from pretrain.prepare.wrapping import margin, unwrap, words_of

_WORDS = (
    "the The a river stone He he it It was gardens They so So known light house I J no No Fig Mr Dr "
    "U.S etc Inc e.g p.m St März Jahrhundert März 26 3 126 1999 said asked The And But and "
    "www.example.com https://a.b x Washington London’s don't über 今天 天气 「行 」 है हां Это ok J.R Ph.D "
    "vgl bzw z B Apple He's А Л Ł см рис 4.2.6 なに: と言う （図 」は "
)
_MARKS = (
    ". . . . . ! ? … 。 ！ ？ । ؟ .\" .” .) ?' !» ... . . .'' . ) .] . \" :) ,\" ． ｡ 。」 ！」 。） , "
    "; : - – — « » „ “ ( ) \" ' `` -RRB-"
)
WORDS, MARKS = _WORDS.split(), _MARKS.split(" ")
MARKDOWN_PIECES = [
    "# Title",
    "## Sub [link](http://a.b) `code` {#anchor}",
    "#### Deep *it*",
    "Under\n=====",
    "Under two\n-----",
    "Some *text* with **bold** and `x = 1` in it.",
    "- item one\n- [x] ticked\n- [ ] not",
    "1. first\n2. second",
    "```python\ncode = 1\n```",
    "~~~\nmore\n~~~",
    "    indented code",
    "> quoted text\n> goes on",
    "> [!NOTE]\n> Noted.",
    "![image](a.png) after it",
    "[a link](http://x.y) and <http://z.w>",
    "| a | b |\n|---|---|\n| 1 | 2 |",
    "<div>html</div>",
    "---",
    "Text with a note.[^1]",
    "[^1]: The note itself.",
    ":::tip",
    ":::",
    '!!! note "A title"\n    inside it\n\n    more',
    "??? warning\n    hidden\n",
    '=== "Tab"\n    in a tab\n',
    "~~struck~~ and &amp; entity",
    "line one\nline two",
    "Setext &lt;x&gt;\n---",
    "<!-- comment -->",
    "`[^2]` stays",
    "* star\n\n  its paragraph",
    "#no heading",
    "###### six",
    "####### seven",
    "See [[Page|it]], ![[a.png]] and ==this== {{< x >}}.",
]
RESTRUCTURED_PIECES = [
    "名前は\\ **まだ**\\ 無\nい。 The *file*\\ s",
    "=====\nTitle\n=====",
    "Sub\n---",
    "Other\n~~~~~",
    "Long heading here\n----",
    "Too long a heading\n--",
    "*****\nStars\n*****",
    "A :class:`~x.Y` and ``code`` and *it* and **bold**.",
    "A `text <http://a>`_ and [1]_ and [CIT2002]_ here.",
    ".. note:: A note\n   goes on",
    ".. code-block:: python\n\n   code = 1\n",
    ".. image:: a.png",
    "Ends so::\n\n   literal\n   more\n",
    "=== ===\na   b\n=== ===\n1   2\n=== ===",
    "+---+---+\n| a | b |\n+---+---+",
    ">>> x = 1\n1",
    ":field: value",
    ":param x: it",
    "* an item\n* another",
    "1. one\n#. two",
    "| a line\n| block",
    ".. comment text",
    "para one\npara two",
    "   indented text",
    "A::\n",
    "Text ::\n\n  code",
    ".. warning::\n\n   Body of it.",
    ".. _target:",
    "`x`__ and `y`_",
    "a*b*c and 2*3*4",
    ".. math::\n\n   x^2",
    "Two\n====",
    "Three\n....",
    "Four\n####",
]
HTML_PIECES = [
    "<p>吾輩は<ruby>猫<rt>ねこ</rt></ruby>で\nある。 <b>名前</b>\n はまだ\nnot 無い",
    "<h1>Title</h1>",
    "<h2>Sub <a href='#x'>¶</a></h2>",
    '<h3 class="title">Note</h3>',
    "<h6>Six<br>lines</h6>",
    "<p>A paragraph &amp; more.</p>",
    "<p>Two <b>bold</b> words",
    "<ul><li>one<li>two</ul>",
    "<table><tr><td>cell</td></tr></table>",
    "<script>var x = 1;</script>",
    "<table><tr><td><h2>Layout</h2>text</td></tr></table>",
    "<style>p {}</style>",
    "<nav>menu</nav>",
    '<div role="navigation">menu</div>',
    "<pre>code\n  code</pre>",
    "<!-- gone -->",
    '<div class="navheader">head</div>',
    '<div class="toc"><p>Contents<dl><dt>1. Title</dl></div>',
    "<footer>foot</footer>",
    "<header>Top</header>",
    "<main>Main text</main>",
    "<article>Art</article>",
    '<span class="mw-editsection">edit</span>',
    "text alone",
    "<br>after",
    "<title>The page</title>",
    "<select><option>1</select>",
    "<h2></h2>",
    "<h2><div>In div</div></h2>",
    "<blockquote>quote</blockquote>",
    "<dl><dt>term<dd>meaning</dl>",
    "<button>press",
    "<svg><g></g></svg>",
    "<textarea>typed</textarea>",
    "<section>sec</section>",
    "&lt;tag&gt;",
]
WIKI_PIECES = [
    "= Title =",
    "== Sub ==",
    "=== Deep ===",
    "= = Spaced = =",
    "== Unequal =",
    "'''Bold''' and ''it'' here.",
    "A [[link]] and [[target|shown]].",
    "[[File:a.png|thumb|A [[nested]] caption]]",
    "[[Category:X]]",
    "[[de:Seite]]",
    "{{convert|5|km|mi}} long",
    "{{cvt|1|to|2|m}}",
    "{{lang|de|Haus}}",
    "{{lang-fr|maison}}",
    "{{infobox|a=1|b={{nested|x}}}}",
    "{{nowrap|kept text}}",
    "a{{snd}}b",
    "it{{'}}s",
    "<ref>note</ref>",
    "<ref name=a />",
    "{|\n! head\n|-\n| cell\n|}",
    "* item",
    "# number",
    ": indent",
    "; term",
    "[http://a.b shown text]",
    "<math>x^2</math>",
    "__TOC__",
    "<!-- c -->",
    "&nbsp;&eacute;&#65;",
    "<gallery>\nx\n</gallery>",
    "<br/>next",
    "<small>small</small>",
    "{{abbr|HTML|Hypertext}}",
    "{{quote|text=said it}}",
    "{{ndash}}",
    "{{Transl|ja|kana}}",
    "plain line",
    "<poem>verse</poem>",
    "{{small|1=text one|2=two}}",
    "{{unknown|x}}",
]
PROSE_PIECES = [
    "Return the value of the thing that is given, if it is there.",
    "This is a sentence of the docs that has `code` in it.",
    ">>> x = 1",
    "The :class:`~a.B` is used for all of the parts of it.",
    "Args:",
    "    name: The name of the thing that is to be found in it.",
    "x : int",
    "    value (int): A value that is not less than the other one.",
    "- The first item of the list is here, as you can see.",
    "Example::",
    "    some code here",
    "a short one.",
    "It has [a link](http://x.y) and **bold text** that you may want to read.",
    "------",
    "| table |",
    "```\nfenced\n```",
    "The foo.bar.baz is not to be in it, as it is code.",
    "Call f() to do it, and then you have it in the end.",
    "",
    "See [1]_ for the rest of the story, which is long.",
    "lower case begins this one, and so it is not prose at all.",
    '"Quoted is this sentence, and it is in the docs."',
    "1. Numbered it is, and it goes on to the end of the line.",
    "<b>HTML</b> is taken out of the text of this sentence, too.",
    "@decorator",
    "A camelCase word with anotherOne is code, and not in the text.",
    "Numbers 1234567890 1234567890 1234567890 of the 123 are 456.",
]


def drawn(pieces: list[str], count: int, least: int, most: int, between: Iterable[str]) -> Iterable[str]:
    """Yield texts of some of the pieces, the same at every call."""
    choose, between = random.Random(len(pieces)), list(between)
    for _ in range(count):
        yield "".join(
            choose.choice(pieces) + choose.choice(between) for _ in range(choose.randint(least, most))
        )


def running() -> Iterable[str]:
    choose = random.Random(5)
    for number in range(1500):
        parts = []
        for _ in range(choose.randint(1, 30)):
            parts += [
                choose.choice(WORDS),
                choose.choice((" ", " ", " ", "", "\n" if number % 5 == 0 else " ")),
            ]
            if choose.random() < 0.35:
                parts += [choose.choice(MARKS), choose.choice((" ", " ", ""))]
        text = "".join(parts)
        yield text.lower() if number % 3 == 0 else text


def wrapped() -> Iterable[str]:
    """Yield texts of lines that end near a margin, with items, hyphens and code among them."""
    choose = random.Random(7)
    apart = [
        "- item",
        "1. one",
        "> quoted",
        "a = b;",
        "x   y",
        "name: value",
        "```",
        "    deeper",
        "Heading",
        "* star",
        "iv) four",
        "　段落",
        "３、three",
        "1．one",
    ]
    for number in range(400):
        width, lines = choose.choice((38, 39, 40, 41, 60, 72, 100, 119, 120, 121, 123)), []
        for _ in range(choose.randint(1, 6)):
            words = [
                choose.choice(
                    ("river", "stone,", "light", "house", "and", "It", "a", "known.", "sea;", "pre-")
                )
                for _ in range(choose.randint(5, 120))
            ]
            line = ""
            for word in words:
                if len(line) + 1 + len(word) > width - (choose.random() < number % 4 / 4) * choose.randint(
                    0, 12
                ):
                    lines.append(line)
                    line = word
                else:
                    line = f"{line} {word}".strip()
            lines += [line, *([choose.choice(apart)] if choose.random() < 0.3 else []), ""]
        yield "\n".join(lines)
    for width in (19, 20, 30, 38, 59, 60, 62):
        for closed in (0.02, 0.2):
            text = "".join(choose.choice("川家光石が、の、にAB家 。가") for _ in range(900))
            cut = [text[at : at + width - (choose.random() < closed)] for at in range(0, 900, width)]
            yield "\n".join(line + "\n" * (choose.random() < 0.1) for line in cut)


def fronted() -> Iterable[str]:
    for mark, sign in (("---", ":"), ("+++", " =")):
        for text in drawn(MARKDOWN_PIECES, 20, 1, 4, ("\n\n",)):
            yield f'{mark}\ntitle{sign} "A title"\nx: y\n{mark}\n\n{text}'


MODULE = '''"""{0}"""
class A:
    """{1}"""
    def f(self):
        r"""{0}"""
if x:
    pass
else:
    async def g():
        """{1}"""
        def h():
            """{0}"""
'''


def modules() -> Iterable[str]:
    texts = [text.replace('"', "'") for text in drawn(PROSE_PIECES, 120, 1, 4, ("\n\n",))]
    return map(MODULE.format, texts[::2], texts[1::2])


def unwrapped(text: str) -> tuple:
    width = margin(text)
    return width, unwrap(text, width, words_of(text)), unwrap(text, 60), unwrap(text, 0, words_of(text))


def of_markup(markup: str) -> Callable[[str], object]:
    def made(text: str) -> object:
        pairs = pairs_of(Document.marked(text, markup))
        return sections(text, markup), sections(text, markup, "Above"), pairs

    return made


def judged(text: str) -> tuple:
    return count_words(text), [is_prose(text, n, share) for n in (1, 4, 9) for share in (0, 0.6, 0.9)]


MAKES: dict[str, tuple[Callable[[], Iterable[str]], Callable[[str], object]]] = {
    "sentences": (running, lambda text: (split_sentences(clean(text)), sentences_of(text))),
    "prose": (running, judged),
    "paragraphs": (wrapped, unwrapped),
    "markdown": (lambda: drawn(MARKDOWN_PIECES, 400, 1, 9, ("\n\n", "\n\n", "\n")), of_markup(MARKDOWN)),
    "front matter": (fronted, of_markup(MARKDOWN)),
    "rst": (lambda: drawn(RESTRUCTURED_PIECES, 400, 1, 9, ("\n\n", "\n\n", "\n")), of_markup(RESTRUCTURED)),
    "html": (lambda: drawn(HTML_PIECES, 500, 1, 9, ("\n", "")), of_markup(HTML)),
    "wikitext": (lambda: drawn(WIKI_PIECES, 500, 1, 9, ("\n", "\n", " ", "\n\n")), of_markup(WIKITEXT)),
    "documentation": (lambda: drawn(PROSE_PIECES, 500, 1, 10, ("\n", "\n\n", "\n    ")), prose_paragraphs),
    "modules": (modules, prose),
}
OF_VERSION = {
    9: {
        "sentences": "4bcfd7d8b02b400a",
        "prose": "67a7db2b08fb4c06",
        "paragraphs": "cfb560bbb6470719",
        "markdown": "10c3dfe00aa0803e",
        "front matter": "593a141a00a81cc9",
        "rst": "c92876e6857243d0",
        "html": "4abc222b32dbadcb",
        "wikitext": "189e2103a9eb2595",
        "documentation": "ca36274e6d672e54",
        "modules": "cf7c1a8902812aa0",
    }
}


@pytest.mark.parametrize("name", MAKES)
def test_the_same_text_gives_the_same(name):
    texts, make = MAKES[name]
    whole = hashlib.sha256()
    for text in texts():
        whole.update(repr(make(text)).encode("utf-8", "surrogatepass"))
    assert whole.hexdigest()[:16] == OF_VERSION[PREPARATION][name]
