"""The English clause as SDA's rules need it: which word carries the tense, how to negate it, how to give it a modal verb.

Everything here answers with edits, (start, end, new text) in characters of the sentence, or None where it knows no
grammatical way. A clause is named by the word that heads it; `ParsedSentence.verb` finds its verb in both label sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from augment.parsed import ParsedSentence
from augment.verbs import base_form, looks_past, participle

Edit = tuple[int, int, str]

_BE = frozenset({"am", "is", "are", "was", "were", "'s", "'m", "'re", "’s", "’m", "’re"})
_PAST_BE = frozenset({"was", "were"})
_HAVE = frozenset({"have", "has", "had", "'ve", "’ve", "'s", "’s"})
_DO = frozenset({"do", "does", "did"})
_NOT = frozenset({"not", "n't", "n’t"})
_NEGATIVE_ADVERBS = frozenset({"never", "hardly", "scarcely", "rarely", "seldom", "neither", "nor"})
_FULL = {"ca": "can", "wo": "will", "sha": "shall"}  # what is left of can't, won't, shan't
_FINITE = frozenset({"VBZ", "VBP", "VBD", "MD"})
_BESIDE = frozenset({"conj", "parataxis", "ccomp", "list"})
_CLOSED = frozenset({"DET", "ADP", "SCONJ", "CCONJ", "ADV", "AUX", "PART", "PRON", "INTJ"})
# Adjectives that keep their capital: those made of names. The few that only look so are listed.
_OF_NAMES = ("an", "ish", "ese", "ench", "wiss", "utch", "eek", "ic")
_COMMON = frozenset({"human", "urban", "suburban", "organic", "public", "basic", "historic", "electric", "economic", "foolish"})

# What stands before the base form. The code's "can't avoid to" is left out: no verb can follow it.
MODALS = {
    "paper": ("must", "should", "ought to", "have to", "cannot but", "cannot help but"),
    "code": ("must", "should", "ought to", "have to", "cannot but", "cannot help but", "have no choice but to", "need to"),
}
_PAST_MODALS = {"have to": "had to", "cannot but": "could not but", "cannot help but": "could not help but"}
_PAST_MODALS |= {"have no choice but to": "had no choice but to", "need to": "needed to"}
_THIRD_MODALS = {"have to": "has to", "have no choice but to": "has no choice but to", "need to": "needs to"}
_BEFORE_NOT = frozenset({"must", "should", "ought to"})  # "must not go", but not "have to not go"
_BEFORE_HAVE = frozenset({"must", "should", "ought to", "have to", "need to"})  # "has to have gone"


@dataclass(frozen=True, slots=True)
class Clause:
    """A clause with a verb. head: the word that heads it. verb: its main verb or copula. auxiliaries: those before it, in
    order. finite: the word that carries tense: the first auxiliary, else the verb. subject: or None. negation: the `not`
    that belongs to it, or None. inverted: whether the finite word stands before the subject, as in questions.
    """

    head: int
    verb: int
    auxiliaries: tuple[int, ...]
    finite: int
    subject: int | None
    negation: int | None
    inverted: bool


def clause_of(sentence: ParsedSentence, head: int) -> Clause | None:
    """The clause that a word heads, or None where that word has no verb (a heading, an exclamation)."""
    verb = sentence.verb(head)
    if sentence.tags[verb][:1] not in ("V", "M"):
        return None
    auxiliaries = tuple(a for a in sentence.auxiliaries(head) if a < verb and sentence.tags[a] != "TO")
    finite = auxiliaries[0] if auxiliaries else verb
    subject = sentence.subject(head)
    nots = [
        child
        for word in ({head, verb, *auxiliaries})
        for child in sentence.children(word)
        if sentence.word(child).lower() in _NOT and child > finite and not _is_focus(sentence, child)
    ]
    inverted = subject is not None and finite < subject and bool(auxiliaries)
    return Clause(head, verb, auxiliaries, finite, subject, min(nots, default=None), inverted)


def main_clause(sentence: ParsedSentence) -> Clause | None:
    """The main clause: the root's, or, where a parser has made the root of something without a tense, the first finite one that
    is coordinated with it or stands beside it. None where there is no such clause.
    """
    root = sentence.root
    if root < 0:
        return None
    clause = clause_of(sentence, root)
    if clause is not None and (_is_finite(sentence, clause) or clause.subject is not None or clause.finite == 0):
        return clause
    for child in sentence.children(root):
        if sentence.relation(child) in _BESIDE:
            other = clause_of(sentence, child)
            if other is not None and _is_finite(sentence, other):
                return other
    return clause


def _finite_tag(sentence: ParsedSentence, clause: Clause) -> str:
    """The tag of the finite word, and where a clause with a subject has a verb without tense alone, the one that the tagger
    must have missed: VBD for "finished" taken for a participle, VBP for "feature" taken for a base form.
    """
    tag = sentence.tags[clause.finite]
    if clause.auxiliaries or clause.subject is None or clause.subject > clause.finite:
        return tag
    if tag == "VBN" and looks_past(sentence.word(clause.finite)) and not _has_other_tense(sentence, clause.finite):
        return "VBD"
    if tag == "VB" and not _is_infinitive(sentence, clause):
        return "VBP"
    return tag


def _has_other_tense(sentence: ParsedSentence, i: int) -> bool:
    return any(tag in _FINITE for number, tag in enumerate(sentence.tags) if number != i)


def is_assertion(sentence: ParsedSentence, clause: Clause) -> bool:
    """Whether the clause states something: no imperative, no infinitive, no question."""
    tag = sentence.tags[clause.finite]
    alone = clause.subject is None and (tag == "VB" or (tag == "VBP" and clause.finite == 0) or tag in ("VBG", "VBN"))
    return not alone and not is_question(sentence)


def _is_finite(sentence: ParsedSentence, clause: Clause) -> bool:
    return sentence.tags[clause.finite] in _FINITE


def _is_focus(sentence: ParsedSentence, i: int) -> bool:
    """`not only`, `not just`, `not least`: no negation of the clause."""
    return i + 1 < len(sentence) and sentence.word(i + 1).lower() in ("only", "just", "merely", "least", "simply", "until")


def negate(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Edits that put a `not` into a clause that has none."""
    finite = clause.finite
    word, tag = sentence.word(finite), sentence.tags[finite]
    lower = word.lower()
    start, end = sentence.starts[finite], sentence.ends[finite]
    if end < len(sentence.text) and sentence.text[end] in "-/":  # part of a compound that the parser has cut
        return None
    if (clause.auxiliaries and tag in _FINITE) or lower in _BE or tag == "MD":
        if clause.inverted or (clause.subject is not None and clause.subject > finite and lower in _BE and is_question(sentence)):
            place = sentence.ends[sentence.subtree(clause.subject)[1]]
            return [(place, place, " not")]
        if lower == "can":
            return [(start, end, word + "not")]
        return [(end, end, " not")]
    tag = _finite_tag(sentence, clause)
    if tag in ("VBZ", "VBP", "VBD"):
        base = base_form(word, tag, sentence.lemmas[finite])
        if tag == "VBD" and base == lower and not looks_past(word):
            return None  # the parse has no base form for it, or it is no past at all
        auxiliary = {"VBZ": "does", "VBP": "do", "VBD": "did"}[tag]
        return [(start, end, f"{like(word, auxiliary)} not {base}")]
    if tag == "VB" and clause.subject is None and not _is_infinitive(sentence, clause):
        return [(start, end, f"{like(word, 'do')} not {lower}")]  # an imperative
    if tag in ("VB", "VBG", "VBN"):  # to go, going, gone: nothing finite, `not` stands before
        place = sentence.starts[finite - 1] if tag == "VB" and finite and sentence.tags[finite - 1] == "TO" else start
        if place == 0:
            return [(0, 1, "Not " + sentence.text[0].lower())]
        return [(place, place, "not ")]
    return None


def affirm(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Edits that take the `not` out of a negated clause: "does not go" becomes "does go"."""
    i = clause.negation
    if i is None:
        return None
    word, before = sentence.word(i).lower(), sentence.word(i - 1).lower()
    if word != "not":  # n't, written together with its verb
        if before == "ai":
            return None
        joined = (sentence.starts[i - 1], sentence.ends[i], like(sentence.word(i - 1), _FULL.get(before, before)))
        return [joined] if sentence.ends[i - 1] == sentence.starts[i] else None
    return [without_word(sentence, i)]


def without_word(sentence: ParsedSentence, i: int) -> Edit:
    """The edit that deletes word i with the space before it; at the beginning of the text the next word gets its capital."""
    start, end = sentence.starts[i], sentence.ends[i]
    if start and sentence.text[start - 1] == " ":
        return start - 1, end, ""
    if start == 0 and i + 1 < len(sentence):
        following = sentence.starts[i + 1]
        return 0, following + 1, like(sentence.word(0), sentence.text[following])
    return start, end, ""


def add_modal(sentence: ParsedSentence, clause: Clause, modal: str) -> list[Edit] | None:
    """Edits that put `modal` before the verb: "travelled" becomes "must have travelled" or "had to travel".

    None where there is a modal verb or `do` already, in questions and imperatives, and for what is not finite.
    """
    finite, text = clause.finite, sentence.text
    word, tag = sentence.word(finite), sentence.tags[finite]
    lower = word.lower()
    if clause.inverted or not is_assertion(sentence, clause) or (clause.negation is not None and modal not in _BEFORE_NOT):
        return None
    start, end = sentence.starts[finite], sentence.ends[finite]
    if (start and text[start - 1] in "-/") or (end < len(text) and text[end] in "-/"):
        return None
    space = " " if lower[0] in "'’" else ""  # he's
    following = [a for a in (*clause.auxiliaries[1:], clause.verb) if a != finite]
    perfect = bool(clause.auxiliaries) and lower in _HAVE and bool(following) and sentence.tags[following[0]] == "VBN"
    perfect = perfect and (lower not in ("'s", "’s") or sentence.relation(finite) == "aux")
    if perfect:
        if modal not in _BEFORE_HAVE:
            return None
        return _with_not(sentence, clause, space + _agreeing(modal, "VBD" if lower == "had" else tag, lower), "have")
    if any(sentence.word(child).lower() in _NEGATIVE_ADVERBS for child in sentence.children(clause.head)):
        return None  # never cannot but
    tag = _finite_tag(sentence, clause)
    past = lower in _PAST_BE or (lower not in _BE and tag == "VBD")
    if lower in _BE:
        base, done = "be", "been"
    elif lower in ("do", "does") and clause.auxiliaries:
        base, done = "", ""  # does not go: must not go
    elif clause.auxiliaries or tag not in ("VBZ", "VBP", "VBD"):
        return None
    else:
        base = base_form(word, "VBD" if past else tag, sentence.lemmas[finite])
        if past and base == lower and not looks_past(word):
            return None
        done = participle(word, base)
    if past and modal in _BEFORE_NOT:
        return _with_not(sentence, clause, f"{space}{modal}", f"have {done}")
    return _with_not(sentence, clause, space + _agreeing(modal, "VBD" if past else tag, lower), base)


def _with_not(sentence: ParsedSentence, clause: Clause, modal: str, rest: str) -> list[Edit]:
    """The finite word becomes "modal rest"; in a negated clause `rest` follows the `not`."""
    start, end = sentence.starts[clause.finite], sentence.ends[clause.finite]
    modal = like(sentence.word(clause.finite), modal)
    rest = " " + rest if rest else ""
    if clause.negation is None:
        return [(start, end, modal + rest)]
    if modal == "ought to":  # ought not to go
        modal, rest = "ought", " to" + rest
    place = sentence.ends[clause.negation]
    if sentence.word(clause.negation).lower() == "not":
        return [(start, end, modal), (place, place, rest)] if sentence.starts[clause.negation] > end else None
    return [(start, place, f"{modal} not{rest}")] if sentence.starts[clause.negation] == end else None  # isn't: must not be


def _agreeing(modal: str, tag: str, finite: str) -> str:
    if tag == "VBD":
        return _PAST_MODALS.get(modal, modal)
    third = tag == "VBZ" or finite in ("is", "'s", "’s")
    return _THIRD_MODALS.get(modal, modal) if third else modal


def prefixed(sentence: ParsedSentence, prefix: str, edits: Sequence[Edit] = ()) -> list[Edit]:
    """`edits`, and before the sentence a phrase such as "It is not true that": behind a conjunction or an adverb with a comma
    that opens it ("But", "However,"), and with no capital on the first word after it, unless that is a name or I.
    """
    first = 0
    if len(sentence) > 2:
        comma = sentence.word(1) == ","
        if (sentence.pos[0] == "CCONJ" and not _is_paired(sentence)) or (comma and sentence.pos[0] == "ADV"):
            first = 2 if comma else 1
    place = sentence.starts[first]
    if first:
        return [(place, place, prefix[0].lower() + prefix[1:] + " "), *edits]
    rest = [edit for edit in edits if edit[0] >= sentence.ends[0]]
    opening = [edit for edit in edits if edit[0] < sentence.ends[0]]
    if not opening:
        return [(place, place, prefix + " "), (place, sentence.ends[0], _without_capital(sentence)), *rest]
    # The first word is edited itself, and by rules that write lower case.
    (start, end, new), *others = opening
    return [(place, place, prefix + " "), (start, end, new[:1].lower() + new[1:]), *others, *rest]


def _is_paired(sentence: ParsedSentence) -> bool:
    return sentence.word(0).lower() in ("both", "either", "neither")


def _without_capital(sentence: ParsedSentence) -> str:
    word, pos = sentence.word(0), sentence.pos[0]
    if word == "I" or (len(word) > 1 and word != word[0] + word[1:].lower()) or pos == "PROPN":
        return word
    if len(word) == 1 and word != "A":
        return word
    if pos in _CLOSED:
        return word.lower()
    following_name = len(sentence) > 1 and sentence.pos[1] == "PROPN"
    lower = word.lower()
    if following_name or (pos == "ADJ" and lower.endswith(_OF_NAMES) and lower not in _COMMON):
        return word
    return lower


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip(" \"'”’)").endswith("?")


def _is_infinitive(sentence: ParsedSentence, clause: Clause) -> bool:
    return any(sentence.tags[child] == "TO" for child in sentence.children(clause.head)) or (
        clause.verb > 0 and sentence.tags[clause.verb - 1] == "TO"
    )


def like(word: str, new: str) -> str:
    """`new` with the capital that `word` has."""
    return new[0].upper() + new[1:] if word[:1].isupper() else new
