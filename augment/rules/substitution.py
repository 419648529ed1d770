"""Replace words by WordNet: AugCSE's antonyms, hypernyms, hyponyms and synonyms, VaSCL's synonyms.

Which word may stand for another is decided in `senses`, which words of a sentence are free to be replaced in
`bound_words`. The new word takes the form of the one that goes ("houses": "buildings", "won": "lost"), its
capital, and "a" or "an" in front of it. `variant=code` draws among all that the published code draws among,
whatever the sense.
"""

import functools
from math import ceil

from augment.core.entry import Parameter, augmentation
from augment.rules.bound_words import is_part_of_a_name, place_of
from augment.rules.senses import RELATIONS, Substitute, substitutes
from augment.text.draws import Draws
from augment.text.inflection import inflect, lemma_of
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, rewrite, word_set
from augment.text.wordnet import wordnet

_VARIANT = Parameter(
    "variant",
    "sense",
    "sense: words of a plain sense; code: all that the published code draws from",
    choices=("sense", "code"),
)
_wordnet = functools.partial(augmentation, require=wordnet)
_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
_TAGS = {
    "n": ("NN", "NNS"),
    "v": ("VB", "VBD", "VBG", "VBN", "VBP", "VBZ"),
    "a": ("JJ", "JJR", "JJS"),
    "r": ("RB", "RBR", "RBS"),
}
_CONTENT = frozenset((pos, tag) for pos, part in _POS.items() for tag in _TAGS[part])
_NOUNS, _ADJECTIVES, _ADVERBS = (
    frozenset(both for both in _CONTENT if both[0] == pos) for pos in ("NOUN", "ADJ", "ADV")
)
_VERBS_OF_GRAMMAR = word_set("be have do")
_OF_AMOUNTS = word_set("less least")  # what "bigger" does not become, though "big" becomes "little"
_SENSES = 2  # of an antonym, as AugCSE's code reads them


@_wordnet(_VARIANT)
def antonym_adjectives(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace every adjective that has an antonym by it: SentenceAdjectivesAntonymsSwitch (NL-Augmenter).

    The antonym is of the adjective's own lemma, if its sense is plain, and compared as it is ("bigger":
    "smaller"). variant=code: the first antonym, by alphabet, of the first lemma of the first sense.
    """
    return rewrite(sentence, _antonyms(sentence, _ADJECTIVES, draws, variant))


@_wordnet(_VARIANT)
def antonyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace an odd number of adjectives and adverbs by their antonyms: AntonymSubstitute as AugCSE changed
    it.

    If the number of those that have one is even, one of them, drawn at random, stays (as published: all
    stay). variant: as in `antonym_adjectives`.
    """
    edits = _antonyms(sentence, _ADJECTIVES | _ADVERBS, draws, variant)
    if len(edits) % 2 == 0 and edits:
        edits.pop(draws.below(len(edits)))
    return rewrite(sentence, edits)


@_wordnet(_VARIANT)
def hypernyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace a noun by a broader term: ReplaceHypernyms (NL-Augmenter, CheckList).

    One random noun of those with a plain sense and a common broader term. variant=code: any noun, by its
    first hypernym.
    """
    return _one_noun(sentence, draws, "hypernyms", variant)


@_wordnet(_VARIANT)
def hyponyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace a noun by a narrower term, otherwise as `hypernyms`: ReplaceHyponyms (NL-Augmenter)."""
    return _one_noun(sentence, draws, "hyponyms", variant)


@_wordnet(Parameter("rate", 0.5, "probability of each word that has synonyms", 0, 1), _VARIANT)
def synonyms_wordnet(
    sentence: ParsedSentence, draws: Draws, rate: float = 0.5, variant: str = "sense"
) -> str | None:
    """Replace each noun, verb, adjective and adverb by a synonym with probability `rate`: SynonymSubstitution
    (NL-Augmenter; Wei and Zou 2019).

    By a synonym in the word's usual sense, if it has one, that usually means the same. variant=code: a random
    sense's first lemma.
    """
    found = _with_substitutes(sentence, _CONTENT, "synonyms" if variant == "sense" else "heads")
    drawn = ((i, others) for i, others in found if draws.chance(rate))
    edits = [_replacement(sentence, i, "synonyms", others, draws, variant) for i, others in drawn]
    return rewrite(sentence, filter(None, edits))


@_wordnet(Parameter("rate", 0.1, "share of all words, rounded up", 0, 1), _VARIANT)
def wordnet_substitution(
    sentence: ParsedSentence, draws: Draws, rate: float = 0.1, variant: str = "sense"
) -> str | None:
    """Replace ceil(rate * n) of n words by WordNet synonyms, at 5, 10 and 20%: VaSCL's WNet (through nlpaug;
    Morris et al. 2020, Ren et al. 2019).

    The words are drawn from those that have any; n counts all words. Synonyms: as in `synonyms_wordnet`.
    variant=code, as published: any lemma of any sense.
    """
    found = _with_substitutes(sentence, _CONTENT, "synonyms" if variant == "sense" else "lemmas")
    if not found:
        return None
    marks = sum(map(sentence.pos.count, ("PUNCT", "SYM", "SPACE")))
    count = ceil(rate * (len(sentence) - marks))
    edits: list[Edit] = []
    for i, others in draws.sample(found, len(found)):
        if len(edits) >= count:
            break
        edit = _replacement(sentence, i, "synonyms", others, draws, variant)
        if edit:
            edits.append(edit)
    return rewrite(sentence, edits)


def _antonyms(
    sentence: ParsedSentence, kinds: frozenset[tuple[str, str]], draws: Draws, variant: str
) -> list[Edit]:
    found = _with_substitutes(sentence, kinds, "antonyms" if variant == "sense" else "code antonyms")
    edits = [_replacement(sentence, i, "antonyms", others, draws, variant) for i, others in found]
    return [edit for edit in edits if edit]


def _one_noun(sentence: ParsedSentence, draws: Draws, relation: str, variant: str) -> str | None:
    found = _with_substitutes(sentence, _NOUNS, relation if variant == "sense" else f"code {relation}")
    for i, others in draws.sample(found, len(found)):
        edit = _replacement(sentence, i, relation, others, draws, variant)
        if edit:
            return rewrite(sentence, [edit])
    return None


def _with_substitutes(
    sentence: ParsedSentence, kinds: frozenset[tuple[str, str]], relation: str
) -> list[tuple[int, tuple[Substitute, ...]]]:
    """Return the words, of some parts of speech and tags, that others may stand for, with these."""
    of_sense = relation in RELATIONS
    find = substitutes if of_sense else _published
    pos, tags, lemmas = sentence.pos, sentence.tags, sentence.lemmas
    found = []
    said: frozenset[str] = frozenset()
    for i, both in enumerate(zip(pos, tags)):
        if both in kinds:
            others = find(relation, sentence.lower(i), _POS[both[0]], both[1], lemmas[i])
            if others and of_sense:
                if not said:  # words and lemmas of the sentence: not "it was bad, not bad", in any form
                    words = zip(sentence.words, tags, lemmas)
                    said = frozenset(form for one in words for form in (one[0].lower(), lemma_of(*one)))
                forms = ((other, inflect(other.lemma, both[1])) for other in others)
                others = tuple(other for other, form in forms if said.isdisjoint((other.lemma, form)))
                found.append((i, others))
            elif others:
                found.append((i, others))
    return found


def _replacement(
    sentence: ParsedSentence,
    i: int,
    relation: str,
    others: tuple[Substitute, ...],
    draws: Draws,
    variant: str,
) -> Edit | None:
    """Replace word i by a random one of those that stand in a relation to it, of those that fit its place."""
    word, tag = sentence.word(i), sentence.tags[i]
    if variant == "code":
        fitting = () if is_part_of_a_name(sentence, i) else [other.lemma for other in others]
    else:
        place = place_of(sentence, i, _POS[sentence.pos[i]], relation)
        if place is None:
            return None
        fitting = [other.lemma for other in others if place.takes(other)]
        described = any(child < i for child in sentence.dependents(i, "nmod:poss", "amod", "compound"))
        if relation == "hypernyms" and described:  # not "my old person"
            fitting = [lemma for lemma in fitting if lemma not in ("person", "people")]
    form = inflect(draws.choice(fitting), tag) if fitting else None
    if form is None or form in _OF_AMOUNTS or not _keeps_possessive(sentence, i, form):
        return None
    return sentence.replacement(i, like(word, form))


def _keeps_possessive(sentence: ParsedSentence, i: int, form: str) -> bool:
    """Return whether a possessive behind a plural suits its new form: not "women's" to "adults's"."""
    behind = sentence.text[sentence.ends[i] : sentence.ends[i] + 2].replace("’", "'")
    if sentence.tags[i] != "NNS" or behind[:1] != "'":
        return True
    return form.endswith("s") == (behind != "'s")


@functools.lru_cache(maxsize=1 << 16)
def _published(relation: str, word: str, part: str, tag: str, hint: str) -> tuple[Substitute, ...]:
    """Return what the published code draws a word's replacement from: "heads" or "lemmas" of all senses,
    "code antonyms" of the first sense's first lemma, "code hypernyms" and "code hyponyms" of the first
    sense; one alone of these three.
    """
    lemma, source = lemma_of(word, tag, hint), wordnet()
    if lemma in _VERBS_OF_GRAMMAR:
        return ()
    if relation in ("heads", "lemmas"):
        most = 1 if relation == "heads" else None
        found = [other for synset in source.synsets(lemma, part) for other in synset.lemmas[:most]]
    elif relation == "code antonyms":
        senses = source.synsets(lemma, part, 1)
        found = sorted(source.antonyms(senses[0].lemmas[0], part, _SENSES))[:1] if senses else []
    else:
        found = list(source.related(lemma, part, "@" if relation == "code hypernyms" else "~")[:1])
    return tuple(Substitute(other) for other in dict.fromkeys(found) if other.lower() != lemma)
