"""Word substitution by WordNet: AugCSE's antonyms, hypernyms, hyponyms and synonyms, VaSCL's synonyms.

Only words that WordNet's tagged texts have come in, not "cognize" for "know". Such a word takes the form of the one that goes
("houses": "buildings", "won": "lost"), its capital, and "a" or "an" in front of it. Words of names, verbs that help others,
and words of which WordNet knows no such relation stay.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from math import ceil

from augment.entry import Entry, Parameter
from augment.inflection import inflect, lemma_of
from augment.lexical_forms import AUGCSE, Edit, like, rewrite, word_set
from augment.parsed import ParsedSentence
from augment.text import Draws
from augment.wordnet import require_wordnet, wordnet

VASCL = "VaSCL (Zhang et al. 2022), section 4.4"
_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
_TAGS = {"n": ("NN", "NNS"), "v": ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"), "a": ("JJ", "JJR", "JJS"), "r": ("RB", "RBR", "RBS")}
_CONTENT_TAGS = frozenset(tag for tags in _TAGS.values() for tag in tags)
_CONTENT = frozenset((pos, tag) for pos, part in _POS.items() for tag in _TAGS[part])
# Of so many or so general uses that WordNet's first senses mislead, or parts of fixed phrases.
_NEVER = word_set(
    "be have do not n't no more most less least very so too also as well just only even such same other own many much few "
    "own new old first last next due able likely up down out in on off over there here now then when where how why that "
    "never always ever still again almost about around however therefore thus hence rather quite get go make take use "
    "back far long together apart ago away yet already often"
)
_NEVER_NOUNS = word_set("one ones thing things way ways part lot number percent time times case kind sort type mr mrs ms dr")
_ANTONYM_STOPS = word_set("most more less least such same other many much few own due able likely as well very not never ever")
_VOWEL = re.compile("[aeiouy]")  # abbreviations have none
# What fits no noun's place, plurals by themselves ("bounds") and what wants an object ("looking at"), and no adjective's ("a
# same day", "he is middle").
_UNFIT_NOUN = re.compile(r"(?<!\blen)(?<!\bserie)(?<!\bspecie)(?<!\bcorp)(?<!\bmean)(?<!\bnew)(?<=[^aiosu])s$| (?:at|of|in|on)$")
_UNFIT_ADJECTIVES = word_set("same middle")
_BINDS = frozenset("-–/_@")
_PARTICLE = frozenset({"compound:prt", "prt"})
_BOUND = _PARTICLE | {"fixed", "flat", "goeswith", "aux", "aux:pass", "auxpass", "cop"}
Relation = Callable[[str, str], tuple[str, ...]]


def antonym_adjectives(sentence: ParsedSentence, draws: Draws) -> str | None:
    """SentenceAdjectivesAntonymsSwitch (NL-Augmenter): every adjective that has an antonym becomes it.

    As published: the first antonym, by alphabet, of the first lemma of the first sense, in the base form. Here: of the
    adjective's own lemma, in its first two senses, compared where it is ("bigger": "smaller"). Altering. Needs the parse and
    WordNet.
        "Amanda's mother was very beautiful." -> "Amanda's mother was very ugly."
    """
    return rewrite(sentence, _antonyms(sentence, ("a",), draws))


def antonyms(sentence: ParsedSentence, draws: Draws) -> str | None:
    """AntonymSubstitute as AugCSE changed it: an odd number of adjectives and adverbs become their antonyms.

    As published: all that have one, where their number is odd (NL-Augmenter: even, so that the meaning returns); else
    unchanged. Here: where it is even, one of them, drawn at random, is left. Altering. Needs the parse and WordNet.
        "He is a good and fast runner." -> "He is a bad and fast runner."
    """
    edits = _antonyms(sentence, ("a", "r"), draws)
    if len(edits) % 2 == 0 and edits:
        edits.pop(draws.below(len(edits)))
    return rewrite(sentence, edits)


def hypernyms(sentence: ParsedSentence, draws: Draws) -> str | None:
    """ReplaceHypernyms (NL-Augmenter, CheckList): a noun becomes a broader term.

    As published: one random noun, all occurrences of its letters, by the first hypernym. Here: that word alone, of those
    that have one, a random hypernym of its most frequent sense, in its number. Altering. Needs the parse and WordNet.
        "She lost a spoon." -> "She lost a container."
    """
    return _one_noun(sentence, draws, wordnet().hypernyms)


def hyponyms(sentence: ParsedSentence, draws: Draws) -> str | None:
    """ReplaceHyponyms (NL-Augmenter, CheckList): a noun becomes a narrower term; else as `hypernyms`.

    Altering. Needs the parse and WordNet.
        "The dog barked." -> "The puppy barked."
    """
    return _one_noun(sentence, draws, wordnet().hyponyms)


def synonyms_wordnet(sentence: ParsedSentence, draws: Draws, rate: float = 0.5) -> str | None:
    """SynonymSubstitution (NL-Augmenter; Wei and Zou 2019): each noun, verb, adjective and adverb, with probability `rate`,
    becomes a synonym.

    As published: a random sense's first lemma, adjectives looked up as satellites only, one fixed draw, the base form,
    underscores left in. Here: a random other lemma of the two most frequent senses, in the form of the word. Preserving.
    Needs the parse and WordNet.
        "The big car stopped." -> "The large automobile halted."
    """
    edits = [_synonym(sentence, i, draws) for i in _content_words(sentence) if draws.chance(rate)]
    return rewrite(sentence, [edit for edit in edits if edit])


def wordnet_substitution(sentence: ParsedSentence, draws: Draws, rate: float = 0.1) -> str | None:
    """VaSCL's WNet (through nlpaug; Morris et al. 2020, Ren et al. 2019): ceil(rate * n) of n words become WordNet synonyms, at
    5, 10 and 20%; of words that have any, drawn at random; n counts all words. Preserving. Needs the parse and WordNet.
        "The big car stopped." -> "The large car stopped."
    """
    found = _content_words(sentence)
    marks = sum(map(sentence.pos.count, ("PUNCT", "SYM", "SPACE")))
    count = ceil(rate * (len(sentence) - marks))
    edits = []
    for i in draws.sample(found, len(found)):
        if len(edits) >= count:
            break
        edit = _synonym(sentence, i, draws)
        if edit:
            edits.append(edit)
    return rewrite(sentence, edits)


def _antonyms(sentence: ParsedSentence, parts: tuple[str, ...], draws: Draws) -> list[Edit]:
    edits = []
    words = sentence.text.lower().split()
    for i, pos in enumerate(sentence.pos):
        part = _POS.get(pos)
        if part not in parts or sentence.tags[i] not in _TAGS[part]:
            continue
        found = _related_to(sentence, i, "antonyms")
        found = [word for word in found if word not in words] if found else found  # "the left and right side"
        edit = _replacement(sentence, i, draws.choice(found)) if found and not _is_bound(sentence, i) else None
        if edit:
            edits.append(edit)
    return edits


def _one_noun(sentence: ParsedSentence, draws: Draws, relation: Relation) -> str | None:
    found = []
    for i, pos in enumerate(sentence.pos):
        if pos == "NOUN" and sentence.tags[i] in _TAGS["n"] and not _is_bound(sentence, i):
            found.append(i)
    for i in draws.sample(found, len(found)):
        edit = _drawn(sentence, i, relation.__name__, draws)
        if edit:
            return rewrite(sentence, [edit])
    return None


def _content_words(sentence: ParsedSentence) -> list[int]:
    """The nouns, verbs, adjectives and adverbs."""
    pos = sentence.pos
    return [i for i, tag in enumerate(sentence.tags) if tag in _CONTENT_TAGS and (pos[i], tag) in _CONTENT]


def _synonym(sentence: ParsedSentence, i: int, draws: Draws) -> Edit | None:
    """Word i becomes a random synonym, if it has any."""
    words = _related_to(sentence, i, "synonyms")
    return _replacement(sentence, i, draws.choice(words)) if words and not _is_bound(sentence, i) else None


def _drawn(sentence: ParsedSentence, i: int, relation: str, draws: Draws) -> Edit | None:
    """Word i becomes a random one of those that stand in a relation to it, if any do."""
    words = _related_to(sentence, i, relation)
    return _replacement(sentence, i, draws.choice(words)) if words else None


def _related_to(sentence: ParsedSentence, i: int, relation: str) -> tuple[str, ...]:
    return _related(relation, sentence.word(i).lower(), _POS[sentence.pos[i]], sentence.tags[i], sentence.lemmas[i])


@functools.lru_cache(maxsize=1 << 16)
def _related(relation: str, word: str, part: str, tag: str, hint: str) -> tuple[str, ...]:
    """Lemmas that stand in a relation to a word, without names, rare words and what holds the word itself."""
    if word in _NEVER if relation == "synonyms" else word in _ANTONYM_STOPS:
        return ()
    if part == "n" and word in _NEVER_NOUNS:
        return ()
    lemma = lemma_of(word, tag, hint)
    if lemma in (_NEVER if relation == "synonyms" else _ANTONYM_STOPS) or (part == "v" and lemma in _NEVER):
        return ()
    source = wordnet()
    if relation == "synonyms":
        found = [other for synset in source.synsets(lemma, part, 2) for other in synset.lemmas]
    else:
        found = list(getattr(source, relation)(lemma, part))
    kept = dict.fromkeys(other for other in found if other.islower() and not _overlaps(other, lemma) and _VOWEL.search(other[1:]))
    kept = {other: None for other in kept if source.is_attested(other, part)}
    if part == "v":  # without the particle's place, "take in" and the like do not fit an object
        kept = dict.fromkeys(other for other in kept if " " not in other)
    if part == "n":
        kept = dict.fromkeys(other for other in kept if not _UNFIT_NOUN.search(other))
    return tuple(other for other in kept if other not in _UNFIT_ADJECTIVES)


def _overlaps(other: str, lemma: str) -> bool:
    """Whether one is the other with something added to it, or a spelling of it: "home base" for "base"."""
    if other.isalpha() and lemma.isalpha():
        return other == lemma
    parts = set(other.replace("-", " ").split())
    return lemma in parts or other in lemma.replace("-", " ").split() or other.replace(" ", "") == lemma.replace("-", "")


def _replacement(sentence: ParsedSentence, i: int, lemma: str) -> Edit | None:
    word = sentence.word(i)
    form = inflect(lemma, sentence.tags[i])
    if form is None:
        return None
    return sentence.starts[i], sentence.ends[i], like(word, form) if not word.isupper() else form


def _is_bound(sentence: ParsedSentence, i: int) -> bool:
    """Whether word i is part of something: a name, a compound with a hyphen, an abbreviation in capitals, a phrasal verb."""
    text, start, end = sentence.text, sentence.starts[i], sentence.ends[i]
    word = text[start:end]
    if not word.isalpha() or not word[1:].islower():
        return True
    if word[0].isupper() and text[:start].strip("\"'“‘([ "):
        return True
    if (start and text[start - 1] in "-–/_@#.") or text[end : end + 1] in _BINDS:
        return True
    deps = sentence.deps
    if deps[i] in _BOUND:
        return True
    if sentence.pos[i] != "VERB" or _PARTICLE.isdisjoint(deps):
        return False
    return any(deps[child] in _PARTICLE for child in sentence.children(i))


def _entry(name: str, function: Callable, description: str, meaning: str, sample: tuple[str, str], **more: object) -> Entry:
    more = {"paper": AUGCSE, "parameters": (), "example": name, **more}
    return Entry(
        name=name,
        kind="text",
        description=description,
        function=function,
        meaning=meaning,
        needs=("parse", "wordnet"),
        sample=sample,
        require=require_wordnet,
        **more,
    )


ENTRIES = (
    _entry(
        "antonym-adjectives",
        antonym_adjectives,
        "Every adjective becomes its WordNet antonym.",
        "altering",
        ("Amanda's mother was very beautiful.", "Amanda's mother was very ugly."),
    ),
    _entry(
        "antonyms",
        antonyms,
        "An odd number of adjectives and adverbs become their WordNet antonyms.",
        "altering",
        ("He is a good and fast runner.", "He is a bad and fast runner."),
    ),
    _entry(
        "hypernyms",
        hypernyms,
        "One noun becomes a broader term of WordNet.",
        "altering",
        ("She lost a spoon.", "She lost a container."),
    ),
    _entry(
        "hyponyms",
        hyponyms,
        "One noun becomes a narrower term of WordNet.",
        "altering",
        ("The dog barked.", "The puppy barked."),
    ),
    _entry(
        "synonyms-wordnet",
        synonyms_wordnet,
        "Nouns, verbs, adjectives and adverbs become WordNet synonyms, each with probability rate.",
        "preserving",
        ("The big car stopped.", "The large automobile halted."),
        parameters=(Parameter("rate", 0.5, "probability of each word that has synonyms", 0, 1),),
        example="synonyms-wordnet:rate=0.3",
    ),
    _entry(
        "wordnet-substitution",
        wordnet_substitution,
        "A share of the words becomes WordNet synonyms, 5, 10 or 20% in the paper.",
        "preserving",
        ("The big car stopped.", "The large car stopped."),
        paper=VASCL,
        parameters=(Parameter("rate", 0.1, "share of all words, rounded up", 0, 1),),
        example="wordnet-substitution:rate=0.2",
    ),
)
