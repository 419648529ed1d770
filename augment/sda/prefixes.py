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
from augment.text.word_forms import Edit, lower_first, named_words, word_set

PREFIXES = {
    # The paper's examples (sections 3.1 and 4.3). "Not that he did not come" is no sentence of its own, and
    # "it is not the fact that" no English: only "published" has them.
    "sound": ("It is not true that", "It is not the case that", "It can't be that"),
    "published": ("It is not true that", "It can't be that", "It is not the fact that", "Not that"),
}
_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "(": ")", "[": "]"}
_APOSTROPHES = frozenset("'‘’")
_ASIDE = frozenset({",", ";", ":", "-", "--", "–", "—"})
_SPEECH = re.compile(r"[,.!?…—-][\"”’']")
_ADVERBIAL = named_words("prefixes.adverbial")
_CONNECTIVE = word_set("so then plus also besides still otherwise hence thus therefore")
_PAIRED = frozenset({"both", "either", "neither"})
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
        conjoins = sentence.pos[first] == "CCONJ" and sentence.lower(first) not in _PAIRED
        aside = marked and (
            sentence.pos[first] in ("ADV", "INTJ") or sentence.relation(first) in ("vocative", "discourse")
        )
        connects = sentence.heads[first] == head and sentence.lower(first) in _CONNECTIVE
        if conjoins or aside or connects or sentence.tags[first] == "UH":
            first += 2 if marked else 1
        elif (behind := _behind_adverbial(sentence, first, head)) is not None:
            first = behind
        else:
            break
    place = sentence.starts[first]
    if first > opening or any(map(str.isalnum, sentence.text[:place])):
        return [
            (place, place, prefix[0].lower() + prefix[1:] + " "),
            *(_from(sentence, edit, place) for edit in edits),
        ]
    joined = sentence.starts[first + 1 : first + 2] == sentence.ends[first : first + 1]
    if joined and sentence.word(first) in _APOSTROPHES:
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
        joined = [child for child in sentence.dependents(head, "conj") if child > main.finite]
        heads += joined
        for child in joined:
            other = clause_of(sentence, child) if not is_introduced(sentence, child) else None
            if other is None or other.subject is None or child <= clause.head:
                continue
            if is_finite(sentence, other):
                clause, subject = other, other.subject
    if heads[-1] > clause.head:
        full = not clause.auxiliaries and sentence.lower(clause.finite) not in BE
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
    start, end = sentence.ends[first], sentence.starts[clause.finite]
    if _SPEECH.search(sentence.text, start, end):
        return None
    if any(child < subject for child in sentence.dependents(clause.head, "ccomp", "parataxis")):
        return None  # "It rained, he said"
    for child in sentence.children(clause.head):  # "..., they are not toys": would be denied too
        beside = sentence.relation(child) == "parataxis" and child > clause.finite
        begin = sentence.subtree(child)[0] if beside else 0
        commas = beside and "," in (sentence.word(begin), sentence.word(begin - 1))
        if commas and sentence.subject(child) is not None:
            return None
    return clause, first


def _is_fragment(sentence: ParsedSentence, head: int, subject: int) -> bool:
    """Return whether the main clause is a reason or condition by itself ("Because it rained.")."""
    marks = (child for child in sentence.dependents(head, "mark") if child < subject)
    return any(sentence.lower(child) not in _CONNECTIVE for child in marks)


def states_something(sentence: ParsedSentence) -> bool:
    """Return whether a text without a main clause has a finite verb of no subordinate clause."""
    if is_question(sentence) or _SPEECH.search(sentence.text, 0, sentence.ends[-1] - 1):
        return False
    for i, tag in enumerate(sentence.tags):
        if tag not in FINITE:
            continue
        head = sentence.heads[i] if sentence.relation(i) in ("aux", "aux:pass", "cop") else i
        relation = sentence.relation(head)
        before = [child for child in sentence.children(head) if child < i]
        introduced = any(sentence.relation(j) == "mark" or sentence.tags[j] in _RELATIVE for j in before)
        if introduced or (relation[:3] == "acl" and _is_nominal(sentence, sentence.root)):
            continue
        return True
    return False


def _is_relative(sentence: ParsedSentence, subject: int) -> bool:
    """Return whether a subject is a relative pronoun or holds one: "..., many of which were"."""
    first, last = sentence.subtree(subject)
    return not _RELATIVE.isdisjoint(sentence.tags[first : last + 1])


def _is_nominal(sentence: ParsedSentence, i: int) -> bool:
    """Return whether word i is a noun that no preposition stands before: a heading, if it is the root."""
    cases = any(child < i for child in sentence.dependents(i, "case"))
    return sentence.pos[i] in ("NOUN", "PROPN", "PRON") and not cases


def _first_of(sentence: ParsedSentence, clause: Clause) -> int | None:
    """Return a coordinated clause's first word behind its conjunction; None if nothing parts it off."""
    first = sentence.subtree(clause.head)[0]
    parted = first > 0 and (
        sentence.word(first - 1) in (",", ";", ":", "—", "-") or sentence.pos[first - 1] == "CCONJ"
    )
    while first < clause.finite and (sentence.pos[first] in ("CCONJ", "PUNCT")):
        parted, first = True, first + 1
    return first if parted and clause.subject is not None and first <= clause.subject else None


def _behind_adverbial(sentence: ParsedSentence, first: int, head: int | None) -> int | None:
    """Return the word behind the comma of a subordinate clause of `head` that begins with word `first`."""
    if head is None or sentence.lower(first) not in _ADVERBIAL:
        return None
    for child in sentence.children(head):
        if sentence.relation(child) == "advcl" and sentence.subtree(child)[0] == first:
            last = sentence.subtree(child)[1]
            behind = last + 1 if sentence.word(last) == "," else last + 2
            parted = behind < len(sentence) and sentence.word(behind - 1) == ","
            return behind if parted and behind < head else None
    return None


def _from(sentence: ParsedSentence, edit: Edit, place: int) -> Edit:
    """Make an edit that removes the word at `place` take the blank behind it, not the one before."""
    start, end, new = edit
    if not start < place < end or sentence.text[start:place].strip():
        return edit
    return place, end + sentence.text[end:].startswith(" "), new


def _is_enclosed(sentence: ParsedSentence) -> bool:
    """Return whether the sentence opens with a quote or bracket that closes behind its root, or nowhere."""
    closing = _PAIRS.get(sentence.word(0)) if len(sentence) > 1 else None
    if closing is None:
        return False
    if sentence.word(0) in _APOSTROPHES:
        marks = (i for i in range(1, len(sentence)) if sentence.word(i) == closing)
        return next((i for i in marks if sentence.tags[i] != "POS"), -1) > sentence.root
    place = sentence.text.find(closing, sentence.ends[0])
    return place < 0 or place > sentence.starts[sentence.root]
