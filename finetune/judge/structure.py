"""Find pairs of texts that belong together in a document's own structure: a heading and its section, say.

Where people have structured their text, what stands above a passage says what the passage is about. Such
pairs are a test of retrieval that nobody had to label, and positives to train on.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from augment.text.cleaning import clean
from pretrain.prepare.sentences import count_words, sentences_of

MARKDOWN, RESTRUCTURED = "markdown", "reStructuredText"
MARKUP = {".md": MARKDOWN, ".markdown": MARKDOWN, ".rst": RESTRUCTURED}
"""How a file's name ends -> the markup of its headings."""
KINDS = {
    "columns": "two columns of a row",
    "heading": "a heading and its section",
    "title": "a first line and the text below it",
    "neighbour": "a sentence and the next one",
}
"""Kinds of pairs; where a text has several, the first one that it has enough of is taken."""
MOST_CHARACTERS = 1000
"""Of a passage; the rest is left out."""
_FEWEST_WORDS = {"columns": (1, 3), "heading": (1, 5), "title": (1, 5), "neighbour": (4, 4)}
"""Of the first text of a pair, and of the second."""
_LONGEST_TITLE = 15  # words

Pair = tuple[str, str]
"""A text that is asked with, and the passage that belongs to it."""


@dataclass(frozen=True)
class Document:
    """A document as it was read.

    text: all of it; of a row with two columns, the second one's. title: the first one's; "": there are none.
    markup: `MARKDOWN`, `RESTRUCTURED`, or "" of plain text.
    """

    text: str
    title: str = ""
    markup: str = ""

    @property
    def whole(self) -> str:
        """The text to train on, paragraphs a line each, without marks."""
        if self.markup:
            return "\n".join(part for pair in sections(self.text, self.markup) for part in pair if part)
        return f"{self.title}\n{self.text}" if self.title else self.text


def pairs_of(document: Document, kinds: Iterable[str] = tuple(KINDS)) -> dict[str, list[Pair]]:
    """Return the pairs of a document by kind, in order, of these kinds; those without any left out."""
    found = {kind: list(_sound(kind, _FINDERS[kind](document))) for kind in kinds}
    return {kind: pairs for kind, pairs in found.items() if pairs}


def _sound(kind: str, pairs: Iterable[Pair]) -> Iterable[Pair]:
    """Yield the pairs that have enough words, clean, passages cut to `MOST_CHARACTERS`."""
    for first, second in pairs:
        first, second = _cut(clean(first)), _cut(clean(second))
        enough = (count_words(text) >= least for text, least in zip((first, second), _FEWEST_WORDS[kind]))
        if first and second and all(enough):
            yield first, second


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rsplit(" ", 1)[0]


def _columns(document: Document) -> list[Pair]:
    return [(document.title, document.text)] if document.title else []


def _headed(document: Document) -> list[Pair]:
    return sections(document.text, document.markup) if document.markup else []


def _titled(document: Document) -> list[Pair]:
    """Return the first line and the rest, where the line looks like a title: short, and no sentence."""
    first, _, rest = document.text.strip().partition("\n")
    title = clean(first)
    no_title = not title or len(title.split()) > _LONGEST_TITLE or title[-1] in ".!?:;,…。！？"
    return [] if no_title or document.title or document.markup or not rest.strip() else [(title, rest)]


def _neighbours(document: Document) -> list[Pair]:
    sentences = sentences_of(document.text if document.title else document.whole)
    return list(zip(sentences[::2], sentences[1::2]))


_FINDERS: dict[str, Callable[[Document], list[Pair]]] = {
    "columns": _columns,
    "heading": _headed,
    "title": _titled,
    "neighbour": _neighbours,
}


# -- headings


_FRONT = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)  # what site generators read
_FENCE = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1[^\n]*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
_ATX = re.compile(r" {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$")
_UNDERLINE = re.compile(r"([=\-`:'\"~^_*+#<>.])\1{2,}\s*$")
_DIRECTIVE = re.compile(r"^\s*(\.\. .*|:[\w -]+:.*|\|?[-=+| ]{4,})$", re.MULTILINE)
_MARKS = (
    (re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),  # [text](address)
    (re.compile(r":[\w:+.-]+:`~?([^`<]*)(?:<[^>]*>)?`"), r"\1"),  # :role:`text <target>`
    (re.compile(r"`+([^`]*)`+_{0,2}|\*\*([^*]+)\*\*"), r"\1\2"),
    (re.compile(r"</?\w[^>]*>"), " "),
    (re.compile(r"^\s*(?:[-*+>]|\d+\.)\s+", re.MULTILINE), ""),
)


def sections(text: str, markup: str) -> list[Pair]:
    """Return (heading, section) of a document, in order, without marks; lines of a paragraph are joined.

    A heading has those above it before it, the document's first: `tar: Options`. A section ends where the
    next heading begins, of whatever level.
    """
    lines = _FENCE.sub("", _FRONT.sub("", text)).expandtabs(4).splitlines()
    levels: list[object] = []  # reStructuredText: marks in the order of their first use
    path: list[str] = []
    found: list[tuple[str, list[str]]] = [("", [])]
    number = 0
    while number < len(lines):
        line, after = lines[number].rstrip(), lines[number + 1] if number + 1 < len(lines) else ""
        below = lines[number + 2] if number + 2 < len(lines) else ""
        if markup == RESTRUCTURED and _UNDERLINE.match(line) and after.strip() and below[:1] == line[:1]:
            number += 1  # a line over a heading, too
            continue
        underlined = _underlined(line, after, markup)
        atx = _ATX.match(line) if markup == MARKDOWN else None
        if atx is None and not underlined:
            found[-1][1].append(line)
            number += 1
            continue
        if atx is not None:
            level, heading = len(atx[1]), atx[2]
        else:
            heading, mark = line, after.strip()[0]
            order: list[object] = ["=", "-"] if markup == MARKDOWN else levels
            if mark not in order:
                order.append(mark)
            level = order.index(mark) + 1
        path[level - 1 :] = [_plain(heading)]
        found.append((": ".join(dict.fromkeys(filter(None, path))), []))
        number += 1 if atx is not None else 2
    bodies = ((heading, _plain(_DIRECTIVE.sub("", "\n".join(body)))) for heading, body in found)
    return [(heading, body) for heading, body in bodies if heading or body]


def _underlined(line: str, after: str, markup: str) -> bool:
    """Return whether a line is a heading by the line under it."""
    match = _UNDERLINE.match(after)
    if match is None or not line.strip() or _UNDERLINE.match(line):
        return False
    if markup == MARKDOWN:
        return match[1] in "=-" and not line.startswith((" ", "|", "-", "#"))
    return not line.startswith(" ") and len(after.strip()) >= len(line.strip()) - 1


def _plain(text: str) -> str:
    """Return a text without marks, a paragraph a line."""
    for pattern, instead in _MARKS:
        text = pattern.sub(instead, text)
    paragraphs = (clean(part.replace("\n", " ")) for part in re.split(r"\n\s*\n", text))
    return "\n".join(filter(None, paragraphs))
