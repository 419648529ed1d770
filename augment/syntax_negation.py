"""Negation, double negation, modal verbs and intensifiers of English sentences: SDA's rules over the clauses of
`augment.syntax_english`. Each function answers with edits, or None where the rule does not apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from augment.lexical_contractions import assertive, needs_negation
from augment.lexical_forms import indefinite_article, is_name, like, lower_first, overlap
from augment.parsed import ParsedSentence
from augment.syntax_english import (
    MODALS,
    Clause,
    Edit,
    add_modal,
    affirm,
    clause_of,
    is_assertion,
    is_question,
    main_clause,
    negate,
    without_word,
    without_words,
)
from augment.text import Draws

_PAIRS = {'"': '"', "“": "”", "'": "'", "‘": "’", "(": ")", "[": "]"}
_APOSTROPHES = frozenset("'‘’")
_PREFIXES = {
    # The paper's examples (sections 3.1 and 4.3), and the code's list.
    "paper": ("It is not true that", "It can't be that", "It is not the fact that", "Not that"),
    "code": (
        "It isn't that", "The fact is not that", "It is not true that", "It is not the truth that", "Not that",
        "There is no way that", "There is no chance that", "It is impossible that", "It can't be that",
    ),
}  # fmt: skip
_INTENSIFIERS = (
    "extremely", "quite", "very", "particularly", "especially", "absolutely", "totally", "really", "remarkably",
)  # fmt: skip
_NEGATIVE = frozenset({"no", "not", "n't", "n’t"})
_AUXILIARY = frozenset({"aux"})
_WITHOUT = {"no": "some", "nobody": "somebody", "nothing": "something", "nowhere": "somewhere", "none": "some"}
_ANY_NEGATIVE = re.compile(r"\b(?:never|no|nobody|nothing|nowhere|none|neither|nor)\b", re.IGNORECASE)
# Adjectives without degrees, which no intensifier can stand before.
_PLAIN = frozenset((
    "same", "other", "such", "many", "few", "several", "own", "only", "last", "next", "first", "second", "third",
    "former", "latter", "main", "entire", "whole", "various", "certain", "due", "able", "more", "most", "less", "least",
    "fewer", "much", "further", "little", "following", "previous", "total", "final", "single", "double",
))  # fmt: skip


def negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.neg`."""
    if not len(sentence):
        return None
    if variant == "paper":
        clause = main_clause(sentence)
        if clause is None:
            return _fragment(sentence)
        is_negative, edits = _without_negation(sentence, clause)
        return edits if is_negative else negate(sentence, clause)
    return _first_hit(sentence) or (None if is_question(sentence) else _prefixed(sentence, draws.choice(_PREFIXES["code"])))


def double_negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.dn`."""
    clause = main_clause(sentence)
    if clause is None or clause.subject is None or not is_assertion(sentence, clause):
        return None
    if variant == "paper":
        is_negative, edits = _without_negation(sentence, clause)
        edits = edits if is_negative else negate(sentence, clause)
        return _prefixed(sentence, draws.choice(_PREFIXES["paper"]), edits) if edits else None
    edits, count = _negate_two(sentence)
    if count == 1:
        edits = _prefixed(sentence, draws.choice(_PREFIXES["code"]), edits)
    return edits or None


def modal_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.mv`: the first modal verb, in random order, that the main clause can take."""
    clause = main_clause(sentence)
    if clause is None:
        return None
    for modal in draws.sample(MODALS[variant], len(MODALS[variant])):
        edits = add_modal(sentence, clause, modal)
        if edits:
            return edits
    return None


def intensifier_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """One intensifier before every adjective that can take it, and "a" or "an" before it as it needs."""
    intensifier = draws.choice(_INTENSIFIERS)
    edits = []
    for i, tag in enumerate(sentence.tags):
        if tag != "JJ":
            continue
        word = sentence.word(i)
        start, end = sentence.starts[i], sentence.ends[i]
        if not word.islower() or not word.isalpha() or word in _PLAIN:
            continue
        text = sentence.text
        if start == 0 or text[start - 1] != " " or (end < len(text) and text[end] in "-/’'"):
            continue
        if any(sentence.relation(child) == "advmod" for child in sentence.children(i)):
            continue  # it has a degree already
        if sentence.pos[i - 1] in ("ADJ", "ADV", "NUM") or sentence.relation(i) in ("compound", "fixed"):
            continue
        article = sentence.word(i - 1)
        if article.lower() in ("a", "an"):
            edits.append((sentence.starts[i - 1], sentence.ends[i - 1], like(article, indefinite_article(intensifier))))
        edits.append((start, start, intensifier + " "))
    return edits or None


def _without_negation(sentence: ParsedSentence, clause: Clause) -> tuple[bool, list[Edit] | None]:
    """(whether a clause is negative, edits that take its negation away, None where there is no way): its `not`, else `no longer`,
    never, nobody, nothing, the `no` of an argument, or "neither ... nor". "Any" behind it becomes "some".
    """
    if clause.negation is not None:
        return True, _without_not(sentence, clause)
    lower = sentence.text.lower()  # first, as the expression takes a while
    if not (("no" in lower or "ne" in lower) and _ANY_NEGATIVE.search(lower)):
        return False, None
    found, edits = _negative_word(sentence, clause)
    if found is None or sentence.word(found).lower() == "neither":  # "either ... or" leaves nothing negative behind
        return found is not None, edits
    return True, _with_some(sentence, found, edits)


def _is_negative(sentence: ParsedSentence, clause: Clause) -> bool:
    return clause.negation is not None or _without_negation(sentence, clause)[0]


def _without_not(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    return _with_some(sentence, clause.negation, affirm(sentence, clause))


def _with_some(sentence: ParsedSentence, negative: int, edits: list[Edit] | None) -> list[Edit] | None:
    """Edits that take the negative word away, with those that make its "any" a "some"; None where something needs it."""
    if not edits:
        return None
    words = [word.lower().replace("’", "'") for word in sentence.words]
    if needs_negation(words, negative):
        return None
    return edits if is_question(sentence) else [*edits, *assertive(sentence, words, negative)]


def _negative_word(sentence: ParsedSentence, clause: Clause) -> tuple[int | None, list[Edit] | None]:
    """(the negative word of a clause that is none of its verb, edits that make it positive)."""
    for i in range(len(sentence)):
        lower = sentence.word(i).lower()
        if lower == "never" and sentence.heads[i] in (clause.head, clause.verb):
            return i, None if clause.inverted else [without_word(sentence, i)]
        if lower in ("neither", "nor") and (other := _paired(sentence, i)) is not None:
            if other < 0:
                return i, None
            pair = ((i, "either"), (other, "or"))
            return i, [(sentence.starts[j], sentence.ends[j], like(sentence.word(j), new)) for j, new in pair]
        if lower in _WITHOUT:
            following = sentence.word(i + 1).lower() if i + 1 < len(sentence) else ""
            if lower == "no" and following == "longer":
                return i, [without_words(sentence, i, i + 1)]
            if lower == "no" and following in ("other", "sooner"):  # "no other than"
                return i, None
            if edit := _without_no(sentence, i, clause.head):
                return i, [edit]
    return None, None


def _paired(sentence: ParsedSentence, i: int) -> int | None:
    """The `nor` that goes with the `neither` at word i, -1 where it stands by itself; None where it belongs to a noun."""
    if sentence.word(i).lower() == "nor":
        return -1
    nor = [j for j in range(i + 1, len(sentence)) if sentence.word(j).lower() == "nor"]
    return nor[0] if len(nor) == 1 else -1


def _without_no(sentence: ParsedSentence, i: int, head: int) -> Edit | None:
    """`no` and its like become `some`, if they are, or determine, what depends on word `head` (any word: -1) directly."""
    lower = sentence.word(i).lower()
    owner = i if lower != "no" else sentence.heads[i]
    if lower == "no" and (sentence.relation(i) != "det" or owner == i):
        return None
    if head >= 0 and sentence.heads[owner] != head and owner != head:
        return None
    if lower == "no" and owner == i + 1 and sentence.word(owner).lower() == "one":
        return sentence.starts[i], sentence.ends[owner], like(sentence.word(i), "someone")
    return sentence.starts[i], sentence.ends[i], like(sentence.word(i), _WITHOUT[lower])


def _prefixed(sentence: ParsedSentence, prefix: str, edits: Sequence[Edit] = ()) -> list[Edit]:
    """`edits`, and before the sentence a phrase such as "It is not true that": behind a quotation mark or bracket that the whole
    sentence stands in, behind a conjunction, an interjection or an adverb with a comma ("But", "However,"), and with no
    capital on the first word after it, unless that is written with one everywhere.
    """
    opening = first = 1 if _is_enclosed(sentence) else 0
    while len(sentence) > first + 2:
        marked = sentence.word(first + 1) in (",", ";")
        conjoins = sentence.pos[first] == "CCONJ" and not _is_paired(sentence, first)
        if not conjoins and not (marked and sentence.pos[first] in ("ADV", "INTJ")):
            break
        first += 2 if marked else 1
    place = sentence.starts[first]
    if first > opening:
        return [(place, place, prefix[0].lower() + prefix[1:] + " "), *edits]
    if sentence.word(first) in _APOSTROPHES and sentence.starts[first + 1 : first + 2] == sentence.ends[first : first + 1]:
        first += 1  # "'Tis"; `place` stays before the apostrophe
    begin, end = sentence.starts[first], sentence.ends[first]
    rest = [edit for edit in edits if edit[0] >= end]
    early = [edit for edit in edits if edit[0] < end]
    if not early:
        return [(place, place, prefix + " "), (begin, end, lower_first(sentence, first)), *rest]
    # The first word is edited itself, and by rules that write lower case.
    (start, end, new), *others = early
    return [(place, place, prefix + " "), (start, end, new[:1].lower() + new[1:]), *others, *rest]


def _is_enclosed(sentence: ParsedSentence) -> bool:
    """Whether the sentence opens with a quotation mark or bracket that closes behind its root, or nowhere; a single one must
    close, as it may be an apostrophe ("'Tis true").
    """
    closing = _PAIRS.get(sentence.word(0)) if len(sentence) > 1 else None
    if closing is None:
        return False
    if sentence.word(0) in _APOSTROPHES:
        marks = (i for i in range(1, len(sentence)) if sentence.word(i) == closing and sentence.tags[i] != "POS")
        return next(marks, -1) > sentence.root
    place = sentence.text.find(closing, sentence.ends[0])
    return place < 0 or place > sentence.starts[sentence.root]


def _is_paired(sentence: ParsedSentence, i: int) -> bool:
    return sentence.word(i).lower() in ("both", "either", "neither")


def _fragment(sentence: ParsedSentence) -> list[Edit] | None:
    """A sentence without a verb: `no` for the article of its noun, or before a noun without one; `not` before anything else."""
    root = sentence.root
    nominal = sentence.pos[root] == "NOUN" and not is_name(sentence, 0)
    nominal = nominal and not sentence.word(root).lower().endswith(("thing", "body", "one"))
    if nominal:
        for child in sentence.children(root):
            if sentence.word(child).lower() in ("a", "an", "the") and child < root:
                return [(sentence.starts[child], sentence.ends[child], like(sentence.word(child), "no"))]
            if sentence.word(child).lower() == "no":
                return [without_word(sentence, child)]
            if sentence.relation(child) in ("det", "nmod:poss", "nummod", "case", "det:predet", "prep"):
                nominal = nominal and child > root
    nominal = nominal and sentence.subtree(root)[0] == 0 and "," not in sentence.text[: sentence.starts[root]]
    return _prefixed(sentence, "No" if nominal else "Not")


def _first_hit(sentence: ParsedSentence) -> list[Edit] | None:
    """The code's order: from the left, the first negative word, auxiliary or main verb that can be edited."""
    root = sentence.root
    for i in range(len(sentence)):
        if sentence.word(i).lower() in _NEGATIVE:
            edits = _remove_at(sentence, i)
        elif sentence.relation(i) in ("aux", "aux:pass") or i == sentence.verb(root):
            clause = clause_of(sentence, sentence.heads[i] if i != sentence.verb(root) else root)
            is_negative, edits = _without_negation(sentence, clause) if clause else (True, None)
            edits = edits if is_negative else negate(sentence, clause)
        elif i == root:
            edits = _fragment(sentence)
        else:
            continue
        if edits:
            return edits
    return None


def _remove_at(sentence: ParsedSentence, i: int) -> list[Edit] | None:
    """The negative word i goes, with what it is written together with."""
    if sentence.word(i).lower() == "no":
        edit = _without_no(sentence, i, -1)
        return [edit] if edit else None
    head = sentence.heads[i]
    for candidate in (head, sentence.heads[head]):
        clause = clause_of(sentence, candidate)
        if clause and clause.negation == i:
            return _without_not(sentence, clause)
    return None


def _negate_two(sentence: ParsedSentence) -> tuple[list[Edit], int]:
    """The code's double negation: (edits, how many negations they add or remove, at most 2)."""
    edits: list[Edit] = []
    count, negated = 0, set()
    lower = sentence.text.lower()
    for i, word in enumerate(sentence.words if "no" in lower or "n't" in lower or "n’t" in lower else ()):
        if count < 2 and word.lower() in _NEGATIVE:
            found = _remove_at(sentence, i)
            if found and not overlap(found, edits):
                edits, count = edits + found, count + 1
                negated |= {sentence.heads[i], sentence.heads[sentence.heads[i]]}
    root = sentence.root
    main = sentence.verb(root)
    for i in sorted({main, *sentence.with_relation(_AUXILIARY)} - {-1}):
        if count == 2 or not (i == main or sentence.relation(i) in ("aux", "aux:pass")):
            continue
        head = root if i == main else sentence.heads[i]
        clause = None if head in negated else clause_of(sentence, head)
        found = None if clause is None or _is_negative(sentence, clause) else negate(sentence, clause)
        if found and not overlap(found, edits):
            edits, count = edits + found, count + 1
            negated.add(head)
    return edits, count
