"""Read English clauses for SDA's rules: which word carries the tense, whether something is stated.

A clause is named by the word that heads it; `ParsedSentence.verb` finds its verb in both label sets.
"""

from typing import NamedTuple

from augment.text.inflection import PASTS_THAT_ARE_BASE_FORMS, lemma_of, may_be_past
from augment.text.parsed import ParsedSentence

BE = frozenset({"am", "is", "are", "was", "were", "'s", "'m", "'re", "’s", "’m", "’re"})
PAST_BE = frozenset({"was", "were"})
HAVE = frozenset({"have", "has", "had", "'ve", "’ve", "'s", "’s"})
HAD = frozenset({"had", "'d", "’d"})
_FOCUSED = frozenset({"only", "just", "merely", "least", "simply", "until"})
NEED = frozenset({"need", "needs", "needed"})
NOT = frozenset({"not", "n't", "n’t"})
NEGATIVE_ADVERBS = frozenset({"never", "hardly", "scarcely", "rarely", "seldom", "neither", "nor"})
_CLOSING_QUOTES = frozenset("\"'”’")
_ENDS_SPEECH = tuple(",.!?-–—…")
_SPEAKERS = frozenset({"i", "he", "she", "we", "they"})
_THIRD = frozenset({"he", "she", "it"})
_TAKEN_FOR = frozenset({"nsubj", "obj", "iobj", "attr", "obl:npmod", "obl:unmarked", "dep"})
_OBJECTS = frozenset({"me", "him", "us", "them", "it", "you", "himself", "herself"})
_ALSO_BASE = PASTS_THAT_ARE_BASE_FORMS | {"have", "do", "are", "am"}
FINITE = frozenset({"VBZ", "VBP", "VBD", "MD"})
_OF_OTHER_CLAUSES = frozenset({"acl", "advcl", "ccomp", "xcomp", "conj"})
_BESIDE = frozenset({"conj", "parataxis", "ccomp", "list"})


class Clause(NamedTuple):
    """Hold a clause with a verb.

    head: the word that heads it. verb: its main verb or copula. auxiliaries: those before it, in order.
    finite: the word that carries tense: the first auxiliary, else the verb. subject: or None. negation: the
    `not` that belongs to it, or None. focus: whether it has a `not only` or the like, which is no negation,
    and bars another one. inverted: whether the finite word stands before the subject, as in questions.
    """

    head: int
    verb: int
    auxiliaries: tuple[int, ...]
    finite: int
    subject: int | None
    negation: int | None
    focus: bool
    inverted: bool


def clause_of(sentence: ParsedSentence, head: int) -> Clause | None:
    """Return the clause that a word heads, or None where it has no verb (a heading, an exclamation)."""
    verb = sentence.verb(head)
    if sentence.tags[verb][:1] not in ("V", "M"):
        return None
    auxiliaries = tuple(a for a in sentence.auxiliaries(head) if a < verb and sentence.tags[a] != "TO")
    finite = auxiliaries[0] if auxiliaries else verb
    subject = sentence.subject(head)
    if (
        not auxiliaries
        and sentence.tags[finite] in ("VBD", "VBZ", "VBN")
        and (spoken := speaker(sentence, finite)) is not None
    ):
        subject = spoken
    if subject is not None and subject < finite and sentence.tags[finite] == "VB" and not auxiliaries:
        behind = sentence.subtree(subject)[1] + 1
        if behind < len(sentence) and sentence.word(behind) == ",":  # "Ann, go home"
            subject = None
    nots = []
    if _has_not(sentence.text.lower()):
        dependants = [child for word in {head, verb, *auxiliaries} for child in sentence.children(word)]
        nots = [child for child in dependants if child > finite and sentence.word(child).lower() in NOT]
    negation = min((i for i in nots if not _is_focus(sentence, i)), default=None)
    inverted = subject is not None and finite < subject and bool(auxiliaries)
    return Clause(
        head, verb, auxiliaries, finite, subject, negation, bool(nots) and negation is None, inverted
    )


def speaker(sentence: ParsedSentence, verb: int) -> int | None:
    """Return who speaks in '"No," said John', whatever a parser has taken him for; no mark inside the quotes:
    a title ('"Up" won').
    """
    following = verb + 1
    if not verb or following == len(sentence) or sentence.word(verb - 1)[-1:] not in _CLOSING_QUOTES:
        return None
    if not sentence.text[: sentence.ends[verb - 1]].rstrip("\"'”’ ").endswith(_ENDS_SPEECH):
        return None
    if sentence.word(following).lower() in _SPEAKERS:
        return following
    if sentence.pos[following] in ("ADP", "ADV", "PUNCT") or sentence.word(following).lower() in _OBJECTS:
        return None
    for child in sentence.children(verb):
        nominal = (
            sentence.pos[child] in ("NOUN", "PROPN", "PRON", "ADJ") and sentence.relation(child) in _TAKEN_FOR
        )
        if nominal and sentence.subtree(child)[0] == following:
            return child
    return None


def main_clause(sentence: ParsedSentence) -> Clause | None:
    """Return the main clause: the root's, or, where a parser has made the root of something without a tense,
    the first finite one that is coordinated with it or stands beside it. None where there is no such
    clause.
    """
    root = sentence.root
    if root < 0:
        return None
    clause = clause_of(sentence, root)
    if clause is not None and (
        is_finite(sentence, clause) or clause.subject is not None or _is_imperative(sentence, clause)
    ):
        return clause
    for child in sentence.children(root):
        if sentence.relation(child) in _BESIDE and not is_introduced(sentence, child):
            other = clause_of(sentence, child)
            if other is not None and is_finite(sentence, other):
                return other
    return clause


def is_introduced(sentence: ParsedSentence, head: int) -> bool:
    """Return whether a conjunction makes a clause a subordinate one: "(not sure) if it rains"."""
    return any(sentence.relation(child) == "mark" for child in sentence.children(head))


def _is_imperative(sentence: ParsedSentence, clause: Clause) -> bool:
    return sentence.tags[clause.finite] == "VB" and not is_infinitive(sentence, clause)


def finite_tag(sentence: ParsedSentence, clause: Clause) -> str:
    """Return the tag of the finite word, and where a clause with a subject has a verb without tense alone,
    the one that the tagger must have missed: VBD for "finished" taken for a participle, VBP for "feature"
    taken for a base form.
    """
    tag = sentence.tags[clause.finite]
    if clause.auxiliaries or clause.subject is None:
        return tag
    if clause.subject > clause.finite and speaker(sentence, clause.finite) != clause.subject:
        return tag
    if (
        tag == "VBN"
        and may_be_past(sentence.word(clause.finite))
        and not _has_other_tense(sentence, clause.finite)
    ):
        return "VBD"
    if tag == "VB" and not is_infinitive(sentence, clause):
        tag = "VBP"
    word = sentence.word(clause.finite).lower()
    if tag == "VBP" and sentence.word(clause.subject).lower() in _THIRD and may_be_past(word):
        return "VBD"  # "it cost"
    if tag == "VBP" and word not in _ALSO_BASE | BE and lemma_of(word, "VBD") != word:
        return "VBD"  # "shook"
    return tag


def _has_other_tense(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a verb with a tense that is of no subordinate or coordinated clause stands up to the
    next semicolon or full stop: "the salt obtained was pure".
    """
    for number, tag in enumerate(sentence.tags):
        if number > i and sentence.word(number) in (";", ".", "!", "?"):
            return False
        if tag in FINITE and number != i:
            head = (
                sentence.heads[number] if sentence.relation(number) in ("aux", "aux:pass", "cop") else number
            )
            if sentence.relation(head).partition(":")[0] not in _OF_OTHER_CLAUSES:
                return True
    return False


def _has_not(lower: str) -> bool:
    return "not" in lower or "n't" in lower or "n’t" in lower


def is_assertion(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether the clause states something: no imperative, no infinitive, no question, nothing that
    ends in a question mark.
    """
    alone = clause.subject is None and sentence.tags[clause.finite] in ("VB", "VBP", "VBG", "VBN")
    if alone or clause.inverted or is_question(sentence):
        return False
    marks = sentence.children(clause.head) if "?" in sentence.text else ()
    return not any(sentence.word(child)[:1] == "?" for child in marks if child > clause.finite)


def is_finite(sentence: ParsedSentence, clause: Clause) -> bool:
    return sentence.tags[clause.finite] in FINITE


def _is_focus(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a `not` is that of `not only`, `not just` or `not least`: no negation of the clause."""
    return i + 1 < len(sentence) and sentence.word(i + 1).lower() in _FOCUSED


def is_joined(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a verb is written together with another word: part of a compound, or "dont", which
    parsers cut in two.
    """
    start, end, text = sentence.starts[i], sentence.ends[i], sentence.text
    before = text[start - 1 : start]
    if before in ("-", "/") or (before.isalnum() and text[start] not in "'’"):
        return True
    if text[end : end + 1] in ("-", "/"):
        return text[end : end + 2] != "--"
    return (
        text[end : end + 1].isalnum() and sentence.word(i + 1).lower() not in NOT
        if i + 1 < len(sentence)
        else False
    )


def is_of_title(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a verb has a capital that no sentence starts with: it is (part of) a name, or of a
    heading.
    """
    word = sentence.word(i)
    if not word[:1].isupper() or word[1:] != word[1:].lower() or not i:
        return False
    return (
        any(letter.isalnum() for letter in sentence.text[: sentence.starts[i]])
        and sentence.word(i - 1)[-1:].isalnum()
    )


def coordinated(sentence: ParsedSentence, clause: Clause, tag: str) -> list[int]:
    """Return the verbs in the clause's tense that share its subject by "and" or "or", without an auxiliary of
    their own, up to the first that does not: "came, saw and conquered".
    """
    found = []
    heads = [clause.head]
    for head in heads:
        for child in sentence.children(head):
            if child < clause.finite or sentence.relation(child) != "conj":
                continue
            joints = [*sentence.children(child), *sentence.children(head)]
            words = {
                sentence.word(i).lower()
                for i in joints
                if sentence.relation(i) == "cc" and clause.finite < i < child
            }
            mistaken = tag == "VBD" and sentence.tags[child] == "VBN" and may_be_past(sentence.word(child))
            if (sentence.tags[child] != tag and not mistaken) or not words <= {"and", "or"}:
                break
            own = (
                sentence.verb(child) != child
                or sentence.word(child).lower() in BE
                or sentence.auxiliaries(child)
            )
            if own or sentence.subject(child) is not None:
                break
            found.append(child)
            heads.append(child)
    return found


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip(" \"'”’)").endswith("?")


def is_infinitive(sentence: ParsedSentence, clause: Clause) -> bool:
    return any(sentence.tags[child] == "TO" for child in sentence.children(clause.head)) or (
        clause.verb > 0 and sentence.tags[clause.verb - 1] == "TO"
    )
