"""Change the tense of a sentence: a rule of AugCSE."""

import re

from augment.rules.clause_forms import (
    finite_form,
    finite_verb,
    is_joined_by_and,
    person_of,
    spelled_out,
    subject_of,
)
from augment.sda.english import is_joined, is_of_title, speaker
from augment.text.draws import Draws
from augment.text.inflection import lemma_of
from augment.text.negation import joined_base_forms
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, named_words, rewrite, word_set

_TENSES = ("past", "present", "future")
_OF_TAG = {"VBD": "past", "VBZ": "present", "VBP": "present"}
_CLAUSES = word_set("root conj ccomp advcl acl:relcl parataxis csubj csubj:pass relcl pcomp")
_TIME = named_words("tense.time")
_PAST_MODALS = {"can": "could", "may": "might", "shall": "should"}
_PRESENT_MODALS = {"could": "can", "might": "may"}
_MIDDLE = named_words("tense.middle")
_LONG_AGO = word_set("ago yesterday")
_PERIODS = named_words("tense.periods")
_YEAR = re.compile(r"1\d{3}s?|20[01]\d")
_YEAR_OF_PAST_CLAUSE = re.compile(r"20\d\d")
_DECADE = re.compile(r"(?:1\d|20)\d0s")
_BEFORE_YEAR = named_words("tense.before_year")
_NOT = ("n't", "n’t", "not")
_SHORT_NEGATION = {"will": "wo", "can": "ca", "shall": "sha"}


def tense(sentence: ParsedSentence, draws: Draws, to: str = "random") -> str | None:
    """Put a sentence in another tense, past, present or future.

    One of the other two tenses, for the word of each clause that carries the tense (as published: any of the
    three, for every verb form). Number and person follow the subject; behind "when" and "if" the present
    stands for the future; modals change with the past ("can": "could") or stay; no question is put in the
    future, nor what was "in 1955" or "last week". None if the sentence has no finite verb, or is in that
    tense already.
    """
    clauses = _finite_clauses(sentence)
    main = next((i for i, head in clauses if head == sentence.root), None)
    current = None if main is None else _tense_of(sentence, main)
    if current is None:
        return None
    barred = {current} | _barred_by_time(sentence, current)
    targets = [other for other in _TENSES if other not in barred and to in ("random", other)]
    if not targets:
        return None
    target = draws.choice(targets) if len(targets) > 1 else targets[0]
    edits: list[Edit] = []
    for finite, head in clauses:
        changed = _change(sentence, finite, head, target)
        if changed is None:
            return None
        edits += changed
    return rewrite(sentence, edits)


def _barred_by_time(sentence: ParsedSentence, current: str) -> frozenset[str]:
    """Return the tenses that a time in a sentence of tense `current` rules out: "in 1955" the future."""
    words = [word.lower() for word in sentence.words]
    barred: frozenset[str] = frozenset()
    for i, word in enumerate(words):
        following = words[i + 1] if i + 1 < len(words) else ""
        if word in _LONG_AGO or (word == "last" and following in _PERIODS):
            barred |= {"future", "present"}
        elif i and _is_past_time(word, words[i - 1], current == "past"):
            barred |= {"future"}
        elif word == "tomorrow" or (word == "next" and following in _PERIODS):
            barred |= {"past"}
    return barred


def _is_past_time(word: str, previous_word: str, told_in_past: bool) -> bool:
    if previous_word in _BEFORE_YEAR:
        return bool(_YEAR.fullmatch(word)) or (told_in_past and bool(_YEAR_OF_PAST_CLAUSE.fullmatch(word)))
    return told_in_past and previous_word == "the" and bool(_DECADE.fullmatch(word))


def _finite_clauses(sentence: ParsedSentence) -> list[tuple[int, int]]:
    """Return (word that carries the tense, head) of every finite clause, left to right."""
    found = []
    for head, relation in enumerate(sentence.deps):
        relation = sentence.relation(head)
        if relation not in _CLAUSES and relation != "ROOT":
            continue
        if sentence.pos[head] not in ("VERB", "AUX") and sentence.verb(head) == head:
            continue
        finite = finite_verb(sentence, head)
        tag = sentence.tags[finite]
        if (tag in _OF_TAG and not _shares_auxiliary(sentence, finite, head)) or tag == "MD":
            found.append((finite, head))
    return found


def _shares_auxiliary(sentence: ParsedSentence, finite: int, head: int) -> bool:
    """Return whether a "past" is a participle that the tagger missed: "was convicted and sentenced"."""
    if finite != head or sentence.relation(head) != "conj" or sentence.tags[head] != "VBD":
        return False
    first = sentence.heads[head]
    is_participle = sentence.tags[first] == "VBN" and sentence.lower(head).endswith("ed")
    return is_participle and sentence.subject(head) is None and bool(sentence.auxiliaries(first))


def _tense_of(sentence: ParsedSentence, finite: int) -> str | None:
    word = sentence.lower(finite)
    if word in ("will", "'ll", "’ll", "wo", "shall"):
        return "future"
    if sentence.tags[finite] == "MD":
        return "past" if word in ("could", "would", "might") else "present"
    return _OF_TAG.get(sentence.tags[finite])


def _change(sentence: ParsedSentence, finite: int, head: int, target: str) -> list[Edit] | None:
    """Return edits that put a clause into a tense; None if the sentence cannot be."""
    word = sentence.word(finite)
    lower = word.lower()
    start, end = sentence.starts[finite], sentence.ends[finite]
    if is_of_title(sentence, finite) or lower == "ai" or is_joined(sentence, finite):  # "ain't", "thats"
        return None
    timed = any(child < finite and sentence.lower(child) in _TIME for child in sentence.children(head))
    if timed and sentence.relation(head) == "advcl" and target == "future":
        target = "present"
    if lower in ("will", "'ll", "’ll", "wo"):
        return [] if target == "future" else _without_will(sentence, finite, head, target)
    if sentence.tags[finite] == "MD":
        table = {"past": _PAST_MODALS, "present": _PRESENT_MODALS}.get(target, {})
        new = table.get({"ca": "can"}.get(lower, lower))
        if new is None:
            return []
        new = like(word, _SHORT_NEGATION.get(new, new) if _contracted(sentence, finite) else new)
        joined = sentence.starts[finite + 1 : finite + 2] == (end,) and sentence.lower(finite + 1) == "not"
        return [(start, end, f"{new} " if joined else new)]  # "cannot": "could not"
    following = sentence.lower(finite + 1)
    # "had better go"
    if (lower, following) == ("used", "to") or (lower in ("had", "'d", "’d") and following == "better"):
        return [] if target == "past" else None
    subject = subject_of(sentence, head)
    if target == "future":
        if speaker(sentence, finite) is not None:  # '"No," said John'
            return None
        # A question, or an inversion: "will" would have to part verb and auxiliary.
        children = sentence.children(head)
        there = "EX" in map(sentence.tags.__getitem__, children) or sentence.has_dependent(head, "expl")
        there = there or (subject is not None and sentence.relation(subject) == "expl")
        inverted = subject is not None and subject > finite and not there
        if inverted or (finite == 0 and sentence.text.rstrip()[-1:] == "?"):
            return None
        return _with_will(sentence, finite, head)
    if _OF_TAG[sentence.tags[finite]] == target:
        return []
    lower = (spelled_out(sentence, finite) or "").lower()
    if lower in ("", "would"):
        return None
    lemma = lemma_of(lower, sentence.tags[finite], sentence.lemmas[finite])
    if lemma == "be" and lower in ("is", "are", "was", "were"):
        person, plural = 3, lower in ("are", "were")
        if subject is not None and not is_joined_by_and(sentence, subject):
            pronoun = sentence.lower(subject)
            if pronoun in ("i", "he", "she", "it"):  # "if he were"
                person, plural = (1 if pronoun == "i" else 3), False
    elif sentence.tags[finite] == "VBZ":
        person, plural = 3, False
    elif sentence.tags[finite] == "VBP" and lower != "am":
        person, plural = 3, True
    elif subject is None:
        person, plural = 3, False
    else:
        person, plural = person_of(sentence, subject)
    new = finite_form(lemma, target, person, plural)
    if new == "am" and _contracted(sentence, finite):  # there is no "amn't"
        return [(start, sentence.ends[finite + 1], like(word, "am not"))]
    if word[:1] in "'’":
        return [(start, end, " " + new)]
    return [(start, end, like(word, new) if len(word) > 1 else new)]


def _with_will(sentence: ParsedSentence, finite: int, head: int) -> list[Edit]:
    word = sentence.word(finite)
    start, end = sentence.starts[finite], sentence.ends[finite]
    whole = spelled_out(sentence, finite)
    if whole is None or whole == "would":
        return []
    lemma = lemma_of(whole, sentence.tags[finite], sentence.lemmas[finite])
    negated = sentence.lower(finite + 1) in _NOT
    will = "wo" if _contracted(sentence, finite) else "will"
    if lemma == "do" and finite != head and finite in sentence.auxiliaries(head):
        return [(start, end, like(word, will))]
    space = " " if word[:1] in "'’" else ""
    if negated:
        behind = sentence.ends[finite + 1]
        return [(start, end, space + like(word, will)), (behind, behind, f" {lemma}")]
    shared = sentence.relation(head) == "conj" and sentence.subject(head) is None
    if shared and sentence.tags[finite_verb(sentence, sentence.heads[head])] in _OF_TAG:
        return [(start, end, space + lemma)]
    if sentence.lower(finite + 1) in _MIDDLE and (finite != head or lemma == "be"):
        is_negated = sentence.lower(finite + 2) == "not"
        behind = sentence.ends[finite + 1 + is_negated]  # "will generally not be"
        return [(start, end, space + like(word, "will")), (behind, behind, f" {lemma}")]
    if finite and sentence.word(finite - 1) in _MIDDLE and not space:
        before = sentence.starts[finite - 1]
        return [(before, before, "will "), (start, end, lemma)]
    return [(start, end, space + like(word, f"will {lemma}"))]


def _without_will(sentence: ParsedSentence, finite: int, head: int, target: str) -> list[Edit] | None:
    """Return edits that put the next verb in the tense, or "do" if it is negated."""
    subject = subject_of(sentence, head)
    if subject is None or subject > finite:
        return None
    auxiliaries = [i for i in sentence.auxiliaries(head) if i > finite]
    verb = min([*auxiliaries, sentence.verb(head)]) if sentence.verb(head) > finite else head
    if verb <= finite or sentence.tags[verb] not in ("VB", "VBP"):
        return None
    person, plural = person_of(sentence, subject)
    lemma = sentence.lower(verb)
    negation = sentence.lower(finite + 1) in _NOT
    start, end = sentence.starts[finite], sentence.ends[finite]
    space = " " if sentence.word(finite)[:1] in "'’" else ""
    # "will come and see": the coordinated base forms take the tense too
    joined = [
        sentence.replacement(i, finite_form(sentence.lower(i), target, person, plural))
        for i in joined_base_forms(sentence, head)
    ]
    if not negation:
        removed = (start - 1, end, "") if sentence.text[start - 1 : start] == " " else (start, end, "")
        return [removed, sentence.replacement(verb, finite_form(lemma, target, person, plural)), *joined]
    if lemma == "be":
        form = finite_form("be", target, person, plural)
        if verb != finite + 2 or (form == "am" and _contracted(sentence, finite)):  # there is no "amn't"
            return None
        return [(start, end, space + form), (sentence.ends[finite + 1], sentence.ends[verb], "")]
    return [(start, end, space + finite_form("do", target, person, plural))]


def _contracted(sentence: ParsedSentence, finite: int) -> bool:
    return sentence.lower(finite + 1) in ("n't", "n’t")
