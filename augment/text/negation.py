"""Tell what depends on a negation in a parsed sentence, and which verbs share an auxiliary."""

from augment.text.inflection import PASTS_THAT_ARE_BASE_FORMS, inflect, lemma_of
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, named_words, word_set

_ANY = word_set("any anything anyone anybody anywhere")
# these want a negation in front
_NEGATIVE_ONLY = word_set("anymore either yet nor ever until till neither whatsoever")
_NEGATIVE = word_set("not n't never no without")  # another negation: "any" behind it is its own
_SPANS = {tuple(pair.split("_")) for pair in named_words("negation.pairs")}  # "in years", "at all"
_DO = word_set("do does did")
_AFTER_NOT = word_set("only just merely least necessarily until but simply")


def needs_negation(words: list[str], i: int) -> bool:
    """Return whether something needs the negative word i ("not only", "not at all"); words: lower-case."""
    following = words[i + 1 : i + 2]
    if following and following[0] in _AFTER_NOT:
        return True
    repeated = i >= 2 and (words[i - 1] in words[max(0, i - 4) : i - 2] or words[i - 1] in _DO)
    if repeated and words[i - 2] == "or":
        return True
    if not _NEGATIVE_ONLY.isdisjoint(words[i + 1 :]):
        return True
    helped = words[i + 2 : i + 3] if following == ["help"] else []
    if helped and (helped == ["but"] or helped[0].endswith("ing")):
        return True
    return not _SPANS.isdisjoint(zip(words[i:], words[i + 1 :]))


def assertive(sentence: ParsedSentence, words: list[str], i: int) -> list[Edit]:
    """Return edits that make "any" behind word i "some", up to the next punctuation mark or negation."""
    edits = []
    for j in range(i + 1, len(words)):
        if sentence.pos[j] == "PUNCT" or words[j] in _NEGATIVE:
            break
        # "like any other"
        whichever = words[j - 1] in ("like", "than", "if", "as") or words[j + 1 : j + 2] == ["other"]
        if words[j] in _ANY and not whichever:
            edits.append(sentence.replacement(j, like(sentence.word(j), "some" + words[j][3:])))
    return edits


def is_base_form(word: str) -> bool:
    """Return whether a verb that is tagged as a base form is one: not "fought"."""
    unchanged = word in (lemma_of(word, "VBD"), inflect(word, "VBD"))
    return unchanged or word == "be" or word in PASTS_THAT_ARE_BASE_FORMS


def joined_base_forms(sentence: ParsedSentence, verb: int) -> list[int]:
    """Return the base forms coordinated with a verb, which share its auxiliary: "did not eat or drink"."""
    joined = (child for child in sentence.dependents(verb, "conj") if sentence.tags[child] == "VB")
    bare = (child for child in joined if sentence.lower(child) != "be" and not sentence.auxiliaries(child))
    return [child for child in bare if sentence.subject(child) is None]
