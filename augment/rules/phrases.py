"""Move whole phrases, sentences, and what follows the verb (Yoda): rules of AugCSE."""

import re

from augment.rules.clause_forms import (
    FINITE,
    RELATIVE,
    clauses_upward,
    finite_form,
    finite_verb,
    is_subordinate,
    is_torn,
    opens_sentence,
    person_of,
    phrase,
    sentence_spans,
    spelled_out,
)
from augment.sda.english import is_joined
from augment.text.draws import Draws
from augment.text.inflection import lemma_of
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, balanced, lower_first, repeats_more, rewrite, upper_first, word_set

_OBJECTIVE = {"i": "me", "he": "him", "she": "her", "we": "us", "they": "them", "who": "whom"}
_NOMINATIVE = {"me": "I", "him": "he", "her": "she", "us": "we", "them": "they", "whom": "who"}
_APPOSITION = re.compile(r", (?:which|who|whom|whose|where|an?|the)\b")
_CLAUSES = word_set("advcl ccomp acl acl:relcl xcomp parataxis conj csubj appos")
_MARKS = tuple(".,;:!?-–—")
_INTRODUCING = ("IN", "TO", "WRB", "CC")  # a phrase that begins so is no subject: the parser is wrong
_PARTING = tuple('.!?;:"“”')
_CLOSING = tuple(".!?;:,\"'”’)]")


def subject_object_switch(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Exchange the subject of the main clause and its first object: "He saw her." becomes "She saw him."

    As published, objects of prepositions count. Unlike the published rule, this one changes the case of
    pronouns, makes the verb agree with its new subject, corrects commas and capitals, and leaves relative and
    reflexive pronouns and "there" where they are.
    """
    root = sentence.root
    if root < 0:
        return None
    subject = sentence.subject(root)
    verb = sentence.verb(root)
    if subject is None or subject > verb or not _is_nominal(sentence, subject):
        return None
    if is_subordinate(sentence, root, subject):
        return None
    span = phrase(sentence, subject)
    if span is None or is_torn(sentence, *span) or sentence.tags[finite_verb(sentence, root)] not in FINITE:
        return None
    found = _first_object(sentence, root, verb)
    if found is None or span[1] >= finite_verb(sentence, root) or found[1] <= verb:
        return None
    object_head, first, last = found
    span = _without_marks(sentence, *span)
    first, last = _without_marks(sentence, first, last)
    between = (sentence.word(i)[:1] for i in range(span[1] + 1, first))
    if sentence.tags[span[0]] in _INTRODUCING or any(mark in _PARTING for mark in between):
        return None
    new_subject = sentence.span(first, last)
    if not balanced(sentence.span(*span)) or not balanced(new_subject):
        return None
    opens = opens_sentence(sentence, span[0])
    if first == last:
        new_subject = _NOMINATIVE.get(sentence.lower(object_head), sentence.word(object_head))
    new_subject = upper_first(new_subject) if opens else new_subject
    lowered = lower_first(sentence, span[0]) if opens else sentence.word(span[0])
    new_object = lowered + sentence.text[sentence.ends[span[0]] : sentence.ends[span[1]]]
    if span[0] == span[1]:
        new_object = _OBJECTIVE.get(sentence.lower(subject), new_object)
    edits = [(sentence.starts[span[0]], *_close(sentence, *span, new_subject))]
    edits.append((sentence.starts[first], *_close(sentence, first, last, new_object)))
    agreement = _agreement(sentence, root, object_head)
    joined = _joins_pronoun(sentence, subject, span) or _joins_pronoun(sentence, object_head, (first, last))
    if agreement is None or joined:
        return None
    return rewrite(sentence, edits + agreement)


def sentence_reordering(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put the sentences of a text in a random order that is not their own.

    Return None for a single sentence, which is what most corpora of sentences have, and if quotes or brackets
    span several sentences. Whatever the parser says, a sentence ends in . ! or ?, not in an abbreviation
    ("No. 132"), and the next one starts with a capital.
    """
    spans = sentence_spans(sentence)
    if len(spans) < 2:
        return None
    order = list(range(len(spans)))
    new = draws.sample(order, len(order))
    if new == order:
        shift = 1 + draws.below(len(order) - 1)
        new = order[shift:] + order[:shift]
    texts = [sentence.text[start:end] for start, end in spans]
    if len(set(texts)) == 1:
        return None
    return sentence.edit([(start, end, texts[source]) for (start, end), source in zip(spans, new)])


def _first_object(sentence: ParsedSentence, root: int, verb: int) -> tuple[int, int, int] | None:
    """Return (head, first word, last word) of the first object behind the verb, prepositional ones too."""
    for i in range(verb + 1, len(sentence)):
        relation = sentence.relation(i)
        cases = [child for child in sentence.dependents(i, "case") if child < i]
        prepositional = relation.startswith(("obl", "nmod")) and cases
        if relation not in ("obj", "pobj") and not prepositional:
            continue
        if relation == "nmod:poss" or not _is_nominal(sentence, i):
            continue
        if any(step in _CLAUSES for step in clauses_upward(sentence, i, root)):
            continue
        span = phrase(sentence, i)
        if span is None or is_torn(sentence, span[0], span[1]):
            return None
        first = max(cases) + 1 if cases else span[0]
        while first < i and (
            sentence.pos[first] == "PUNCT" or (sentence.pos[first] == "ADV" and sentence.heads[first] == i)
        ):
            first += 1
        return i, first, span[1]
    return None


def _without_marks(sentence: ParsedSentence, first: int, last: int) -> tuple[int, int]:
    while first < last and sentence.word(last) in _MARKS:
        last -= 1
    while first < last and sentence.word(first) in _MARKS:
        first += 1
    return first, last


def _is_nominal(sentence: ParsedSentence, i: int) -> bool:
    word = sentence.lower(i)
    if (
        sentence.pos[i] not in ("NOUN", "PROPN", "PRON")
        or word in RELATIVE
        or word.endswith(("self", "selves"))
    ):
        return False
    return word not in ("there", "what", "other", "another", "one") and sentence.relation(i) != "expl"


def _close(sentence: ParsedSentence, first: int, last: int, new: str) -> tuple[int, str]:
    """Return where the old phrase ends, and the new one with the comma that an apposition in it needs."""
    start, end = sentence.starts[first], sentence.ends[last]
    following = sentence.text[end : end + 1]
    if following == ",":
        closed_old = _has_comma(sentence.text[start:end]) and not _has_comma(new)
        return (end + 1 if closed_old else end), new  # the comma after an apposition goes with it
    return end, f"{new}," if _has_comma(new) and following and following not in _CLOSING else new


def _joins_pronoun(sentence: ParsedSentence, head: int, span: tuple[int, int]) -> bool:
    """Return whether a phrase of several words holds a pronoun that changes its case: "Ann and I"."""
    words = {sentence.lower(i) for i in (head, *sentence.dependents(head, "conj"))}
    return span[0] < span[1] and not words.isdisjoint(_OBJECTIVE.keys() | _NOMINATIVE.keys())


def _has_comma(text: str) -> bool:
    alone = " and " not in text and " or " not in text
    return ", " in text and (alone or _APPOSITION.search(text) is not None)


def _agreement(sentence: ParsedSentence, root: int, new_subject: int) -> list[Edit] | None:
    """Return edits that make finite verbs agree with a new subject; None if one cannot."""
    person, plural = person_of(sentence, new_subject)
    edits = []
    heads = [root]
    for head in heads:  # grows by the verbs that share the subject
        heads += [child for child in sentence.dependents(head, "conj") if sentence.subject(child) is None]
        i = finite_verb(sentence, head)
        tag = sentence.tags[i]
        if tag not in FINITE:
            continue
        whole = spelled_out(sentence, i)
        if whole is None:
            return None
        new = lower = whole.lower()
        if lower in ("was", "were"):
            new = finite_form("be", "past", person, plural)
        elif tag in ("VBZ", "VBP") or lower in ("am", "are", "is", "have", "has"):
            new = finite_form(lemma_of(lower, tag, sentence.lemmas[i]), "present", person, plural)
        if sentence.word(i)[:1] in "'’":
            edits.append(sentence.replacement(i, f" {new}"))
        elif new != lower:
            edits.append(sentence.replacement(i, new))
    return edits


def yoda(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put what follows the finite verb in front of its clause: "He is old." becomes "Old, he is."

    This changes the main clause and the clauses coordinated with it that have a subject of their own (as
    published: every piece of text between commas). What precedes the subject stays in front. Clauses whose
    quotes or brackets would be torn stay.
    """
    edits: list[Edit] = []
    for root in (i for i, head in enumerate(sentence.heads) if i == head):
        joined = sentence.dependents(root, "conj")
        conjoined = [child for child in joined if sentence.subject(child) is not None]
        if conjoined and sentence.tags[finite_verb(sentence, root)] not in FINITE:
            continue  # "Very friendly and the food is not bad"
        for head in (root, *conjoined):
            edit = _yoda(sentence, head, [child for child in conjoined if child > head])
            if edit and all(edit[0] >= other[1] or edit[1] <= other[0] for other in edits):
                edits.append(edit)
    if not edits:
        return None
    # one comma if an edit that ends in one meets an edit that begins with one
    commas = {start for start, _, new in edits if new.startswith(",")}
    result = sentence.edit(
        (start, end, new.removesuffix(",") if end in commas else new) for start, end, new in edits
    )
    return None if result == sentence.text or repeats_more(result, sentence.text) else result


def _yoda(sentence: ParsedSentence, head: int, later: list[int]) -> Edit | None:
    """Return the edit of the clause of `head`, or None; later: heads of clauses coordinated behind it."""
    subject = sentence.subject(head)
    if subject is None or sentence.lower(subject) in RELATIVE | {"what", "whoever"}:
        return None
    verb = finite_verb(sentence, head)
    # a finite verb behind the predicate: the parser is wrong
    if verb > head or is_subordinate(sentence, head, subject):
        return None
    first, subject_last = sentence.subtree(subject)
    while first < subject and sentence.word(first) in tuple(",;:-–—"):
        first += 1
    if not subject_last < verb or sentence.tags[verb] not in FINITE or is_torn(sentence, first, subject_last):
        return None
    while verb + 1 < len(sentence) and (
        sentence.lower(verb + 1) in ("n't", "n’t", "not") or sentence.relation(verb + 1) == "compound:prt"
    ):
        verb += 1
    last = _last_moved(sentence, head, verb, later)
    start_rest = verb + 1
    while start_rest <= last and sentence.word(start_rest) == ",":
        start_rest += 1
    if start_rest > last or sentence.word(start_rest) in (":", "-", "–", "—", ";"):
        return None
    rest, front = sentence.span(start_rest, last), sentence.span(first, verb)
    finite = finite_verb(sentence, head)
    if is_joined(sentence, finite):  # "wanna"
        return None
    if sentence.word(finite)[:1] in "'’":  # "we've" cannot end a clause
        whole = spelled_out(sentence, finite)
        if whole is None:
            return None
        after = sentence.text[sentence.ends[finite] : sentence.ends[verb]]
        front = f"{sentence.span(first, finite - 1)} {whole}{after}"
    if not balanced(rest) or not balanced(front) or rest.rstrip("\"'”’)")[-1:] in tuple(".!?"):
        return None
    opens = opens_sentence(sentence, first)
    if opens:
        rest = upper_first(rest)
        front = lower_first(sentence, first) + front[len(sentence.word(first)) :]
    elif sentence.lower(first) == "there":
        front = front[:1].lower() + front[1:]
    # "it, he had, and left"
    joins = sentence.pos[last + 1 : last + 2] == ("CCONJ",) or sentence.lower(last + 1) == "so"
    behind = "," if joins else ""
    if first and sentence.pos[first - 1] not in ("PUNCT", "CCONJ", "SCONJ"):
        return sentence.ends[first - 1], sentence.ends[last], f", {rest}, {front}{behind}"
    return sentence.starts[first], sentence.ends[last], f"{rest}, {front}{behind}"


def _last_moved(sentence: ParsedSentence, head: int, verb: int, later: list[int]) -> int:
    """Return the last word to move in front; `verb` if there is none. head, later: as of `_yoda`."""
    last = sentence.subtree(head)[1]
    joined = [child for child in sentence.dependents(head, "conj") if child > verb]
    sharing = [child for child in joined if sentence.subject(child) is None]
    # finite verbs that share the subject stay behind it: "Old, it was, and fell"
    sharing = [child for child in sharing if sentence.tags[finite_verb(sentence, child)] in FINITE]
    for other in (*later, *sharing):
        last = min(last, _joint_before(sentence, head, other) - 1)
    last = _end_of_clause(sentence, head, verb, last)
    while last > verb and (sentence.pos[last] == "CCONJ" or sentence.word(last) in _MARKS):
        last -= 1
    return last


def _end_of_clause(sentence: ParsedSentence, head: int, verb: int, last: int) -> int:
    """Return a clause's last word, before semicolon, dash, dots, a parataxis, or what "so", ", but" begin."""
    for i in range(verb + 1, last + 1):
        word, begin = sentence.word(i), sentence.subtree(i)[0]
        spaced = sentence.text[sentence.starts[i] - 1] == " " == sentence.text[sentence.ends[i] :][:1]
        if word in (";", ":", "—", "–", "--") or word.startswith(("..", "…")) or (word == "-" and spaced):
            return min(last, i - 1)
        if sentence.relation(i) == "parataxis" and begin > verb:
            last = min(last, begin - 1)
        if sentence.heads[i] == head and sentence.relation(i) in ("conj", "advcl") and begin > verb:
            first = _joint_before(sentence, head, i)
            parted = sentence.lower(first) == "but" and sentence.word(first - 1) == ","
            if parted or sentence.lower(first) == "so":
                last = min(last, first - 1)
    return last


def _joint_before(sentence: ParsedSentence, head: int, conjoined: int) -> int:
    """Return the first word of a coordinated clause, its conjunction included."""
    first = sentence.subtree(conjoined)[0]
    joints = [child for child in sentence.dependents(head, "cc") if head < child < conjoined]
    return min([first, *joints[-1:]])
