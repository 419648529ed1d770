"""Change colours: a rule of AugCSE."""

import re

from augment.core.entry import english
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import (
    Edit,
    lengths_by_word,
    like,
    named_words,
    names_in,
    rewrite,
    word_list,
    word_set,
    word_table,
)

_SHARES = word_set("more less mostly predominantly largely mainly overwhelmingly entirely exclusively all")
_JOINTS = ("-", "/", "–")
_SKIN = word_set("black white brown")
# a person's noun by its end; some things share it ("a black container"), and are left as they are
_PERSON = re.compile(r"(?:er|or|ist|ian|ican|ean|ant|ent|ate|ee|man|men|woman|women|people|ship|ism|hood)s?$")
_KIND = re.compile(r"(?:wort|weed|fish|berry|bird|fly|grass|heron|urchin|squid|crab|snail|moth)s?$")
_OF_PERSONS = named_words("colors.of_persons")
_QUOTES = ("'", '"', "“", "‘", "`", "``", "''")
_SURNAMES = word_set("black white brown green gray grey")
_BEFORE_COLOUR = ("DT", "PRP$", "IN", "CC", "VBG", "VBN", "CD", ",")
_LOOKS = named_words("colors.looks")
_SHADES = word_set("pale light dark deep bright vivid dull soft rich pure slightly very")
COLOURS = {line.lstrip("*"): line[0] == "*" for line in word_list("colours.txt")}
"""Names of colours; whether each is mostly a thing, no colour."""
_LENGTHS = lengths_by_word(COLOURS)
# nouns that a colour makes a name with: things; groups of people
_THINGS = {colour: word_set(nouns) for colour, nouns in word_table("colour_nouns.tsv")}
_GROUPS = {one: nouns for colours, nouns in _THINGS.items() if " " in colours for one in colours.split()}
_BEFORE_NOUN = _SHADES | word_set("in and or , the of")


@english(
    "possibly altering",
    needs="tags",
    sample="She wore a red dress and black shoes. -> She wore a misty rose dress and teal shoes.",
)
def colors(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace every colour by another of the 147 of CSS ("dark sea green"): ColorTransformation (NL-
    Augmenter).

    Whole words, the longest name first, a colour drawn for each (as published: substrings, one colour). Names
    stay ("Red Sea", "Mr Brown", "green tea", "black voters"); words that are things more often than colours
    ("orange", "wheat", "snow") only count as adjectives.
    """
    words = sentence.words

    def other_colour(i: int, j: int) -> Edit | None:
        old = sentence.span(i, j)
        name = old.lower()
        if name not in COLOURS or not _is_colour(sentence, i, j, COLOURS[name], words):
            return None
        shaded = i > 0 and words[i - 1].lower() in _SHADES  # no "pale dark red"
        others = [other for other in COLOURS if other != name and not (shaded and " " in other)]
        return sentence.replacement(i, like(old, draws.choice(others)), j)

    return rewrite(sentence, names_in([word.lower() for word in words], _LENGTHS, other_colour))


def _is_colour(sentence: ParsedSentence, i: int, j: int, is_thing: bool, words: list[str]) -> bool:
    tag = sentence.tags[j]
    before = [word.lower() for word in words[max(0, i - 3) : i]]
    behind = sentence.tags[j + 1] if j + 1 < len(words) else "."
    if tag not in ("JJ", "NN") or (is_thing and i == j and not _is_seen(sentence, i, before)):
        return False
    if i and (sentence.tags[i - 1].startswith("NN") or words[i - 1] in _QUOTES):
        return False  # a name ("charlie brown"), a shade of its own ("cherry red"), or only called so
    if tag == "NN" and not behind.startswith("NN") and before[-1:] and before[-1] not in _BEFORE_NOUN:
        return False  # "assume black 's identity", "at red"
    if words[i] in _SURNAMES and sentence.text.islower() and i and sentence.tags[i - 1] not in _BEFORE_COLOUR:
        return False  # "james brown" in a text without capitals
    if i and (before[-1] in ("to", "into") or before[-1].endswith("ish")):
        return False
    if sentence.text[: sentence.starts[i]][-1:] in (":", "=") or (not i and behind[:2] in ("VB", "MD")):
        return False  # markup; a player of chess
    if words[i][:1].isupper() and (i or (j + 1 < len(words) and words[j + 1][:1].isupper())):
        return False  # the name of something
    if i and (words[i - 1] in _JOINTS or (words[i - 1][:1].isupper() and sentence.pos[i - 1] == "PROPN")):
        return False
    if tag == "NN" and [word.lower() for word in words[max(0, i - 2) : i]] == ["in", "the"]:
        return False  # "in the red"
    around = " ".join(words[max(0, j - 2) : j + 3]).lower().replace("&", "and")
    if " black and white " in f" {around} " or _is_of_people(sentence, i, before):
        return False  # a picture without colours
    if words[j + 1 : j + 2] and words[j + 1] in _JOINTS:
        return False
    nouns = _nouns_behind(sentence, j)
    if words[j].lower() in _SKIN and any(_PERSON.search(noun.lower()) for noun in nouns):
        return False
    return not any(_is_named(words[j].lower(), noun) for noun in nouns)


def _is_seen(sentence: ParsedSentence, i: int, before: list[str]) -> bool:
    """Return whether a word such as "gold" describes looks: behind a shade or verb, or beside a colour."""
    if sentence.tags[i] != "JJ":
        return False
    if i and before[-1] in _SHADES:
        return True
    behind = sentence.tags[i + 1] if i + 1 < len(sentence) else "."
    if i and behind[:2] not in ("NN", "JJ") and before[-1] in _LOOKS:
        return True
    around = [word.lower() for word in (*sentence.words[max(0, i - 2) : i], *sentence.words[i + 1 : i + 3])]
    return not {"and", "or", ","}.isdisjoint(around) and any(COLOURS.get(word) is False for word in around)


def _nouns_behind(sentence: ParsedSentence, j: int) -> list[str]:
    """Return the nouns behind a colour: "water" of "black and grey water", two of "black jury members"."""
    words = sentence.words
    k = j + 1
    while sentence.lower(k) in ("and", "or", ",", "&") and sentence.lower(k + 1) in COLOURS:
        k += 2
    end = k + 1
    while end < len(words) and sentence.tags[end].startswith("NN"):
        end += 1
    return words[k:end]


def _is_of_people(sentence: ParsedSentence, i: int, before: list[str]) -> bool:
    """Return whether a colour says what people somebody is of: "predominantly white", "he was black"."""
    if sentence.lower(i) not in _SKIN:
        return False
    behind = sentence.tags[i + 1] if i + 1 < len(sentence) else "."
    is_noun = (sentence.tags[i] == "NN" and before[-1:] != ["in"]) or behind in ("VBN", "VBD", "MD", "POS")
    before_verb = i > 1 and sentence.tags[i - 2] in ("NNP", "PRP", "CD", "WP")
    is_said = before_verb and sentence.tags[i - 1][:2] == "VB"
    around = {*before, *(word.lower() for word in sentence.words[i + 1 : i + 4])}
    return (
        is_noun
        or (is_said and behind[:2] not in ("NN", "JJ"))
        or (i > 0 and before[-1] in _SHARES)
        or not _OF_PERSONS.isdisjoint(around)
    )


def _is_named(colour: str, noun: str) -> bool:
    """Return whether a colour is part of a name for a thing ("black hole") or a group of people."""
    things, groups = _THINGS.get(colour, frozenset()), _GROUPS.get(colour, frozenset())
    lower = noun.lower()
    either = {lower, lower.removesuffix("s"), lower.removesuffix("es"), re.sub("ies$", "y", lower)}
    if _KIND.search(lower):
        return True
    return not either.isdisjoint(things | groups) or (bool(groups) and noun[:1].isupper())
