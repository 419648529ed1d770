"""Change colours: a rule of AugCSE."""

from __future__ import annotations

import functools

from augment.core.entry import Entry
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import AUGCSE, Edit, like, rewrite, word_list, word_set, word_table

_SHARES = word_set("more less mostly predominantly largely mainly overwhelmingly entirely exclusively all")
_JOINTS = ("-", "/", "–")


def colors(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace every colour by another of the 147 of CSS ("dark sea green"): ColorTransformation
    (NL-Augmenter). Return None without a colour.

    As published: every colour name found as a substring ("tan" in "Stan"), all for the same colour in every
    sentence. Here: whole words, the longest name first, a colour drawn for each; names are left ("Red Sea",
    "Mr Brown", "green tea", "black voters"), and words that are things more often than colours ("orange",
    "wheat", "snow") only count as adjectives.
    """
    words = sentence.words
    known, longest = _known()
    edits: list[Edit] = []
    i = 0
    while i < len(words):
        lower = words[i].lower()
        if lower not in longest:
            i += 1
            continue
        for length in range(min(longest[lower], len(words) - i), 0, -1):
            j = i + length - 1
            name = lower if length == 1 else sentence.text[sentence.starts[i] : sentence.ends[j]].lower()
            if name in known and _is_colour(sentence, i, j, known[name], words):
                old = sentence.text[sentence.starts[i] : sentence.ends[j]]
                new = draws.choice([other for other in _all() if other != name])
                edits.append((sentence.starts[i], sentence.ends[j], like(old, new)))
                i = j
                break
        i += 1
    return rewrite(sentence, edits)


def _is_colour(sentence: ParsedSentence, i: int, j: int, is_thing: bool, words: list[str]) -> bool:
    tag = sentence.tags[j]
    if is_thing and i == j and (tag != "JJ"):
        return False
    if tag not in ("JJ", "NN"):
        return False
    if words[i][:1].isupper() and (i or (j + 1 < len(words) and words[j + 1][:1].isupper())):
        return False  # the name of something
    if i and (words[i - 1] in _JOINTS or (words[i - 1][:1].isupper() and sentence.pos[i - 1] == "PROPN")):
        return False
    if tag == "NN" and [word.lower() for word in words[max(0, i - 2) : i]] == ["in", "the"]:
        return False  # "in the red"
    if _is_black_and_white(words, j) or _is_of_people(words, i):
        return False
    return j + 1 == len(words) or (
        words[j + 1] not in _JOINTS and not _is_named(words[j].lower(), words[j + 1])
    )


def _is_black_and_white(words: list[str], j: int) -> bool:
    """Return whether a word is of "black and white", which says that a picture has no colours."""
    around = [word.lower() for word in words[max(0, j - 2) : j + 3]]
    return any(
        around[k : k + 3] in (["black", "and", "white"], ["black", "&", "white"]) for k in range(len(around))
    )


def _is_of_people(words: list[str], i: int) -> bool:
    """Return whether a colour stands behind a word for a share, as in "predominantly white"."""
    return words[i].lower() in ("black", "white", "brown") and i > 0 and words[i - 1].lower() in _SHARES


def _is_named(colour: str, noun: str) -> bool:
    """Return whether a colour makes the name of a thing ("black hole") or of a group of people, and says
    nothing of their looks.
    """
    things, groups = _nouns().get(colour, (frozenset(), frozenset()))
    either = {noun.lower(), noun.lower().removesuffix("s")}
    return not either.isdisjoint(things | groups) or (bool(groups) and noun[:1].isupper())


@functools.lru_cache(maxsize=1)
def _all() -> tuple[str, ...]:
    return tuple(line.lstrip("*") for line in word_list("colours.txt"))


@functools.lru_cache(maxsize=1)
def _nouns() -> dict[str, tuple[frozenset[str], frozenset[str]]]:
    """Return {colour: (things, groups of people) that it makes a name with}."""
    rows = {colour: word_set(nouns) for colour, nouns in word_table("colour_nouns.tsv")}
    groups = {
        colour: nouns for colours, nouns in rows.items() if " " in colours for colour in colours.split()
    }
    return {
        colour: (rows.get(colour, frozenset()), groups.get(colour, frozenset()))
        for colour in rows.keys() | groups
    }


@functools.lru_cache(maxsize=1)
def _known() -> tuple[dict[str, bool], dict[str, int]]:
    """Return ({name: whether it is a thing more often than a colour}, {first word: most words of a name that
    starts so})."""
    known = {line.lstrip("*"): line[0] == "*" for line in word_list("colours.txt")}
    longest: dict[str, int] = {}
    for name in known:
        first = name.split(" ")[0]
        longest[first] = max(longest.get(first, 0), name.count(" ") + 1)
    return known, longest


ENTRIES = (
    Entry(
        name="colors",
        paper=AUGCSE,
        description="Every colour becomes another of the 147 of CSS.",
        function=colors,
        meaning="possibly altering",
        languages=("en",),
        needs=("tags",),
        sample=("She wore a red dress and black shoes.", "She wore a misty rose dress and teal shoes."),
    ),
)
