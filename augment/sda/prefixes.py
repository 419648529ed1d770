"""Put a phrase of denial before a sentence: "It is not true that" and the like, where it stands, and what it
may deny (SDA)."""

import re
from collections.abc import Sequence

from augment.sda.english import (
    BE,
    FINITE,
    Clause,
    clause_of,
    coordinated,
    finite_tag,
    is_finite,
    is_introduced,
    is_question,
)
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, lower_first, word_set

_SOUND = ("It is not true that", "It is not the case that", "It can't be that")
PREFIXES = {
    # The paper's examples (sections 3.1 and 4.3), and the code's list. "Not that he did not come" is no
    # sentence of its own, and "it is not the fact that" no English: both are left out unless what is
    # published is asked for.
    ("paper", "sound"): _SOUND,
    ("paper", "published"): ("It is not true that", "It can't be that", "It is not the fact that",
    "Not that"),
    ("code", "sound"): (
        "It isn't that", "It is not true that", "It is not the truth that", "There is no way that",
        "There is no chance that",
        "It is impossible that", "It can't be that",
    ),
    ("code", "published"): (
        "It isn't that", "The fact is not that", "It is not true that", "It is not the truth that",
        "Not that",
        "There is no way that", "There is no chance that", "It is impossible that", "It can't be that",
    ),
}  # fmt: skip
_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "(": ")", "[": "]"}
_APOSTROPHES = frozenset("'‘’")
_ASIDE = frozenset({",", ";", ":", "-", "--", "–", "—"})
_SPEECH = re.compile(r"[,.!?…—-][\"”’']")
_ADVERBIAL = word_set(
    "if when whenever while although though as since because after before once unless until where "
    "wherever even"
)
_CONNECTIVE = word_set("so then plus also besides still otherwise hence thus therefore")
_RELATIVE = frozenset({"WDT", "WP", "WP$", "WRB"})


def prefixed(
    sentence: ParsedSentence, prefix: str, edits: Sequence[Edit] = (), first: int = 0, head: int | None = None
) -> list[Edit]:
    """Return `edits`, and a phrase such as "It is not true that" before the sentence, or before the clause
    that begins with word `first`.

    It stands behind a quotation mark or bracket that the whole sentence stands in, behind a conjunction, an
    interjection, a form of address or an adverb with a comma ("But", "However,"), and behind a clause with a
    conjunction of its own ("If it rains,") that depends on word `head`. The first word after it has no
    capital, unless it is written with one everywhere.
    """
    opening = first = first or (1 if _is_enclosed(sentence) else 0)
    while len(sentence) > first + 2:
        marked = sentence.word(first + 1) in _ASIDE
        conjoins = sentence.pos[first] == "CCONJ" and not _is_paired(sentence, first)
        aside = marked and (
            sentence.pos[first] in ("ADV", "INTJ") or sentence.relation(first) in ("vocative", "discourse")
        )
        connects = sentence.heads[first] == head and sentence.word(first).lower() in _CONNECTIVE
        if conjoins or aside or connects or sentence.tags[first] == "UH":
            first += 2 if marked else 1
        elif (behind := _behind_adverbial(sentence, first, head)) is not None:
            first = behind
        else:
            break
    place = sentence.starts[first]
    if first > opening or not _starts_sentence(sentence, first):
        return [
            (place, place, prefix[0].lower() + prefix[1:] + " "),
            *(_from(sentence, edit, place) for edit in edits),
        ]
    if (
        sentence.word(first) in _APOSTROPHES
        and sentence.starts[first + 1 : first + 2] == sentence.ends[first : first + 1]
    ):
        first += 1  # "'Tis"; `place` stays before the apostrophe
    begin, end = sentence.starts[first], sentence.ends[first]
    rest = [edit for edit in edits if edit[0] >= end]
    early = [_from(sentence, edit, place) for edit in edits if edit[0] < end]
    if not early:
        return [(place, place, prefix + " "), (begin, end, lower_first(sentence, first)), *rest]
    # The first word is edited itself, and by rules that write lower case.
    (start, end, new), *others = early
    in_capitals = len(sentence.word(first)) > 1 and sentence.word(first).isupper()
    new = new if in_capitals else new[:1].lower() + new[1:]
    return [(place, place, prefix + " "), (start, end, new), *others, *rest]


def deniable(sentence: ParsedSentence, main: Clause) -> tuple[Clause, int] | None:
    """Return the clause that a phrase of denial may stand before, and its first word.

    It is the main clause, `main`; where clauses with subjects of their own are coordinated with it the last,
    as the phrase denies all that follows ("It rained, and it is not true that he did not come"). None where
    it would deny more than that clause, or tear a quotation from what is said of it.
    """
    if main.subject is None or main.subject > main.finite or _is_fragment(sentence, main.head, main.subject):
        return None
    heads, clause, subject, first = [main.head], main, main.subject, 0
    for head in heads:
        joined = [
            child
            for child in sentence.children(head)
            if sentence.relation(child) == "conj" and child > main.finite
        ]
        heads += joined
        for child in joined:
            other = clause_of(sentence, child) if not is_introduced(sentence, child) else None
            if (
                other is not None
                and is_finite(sentence, other)
                and other.subject is not None
                and child > clause.head
            ):
                clause, subject = other, other.subject
    if heads[-1] > clause.head:
        full = not clause.auxiliaries and sentence.word(clause.finite).lower() not in BE
        shared = {clause.head, *(coordinated(sentence, clause, finite_tag(sentence, clause)) if full else ())}
        for head in heads:
            other = clause_of(sentence, head) if head not in shared and head > clause.head else None
            if other is not None and is_finite(sentence, other):
                return None  # "was built and opened": denied, what is shared would be torn
    if clause is not main or clause.head != sentence.root:
        if subject > clause.finite or clause.inverted or _is_relative(sentence, subject):
            return None
        found = _first_of(sentence, clause)
        if found is None:
            return None
        first = found
    if _has_quotes(sentence.text) and _SPEECH.search(
        sentence.text, sentence.ends[first], sentence.starts[clause.finite]
    ):
        return None
    if any(
        sentence.relation(child) in ("ccomp", "parataxis") and child < subject
        for child in sentence.children(clause.head)
    ):
        return None  # "It rained, he said"
    for child in sentence.children(clause.head):  # "..., they are not toys": would be denied too
        beside = sentence.relation(child) == "parataxis" and child > clause.finite
        begin = sentence.subtree(child)[0] if beside else 0
        if (
            beside
            and "," in (sentence.word(begin), sentence.word(begin - 1))
            and sentence.subject(child) is not None
        ):
            return None
    return clause, first


def _is_fragment(sentence: ParsedSentence, head: int, subject: int) -> bool:
    """Return whether the main clause is a reason or condition by itself ("Because it rained.")."""
    return any(
        sentence.relation(child) == "mark" and sentence.word(child).lower() not in _CONNECTIVE
        for child in sentence.children(head)
        if child < subject
    )


def states_something(sentence: ParsedSentence) -> bool:
    """Return whether a text that no main clause was found in has a verb with a tense that is of no
    subordinate clause.
    """
    if is_question(sentence) or _SPEECH.search(sentence.text, 0, sentence.ends[-1] - 1):
        return False
    for i, tag in enumerate(sentence.tags):
        if tag not in FINITE:
            continue
        head = sentence.heads[i] if sentence.relation(i) in ("aux", "aux:pass", "cop") else i
        relation = sentence.relation(head)
        children = sentence.children(head)
        introduced = any(
            child < i and (sentence.relation(child) == "mark" or sentence.tags[child] in _RELATIVE)
            for child in children
        )
        if introduced or (relation[:3] == "acl" and _is_nominal(sentence, sentence.root)):
            continue
        return True
    return False


def _has_quotes(text: str) -> bool:
    return '"' in text or "”" in text or "’" in text or "'" in text


def _is_relative(sentence: ParsedSentence, subject: int) -> bool:
    """Return whether a subject is a relative pronoun or holds one: "..., many of which were"."""
    first, last = sentence.subtree(subject)
    return not _RELATIVE.isdisjoint(sentence.tags[first : last + 1])


def _is_nominal(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i is a noun that no preposition stands before: a heading, if it is the root."""
    cases = any(sentence.relation(child) == "case" and child < i for child in sentence.children(i))
    return sentence.pos[i] in ("NOUN", "PROPN", "PRON") and not cases


def _first_of(sentence: ParsedSentence, clause: Clause) -> int | None:
    """Return the first word of a coordinated clause, its conjunction and punctuation aside; None where
    nothing parts it off.
    """
    first = sentence.subtree(clause.head)[0]
    parted = first > 0 and (
        sentence.word(first - 1) in (",", ";", ":", "—", "-") or sentence.pos[first - 1] == "CCONJ"
    )
    while first < clause.finite and (sentence.pos[first] in ("CCONJ", "PUNCT")):
        parted, first = True, first + 1
    return first if parted and clause.subject is not None and first <= clause.subject else None


def _behind_adverbial(sentence: ParsedSentence, first: int, head: int | None) -> int | None:
    """Return the word behind the comma that ends a subordinate clause which word `first` begins and which
    depends on `head`.
    """
    if head is None or sentence.word(first).lower() not in _ADVERBIAL:
        return None
    for child in sentence.children(head):
        if sentence.relation(child) == "advcl" and sentence.subtree(child)[0] == first:
            last = sentence.subtree(child)[1]
            behind = last + 1 if sentence.word(last) == "," else last + 2
            parted = behind < len(sentence) and sentence.word(behind - 1) == ","
            return behind if parted and behind < head else None
    return None


def _from(sentence: ParsedSentence, edit: Edit, place: int) -> Edit:
    """Make an edit that takes the word at `place` away with the blank before it take the blank behind it
    instead."""
    start, end, new = edit
    if not start < place < end or sentence.text[start:place].strip():
        return edit
    return place, end + sentence.text[end:].startswith(" "), new


def _starts_sentence(sentence: ParsedSentence, first: int) -> bool:
    return not any(letter.isalnum() for letter in sentence.text[: sentence.starts[first]])


def _is_enclosed(sentence: ParsedSentence) -> bool:
    """Return whether the sentence opens with a quotation mark or bracket that closes behind its root, or
    nowhere; a single one must close, as it may be an apostrophe ("'Tis true").
    """
    closing = _PAIRS.get(sentence.word(0)) if len(sentence) > 1 else None
    if closing is None:
        return False
    if sentence.word(0) in _APOSTROPHES:
        marks = (
            i for i in range(1, len(sentence)) if sentence.word(i) == closing and sentence.tags[i] != "POS"
        )
        return next(marks, -1) > sentence.root
    place = sentence.text.find(closing, sentence.ends[0])
    return place < 0 or place > sentence.starts[sentence.root]


def _is_paired(sentence: ParsedSentence, i: int) -> bool:
    return sentence.word(i).lower() in ("both", "either", "neither")
