"""Replace words by WordNet: AugCSE's antonyms, hypernyms, hyponyms and synonyms, VaSCL's synonyms.

Which word may stand for another is decided in `senses`. Words of names, of fixed expressions ("according
to"), of collocations that WordNet lists ("young man", "take place"), of compounds, and words with a
complement that they choose the form of ("attempt to", "depend on") stay. The new word takes the form of the
one that goes ("houses": "buildings", "won": "lost"), its capital, and "a" or "an" in front of it.
`variant=code` draws among all that the published code draws among, whatever the sense.
"""

import functools
from dataclasses import dataclass
from math import ceil

from augment.rules.senses import RELATIONS, Substitute, substitutes, uses
from augment.text.draws import Draws
from augment.text.inflection import inflect, lemma_of
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, named_words, rewrite, word_set
from augment.text.wordnet import wordnet

_POS = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
_TAGS = {"NOUN": "NN NNS", "VERB": "VB VBD VBG VBN VBP VBZ", "ADJ": "JJ JJR JJS", "ADV": "RB RBR RBS"}
_KINDS = {pos: frozenset((pos, tag) for tag in tags.split()) for pos, tags in _TAGS.items()}
_NOUNS, _ADJECTIVES, _ADVERBS = (_KINDS[pos] for pos in ("NOUN", "ADJ", "ADV"))
_CONTENT = frozenset().union(*_KINDS.values())
_VERBS_OF_GRAMMAR = word_set("be have do")
_OF_AMOUNTS = word_set("less least")  # what "bigger" does not become, though "big" becomes "little"
_SENSES = 2  # of an antonym, as AugCSE's code reads them


def antonym_adjectives(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace every adjective that has an antonym by it.

    The antonym is of the adjective's own lemma, if its sense is plain, and compared as it is ("bigger":
    "smaller"). variant=code: the first antonym, by alphabet, of the first lemma of the first sense.
    """
    return rewrite(sentence, _antonyms(sentence, _ADJECTIVES, draws, variant))


def antonyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace an odd number of adjectives and adverbs by their antonyms.

    If the number of those that have one is even, one of them, drawn at random, stays (as published: all
    stay). variant: as in `antonym_adjectives`.
    """
    edits = _antonyms(sentence, _ADJECTIVES | _ADVERBS, draws, variant)
    if len(edits) % 2 == 0 and edits:
        edits.pop(draws.below(len(edits)))
    return rewrite(sentence, edits)


def hypernyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace a noun by a broader term.

    One random noun of those with a plain sense and a common broader term. variant=code: any noun, by its
    first hypernym.
    """
    return _one_noun(sentence, draws, "hypernyms", variant)


def hyponyms(sentence: ParsedSentence, draws: Draws, variant: str = "sense") -> str | None:
    """Replace a noun by a narrower term, otherwise as `hypernyms`."""
    return _one_noun(sentence, draws, "hyponyms", variant)


def synonyms_wordnet(
    sentence: ParsedSentence, draws: Draws, rate: float = 0.5, variant: str = "sense"
) -> str | None:
    """Replace each noun, verb, adjective and adverb by a synonym with probability `rate`.

    By a synonym in the word's usual sense, if it has one, that usually means the same. variant=code: a random
    sense's first lemma.
    """
    found = _with_substitutes(sentence, _CONTENT, "synonyms" if variant == "sense" else "heads")
    drawn = ((i, others) for i, others in found if draws.chance(rate))
    edits = [_replacement(sentence, i, "synonyms", others, draws, variant) for i, others in drawn]
    return rewrite(sentence, filter(None, edits))


def wordnet_substitution(
    sentence: ParsedSentence, draws: Draws, rate: float = 0.1, variant: str = "sense"
) -> str | None:
    """Replace ceil(rate * n) of n words by WordNet synonyms, at 5, 10 and 20%.

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
            if not others:
                continue
            if of_sense:
                if not said:  # words and lemmas of the sentence: not "it was bad, not bad", in any form
                    words = zip(sentence.words, tags, lemmas)
                    said = frozenset(form for one in words for form in (one[0].lower(), lemma_of(*one)))
                forms = ((other, inflect(other.lemma, both[1])) for other in others)
                others = tuple(other for other, form in forms if said.isdisjoint((other.lemma, form)))
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


_INFLECTED = word_set("NNS VBD VBG VBN VBP VBZ")
_BINDS = frozenset("-–/_@")
_PARTICLES = frozenset({"compound:prt", "prt"})
_FIXED = frozenset({"fixed", "flat", "goeswith"})
# Relations of words that are no part of what a sentence says, but of how it is built.
_FUNCTION = _PARTICLES | word_set("aux aux:pass cop case prep mark cc cc:preconj det det:predet expl nummod")
_NOT_ADJECTIVAL = word_set("advmod nsubj nsubj:pass obj iobj obl nmod appos vocative discourse")
# "ten years"
_MEASURES = frozenset({"obl:npmod", "obl:tmod", "obl:unmarked", "nmod:npmod", "nmod:tmod", "nmod:unmarked"})
_CLAUSES = frozenset({"ccomp", "xcomp", "csubj"})
# Prepositions that no verb chooses; those with which a noun keeps its meaning; the same without "of".
_NEUTRAL = named_words("bound_words.neutral")
_NOUN_PREPOSITIONS = named_words("bound_words.noun_prepositions")
_PLACE_OF = word_set("in at during after before by since near within under inside outside")
_DETERMINERS = word_set("a an another each every either one")
_MASS = word_set("much little less")
_DEGREES = word_set("very too so more most less least extremely quite rather how as that enough")
_PRONOUNS = word_set("itself himself herself themselves myself yourself ourselves yourselves oneself")


@dataclass(frozen=True, slots=True)
class WordPlace:
    """What a word's place wants: uses, place as in `senses.Substitute`; frame, of `senses.FRAMES`."""

    uses: str = ""
    place: str = ""
    frame: str = ""

    def takes(self, other: Substitute) -> bool:
        if self.uses == "g" and other.uses != "g":
            return False
        if (self.uses == "c" and other.uses == "m") or (self.uses == "m" and other.uses == "c"):
            return False
        if other.place and self.place and other.place != self.place:
            return False
        return not self.frame or self.frame in other.frames


def is_part_of_a_name(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i belongs to a name, URL, compound or fixed expression, or helps a verb."""
    text, start, end = sentence.text, sentence.starts[i], sentence.ends[i]
    word = text[start:end]
    if not word.isalpha() or not word[1:].islower():
        return True
    if word[0].isupper() and text[:start].strip("\"'“‘([ "):
        return True
    if (start and text[start - 1] in "-–/_@#.") or text[end : end + 1] in _BINDS:
        return True
    relation = sentence.relation(i)
    if _base(relation) in _FIXED or relation in _FUNCTION:
        return True
    if _PARTICLES.isdisjoint(sentence.deps) and _FIXED.isdisjoint(sentence.deps):
        return False
    relations = map(sentence.relation, sentence.children(i))
    return any(kind in _PARTICLES or _base(kind) in _FIXED for kind in relations)


def place_of(sentence: ParsedSentence, i: int, part: str, relation: str) -> WordPlace | None:
    """Return what the place of word i asks of a word in its place; None if no other word may stand."""
    if is_part_of_a_name(sentence, i):
        return None
    if part == "n":
        place = _place_of_noun(sentence, i, relation)
    elif part == "v":
        place = _place_of_verb(sentence, i)
    elif part == "a":
        place = _place_of_adjective(sentence, i, relation)
    else:
        place = _place_of_adverb(sentence, i)
    return None if place is None or is_collocated(sentence, i) else place


def is_collocated(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i and its neighbours, or what hangs on it, are an entry of WordNet's."""
    known = wordnet().collocations
    first, last = max(0, i - 2), min(len(sentence), i + 3)
    words = [sentence.lower(j) for j in range(first, last)]
    inflected = [tag in _INFLECTED for tag in sentence.tags[first:last]]
    lemmas = [_lemma(sentence, first + j) if inflected[j] else word for j, word in enumerate(words)]
    place = i - first
    for start in range(place + 1):
        for stop in range(max(place, start + 1) + 1, min(len(words), start + 3) + 1):
            written, last_only = words[start:stop], [*words[start : stop - 1], lemmas[stop - 1]]
            if any("_".join(form) in known for form in (written, lemmas[start:stop], last_only)):
                return True
    if sentence.pos[i] == "VERB":
        for child in sentence.children(i):
            for word in (child, *sentence.children(child)):
                if f"{_lemma(sentence, i)}_{_lemma(sentence, word)}" in known:
                    return True
    elif sentence.relation(i) == "obj":
        return f"{_lemma(sentence, sentence.heads[i])}_{_lemma(sentence, i)}" in known
    return False


def _place_of_noun(sentence: ParsedSentence, i: int, relation: str) -> WordPlace | None:
    plural = sentence.tags[i] == "NNS"
    if sentence.relation(i) == "compound" or sentence.relation(i) in _MEASURES:
        return None
    prepositions = _NOUN_PREPOSITIONS if relation == "synonyms" else _PLACE_OF
    if relation != "synonyms" and (sentence.relation(i) == "conj" or "PROPN" in sentence.pos[i + 1 : i + 2]):
        return None  # "animals and cats", "person Gore Vidal"
    determined, wanted = False, "c" if plural else ""
    for child in sentence.children(i):
        kind, word = sentence.relation(child), sentence.lower(child)
        if (kind == "compound" and relation != "synonyms") or _base(kind) in _CLAUSES:
            return None
        if kind == "acl" and (_is_infinitive(sentence, child) or sentence.tags[child] not in ("VBN", "VBG")):
            return None  # "attempt to"
        if _has_preposition(kind) and child > i and _preposition(sentence, child) not in prepositions:
            return None  # "attack on"
        if _base(kind) in ("det", "nummod") or kind in ("nmod:poss", "poss"):
            determined = True
            if word in _DETERMINERS:
                wanted = "c"
        if word in _MASS and child < i:
            wanted = "m"
            determined = True
    if not plural and not determined:
        head = sentence.heads[i]
        if sentence.relation(i) == "conj" and sentence.has_dependent(head, "det"):
            return WordPlace()
        if sentence.relation(i) in ("dep", "root", "ROOT"):
            cased = sentence.has_dependent(i, "case")
            # no clause around it; but no "for device" if it is "for guitar"
            return WordPlace(uses="m" if cased and relation == "hypernyms" else "")
        if uses(_lemma(sentence, i), "n") == "c":
            return None  # "at home", "by car", headlines
        return WordPlace(uses="m")
    return WordPlace(uses=wanted)


def _place_of_verb(sentence: ParsedSentence, i: int) -> WordPlace | None:
    if sentence.relation(i) in ("amod", "compound", "advmod", "nsubj", "obl", "nmod"):
        return None
    frame, kinds = "none", {}
    reduced = sentence.relation(i) == "acl" and sentence.tags[i] == "VBN"
    for child in sentence.children(i):
        kind, word = sentence.relation(child), sentence.lower(child)
        kinds[kind] = child
        if kind == "iobj" or kind == "expl" or (kind in ("obj", "obl") and word in _PRONOUNS):
            return None
        bound = _has_preposition(kind) and child > i and _preposition(sentence, child) not in _NEUTRAL
        if bound and kind not in _MEASURES:
            return None
        if kind == "advmod" and child == i + 1 and sentence.tags[child] in ("RP", "IN"):
            return None
    if "xcomp" in kinds or "csubj" in kinds:
        child = kinds["xcomp" if "xcomp" in kinds else "csubj"]
        if not _is_infinitive(sentence, child) or kinds.keys() & {"nsubj:pass", "aux:pass"}:
            return None
        frame = "object to" if "obj" in kinds else "to"
    elif "ccomp" in kinds:
        frame = "that"
    elif reduced or kinds.keys() & {"obj", "nsubj:pass", "aux:pass"}:
        frame = "object"
    elif sentence.relation(i) == "acl:relcl" or (sentence.tags[i] == "VBN" and "aux" not in kinds):
        return None  # what it lacks may be its object
    return WordPlace(frame=frame)


def _place_of_adjective(sentence: ParsedSentence, i: int, wanted: str) -> WordPlace | None:
    relation, head = sentence.relation(i), sentence.heads[i]
    if _base(relation) in _NOT_ADJECTIVAL or (relation == "amod" and head < i):
        return None
    before = sentence.lower(i - 1)
    after = sentence.lower(i + 1)
    if before == "as" and after != "as":
        return None  # "as usual", "as soon as possible"
    compared = sentence.tags[i] in ("JJR", "JJS")
    graded = compared
    for child in sentence.children(i):
        kind = sentence.relation(child)
        base = _base(kind)
        # A complement is the adjective's own choice ("famous for"), but its antonym's too ("easy to").
        chosen = base in _CLAUSES or (_has_preposition(kind) and child > i)
        if wanted == "synonyms" and not compared and chosen:
            return None
        if (base == "obl" or kind in ("nummod", "nmod")) and child < i:
            return None  # "ten years old"
        if kind in ("compound", "det"):
            return None
        if kind == "advmod" and sentence.lower(child) in _DEGREES:
            graded = True
    if relation == "amod" and head > i and sentence.lower(head) in ("one", "ones"):
        return None
    return WordPlace("g" if graded else "", {"amod": "a", "dep": ""}.get(relation, "p"))


def _place_of_adverb(sentence: ParsedSentence, i: int) -> WordPlace | None:
    before = sentence.lower(i - 1)
    after = sentence.lower(i + 1)
    if before in ("as", "so", "too", "how", "more", "most", "less", "than") or after in ("as", "than", "of"):
        return None
    if sentence.has_dependent(i, "obl", "prep", "fixed", "advcl", "ccomp", "case"):
        return None
    return WordPlace(uses="g" if sentence.tags[i] in ("RBR", "RBS") else "")


def _lemma(sentence: ParsedSentence, i: int) -> str:
    return lemma_of(sentence.word(i), sentence.tags[i], sentence.lemmas[i])


def _base(relation: str) -> str:
    """Return a relation without its subtype."""
    return relation.partition(":")[0]


def _is_infinitive(sentence: ParsedSentence, i: int) -> bool:
    before = [child for child in sentence.children(i) if child < i]
    return any(sentence.tags[child] == "TO" or sentence.lower(child) == "to" for child in before)


def _has_preposition(relation: str) -> bool:
    """Return whether a relation is one that a preposition makes: to its noun (UD), to itself (ClearNLP)."""
    return relation == "prep" or _base(relation) in ("nmod", "obl")


def _preposition(sentence: ParsedSentence, i: int) -> str:
    """Return the preposition of a noun (or word i, if it is one); "" for none or one of several words."""
    if sentence.pos[i] in ("ADP", "SCONJ") and sentence.relation(i) in ("prep", "obl:agent"):
        return sentence.lower(i)
    found = [child for child in sentence.dependents(i, "case", "mark") if child < i]
    if not found or sentence.has_dependent(found[0], "fixed"):
        return ""
    return sentence.lower(found[0])
