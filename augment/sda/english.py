"""The English clause as SDA's rules need it: which word carries the tense, whether it states something, how
to negate it.

Everything here answers with edits, (start, end, new text) in characters of the sentence, or None where it
knows no grammatical way. A clause is named by the word that heads it; `ParsedSentence.verb` finds its verb in
both label sets.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from augment.text.inflection import lemma_of, may_be_past
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like

BE = frozenset({"am", "is", "are", "was", "were", "'s", "'m", "'re", "’s", "’m", "’re"})
PAST_BE = frozenset({"was", "were"})
HAVE = frozenset({"have", "has", "had", "'ve", "’ve", "'s", "’s"})
HAD = frozenset({"had", "'d", "’d"})
NEED = frozenset({"need", "needs", "needed"})
NOT = frozenset({"not", "n't", "n’t"})
NEGATIVE_ADVERBS = frozenset({"never", "hardly", "scarcely", "rarely", "seldom", "neither", "nor"})
_FULL = {"ca": "can", "wo": "will", "sha": "shall"}  # what is left of can't, won't, shan't
_CLOSING_QUOTES = frozenset("\"'”’")
_MARKS = re.compile(r"[,;:!?\"“”—]")
_ENDS_SPEECH = tuple(",.!?-–—…")
_SPEAKERS = frozenset({"i", "he", "she", "we", "they"})
_THIRD = frozenset({"he", "she", "it"})
_TAKEN_FOR = frozenset({"nsubj", "obj", "iobj", "attr", "obl:npmod", "obl:unmarked", "dep"})
_OBJECTS = frozenset({"me", "him", "us", "them", "it", "you", "himself", "herself"})
_ALSO_BASE = frozenset(
    {"found", "saw", "lay", "fell", "ground", "wound", "bore", "rent", "bound", "have", "do", "are", "am"}
)
FINITE = frozenset({"VBZ", "VBP", "VBD", "MD"})
_OF_OTHER_CLAUSES = frozenset({"acl", "advcl", "ccomp", "xcomp", "conj"})
# Subjects that say how many, by what denies them; those of neither are denied by the whole sentence alone.
_NOT_ALL = frozenset({"all", "every", "each", "everyone", "everybody", "everything", "both", "many"})
_NONE = {"some": "no", "someone": "no one", "somebody": "nobody", "something": "nothing"}
_COUNTS = _NOT_ALL | _NONE.keys() | {"few", "little", "only", "most", "almost", "nearly"}
# Adverbs that may stand before "does not", as they are of the sentence and no manner or degree of the verb.
_BEFORE_NOT = frozenset((
    "actually", "also", "always", "apparently", "certainly", "clearly", "consequently", "currently",
    "eventually",
    "evidently", "finally", "first", "generally", "hence", "however", "initially", "just", "later", "likely",
    "literally",
    "maybe", "nevertheless", "normally", "now", "obviously", "often", "originally", "perhaps", "possibly",
    "presumably",
    "previously", "probably", "really", "reportedly", "simply", "sometimes", "soon", "still", "subsequently",
    "suddenly",
    "supposedly", "surely", "then", "thereby", "therefore", "though", "thus", "too", "typically",
    "ultimately", "usually",
))  # fmt: skip
_BESIDE = frozenset({"conj", "parataxis", "ccomp", "list"})


class Clause(NamedTuple):
    """A clause with a verb. head: the word that heads it. verb: its main verb or copula. auxiliaries: those
    before it, in order. finite: the word that carries tense: the first auxiliary, else the verb. subject: or
    None. negation: the `not` that belongs to it, or None. focus: whether it has a `not only` or the like,
    which is no negation, and bars another one.
    inverted: whether the finite word stands before the subject, as in questions.
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
    """The clause that a word heads, or None where that word has no verb (a heading, an exclamation)."""
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
        subject = None if sentence.word(behind) == "," else subject  # "Ann, go home"
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
    """Who speaks in '"No," said John', whatever a parser has taken him for; no mark inside the quotes: a
    title ('"Up" won')."""
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
    """The main clause: the root's, or, where a parser has made the root of something without a tense, the
    first finite one that is coordinated with it or stands beside it. None where there is no such clause.
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
    return sentence.tags[clause.finite] == "VB" and not _is_infinitive(sentence, clause)


def finite_tag(sentence: ParsedSentence, clause: Clause) -> str:
    """The tag of the finite word, and where a clause with a subject has a verb without tense alone, the one
    that the tagger must have missed: VBD for "finished" taken for a participle, VBP for "feature" taken for a
    base form.
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
    if tag == "VB" and not _is_infinitive(sentence, clause):
        tag = "VBP"
    word = sentence.word(clause.finite).lower()
    if tag == "VBP" and sentence.word(clause.subject).lower() in _THIRD and may_be_past(word):
        return "VBD"  # "it cost"
    if tag == "VBP" and word not in _ALSO_BASE | BE and lemma_of(word, "VBD") != word:
        return "VBD"  # "shook"
    return tag


def _has_other_tense(sentence: ParsedSentence, i: int) -> bool:
    """Whether a verb with a tense that is of no subordinate or coordinated clause stands up to the next
    semicolon or full stop: "the salt obtained was pure".
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
    """Whether the clause states something: no imperative, no infinitive, no question, nothing that ends in a
    question mark."""
    alone = clause.subject is None and sentence.tags[clause.finite] in ("VB", "VBP", "VBG", "VBN")
    if alone or clause.inverted or is_question(sentence):
        return False
    marks = sentence.children(clause.head) if "?" in sentence.text else ()
    return not any(sentence.word(child)[:1] == "?" for child in marks if child > clause.finite)


def is_finite(sentence: ParsedSentence, clause: Clause) -> bool:
    return sentence.tags[clause.finite] in FINITE


def _is_focus(sentence: ParsedSentence, i: int) -> bool:
    """`not only`, `not just`, `not least`: no negation of the clause."""
    return i + 1 < len(sentence) and sentence.word(i + 1).lower() in (
        "only",
        "just",
        "merely",
        "least",
        "simply",
        "until",
    )


def negate(
    sentence: ParsedSentence, clause: Clause, before_not: frozenset[str] = frozenset()
) -> list[Edit] | None:
    """Edits that put a `not` into a clause that has none: with `do` before a full verb, whose coordinated
    verbs take the base form with it ("He came and saw": "did not come and see"). A subject that says how many
    is denied itself ("Not all men came", "No men came"): "some men did not come" does not deny that some
    came. before_not: adverbs behind an auxiliary that the `not` follows ("is still not open").
    """
    finite = clause.finite
    word, tag = sentence.word(finite), sentence.tags[finite]
    lower = word.lower()
    start, end = sentence.starts[finite], sentence.ends[finite]
    following = sentence.word(finite + 1).lower() if finite + 1 < len(sentence) else ""
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
        rest = [
            (
                sentence.starts[i],
                sentence.ends[i],
                like(sentence.word(i), lemma_of(sentence.word(i), tag, sentence.lemmas[i])),
            )
            for i in coordinated(sentence, clause, tag)
        ]
        return with_auxiliary(sentence, clause, f"{auxiliary} not", base, rest, _BEFORE_NOT)
    if tag == "VB" and clause.subject is None and not _is_infinitive(sentence, clause):
        return [(start, end, like(word, f"do not {lower}"))]  # an imperative
    if tag in ("VB", "VBG", "VBN"):  # to go, going, gone: nothing finite, `not` stands before
        first = finite - 1 if tag == "VB" and finite and sentence.tags[finite - 1] == "TO" else finite
        place, opening = sentence.starts[first], sentence.word(first)
        if (
            opening[:1].isupper()
            and not opening.isupper()
            and not any(letter.isalnum() for letter in sentence.text[:place])
        ):
            return [(place, place + 1, "Not " + sentence.text[place].lower())]
        return [(place, place, "NOT " if opening.isupper() else "not ")]
    return None


def _asks(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether a form of "be" stands before its subject to ask; the question mark may be missing."""
    finite, subject = clause.finite, clause.subject
    if subject is None or subject < finite or sentence.word(finite).lower() not in BE:
        return False
    opens = all(sentence.pos[i] in ("PUNCT", "INTJ", "CCONJ") for i in range(finite))
    return is_question(sentence) or (opens and sentence.pos[subject] == "PRON")


def is_joined(sentence: ParsedSentence, i: int) -> bool:
    """Whether a verb is written together with another word: part of a compound, or "dont", which parsers cut
    in two."""
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


def _asks_what_is(sentence: ParsedSentence, clause: Clause) -> bool:
    """Whether "be" asks for what its subject is, where or how much: no answer denies that. A question mark
    may be missing."""
    inverted = clause.subject is not None and clause.subject > clause.finite
    if (
        clause.auxiliaries
        or not (inverted or is_question(sentence))
        or sentence.word(clause.verb).lower() not in BE
    ):
        return False
    return any(tag[:1] == "W" for tag in sentence.tags[: clause.finite])


def _uncounted(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Edits that deny a subject which says how many; [] where there is no way to, None where it does not
    say."""
    if clause.subject is None or clause.subject > clause.finite or clause.inverted:
        return None
    first = sentence.subtree(clause.subject)[0]
    lower = sentence.word(first).lower()
    if lower not in _COUNTS:
        return None
    if lower not in _NOT_ALL and lower not in _NONE:
        return []
    if sentence.heads[first] != clause.subject and first != clause.subject:
        return None
    following = sentence.tags[first + 1] if first + 1 < len(sentence) else ""
    start, end, word = sentence.starts[first], sentence.ends[first], sentence.word(first)
    if lower in _NOT_ALL:
        return [(start, end, like(word[:1], f"not {lower}"))]
    if following == "CD" or (lower == "some" and following == "DT"):
        return None  # "some 300 men"
    new = (
        "none"
        if lower == "some" and (first == clause.subject or sentence.pos[first + 1] == "ADP")
        else _NONE[lower]
    )
    return [(start, end, like(word[:1], new))]


def with_auxiliary(
    sentence: ParsedSentence,
    clause: Clause,
    auxiliary: str,
    verb: str,
    rest: list[Edit],
    staying: frozenset[str],
) -> list[Edit] | None:
    """The edits that put "auxiliary verb" for the finite verb: the auxiliary before the adverbs that stand
    before the verb, those of `staying` and what stands before them aside ("He highly values it": "does not
    highly value").
    """
    finite = first = clause.finite
    while (
        first and _goes_with(sentence, clause, first - 1) and sentence.word(first - 1).lower() not in staying
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
    return [
        (place, place, f"{auxiliary} "),
        (sentence.starts[finite], sentence.ends[finite], like(word, verb)),
        *rest,
    ]


def _goes_with(sentence: ParsedSentence, clause: Clause, i: int) -> bool:
    adverb = sentence.tags[i] in ("RB", "RBR") and sentence.relation(i) == "advmod"
    return adverb and sentence.heads[i] in (clause.head, clause.verb) and sentence.word(i).lower() not in NOT


def _opens_clause(sentence: ParsedSentence, clause: Clause) -> bool:
    """Whether nothing but adverbs and punctuation stands before the finite verb, as in imperatives, or it has
    a "to"."""
    before = range(sentence.subtree(clause.head)[0], clause.finite)
    return clause.subject is None and all(
        sentence.pos[i] in ("ADV", "PUNCT", "INTJ", "CCONJ") or sentence.tags[i] == "TO" for i in before
    )


def is_of_title(sentence: ParsedSentence, i: int) -> bool:
    """Whether a verb has a capital that no sentence starts with: it is (part of) a name, or of a heading."""
    word = sentence.word(i)
    if not word[:1].isupper() or word[1:] != word[1:].lower() or not i:
        return False
    return (
        any(letter.isalnum() for letter in sentence.text[: sentence.starts[i]])
        and sentence.word(i - 1)[-1:].isalnum()
    )


def coordinated(sentence: ParsedSentence, clause: Clause, tag: str) -> list[int]:
    """The verbs in the clause's tense that share its subject by "and" or "or", without an auxiliary of their
    own, up to the first that does not: "came, saw and conquered".
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


def in_place(sentence: ParsedSentence, clause: Clause, new: str, rest: list[Edit]) -> list[Edit] | None:
    """The edits that put `new` for the finite verb; where a subject follows it ('said John', "Here comes the
    bus"), `new` stands behind the subject, as nothing but a form of "be" inverts by itself.
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
    """Edits that take the `not` out of a negated clause: "does not go" becomes "does go"."""
    i = clause.negation
    if i is None:
        return None
    word, before = sentence.word(i).lower(), sentence.word(i - 1).lower()
    if word != "not":  # n't, written together with its verb
        if before == "ai":
            return None
        joined = (
            sentence.starts[i - 1],
            sentence.ends[i],
            like(sentence.word(i - 1), _FULL.get(before, before)),
        )
        return [joined] if sentence.ends[i - 1] == sentence.starts[i] else None
    return [without_word(sentence, i)]


def without_word(sentence: ParsedSentence, i: int) -> Edit:
    """The edit that deletes word i with the space before it; where it opens the text, a quotation or a
    bracket, with the space behind it, and the next word gets its capital.
    """
    return without_words(sentence, i, i)


def without_words(sentence: ParsedSentence, first: int, last: int) -> Edit:
    """The edit that deletes words `first` to `last`, as `without_word` does one."""
    start, end = sentence.starts[first], sentence.ends[last]
    if start and sentence.text[start - 1] == " ":
        return start - 1, end, ""
    if not sentence.text[:start][-1:].isalnum() and last + 1 < len(sentence):
        following = sentence.starts[last + 1]
        return start, following + 1, like(sentence.word(first)[:1], sentence.text[following])
    return start, end, ""


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip(" \"'”’)").endswith("?")


def _is_infinitive(sentence: ParsedSentence, clause: Clause) -> bool:
    return any(sentence.tags[child] == "TO" for child in sentence.children(clause.head)) or (
        clause.verb > 0 and sentence.tags[clause.verb - 1] == "TO"
    )
