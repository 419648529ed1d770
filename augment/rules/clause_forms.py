"""Share what rules that need a parse use: phrases as runs of words, number and person, finite forms."""

import re

from augment.rules.contractions import full_form
from augment.text.inflection import inflect
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import balanced, named_words, word_set

_PRESENT_BE = {(1, False): "am", (3, False): "is"}
_SINGULAR = named_words("clause_forms.singular")
_NOMINATIVES = word_set("i you he she we they")
_PLURAL = named_words("clause_forms.plural")
_PLURAL_DETERMINERS = word_set("these those both many several few various numerous")
RELATIVE = word_set("who which that whom whose")
FINITE = ("VBD", "VBZ", "VBP", "MD")
"""Tags of words that carry a tense."""
_SENTENCE_ENDS, _OPENING, _CLOSING = tuple(".!?"), "\"'“‘([", "\"'”’)]"
# Single quotes, the closing one where no other apostrophe stands; what looks like one is taken for one.
_SINGLE_OPENING, _SINGLE_CLOSING = re.compile(r"(?<![^\s(\[\"“])['‘](?=\S)"), re.compile(r"(?<=\S)['’](?!\w)")
# Titles, references and the like, whose full stop ends no sentence in front of a number or a name.
_ABBREVIATIONS = named_words("clause_forms.abbreviations")


def phrase(sentence: ParsedSentence, i: int) -> tuple[int, int] | None:
    """Return the first and last word of the phrase of word i; None if its words are not one run."""
    first, last = sentence.subtree(i)
    size, waiting = 0, [i]
    while waiting and size <= len(sentence):  # no end otherwise, if heads make a circle
        word = waiting.pop()
        size += 1
        waiting += sentence.children(word)
    return (first, last) if size == last - first + 1 else None


def sentence_spans(sentence: ParsedSentence) -> list[tuple[int, int]]:
    """Return the character spans of a text's sentences; none if one does not end as a sentence does."""
    bounds: list[list[int]] = []
    current = None
    for i in range(len(sentence)):
        root = _root_of(sentence, i)
        if root != current and (not bounds or _ends_before(sentence, i)):
            bounds.append([i, i])
        current = root
        bounds[-1][1] = i
    spans = [(sentence.starts[first], sentence.ends[last]) for first, last in bounds]
    texts = [sentence.text[start:end] for start, end in spans]
    if not all(text.rstrip(_CLOSING)[-1:] in _SENTENCE_ENDS and balanced(text) for text in texts):
        return []
    if any(len(_SINGLE_OPENING.findall(text)) != len(_SINGLE_CLOSING.findall(text)) for text in texts):
        return []
    return spans


def _root_of(sentence: ParsedSentence, i: int) -> int:
    """Return the root above word i; if heads make a circle, a word of it."""
    for _ in range(len(sentence)):
        if sentence.heads[i] == i:
            break
        i = sentence.heads[i]
    return i


def _ends_before(sentence: ParsedSentence, i: int) -> bool:
    """Return whether a sentence may end before word i: behind . ! ? (no abbreviation's), before a capital."""
    before, behind = sentence.text[: sentence.starts[i]], sentence.text[sentence.starts[i] :]
    ended = before.rstrip().rstrip(_CLOSING)
    if ended[-1:] not in _SENTENCE_ENDS or not before[-1:].isspace():
        return False
    if not behind.lstrip(_OPENING)[:1].isupper():
        return False
    if ended[-1] != "." or not ended[:-1].split():
        return True
    word = ended[:-1].split()[-1].lstrip(_OPENING)  # whose full stop may be its own: "Mr", "No", "J" or "U.S"
    initials = word.isupper() and all(len(part) == 1 for part in word.split(".")) and word != "I"
    return not (initials or word == "No" or word.lower() in _ABBREVIATIONS)


def is_joined_by_and(sentence: ParsedSentence, i: int) -> bool:
    """Return whether the phrase that word i heads is several, joined by "and": "he and she"."""
    # a parser may take the second pronoun for the head; "I loved you and he" is no such phrase
    if (
        i > 1
        and sentence.lower(i - 1) == "and"
        and all(sentence.lower(one) in _NOMINATIVES for one in (i - 2, i))
        and sentence.relation(i - 2).partition(":")[0] not in ("obj", "iobj", "obl")
    ):
        return True
    for child in sentence.children(i):
        if sentence.relation(child) == "conj" and child > i:
            joined = (*sentence.children(i), *sentence.children(child))
            joints = (sentence.lower(other) for other in joined if sentence.relation(other) == "cc")
            if not {"and", "&"}.isdisjoint(joints):
                return True
    return False


def is_plural(sentence: ParsedSentence, i: int) -> bool:
    """Return whether the phrase that word i heads is plural: by coordination, pronoun, tag or determiner."""
    word = sentence.lower(i)
    if is_joined_by_and(sentence, i):
        return True
    if word in _SINGULAR:
        return False
    if word in _PLURAL or sentence.tags[i] in ("NNS", "NNPS"):
        return True
    return any(child < i and sentence.lower(child) in _PLURAL_DETERMINERS for child in sentence.children(i))


def person_of(sentence: ParsedSentence, i: int) -> tuple[int, bool]:
    """Return person (1 to 3) and plurality of the phrase of word i; "you" has the verb forms of a plural."""
    word = sentence.lower(i)
    if is_joined_by_and(sentence, i):
        return 3, True
    if word in ("i", "me"):
        return 1, False
    if word == "you":
        return 2, True
    return 3, is_plural(sentence, i)


def subject_of(sentence: ParsedSentence, head: int) -> int | None:
    """Return the word that a clause's verb agrees with: its subject, a shared one, or a relative's noun."""
    for _ in range(8):
        subject = sentence.subject(head)
        if subject is not None:
            if sentence.lower(subject) in RELATIVE and sentence.relation(head) in ("acl:relcl", "acl"):
                return sentence.heads[head]
            if sentence.relation(subject) == "expl" or sentence.lower(subject) == "there":
                things = sentence.dependents(head, "nsubj", "attr", "obj")
                real = [i for i in things if i > subject and sentence.pos[i] in ("NOUN", "PROPN")]
                return real[0] if real else head if sentence.pos[head] in ("NOUN", "PROPN") else subject
            return subject
        relation = sentence.relation(head)
        if relation == "acl:relcl":
            return sentence.heads[head]
        if relation != "conj":
            return None
        head = sentence.heads[head]
    return None


def finite_form(lemma: str, tense: str, person: int, plural: bool) -> str:
    """Return the form of a verb in the "present" or "past" of a person."""
    if lemma == "be":
        if tense == "past":
            return "were" if plural else "was"
        return _PRESENT_BE.get((person, plural), "are")
    form = inflect(lemma, "VBD" if tense == "past" else "VBZ" if person == 3 and not plural else "VB")
    return form or lemma


def spelled_out(sentence: ParsedSentence, i: int) -> str | None:
    """Return a verb as it stands alone: "have" for "'ve"; None for what cannot."""
    if sentence.word(i)[:1] not in "'’":
        return sentence.word(i)
    return full_form(sentence, [word.lower().replace("’", "'") for word in sentence.words], i)


def finite_verb(sentence: ParsedSentence, head: int) -> int:
    """Return the word of a clause that carries its tense: the first auxiliary, else its verb."""
    return min([*sentence.auxiliaries(head), sentence.verb(head)])


def clauses_upward(sentence: ParsedSentence, i: int, head: int) -> list[str]:
    """Return the relations on the way from word i up to `head`, that of `head` not among them."""
    relations: list[str] = []
    while i != head and len(relations) < len(sentence):  # or there is no end, if heads make a circle
        relations.append(sentence.relation(i))
        if sentence.heads[i] == i:
            break
        i = sentence.heads[i]
    return relations


def is_subordinate(sentence: ParsedSentence, head: int, subject: int) -> bool:
    """Return whether what should be a main clause is introduced as another one: the parser is wrong."""
    before = [child for child in sentence.children(head) if child < subject]
    return any(sentence.relation(i) == "mark" or sentence.tags[i] in ("WRB", "WDT", "WP") for i in before)


def is_torn(sentence: ParsedSentence, first: int, last: int) -> bool:
    """Return whether the parser has cut a phrase in two: "Basketball [Tournament]", "the old [man]"."""
    before = sentence.pos[first - 1] if first else "PUNCT"
    if before in ("ADJ", "DET") or (before == sentence.pos[first] == "PROPN"):
        return True
    if last + 1 == len(sentence):
        return False
    nominal = ("NOUN", "PROPN")
    behind = sentence.text[sentence.ends[last]]
    if not (behind.isspace() or behind in ".,;:!?)]\"'’”—–") or sentence.word(last + 1) == "(":
        return True  # "Cr3+", "the CRT (Claiming Rule Teams) class"
    return sentence.pos[last] in nominal and sentence.pos[last + 1] in nominal


def opens_sentence(sentence: ParsedSentence, first: int) -> bool:
    """Return whether a word with a capital opens the text, one of its sentences or a quotation."""
    if not sentence.word(first)[:1].isupper():
        return False
    before = sentence.text[: sentence.starts[first]].rstrip()
    return (
        not before.strip("\"'“‘([ ")
        or before[-1] in "“‘"
        or before.rstrip("\"'“‘([”’) ")[-1:] in tuple(".!?")
    )
