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
    """A clause with a verb: its main verb or copula, the auxiliaries before it, the finite one of them.

    negation: its `not`, or None. focus: it has a `not only` or the like, no negation, which bars another.
    inverted: the finite word stands before the subject, as in questions.
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
    """Return the clause that a word heads, or None if it has no verb (a heading, an exclamation)."""
    verb = sentence.verb(head)
    if sentence.tags[verb][:1] not in ("V", "M"):
        return None
    auxiliaries = tuple(a for a in sentence.auxiliaries(head) if a < verb and sentence.tags[a] != "TO")
    finite = auxiliaries[0] if auxiliaries else verb
    subject = sentence.subject(head)
    if not auxiliaries and sentence.tags[finite] in ("VBD", "VBZ", "VBN"):
        spoken = speaker(sentence, finite)
        subject = subject if spoken is None else spoken
    if subject is not None and subject < finite and sentence.tags[finite] == "VB" and not auxiliaries:
        behind = sentence.subtree(subject)[1] + 1
        if behind < len(sentence) and sentence.word(behind) == ",":  # "Ann, go home"
            subject = None
    nots = []
    if any(map(sentence.text.lower().__contains__, NOT)):
        dependants = [child for word in {head, verb, *auxiliaries} for child in sentence.children(word)]
        nots = [child for child in dependants if child > finite and sentence.lower(child) in NOT]
    # "not only" and "not least" are no negation of the clause
    negation = min((i for i in nots if sentence.lower(i + 1) not in _FOCUSED), default=None)
    inverted = subject is not None and finite < subject and bool(auxiliaries)
    focus = bool(nots) and negation is None
    return Clause(head, verb, auxiliaries, finite, subject, negation, focus, inverted)


def speaker(sentence: ParsedSentence, verb: int) -> int | None:
    """Return who speaks in '"No," said John', whatever the parser says; None for titles ('"Up" won')."""
    following = verb + 1
    if not verb or following == len(sentence) or sentence.word(verb - 1)[-1:] not in _CLOSING_QUOTES:
        return None
    if not sentence.text[: sentence.ends[verb - 1]].rstrip("\"'”’ ").endswith(_ENDS_SPEECH):
        return None
    if sentence.lower(following) in _SPEAKERS:
        return following
    if sentence.pos[following] in ("ADP", "ADV", "PUNCT") or sentence.lower(following) in _OBJECTS:
        return None
    for child in sentence.dependents(verb, *_TAKEN_FOR):
        nominal = sentence.pos[child] in ("NOUN", "PROPN", "PRON", "ADJ")
        if nominal and sentence.subtree(child)[0] == following:
            return child
    return None


def main_clause(sentence: ParsedSentence) -> Clause | None:
    """Return the main clause: the root's, or the first finite one beside a root without tense; or None."""
    root = sentence.root
    if root < 0:
        return None
    clause = clause_of(sentence, root)
    if clause is not None and (is_finite(sentence, clause) or clause.subject is not None):
        return clause
    if clause is not None and sentence.tags[clause.finite] == "VB" and not is_infinitive(sentence, clause):
        return clause  # an imperative
    for child in sentence.children(root):
        if sentence.relation(child) in _BESIDE and not is_introduced(sentence, child):
            other = clause_of(sentence, child)
            if other is not None and is_finite(sentence, other):
                return other
    return clause


def is_introduced(sentence: ParsedSentence, head: int) -> bool:
    """Return whether a conjunction makes a clause a subordinate one: "(not sure) if it rains"."""
    return sentence.has_dependent(head, "mark")


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
    may_be = tag == "VBN" and may_be_past(sentence.word(clause.finite))
    if may_be and not _has_other_tense(sentence, clause.finite):
        return "VBD"
    if tag == "VB" and not is_infinitive(sentence, clause):
        tag = "VBP"
    word = sentence.lower(clause.finite)
    if tag == "VBP" and sentence.lower(clause.subject) in _THIRD and may_be_past(word):
        return "VBD"  # "it cost"
    if tag == "VBP" and word not in _ALSO_BASE | BE and lemma_of(word, "VBD") != word:
        return "VBD"  # "shook"
    return tag


def _has_other_tense(sentence: ParsedSentence, i: int) -> bool:
    """Return whether another main verb has a tense before the next ; . ! ?: "the salt obtained was pure"."""
    for number, tag in enumerate(sentence.tags):
        if number > i and sentence.word(number) in (";", ".", "!", "?"):
            return False
        if tag in FINITE and number != i:
            helps = sentence.relation(number) in ("aux", "aux:pass", "cop")
            head = sentence.heads[number] if helps else number
            if sentence.relation(head).partition(":")[0] not in _OF_OTHER_CLAUSES:
                return True
    return False


def is_assertion(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether the clause states something: no imperative, infinitive or question."""
    alone = clause.subject is None and sentence.tags[clause.finite] in ("VB", "VBP", "VBG", "VBN")
    if alone or clause.inverted or is_question(sentence):
        return False
    marks = sentence.children(clause.head) if "?" in sentence.text else ()
    return not any(sentence.word(child)[:1] == "?" for child in marks if child > clause.finite)


def is_finite(sentence: ParsedSentence, clause: Clause) -> bool:
    return sentence.tags[clause.finite] in FINITE


def is_joined(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a verb is written together with another word: in a compound, or "dont", cut in two."""
    start, end, text = sentence.replacement(i, sentence.text)
    before = text[start - 1 : start]
    if before in ("-", "/") or (before.isalnum() and text[start] not in "'’"):
        return True
    if text[end : end + 1] in ("-", "/"):
        return text[end : end + 2] != "--"
    return i + 1 < len(sentence) and text[end : end + 1].isalnum() and sentence.lower(i + 1) not in NOT


def is_of_title(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a verb has a capital that no sentence starts with: in a name or heading."""
    word = sentence.word(i)
    if not word[:1].isupper() or word[1:] != word[1:].lower() or not i:
        return False
    return sentence.word(i - 1)[-1:].isalnum()


def coordinated(sentence: ParsedSentence, clause: Clause, tag: str) -> list[int]:
    """Return verbs of the same tense that share the subject by "and" or "or": "came, saw and conquered"."""
    found = []
    heads = [clause.head]
    for head in heads:
        for child in sentence.children(head):
            if child < clause.finite or sentence.relation(child) != "conj":
                continue
            joints = [*sentence.dependents(child, "cc"), *sentence.dependents(head, "cc")]
            words = {sentence.lower(i) for i in joints if clause.finite < i < child}
            mistaken = tag == "VBD" and sentence.tags[child] == "VBN" and may_be_past(sentence.word(child))
            if (sentence.tags[child] != tag and not mistaken) or not words <= {"and", "or"}:
                break
            own = sentence.verb(child) != child or sentence.lower(child) in BE or sentence.auxiliaries(child)
            if own or sentence.subject(child) is not None:
                break
            found.append(child)
            heads.append(child)
    return found


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip(" \"'”’)").endswith("?")


def is_infinitive(sentence: ParsedSentence, clause: Clause) -> bool:
    before = sentence.tags[clause.verb - 1] if clause.verb else ""
    return before == "TO" or any(sentence.tags[child] == "TO" for child in sentence.children(clause.head))
