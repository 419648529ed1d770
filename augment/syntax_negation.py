"""Negation, double negation, modal verbs and intensifiers of English sentences: SDA's rules over the clauses of
`augment.syntax_english`. Each function answers with edits, or None where the rule does not apply.
"""

from __future__ import annotations

import re

from augment.lexical_forms import indefinite_article
from augment.parsed import ParsedSentence
from augment.syntax_english import (
    MODALS,
    Clause,
    Edit,
    add_modal,
    affirm,
    clause_of,
    is_assertion,
    like,
    main_clause,
    negate,
    prefixed,
    without_word,
)
from augment.text import Draws

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
_WITHOUT = {"no": "some", "nobody": "somebody", "nothing": "something", "nowhere": "somewhere", "none": "some"}
_ANY_NEGATIVE = re.compile(r"\b(?:never|no|nobody|nothing|nowhere|none)\b", re.IGNORECASE)
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
        return _without_negation(sentence, clause) or negate(sentence, clause)
    return _first_hit(sentence) or prefixed(sentence, draws.choice(_PREFIXES["code"]))


def double_negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.dn`."""
    clause = main_clause(sentence)
    if clause is None or not is_assertion(sentence, clause):
        return None
    if variant == "paper":
        edits = _without_negation(sentence, clause) or negate(sentence, clause)
        return prefixed(sentence, draws.choice(_PREFIXES["paper"]), edits) if edits else None
    edits, count = _negate_two(sentence)
    if count == 1:
        edits = prefixed(sentence, draws.choice(_PREFIXES["code"]), edits)
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
    for i in range(len(sentence)):
        word = sentence.word(i)
        start, end = sentence.starts[i], sentence.ends[i]
        if sentence.tags[i] != "JJ" or not word.islower() or not word.isalpha() or word in _PLAIN:
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


def _without_negation(sentence: ParsedSentence, clause: Clause) -> list[Edit] | None:
    """Edits that take the negative word out of a clause: its `not`, else never, nobody, nothing, or the `no` of an argument."""
    edits = affirm(sentence, clause)
    if edits or not _ANY_NEGATIVE.search(sentence.text):
        return edits
    for i in range(len(sentence)):
        lower = sentence.word(i).lower()
        if lower == "never" and sentence.heads[i] in (clause.head, clause.verb):
            return None if clause.inverted else [without_word(sentence, i)]
        if lower in _WITHOUT and (edit := _without_no(sentence, i, clause.head)):
            return [edit]
    return None


def _without_no(sentence: ParsedSentence, i: int, head: int) -> Edit | None:
    """`no` and its like become `some`, if they are, or determine, what depends on word `head` (any word: -1) directly."""
    lower = sentence.word(i).lower()
    owner = i if lower != "no" else sentence.heads[i]
    if lower == "no" and (sentence.relation(i) != "det" or owner == i):
        return None
    if head >= 0 and sentence.heads[owner] != head and owner != head:
        return None
    return sentence.starts[i], sentence.ends[i], like(sentence.word(i), _WITHOUT[lower])


def _fragment(sentence: ParsedSentence) -> list[Edit] | None:
    """A sentence without a verb: `no` for the article of its noun, else before it; `not` before anything else."""
    root = sentence.root
    nominal = sentence.pos[root] in ("NOUN", "PROPN")
    if nominal:
        for child in sentence.children(root):
            if sentence.word(child).lower() in ("a", "an", "the"):
                return [(sentence.starts[child], sentence.ends[child], like(sentence.word(child), "no"))]
            if sentence.word(child).lower() == "no":
                return [without_word(sentence, child)]
    return prefixed(sentence, "No" if nominal else "Not")


def _first_hit(sentence: ParsedSentence) -> list[Edit] | None:
    """The code's order: from the left, the first negative word, auxiliary or main verb that can be edited."""
    root = sentence.root
    for i in range(len(sentence)):
        if sentence.word(i).lower() in _NEGATIVE:
            edits = _remove_at(sentence, i)
        elif sentence.relation(i) in ("aux", "aux:pass") or i == sentence.verb(root):
            clause = clause_of(sentence, sentence.heads[i] if i != sentence.verb(root) else root)
            edits = negate(sentence, clause) if clause and clause.negation is None else None
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
            return affirm(sentence, clause)
    return None


def _negate_two(sentence: ParsedSentence) -> tuple[list[Edit], int]:
    """The code's double negation: (edits, how many negations they add or remove, at most 2)."""
    edits: list[Edit] = []
    count, negated = 0, set()
    for i in range(len(sentence)):
        if count < 2 and sentence.word(i).lower() in _NEGATIVE:
            found = _remove_at(sentence, i)
            if found:
                edits, count = edits + found, count + 1
                negated |= {sentence.heads[i], sentence.heads[sentence.heads[i]]}
    root = sentence.root
    for i in range(len(sentence)):
        is_main = i == sentence.verb(root)
        if count == 2 or not (is_main or sentence.relation(i) in ("aux", "aux:pass")):
            continue
        head = root if is_main else sentence.heads[i]
        clause = None if head in negated else clause_of(sentence, head)
        if clause is not None and clause.negation is None and (found := negate(sentence, clause)):
            edits, count = edits + found, count + 1
            negated.add(head)
    return edits, count
