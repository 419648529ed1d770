"""Find words in WordNet that may replace another word, by senses, frequency and grammar.

A word has many senses, and its sentence seldom says which. So a word is replaced only if one sense has
most of the uses that WordNet's makers tagged (`cntlist.rev`), and only by a word of which that sense has most
of the uses too: both readings then agree. The other word must be common (`word_lists/word_uses.tsv`), and not
much rarer than the first. `word_lists/wordnet_unfit.tsv` lists replacements that these counts allow and that
reading showed to be wrong, `word_lists/wordnet_fit.tsv` right ones that the counts forbid.
"""

import functools
import re
from dataclasses import dataclass, replace

from augment.text.inflection import lemma_of
from augment.text.word_forms import named_words, word_set, word_table
from augment.text.wordnet import Synset, wordnet

RELATIONS = frozenset({"synonyms", "antonyms", "hypernyms", "hyponyms"})
_POINTERS = {"hypernyms": ("@", 4), "hyponyms": ("~", 1)}  # symbol, most steps to a usual word
_SMOOTHING = 0.25  # added to the tagged uses of every sense
_LEAST_SHARE = 0.6  # least share of its uses that a word must have in the sense
_SHARE_OF_MANY = 0.8  # the same for a broader term, of a noun of more than three senses: "bill", "book"
_SHARE_OF_OTHER = {"synonyms": 0.5, "hypernyms": 0.5, "hyponyms": 0.8}  # the same of the word in its place
_RARER = 40  # how many times rarer a synonym may be
_LEAST_USES = {"hypernyms": 10, "hyponyms": 3}  # in a million words, of a broader or narrower term
_ANTONYM_OWN, _ANTONYM_OTHERS = 0.5, 0.3  # antonyms belong to words, not to senses: most agree on them
_FORMED = 0.2  # the same for "unhappy" and its like, which follow every sense of "happy"
_PREFIX = re.compile(r"un|in|im|il|ir|dis|non|ab")

# Words without a usual sense: they have many or general uses, or only their sentence gives them a meaning:
# auxiliaries, light verbs, ordinals and other words that point.
NEVER = named_words("senses.never")
_NEVER_ANTONYMS = NEVER - word_set("able likely certain right current")  # "unable", "unlikely" mean one thing
_NEVER_NOUNS = named_words("senses.never_nouns")
# Terms so general that they say nothing in a noun's place.
_TOO_GENERAL = named_words("senses.too_general")
# What everybody sorts things by: a word's broader term where the one next to it is a learned one ("canine").
_BASIC = named_words("senses.basic")
# Plurals by themselves ("bounds"), and what no noun's place takes ("looking at").
_UNFIT_NOUN = re.compile(
    r"(?<!\blen)(?<!\bserie)(?<!\bspecie)(?<!\bcorp)(?<!\bmean)(?<!\bnew)(?<=[^aiosu])s$"
)
_VOWEL = re.compile("[aeiouy]")  # abbreviations have none

# Frames of verbs, by their numbers in wninput(5WN).
FRAMES = {
    "object": frozenset({8, 9, 10, 11, 14, 15, 16, 17, 18, 19, 20, 21, 30, 31}),
    "none": frozenset({1, 2, 3, 4, 12, 13, 22, 23}),
    "that": frozenset({26, 34}),
    "to": frozenset({28}),
    "object to": frozenset({24}),
}


@dataclass(frozen=True)
class Substitute:
    """Hold a lemma that may replace a word, and what the word's place in the sentence must be like.

    uses: of nouns "c" (with "a", in the plural) or "m" (without), of adjectives and adverbs "g" (with "very",
    "more"), or "".
    place: of an adjective as `Synset.places` has it. frames: of a verb, those of FRAMES that it has in this
    sense.
    """

    lemma: str
    uses: str = ""
    place: str = ""
    frames: frozenset[str] = frozenset()


@functools.lru_cache(maxsize=1 << 16)
def substitutes(relation: str, word: str, part: str, tag: str, hint: str) -> tuple[Substitute, ...]:
    """Return the words in a relation (of RELATIONS) to a word in its usual sense; tag, hint: `lemma_of`."""
    lemma = lemma_of(word, tag, hint)
    if tag == "NNS" and lemma == word:  # "police", "mathematics": no singular, or no plural of its own
        return ()
    never = _NEVER_ANTONYMS if relation == "antonyms" else NEVER
    if not never.isdisjoint((word, lemma)) or (part == "n" and not _NEVER_NOUNS.isdisjoint((word, lemma))):
        return ()
    unfit = _word_lists("wordnet_unfit.tsv").get((relation, part, lemma), frozenset())
    if "*" in unfit:
        return ()
    found = _antonyms(lemma, part) if relation == "antonyms" else _in_usual_sense(relation, lemma, part)
    if relation == "synonyms":
        found += _fit_in_any_sense(lemma, part)
    kept: dict[str, Substitute] = {}
    for substitute in found:
        other = substitute.lemma
        if other not in unfit and not _overlaps(other, lemma):
            frames = frozenset(frame for frame in substitute.frames if f"{other}:{frame}" not in unfit)
            kept.setdefault(other, replace(substitute, frames=frames))
    return tuple(kept.values())


def uses(lemma: str, part: str) -> str | None:
    """Return how a word is used (`Substitute.uses`), or None if it is too rare to replace another."""
    entry = _uses().get((lemma, part))
    return None if entry is None else entry[1]


def _in_usual_sense(relation: str, lemma: str, part: str) -> list[Substitute]:
    source = wordnet()
    offsets = source.offsets(lemma, part)
    many = relation == "hypernyms" and len(offsets) > 3
    if not offsets or _share(lemma, part, offsets[0]) < (_SHARE_OF_MANY if many else _LEAST_SHARE):
        return []
    usual = source.synset(offsets[0], part)
    if relation == "synonyms":
        least = _per_million(lemma, part) / _RARER
        return [_substitute(usual, i, part) for i in _fitting(usual, offsets[0], part, relation, least)]
    symbol, steps = _POINTERS[relation]
    found: list[Substitute] = []
    synsets = [usual]
    for step in range(steps):
        pointers = [pointer for synset in synsets for pointer in synset.pointers]
        targets = dict.fromkeys(
            offset for kind, offset, its_part, *_ in pointers if (kind, its_part) == (symbol, part)
        )
        synsets = [source.synset(offset, part) for offset in targets]
        for synset, offset in zip(synsets, targets):
            fitting = _fitting(synset, offset, part, relation, _LEAST_USES[relation])
            fitting = [i for i in fitting if synset.lemmas[i] not in _TOO_GENERAL]
            fitting = [i for i in fitting if step == 0 or synset.lemmas[i] in _BASIC]
            if fitting:  # of several words for one term, that which is most used for it
                best = max(fitting, key=lambda i: _tagged(synset.lemmas[i], part, offset))
                found.append(_substitute(synset, best, part))
        if found:
            break
    return found


def _fit_in_any_sense(lemma: str, part: str) -> list[Substitute]:
    """Return the synonyms that `wordnet_fit.tsv` has, if WordNet has them."""
    wanted = _word_lists("wordnet_fit.tsv").get((part, lemma))
    if wanted is None:
        return []
    words = ((synset, i) for synset in wordnet().synsets(lemma, part) for i in range(len(synset.lemmas)))
    return [_substitute(synset, i, part) for synset, i in words if synset.lemmas[i] in wanted]


def _antonyms(lemma: str, part: str) -> list[Substitute]:
    """Return antonyms of this very word (not of its synonyms), of its first three senses."""
    found = []
    for offset, target, its_part, place in wordnet().opposites(lemma, part, 3):
        if its_part != part:
            continue
        opposite = wordnet().synset(target, part)
        name = opposite.lemmas[place]
        formed = _is_formed(lemma, name)
        usual = _share(lemma, part, offset) >= (_FORMED if formed else _ANTONYM_OWN)
        usual = usual and _share(name, part, target) >= (_FORMED if formed else _ANTONYM_OTHERS)
        if usual and _is_usable(name, part, _NEVER_ANTONYMS):
            found.append(_substitute(opposite, place, part))
    return found


def _fitting(synset: Synset, offset: int, part: str, relation: str, least: float) -> list[int]:
    """Return the places in a synset of words that usually mean it; least: their uses per million words."""
    return [
        i
        for i, name in enumerate(synset.lemmas)
        if _is_usable(name, part)
        and _per_million(name, part) >= least
        and _share(name, part, offset) >= _SHARE_OF_OTHER[relation]
        and (relation == "hypernyms" or _tagged(name, part, offset))
    ]


def _is_usable(name: str, part: str, never: frozenset[str] = NEVER) -> bool:
    if not name.islower() or " " in name or not _VOWEL.search(name[1:]):
        return False
    if name in never or uses(name, part) is None:
        return False
    return part != "n" or (_UNFIT_NOUN.search(name) is None and name not in _NEVER_NOUNS)


def _substitute(synset: Synset, i: int, part: str) -> Substitute:
    name = synset.lemmas[i]
    numbers = {number for number, word in synset.frames if word in (0, i + 1)}
    frames = frozenset(kind for kind, wanted in FRAMES.items() if numbers & wanted)
    return Substitute(name, uses(name, part) or "", synset.places[i], frames)


def _share(lemma: str, part: str, offset: int) -> float:
    """Return the share of a word's tagged uses that a sense has; offset: the sense's synset."""
    source = wordnet()
    offsets, counts = source.offsets(lemma, part), source.counts(lemma, part)
    if offset not in offsets:
        return 0.0
    return (counts[offsets.index(offset)] + _SMOOTHING) / (sum(counts) + _SMOOTHING * len(counts))


def _tagged(lemma: str, part: str, offset: int) -> int:
    """Return how often WordNet's makers found a word in a sense."""
    source = wordnet()
    return dict(zip(source.offsets(lemma, part), source.counts(lemma, part))).get(offset, 0)


def _per_million(lemma: str, part: str) -> float:
    return _uses().get((lemma, part), (0.0, ""))[0]


def _is_formed(one: str, other: str) -> bool:
    """Return whether one is the other with a negating prefix, or with "-less" for "-ful"."""
    short, long = sorted((one, other), key=len)
    if long.endswith(short) and _PREFIX.fullmatch(long[: -len(short)]):
        return True
    stems = [(word.removesuffix("less"), word.removesuffix("ful")) for word in (one, other)]
    return stems[0][0] == stems[1][1] or stems[0][1] == stems[1][0]


def _overlaps(other: str, lemma: str) -> bool:
    """Return whether one is the other with an addition, or a spelling of it: "first-class" for "class"."""
    if other.isalpha() and lemma.isalpha():
        return other == lemma
    part = lemma in other.split("-") or other in lemma.split("-")
    return part or other.replace("-", "") == lemma.replace("-", "")


@functools.lru_cache(maxsize=1)
def _uses() -> dict[tuple[str, str], tuple[float, str]]:
    """Return {(word, part of speech): (uses in a million words, `Substitute.uses`)}."""
    return {
        (row[0], row[1]): (float(row[2]), row[3] if len(row) > 3 else "")
        for row in word_table("word_uses.tsv")
    }


@functools.cache
def _word_lists(table: str) -> dict[tuple[str, ...], frozenset[str]]:
    """Return the words in a table's last column by its other columns; `wordnet_unfit.tsv` has "*" for all."""
    return {tuple(word): word_set(others) for *word, others in word_table(table)}
