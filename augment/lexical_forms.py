"""What the word-level rules share: word lists, inflection, capitals, "a" and "an", and edits that keep a text well-formed."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from augment.parsed import ParsedSentence

AUGCSE = "AugCSE (Tang et al. 2022), appendix A.2"
Edit = tuple[int, int, str]  # text[start:end] becomes the string

_LISTS = Path(__file__).parent / "word_lists"
_ARTICLE = re.compile(r"(?<![\w'’-])([Aa]n?)\s$")
_TRAILING = ".,;:!?)\"'’”]"
_VOWEL_LETTERS = frozenset("AEFHILMNORSX")  # their names start with a vowel: an MP, an FBI
_SILENT_H = ("heir", "honest", "honor", "honour", "hour")
_Y_OR_W = (  # written with a vowel, spoken with a consonant
    "eu", "ewe", "once", "one", "oui", "ouija", "ubiquit", "ufo", "ugand", "ukrain", "uni", "unanim", "ura", "use", "usa", "usu",
    "uten", "uter", "util", "utop",
)  # fmt: skip
_NOT_Y = ("unid", "unim", "unin", "unint", "unif", "unic", "uninh")
_REALLY_Y = ("uniform", "unify", "unifi", "unicorn", "unicycl", "unicamer", "unidirect", "unicell", "unicode")


def word_set(words: str) -> frozenset[str]:
    """The words of a string."""
    return frozenset(words.split())


_FORM_TAGS = {"NNP": "NN", "NNPS": "NNS", "VBP": "VB"}
_VOWELS = tuple("aeiou")
_CLOSED = re.compile(r"(?:[^aeiou]*|[^aeiou]*qu)[aeiouy][^aeiouwxy]")  # one syllable that ends in one vowel, one consonant
_DOUBLED = re.compile(r"([^aeioulsfz])\1$")
# What a verb or noun that ends in a silent e is like without it: "creat", "mov", "caus", "chang", "requir", "titl", "decid".
_DROPS_E = re.compile(r"(?:[^aeiou]at|creat|[ui]at|[vcuz]|(?<!cu)[^s]s|[dnr]g|(?<![aeo])[aiou]r|[^aeioul]l|[cv]id)$")
_BE = word_set("am is are was were be been being 'm 're ’m ’re")
_HAVE_AND_DO = {"has": "have", "had": "have", "having": "have", "does": "do", "did": "do", "done": "do", "doing": "do"}
_ENDINGS = {  # (ending, letters to cut, letters to add) of forms that the rules of spelling make
    "NNS": (("ies", 3, "y"), ("es", 2, ""), ("s", 1, "")),
    "VBZ": (("ies", 3, "y"), ("es", 2, ""), ("s", 1, "")),
    "VBD": (("ied", 3, "y"), ("ed", 2, "")),
    "VBN": (("ied", 3, "y"), ("ed", 2, "")),
    "VBG": (("ying", 4, "ie"), ("ing", 3, "")),
    "JJR": (),
    "JJS": (),
    "RBR": (),
    "RBS": (),
}


@functools.cache
def word_list(name: str) -> tuple[str, ...]:
    """The lines of a file of augment/word_lists, without comments and empty ones."""
    lines = (_LISTS / name).read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


@functools.cache
def word_table(name: str) -> tuple[tuple[str, ...], ...]:
    """The rows of a tab-separated file of augment/word_lists."""
    return tuple(tuple(line.split("\t")) for line in word_list(name))


def rewrite(sentence: ParsedSentence, edits: Iterable[Edit]) -> str | None:
    """The text with the edits made, "a" or "an" in front of a replaced word put right; None where nothing changes, or where
    a word would stand twice in a row that did not before.
    """
    text = sentence.text
    edits = [edit for edit in edits if text[edit[0] : edit[1]] != edit[2]]
    if not edits:
        return None
    result = sentence.edit([*edits, *articles(text, edits)])
    return None if result == text or repeats_more(result, text) else result


def articles(text: str, edits: Iterable[Edit]) -> list[Edit]:
    """Edits of "a" and "an" in front of words that are replaced by others that want the other one."""
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
    """How often a word follows itself, letter case aside."""
    words = text.lower().split()
    count = 0
    for before, after in itertools.pairwise(words):
        if before[0] == after[0] and before == after.rstrip(_TRAILING) and before[-1].isalnum():
            count += 1
    return count


def repeats_more(result: str, text: str) -> bool:
    """Whether more words follow themselves in `result` than in `text`."""
    count = repeats(result)
    return count > 0 and count > repeats(text)


@functools.lru_cache(maxsize=1 << 14)
def indefinite_article(words: str) -> str:
    """ "a" or "an", by the sound that the words start with."""
    word = re.split(r"[^\w]", words.lstrip("\"'“‘("), maxsplit=1)[0]
    lower = word.lower()
    if not word:
        return "a"
    if word[0].isdigit():
        return "an" if word[0] == "8" or word in ("11", "18") or re.fullmatch(r"1[18]\d\d", word) else "a"
    if word.isupper() and (len(word) == 1 or not re.search("[AEIOU]", word)):
        return "an" if word[0] in _VOWEL_LETTERS else "a"
    if lower.startswith(_SILENT_H):
        return "an"
    if lower.startswith(_NOT_Y) and not lower.startswith(_REALLY_Y):
        return "an"
    if lower.startswith(_Y_OR_W):
        return "a"
    return "an" if lower[0] in "aeiouàáâäéèêëíîïóôöúü" else "a"


def like(original: str, new: str) -> str:
    """`new` with the capitals of `original`: all of them, the first one, or its own."""
    if len(original) > 1 and original.isupper():
        return new.upper()
    if original[:1].isupper():
        return new[:1].upper() + new[1:]
    return new


@functools.lru_cache(maxsize=1 << 16)
def inflect(lemma: str, tag: str) -> str | None:
    """A form of a lemma by its Penn Treebank tag, or None where there is none: ("child", "NNS") is "children".

    By the rules of spelling and `word_lists/irregular_forms.tsv`. Of several words a verb's first is inflected, and a noun's
    last ("body of water": that before the preposition). Adjectives and adverbs without a form of their own are compared
    by "more" and "most".
    """
    tag = _FORM_TAGS.get(tag, tag)
    if tag in ("NN", "VB", "JJ", "RB"):
        return lemma
    words = lemma.split(" ")
    if len(words) > 1 and tag[0] in "NV":
        place = 0 if tag[0] == "V" else len(words) - 1
        if tag[0] == "N":
            place = next((i - 1 for i, word in enumerate(words) if i and word in ("of", "in", "for", "to", "at")), place)
        form = inflect(words[place], tag)
        return " ".join((*words[:place], form, *words[place + 1 :])) if form else None
    if (lemma, tag) in _irregular():
        return _irregular()[lemma, tag]
    if tag in ("JJR", "JJS", "RBR", "RBS"):
        compared = _irregular().get((lemma, f"JJ{tag[-1]}")) if tag[0] == "R" else None
        return compared or f"{'more' if tag[-1] == 'R' else 'most'} {lemma}"
    if tag not in ("NNS", "VBZ", "VBD", "VBN", "VBG") or not lemma[-1:].isalpha():
        return None
    return _regular(lemma, tag)


def _regular(lemma: str, tag: str) -> str:
    stem = lemma[:-1] + "i" if lemma[-1] == "y" and lemma[-2:-1] not in _VOWELS and len(lemma) > 1 else lemma
    if tag in ("NNS", "VBZ"):
        hisses = lemma.endswith(("s", "x", "z", "ch", "sh")) or (tag == "VBZ" and lemma[-1] == "o" and lemma[-2:] != "oo")
        return stem + ("es" if hisses or stem != lemma else "s")
    doubled = lemma + lemma[-1] if _CLOSED.fullmatch(lemma) else lemma
    if tag == "VBG":
        if lemma.endswith("ie"):
            return lemma[:-2] + "ying"
        return (lemma[:-1] if lemma[-1] == "e" and lemma[-2:-1] not in tuple("eoy") and len(lemma) > 2 else doubled) + "ing"
    if lemma[-1] == "e":
        return lemma + "d"
    return (stem if stem != lemma else doubled) + "ed"


def lemma_of(word: str, tag: str, hint: str = "") -> str:
    """The lower-case lemma of a word by its Penn Treebank tag.

    hint: the parse's; believed where it makes the word by `inflect`, as small pipelines leave many forms as they are.
    """
    return _lemma_of(word.lower(), tag, hint.lower())


@functools.lru_cache(maxsize=1 << 16)
def _lemma_of(word: str, tag: str, hint: str) -> str:
    tag = _FORM_TAGS.get(tag, tag)
    if word in _BE:
        return "be"
    if word in _HAVE_AND_DO:
        return _HAVE_AND_DO[word]
    if tag not in ("NNS", "VBZ", "VBD", "VBN", "VBG", "JJR", "JJS", "RBR", "RBS"):
        return word
    if hint and hint != word and inflect(hint, tag) == word and not _DOUBLED.search(hint):
        return hint
    known = _lemmas().get((word, tag))
    if known is not None:
        return known
    for ending, cut, added in _ENDINGS[tag]:
        if word.endswith(ending):
            stem = word[:-cut] + added
            candidates = [stem, stem + "e", stem[:-1]]
            if _DOUBLED.search(stem) and stem != "add":
                candidates = [stem[:-1]]
            elif _DROPS_E.search(stem):
                candidates = [stem + "e", stem]
            for candidate in candidates:
                if len(candidate) > 1 and inflect(candidate, tag) == word:
                    return candidate
    return word


@functools.lru_cache(maxsize=1)
def _irregular() -> dict[tuple[str, str], str]:
    """{(lemma, tag): form}"""
    tags = {"NNS": ("NNS",), "VBD": ("VBD", "VBN", "VBG"), "JJR": ("JJR", "JJS")}
    table = {(row[0], tag): form for row in word_table("irregular_forms.tsv") for tag, form in zip(tags[row[1]], row[2:])}
    return {**table, ("have", "VBZ"): "has", ("be", "VBZ"): "is"}


@functools.lru_cache(maxsize=1)
def _lemmas() -> dict[tuple[str, str], str]:
    """{(form, tag): lemma}"""
    return {(form, tag): lemma for (lemma, tag), form in _irregular().items()}


def is_name(sentence: ParsedSentence, i: int) -> bool:
    """Whether word i is (part of) a proper name."""
    return sentence.tags[i] in ("NNP", "NNPS") or sentence.pos[i] == "PROPN"


def keeps_capital(sentence: ParsedSentence, i: int) -> bool:
    """Whether word i is written with a capital wherever it stands: names, "I", what has capitals inside, "French"."""
    word = sentence.word(i)
    if word == "I" or word.startswith(("I'", "I’")) or not word[:1].isupper():
        return True
    if is_name(sentence, i) or any(letter.isupper() for letter in word[1:]):
        return True
    return sentence.tags[i][:1] in ("J", "N") and word.endswith(("ian", "ish", "ese", "ean", "ench", "erman", "utch", "eek"))


def lower_first(sentence: ParsedSentence, i: int) -> str:
    """Word i as it is written in the middle of a sentence."""
    word = sentence.word(i)
    return word if keeps_capital(sentence, i) else word[:1].lower() + word[1:]


def upper_first(text: str) -> str:
    """The first letter, behind opening quotes or brackets, a capital."""
    for i, letter in enumerate(text):
        if letter.isalnum():
            return text[:i] + letter.upper() + text[i + 1 :]
    return text


def balanced(text: str) -> bool:
    """Whether straight double quotes come in pairs, and curly ones and brackets are closed in turn."""
    if text.count('"') % 2:
        return False
    for opening, closing in ("()", "[]", "“”"):
        if opening in text or closing in text:
            depth = 0
            for letter in text:
                depth += (letter == opening) - (letter == closing)
                if depth < 0:
                    return False
            if depth:
                return False
    return True
