"""Tell what depends on a negation in a parsed sentence, and which verbs share an auxiliary."""

from augment.text.inflection import PASTS_THAT_ARE_BASE_FORMS, inflect, lemma_of
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, word_set

_ANY = word_set("any anything anyone anybody anywhere")
# these want a negation in front
_NEGATIVE_ONLY = word_set("anymore either yet nor ever until till neither whatsoever")
_NEGATIVE = word_set("not n't never no without")  # another negation: "any" behind it is its own
_SPANS = tuple(("in", span) for span in ("years", "ages", "weeks", "months", "decades", "days", "centuries"))
_SPANS += (("a", "while"), ("long", "time"), ("so", "much"), ("all", "that"), ("any", "more"))
_DO = word_set("do does did")
_AFTER_NOT = word_set("only just merely least necessarily until but simply")


def needs_negation(words: list[str], i: int) -> bool:
    """Return whether something needs the negative word i: "not only", "not at all", "may or may not".

    words: in lower case, apostrophes straight.
    """
    following = words[i + 1 : i + 2]
    if following and following[0] in _AFTER_NOT:
        return True
    if (
        i >= 2
        and words[i - 2] == "or"
        and (words[i - 1] in words[max(0, i - 4) : i - 2] or words[i - 1] in _DO)
    ):
        return True
    if not _NEGATIVE_ONLY.isdisjoint(words[i + 1 :]):
        return True
    if (
        following
        and following[0] == "help"
        and words[i + 2 : i + 3]
        and (words[i + 2] == "but" or words[i + 2].endswith("ing"))
    ):
        return True
    rest = list(zip(words[i:], words[i + 1 :]))
    if any(pair in rest for pair in _SPANS):
        return True
    return (
        ("at", "all") in rest
        or ("but", "rather") in rest
        or ("but", "also") in rest
        or ("any", "longer") in rest
    )


def assertive(sentence: ParsedSentence, words: list[str], i: int) -> list[Edit]:
    """Return the edits that make "any" and its like after word i "some", as they are without a negation.

    They reach up to the next punctuation mark or negation.
    """
    edits = []
    for j in range(i + 1, len(words)):
        if sentence.pos[j] == "PUNCT" or words[j] in _NEGATIVE:
            break
        # "like any other"
        whichever = words[j - 1] in ("like", "than", "if", "as") or words[j + 1 : j + 2] == ["other"]
        if words[j] in _ANY and not whichever:
            edits.append(
                (sentence.starts[j], sentence.ends[j], like(sentence.word(j), "some" + words[j][3:]))
            )
    return edits


def is_base_form(word: str) -> bool:
    """Return whether a verb that is tagged as a base form is one: not "fought"."""
    return (
        lemma_of(word, "VBD") == word
        or inflect(word, "VBD") == word
        or word == "be"
        or word in PASTS_THAT_ARE_BASE_FORMS
    )


def joined_base_forms(sentence: ParsedSentence, verb: int) -> list[int]:
    """Return the base forms coordinated with a verb, which share its auxiliary: "did not eat or drink"."""
    return [
        child
        for child in sentence.children(verb)
        if sentence.relation(child) == "conj"
        and sentence.tags[child] == "VB"
        and sentence.word(child).lower() != "be"
        and not sentence.auxiliaries(child)
        and sentence.subject(child) is None
    ]
