"""Swap genders: pronouns, words with a counterpart of the other gender, given names. A rule of AugCSE."""

import functools

from augment.core.entry import english
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, rewrite, word_map, word_set, word_table

_PRONOUNS = word_map("he=she she=he himself=herself herself=himself him=her hers=his")
_TITLES = word_map(
    "mr=Ms mr.=Ms. mrs=Mr mrs.=Mr. ms=Mr ms.=Mr. miss=Mr. sir=Madam madam=Sir lord=Lady lady=Lord "
    "madame=Monsieur monsieur=Madame"
)
# Written with a capital in front of a name these are titles, and swapped; other capitalised pairs are (parts
# of) names.
_RANKS = word_set(
    "abbot abbess baron baroness duke duchess emperor empress king queen prince princess viscount "
    "viscountess uncle aunt"
)
# What stands behind a "his" or "her" that owns nothing.
_BEHIND_PRONOUNS = word_set("PUNCT ADP CCONJ SCONJ AUX DET PRON PART")
_OWNED = word_set("NOUN PROPN ADJ NUM VERB ADV")  # what a noun phrase begins with
_BEFORE_NO_PERSON = word_set("St. Saint San Fort Mount Lake Port the The - of de van von")
_BEHIND_NO_PERSON = word_set("- River Street County Island Islands College University Church Bay City")
_SECOND_NAMES = word_set(
    "Ann Anne Beth Bob Ellen Fay Jean Jo Joe Kate Kay Lee Lou Louise Lynn Mae May Paul Ray Rose Sue"
)
_QUOTES = frozenset("\"“‘'`") | {"``"}


@english(
    "preserving",
    needs="tags",
    sample="She gave her brother Peter the keys. -> He gave his sister Alice the keys.",
)
def gender_swap(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Replace words and names of one gender by those of the other: GenderSwap (NL-Augmenter after Lu et al.
    2020).

    "her" is "his" or "him", and "his" is "her" or "hers", by tag. A given name becomes the same new name
    wherever it stands, and none that the sentence has; family names, places, "Martin Luther King" stay.
    """
    tags = sentence.tags
    words = sentence.words
    pairs, names = _pairs(), _names()
    renamed: dict[str, str] = {}
    edits: list[Edit] = []
    for i, word in enumerate(words):
        lower = word.lower()
        new = None
        if lower in _PRONOUNS:
            new = _PRONOUNS[lower]
        elif lower == "her":
            new = "his" if _is_possessive(sentence, i) else "him"
        elif lower == "his":
            new = "her" if _is_possessive(sentence, i) else "hers"
        elif lower in _TITLES and word[0].isupper() and _before_name(sentence, i):
            new = _TITLES[lower]
            if lower == "miss" and sentence.text[sentence.ends[i] :].startswith("."):
                new = "Mr"
        elif lower in pairs and _is_common(sentence, i, word, lower):
            new = pairs[lower]
        elif word in names and _is_given_name(sentence, i, words):
            if word not in renamed:
                taken = {*words, *renamed.values()}
                others = [name for name, its in names.items() if its != names[word] and name not in taken]
                renamed[word] = draws.choice(others)
            new = renamed[word]
        if new is not None and tags[i] != "FW":
            edits.append(sentence.replacement(i, like(word, new) if len(word) > 1 else new))
    return rewrite(sentence, edits)


def _is_possessive(sentence: ParsedSentence, i: int) -> bool:
    """Return whether "her" or "his" belongs to a noun behind it, by its tag and by what follows."""
    tag = sentence.tags[i]
    while i + 1 < len(sentence) and sentence.word(i + 1) in _QUOTES:  # 'his "autobiography"'
        i += 1
    if i + 1 >= len(sentence) or sentence.pos[i + 1] in _BEHIND_PRONOUNS:
        return False
    return tag == "PRP$"


def _before_name(sentence: ParsedSentence, i: int) -> bool:
    following = i + 1
    while following < len(sentence) and sentence.word(following) == ".":
        following += 1
    return following < len(sentence) and sentence.word(following)[:1].isupper()


def _is_common(sentence: ParsedSentence, i: int, word: str, lower: str) -> bool:
    kind = sentence.tags[i][:2]
    if kind[:1] == "V" or (kind != "NN" and lower in ("host", "hosts", "steward", "guys")):
        return False
    if lower in _RANKS and i and sentence.tags[i - 1] in ("NN", "NNP"):
        return False  # "burger king"
    if (i + 1 < len(sentence) and sentence.word(i + 1) == "-") or (i and sentence.word(i - 1) == "-"):
        return False  # "man-made", "half-brother" where it is cut in three
    if word[0].islower():
        return True
    if lower in _RANKS:
        return _before_name(sentence, i) and sentence.word(i + 1) not in ("Island", "Street", "Cup", "Edward")
    # A capital in the middle is a name's; at the start of the sentence, if no name goes on behind it, it
    # is not.
    return i == 0 and sentence.tags[i] not in ("NNP", "NNPS")


def _is_given_name(sentence: ParsedSentence, i: int, words: list[str]) -> bool:
    if sentence.tags[i] not in ("NNP", "NN"):
        return False
    if i:
        before = words[i - 1]
        if before in _BEFORE_NO_PERSON:
            return False
        if before[:1].isupper() and before[:1].isalpha() and sentence.tags[i - 1][:3] == "NNP":
            title = before.lower() in _TITLES or before.lower() in _RANKS
            return title or before.rstrip(".") in ("Dr", "Rev", "Sir", "Queen")
    if i + 1 < len(words):
        following = words[i + 1]
        if following in _SECOND_NAMES and i + 2 < len(words) and sentence.tags[i + 1] == "NNP":
            return False  # "Mary Jo"
        if sentence.tags[i + 1] == "POS" and _OWNED.isdisjoint(sentence.pos[i + 2 : i + 3]):
            return False  # "at Ralph's": a shop
        if following in _BEHIND_NO_PERSON:
            return False
    return True


@functools.lru_cache(maxsize=1)
def _pairs() -> dict[str, str]:
    pairs: dict[str, str] = {}
    for male, female in word_table("gender_pairs.tsv"):
        pairs.setdefault(male, female)
        pairs.setdefault(female, male)
    return pairs


@functools.lru_cache(maxsize=1)
def _names() -> dict[str, str]:
    """Return {given name: "male" or "female"}."""
    return {name: gender for gender, names in word_table("given_names.tsv") for name in names.split()}
