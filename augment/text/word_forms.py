"""Share what rules need: word lists, capitals, "a" and "an", and edits that keep a text well-formed."""

import functools
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from augment.core.compiled import native
from augment.text.parsed import ParsedSentence

Edit = tuple[int, int, str]  # text[start:end] becomes the string
Found = TypeVar("Found")

_LISTS = Path(__file__).parents[1] / "word_lists"
_ARTICLE = re.compile(r"(?<![\w'’-])([Aa]n?)\s$")
_BRACKETS = re.compile(r"[()\[\]“”]")
_VOWEL_LETTERS = frozenset("AEFHILMNORSX")  # their names start with a vowel: an MP, an FBI
# a UK, a UNESCO
_SPELLED_U = frozenset({"UK", "UN", "US", "UEFA", "UNESCO", "UNICEF", "UNHCR", "URL", "USB", "UTC", "UV"})
_SILENT_H = ("heir", "honest", "honor", "honour", "hour")
_NOT_Y = ("unid", "unim", "unin", "unint", "unif", "unic", "uninh")
_REALLY_Y = ("uniform", "unify", "unifi", "unicorn", "unicycl", "unicamer", "unidirect", "unicell", "unicode")
_CLOSED_CLASSES = frozenset({"DET", "ADP", "SCONJ", "CCONJ", "ADV", "AUX", "PART", "PRON", "INTJ"})


def word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


@functools.cache
def word_list(name: str) -> tuple[str, ...]:
    """Return the lines of a file of augment/word_lists, without comments and empty ones."""
    lines = (_LISTS / name).read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@functools.cache
def word_table(name: str) -> tuple[tuple[str, ...], ...]:
    """Return the rows of a tab-separated file of augment/word_lists."""
    return tuple(tuple(line.split("\t")) for line in word_list(name))


def named_words(name: str) -> frozenset[str]:
    """Return a set of word_lists/word_sets.tsv."""
    return next(word_set(words) for own, words in word_table("word_sets.tsv") if own == name)


def word_map(pairs: str) -> dict[str, str]:
    """Return {"a": "b"} for "a=b"."""
    return dict(pair.split("=") for pair in pairs.split())


def lengths_by_word(names: Iterable[str]) -> dict[str, list[int]]:
    """Return {first word: lengths in words of the names that begin with it, the longest first}."""
    lengths: dict[str, set[int]] = {}
    for first, *rest in (name.split(" ") for name in names):
        lengths.setdefault(first, set()).add(1 + len(rest))
    return {word: sorted(sizes, reverse=True) for word, sizes in lengths.items()}


def names_in(
    words: Sequence[str], lengths: Mapping[str, Sequence[int]], accept: Callable[[int, int], Found | None]
) -> Iterator[Found]:
    """Yield what `accept` returns for the ends of each name, the longest first (`lengths_by_word`)."""
    end = 0
    for i, word in enumerate(words):
        for length in lengths.get(word, ()) if i >= end else ():
            if i + length <= len(words) and (found := accept(i, i + length - 1)) is not None:
                yield found
                end = i + length
                break


_FUNCTION_WORDS = named_words("word_forms.function_words")
_Y_OR_W = tuple(named_words("word_forms.y_or_w"))  # written with a vowel, spoken with a consonant
# Words made from names: endings, common words with these endings, and other such words.
_PEOPLE = re.compile(r"(?:.ian|.ean|.ese)$")
_COMMON = re.compile(
    r"[^eo]ician$|(?:^|[^glvgs])arian$|historian|civilian|guardian|comedian|median|custodian|ptilian|meridian|strian|thespian|ibian"
    r"|avian|ruffian|simian|plebeian|ocean|cetacean|crustacean|terranean|(?:^|[^b])clean|bean$|^mean|^lean|^dean|cheese|geese|diocese|obese|these"
)
_PEOPLES = named_words("word_forms.peoples")
# Not part of the name that they precede: "former England captain".
_BEFORE_NAMES = named_words("word_forms.before_names")


def word_at(sentence: ParsedSentence, start: int) -> int | None:
    """Return the word that begins at a character; None if none does."""
    i = bisect_left(sentence.starts, start)
    return i if sentence.starts[i : i + 1] == (start,) else None


def rewrite(sentence: ParsedSentence, edits: Iterable[Edit]) -> str | None:
    """Return the edited text, "a" and "an" corrected; None if unchanged or if a word would follow itself."""
    text = sentence.text
    edits = [edit for edit in edits if text[edit[0] : edit[1]] != edit[2]]
    if not edits:
        return None
    result = sentence.edit([*edits, *articles(text, edits)])
    return None if result == text or repeats_more(result, text) else result


def overlap(edits: Iterable[Edit], others: Iterable[Edit]) -> bool:
    """Return whether an edit of `edits` and one of `others` cannot both be made (`ParsedSentence.edit`)."""
    others = list(others)
    return any(start < last and first < end for start, end, _ in edits for first, last, _ in others)


def articles(text: str, edits: Iterable[Edit]) -> list[Edit]:
    """Return edits of "a" and "an" before replaced words whose successors need the other one."""
    changes = []
    for start, _, new in edits:
        if start < 2 or not new or text[start - 1] != " " or text[start - 2] not in "aAnN":
            continue
        found = _ARTICLE.search(text, max(0, start - 4), start)
        if found:
            article = indefinite_article(new)
            article = article.capitalize() if found[1][0] == "A" else article
            covered = any(first <= found.start(1) < last for first, last, _ in edits)
            if article != found[1] and not covered:
                changes.append((found.start(1), found.end(1), article))
    return changes


def repeats(text: str) -> int:
    """Return how often a word follows itself, letter case aside."""
    return native.repeats(text if text.isascii() else text.lower())


def repeats_more(result: str, text: str) -> bool:
    """Return whether more words follow themselves in `result` than in `text`."""
    count = repeats(result)
    return count > 0 and count > repeats(text)


@functools.lru_cache(maxsize=1 << 14)
def indefinite_article(words: str) -> str:
    """Return "a" or "an", by the sound that the words start with."""
    word = re.split(r"[^\w]", words.lstrip("\"'“‘("), maxsplit=1)[0]
    lower = word.lower()
    if not word:
        return "a"
    if word[0].isdigit():
        return "an" if word[0] == "8" or re.fullmatch(r"1[18](?:th|\d\d)?", word) else "a"
    if word.isupper() and (len(word) == 1 or not re.search("[AEIOU]", word)):
        return "an" if word[0] in _VOWEL_LETTERS else "a"
    if word in _SPELLED_U:
        return "a"
    if lower.startswith(_SILENT_H):
        return "an"
    if lower.startswith(_NOT_Y) and not lower.startswith(_REALLY_Y):
        return "an"
    if lower.startswith(_Y_OR_W):
        return "a"
    return "an" if lower[0] in "aeiouàáâäéèêëíîïóôöúü" else "a"


def like(original: str, new: str) -> str:
    """Return `new` with the capitals of `original`: all of them, the first one, or its own."""
    if len(original) > 1 and original.isupper():
        return new.upper()
    if original[:1].isupper():
        return new[:1].upper() + new[1:]
    return new


def is_name(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i is (part of) a proper name."""
    return sentence.tags[i] in ("NNP", "NNPS") or sentence.pos[i] == "PROPN"


def keeps_capital(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i has a capital in every place: names, what names begin with, "I", "French"."""
    word, pos = sentence.word(i), sentence.pos[i]
    lower = word.lower()
    if not word[:1].isupper() or lower == "i" or lower.startswith(("i'", "i’")) or word[1:] != lower[1:]:
        return True
    # a name that a tagger does not know: "Martelly"
    if pos in ("ADV", "VERB", "ADP") and sentence.relation(i)[:5] == "nsubj":
        return lower not in _FUNCTION_WORDS
    if pos in _CLOSED_CLASSES:
        return sentence.tags[i] in ("NNP", "NNPS") and lower not in _FUNCTION_WORDS
    if (is_name(sentence, i) and pos not in ("ADJ", "VERB", "NUM")) or len(word) == 1:
        return True
    if sentence.tags[i][:1] not in ("J", "N"):
        return False
    if i + 1 < len(sentence) and is_name(sentence, i + 1) and lower not in _BEFORE_NAMES:
        return True
    return _is_made_of_a_name(lower)


@functools.lru_cache(maxsize=1 << 12)
def _is_made_of_a_name(lower: str) -> bool:
    singular = lower[:-1] if lower.endswith("s") and not lower.endswith(("ss", "us", "is")) else lower
    return singular in _PEOPLES or (_PEOPLE.search(singular) is not None and _COMMON.search(singular) is None)


def lower_first(sentence: ParsedSentence, i: int) -> str:
    """Return word i as it is written in the middle of a sentence."""
    word = sentence.word(i)
    return word if keeps_capital(sentence, i) else word[:1].lower() + word[1:]


def upper_first(text: str) -> str:
    """Return a text with its first letter, behind opening quotes or brackets, a capital."""
    if text[:1].isalpha() and text[0].isupper():
        return text
    for i, letter in enumerate(text):
        if letter.isalnum():
            return text[:i] + letter.upper() + text[i + 1 :]
    return text


def balanced(text: str) -> bool:
    """Return whether straight double quotes come in pairs, and curly ones and brackets are closed in turn."""
    if text.count('"') % 2:
        return False
    marks = _BRACKETS.findall(text)
    for opening, closing in ("()", "[]", "“”") if marks else ():
        depth = 0
        for mark in marks:
            depth += (mark == opening) - (mark == closing)
            if depth < 0:
                return False
        if depth:
            return False
    return True
