"""Read English clauses for SDA's rules, and write them in another form: negated, affirmed, with an auxiliary.

A clause is named by the word that heads it; `ParsedSentence.verb` finds its verb in both label sets.
Functions that write return edits, (start, end, new text) in characters of the sentence, or None if they know
no grammatical way.
"""

import re
from typing import NamedTuple

from augment.text.inflection import PASTS_THAT_ARE_BASE_FORMS, lemma_of, may_be_past
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, named_words

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
    taken = sentence.dependents(verb, *_TAKEN_FOR)
    nominal = (child for child in taken if sentence.pos[child] in ("NOUN", "PROPN", "PRON", "ADJ"))
    return next((child for child in nominal if sentence.subtree(child)[0] == following), None)


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
        introduced = sentence.has_dependent(child, "mark")  # "(not sure) if it rains"
        if sentence.relation(child) in _BESIDE and not introduced:
            other = clause_of(sentence, child)
            if other is not None and is_finite(sentence, other):
                return other
    return clause


def finite_tag(sentence: ParsedSentence, clause: Clause) -> str:
    """Return the tag of the finite word, and if a clause with a subject has a verb without tense alone,
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


_FULL = {"ca": "can", "wo": "will", "sha": "shall"}  # what is left of can't, won't, shan't
_MARKS = re.compile(r"[,;:!?\"“”—]")
# Subjects that say how many, by what denies them; those of neither are denied by the whole sentence alone.
_NOT_ALL = frozenset({"all", "every", "each", "everyone", "everybody", "everything", "both", "many"})
_NONE = {"some": "no", "someone": "no one", "somebody": "nobody", "something": "nothing"}
_DENIED = _NOT_ALL | {"a", "an", "one", "any", "anyone", "anybody", "anything", "even", "much"}
_COUNTS = _NOT_ALL | _NONE.keys() | {"few", "little", "only", "most", "almost", "nearly"}
# Adverbs that may stand before "does not", as they are of the sentence and no manner or degree of the verb.
_BEFORE_NOT = named_words("english.before_not")


def negate(
    sentence: ParsedSentence, clause: Clause, before_not: frozenset[str] = frozenset()
) -> list[Edit] | None:
    """Return edits that put a `not` into a clause that has none: with `do` before a full verb, whose
    coordinated verbs take the base form with it ("He came and saw": "did not come and see"). A subject
    that says how many is denied itself ("Not all men came", "No men came"): "some men did not come" does
    not deny that some came. before_not: adverbs behind an auxiliary that the `not` follows ("is still not
    open").
    """
    finite = clause.finite
    word, tag = sentence.word(finite), sentence.tags[finite]
    lower = word.lower()
    start, end = sentence.starts[finite], sentence.ends[finite]
    following = sentence.lower(finite + 1)
    if clause.negation is not None or clause.focus or following in NOT or is_of_title(sentence, finite):
        return None
    if is_joined(sentence, finite) or _asks_what_is(sentence, clause):
        return None
    if following == "yet" and sentence.tags[finite + 2 : finite + 3] == ("TO",):
        return None  # "has yet to go": has not gone
    if (counted := _uncounted(sentence, clause)) is not None:
        return counted or None
    if lower in HAD and following == "better" and "VB" in sentence.tags[finite + 2 : finite + 3]:
        # "had better not go"
        return [(sentence.ends[finite + 1], sentence.ends[finite + 1], like(word, " not"))]
    if lower == "be" and not clause.auxiliaries and not _opens_clause(sentence, clause):
        return None  # "So be it", "if need be"
    if (clause.auxiliaries and tag in FINITE) or lower in BE or tag == "MD":
        if clause.inverted or _asks(sentence, clause):
            assert clause.subject is not None  # the finite word stands before it
            place = sentence.ends[sentence.subtree(clause.subject)[1]]
            return [(place, place, like(word, " not"))]
        if lower == "can":
            return [(start, end, like(word, "cannot"))]
        if following in before_not and finite + 2 < len(sentence):
            end = sentence.ends[finite + 1]
        return [(end, end, like(word, " not"))]
    tag = finite_tag(sentence, clause)
    if tag in ("VBZ", "VBP", "VBD"):
        base = lemma_of(word, tag, sentence.lemmas[finite])
        if tag == "VBD" and base == lower and not may_be_past(word):
            return None  # the parse has no base form for it, or it is no past at all
        if base == "do" and (finite + 1 == len(sentence) or sentence.pos[finite + 1] == "PUNCT"):
            return [(end, end, like(word, " not"))]  # "I do."
        auxiliary = {"VBZ": "does", "VBP": "do", "VBD": "did"}[tag]
        rest = []
        for i in coordinated(sentence, clause, tag):
            lemma = lemma_of(sentence.word(i), tag, sentence.lemmas[i])
            rest.append(sentence.replacement(i, like(sentence.word(i), lemma)))
        return with_auxiliary(sentence, clause, f"{auxiliary} not", base, rest, _BEFORE_NOT)
    if tag == "VB" and clause.subject is None and not is_infinitive(sentence, clause):
        return [(start, end, like(word, f"do not {lower}"))]  # an imperative
    if tag in ("VB", "VBG", "VBN"):  # to go, going, gone: nothing finite, `not` stands before
        first = finite - 1 if tag == "VB" and finite and sentence.tags[finite - 1] == "TO" else finite
        place, opening = sentence.starts[first], sentence.word(first)
        opens = not any(letter.isalnum() for letter in sentence.text[:place])
        if opens and opening[:1].isupper() and not opening.isupper():
            return [(place, place + 1, "Not " + sentence.text[place].lower())]
        return [(place, place, "NOT " if opening.isupper() else "not ")]
    return None


def _asks(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether a form of "be" stands before its subject to ask; the question mark may be missing."""
    finite, subject = clause.finite, clause.subject
    if subject is None or subject < finite or sentence.lower(finite) not in BE:
        return False
    opens = all(sentence.pos[i] in ("PUNCT", "INTJ", "CCONJ") for i in range(finite))
    return is_question(sentence) or (opens and sentence.pos[subject] == "PRON")


def _asks_what_is(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether "be" asks what, where or how much its subject is, which no "not" denies."""
    inverted = clause.subject is not None and clause.subject > clause.finite
    if clause.auxiliaries or not (inverted or is_question(sentence)) or sentence.lower(clause.verb) not in BE:
        return False
    return any(tag[:1] == "W" for tag in sentence.tags[: clause.finite])


def _uncounted(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Return edits that deny a subject which says how many; [] if none can, None if it does not say."""
    if clause.subject is None or clause.subject > clause.finite or clause.inverted:
        return None
    first = sentence.subtree(clause.subject)[0]
    lower = sentence.lower(first)
    if lower not in _COUNTS:
        return None
    if lower not in _NOT_ALL and lower not in _NONE:
        return []
    if negation_before_subject(sentence, clause) is not None:
        return []
    if sentence.heads[first] != clause.subject and first != clause.subject:
        return None
    following = sentence.tags[first + 1] if first + 1 < len(sentence) else ""
    start, end, word = sentence.replacement(first, sentence.word(first))
    if lower in _NOT_ALL:
        return [(start, end, like(word, f"not {lower}"))]
    if following == "CD" or (lower == "some" and following == "DT"):
        return None  # "some 300 men"
    alone = lower == "some" and (first == clause.subject or sentence.pos[first + 1] == "ADP")
    return [(start, end, like(word, "none" if alone else _NONE[lower]))]


def negation_before_subject(sentence: ParsedSentence, clause: Clause) -> int | None:
    """Return the `not` that opens the subject or stands before it: "not all men came", "not a soul"."""
    if clause.subject is None or clause.subject > clause.finite:
        return None
    first = sentence.subtree(clause.subject)[0]
    if sentence.lower(first) == "not":
        return first
    before = first - 1
    denies = sentence.lower(first) in _DENIED and before >= 0 and sentence.lower(before) == "not"
    return before if denies and (not before or sentence.lower(before - 1) != "or") else None


def with_auxiliary(
    sentence: ParsedSentence,
    clause: Clause,
    auxiliary: str,
    verb: str,
    rest: list[Edit],
    staying: frozenset[str],
) -> list[Edit] | None:
    """Return the edits that put "auxiliary verb" for the finite verb: the auxiliary before the adverbs that
    stand before the verb, those of `staying` and what stands before them aside ("He highly values it":
    "does not highly value").
    """
    finite = first = clause.finite
    while (
        first
        and sentence.tags[first - 1] in ("RB", "RBR")
        and sentence.relation(first - 1) == "advmod"
        and sentence.heads[first - 1] in (clause.head, clause.verb)
        and sentence.lower(first - 1) not in NOT | staying
    ):
        first -= 1
    if first < finite:
        begin, last = sentence.subtree(first)
        first = begin if last < finite else first  # "very often quotes"
    if first == finite or (clause.subject is not None and clause.subject >= first):
        return in_place(sentence, clause, f"{auxiliary} {verb}", rest)
    word, place = sentence.word(finite), sentence.starts[first]
    if sentence.word(first)[:1].isupper() and not word.isupper():
        return None
    auxiliary = like(word, auxiliary) if word.isupper() else auxiliary
    return [(place, place, f"{auxiliary} "), sentence.replacement(finite, like(word, verb)), *rest]


def _opens_clause(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether only adverbs and punctuation stand before the finite verb (imperatives), or "to"."""
    before = range(sentence.subtree(clause.head)[0], clause.finite)
    light = ("ADV", "PUNCT", "INTJ", "CCONJ")
    return clause.subject is None and all(
        sentence.pos[i] in light or sentence.tags[i] == "TO" for i in before
    )


def in_place(sentence: ParsedSentence, clause: Clause, new: str, rest: list[Edit]) -> list[Edit] | None:
    """Return the edits that put `new` for the finite verb; if a subject follows it ('said John', "Here
    comes the bus"), `new` stands behind the subject, as nothing but a form of "be" inverts by itself.
    """
    finite, subject = clause.finite, clause.subject
    start, end = sentence.starts[finite], sentence.ends[finite]
    word = sentence.word(finite)
    if subject is None or subject < finite or word.lower() in BE:
        return [(start, end, like(word, new)), *rest]
    first, last = sentence.subtree(subject)
    named = sentence.text[sentence.starts[first] : sentence.ends[last]]
    if first != finite + 1 or _MARKS.search(named) or rest or word[:1].isupper():
        return None
    return [(start, sentence.ends[last], f"{named} {new}")]


def affirm(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Return edits that take the `not` out of a negated clause: "does not go" becomes "does go"."""
    i = clause.negation
    if i is None:
        return None
    word, before = sentence.lower(i), sentence.lower(i - 1)
    if word != "not":  # n't, written together with its verb
        if before == "ai":
            return None
        joined = sentence.replacement(i - 1, like(sentence.word(i - 1), _FULL.get(before, before)), i)
        return [joined] if sentence.ends[i - 1] == sentence.starts[i] else None
    return [without_words(sentence, i)]


def without_words(sentence: ParsedSentence, first: int, last: int = -1) -> Edit:
    """Return the edit that deletes words `first` to `last` and a space; openings pass on their capital."""
    last = first if last < 0 else last
    start, end = sentence.starts[first], sentence.ends[last]
    if start and sentence.text[start - 1] == " ":
        return start - 1, end, ""
    if not sentence.text[:start][-1:].isalnum() and last + 1 < len(sentence):
        following = sentence.starts[last + 1]
        return start, following + 1, like(sentence.word(first)[:1], sentence.text[following])
    return start, end, ""
