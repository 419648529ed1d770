"""Find pairs of texts that belong together in a document's own structure: a heading and its section, say.

Where people have structured their text, what stands above a passage says what the passage is about. Such
pairs are a test of retrieval that nobody had to label, and positives to train on.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from augment.text.cleaning import clean
from augment.text.languages import SCRIPTS, language_of
from pretrain.common.errors import UserError
from pretrain.prepare.sentences import count_words, sentences_of
from pretrain.prepare.sources.markup import Pair, sections

KINDS = {
    "columns": "two columns of a row",
    "heading": "a heading and its section",
    "title": "a first line and the text below it",
    "neighbour": "a sentence and the next one",
}
"""Kinds of pairs; if a text has several, the judge takes the first one that it has enough of."""
MOST_CHARACTERS = 1000
"""Of a passage; the rest is left out."""
_FEWEST_WORDS = {"columns": (1, 3), "heading": (1, 5), "title": (1, 5), "neighbour": (4, 4)}
"""Of the first text of a pair, and of the second."""
_LONGEST_TITLE = 15  # words
_SENTENCE_END = re.compile(r"[.!?:…。．｡！？؟۔।။።։។][\"'“”’»」』)）\]]*$", re.MULTILINE)
_LIST_WORDS = 5  # in the mean of the names in a list


@dataclass(frozen=True)
class Document:
    """A document as it was read.

    text: all of it, paragraphs a line each, without marks, a blank line between sections; of a row with two
    columns, the second one's. title: the first column's; "": there are none. sections: (heading, section) of
    a document in markup.
    """

    text: str
    title: str = ""
    sections: tuple[Pair, ...] = ()

    @classmethod
    def of_sections(cls, parts: Iterable[Pair]) -> "Document":
        """Return the document that has these sections."""
        pairs = tuple(parts)
        return cls("\n\n".join("\n".join(filter(None, pair)) for pair in pairs), sections=pairs)

    @classmethod
    def marked(cls, text: str, markup: str, title: str = "", name: str = "") -> "Document":
        """Return the document that is written in a markup (`pretrain.prepare.sources.markup`)."""
        return cls.of_sections(sections(text, markup, title, name))

    @property
    def whole(self) -> str:
        """The text to train on."""
        return f"{self.title}\n{self.text}" if self.title else self.text


def pairs_of(
    document: Document, kinds: Iterable[str] = tuple(KINDS), counts: Counter[str] | None = None
) -> dict[str, list[Pair]]:
    """Return the pairs of a document by kind, in order, of these kinds; those without any left out.

    counts: to which those are added that have too few words, and the lists of names.
    """
    found = {kind: list(_sound(kind, _FINDERS[kind](document), counts)) for kind in kinds}
    return {kind: pairs for kind, pairs in found.items() if pairs}


def require_known(language: str) -> None:
    """Raise UserError unless `language` is one that `unwanted` takes."""
    codes = language.split(",")
    if codes not in (["any"], ["same"]) and (unknown := [code for code in codes if code not in SCRIPTS]):
        raise UserError(f"language: {unknown[0]!r} is none of any, same, {', '.join(SCRIPTS)}")


def unwanted(pair: Pair, text: str, language: str) -> str:
    """Return why a pair of a document's text is dropped, as "of_two_languages" or "in_de"; "": it is kept.

    language: any, same (both texts of a pair) or codes with commas. What is too short to be told is of the
    language of the document.
    """
    if language == "any":
        return ""
    told = {language_of(one) for one in pair} - {""}
    if language == "same":
        return "of_two_languages" if len(told) > 1 else ""
    others = (told or {language_of("\n".join(pair)) or language_of(text)}) - {"", *language.split(",")}
    return f"in_{min(others)}" if others else ""


def _sound(kind: str, pairs: Iterable[Pair], counts: Counter[str] | None) -> Iterator[Pair]:
    """Yield the pairs that have enough words, clean, passages cut to `MOST_CHARACTERS`."""
    for first, second in pairs:
        if kind == "heading" and _is_list(second):
            if counts is not None:
                counts["pairs_of_lists"] += 1
            continue
        first, second = _cut(clean(first)), _cut(clean(second))
        enough = (count_words(text) >= least for text, least in zip((first, second), _FEWEST_WORDS[kind]))
        if first and second and all(enough):
            yield first, second
        elif counts is not None:
            counts["pairs_too_short"] += 1


def _is_list(text: str) -> bool:
    """Return whether a text has no sentence, only short names: "See also", a table of contents, authors."""
    names = [clean(name) for name in re.split("[\n,]", text) if name.strip()]
    return not _SENTENCE_END.search(text) and sum(map(count_words, names)) < _LIST_WORDS * len(names)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS].rsplit(" ", 1)[0]


def _titled(document: Document) -> list[Pair]:
    """Return the first line and the rest, if the line looks like a title: short, and no sentence."""
    first, _, rest = document.text.strip().partition("\n")
    title = clean(first)
    no_title = not title or len(title.split()) > _LONGEST_TITLE or title[-1] in ".!?:;,…。！？"
    return [] if no_title or document.title or document.sections or not rest.strip() else [(title, rest)]


def _neighbours(document: Document) -> list[Pair]:
    found: list[Pair] = []
    for text in [body for _, body in document.sections] or [document.text]:
        sentences = sentences_of(text)
        found += zip(sentences[::2], sentences[1::2])
    return found


_FINDERS: dict[str, Callable[[Document], list[Pair]]] = {
    "columns": lambda document: [(document.title, document.text)] if document.title else [],
    "heading": lambda document: [pair for pair in document.sections if pair[0]],
    "title": _titled,
    "neighbour": _neighbours,
}
