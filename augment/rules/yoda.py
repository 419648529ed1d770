"""Write as Yoda speaks: a rule of AugCSE."""

from augment.core.entry import english
from augment.rules.clause_forms import (
    FINITE,
    RELATIVE,
    finite_verb,
    is_subordinate,
    is_torn,
    opens_sentence,
    spelled_out,
)
from augment.sda.english import is_joined
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, balanced, lower_first, repeats_more, upper_first


@english(
    "preserving", needs="parse", sample="You still have much to learn. -> Much to learn, you still have."
)
def yoda(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Put what follows the finite verb in front of its clause: YodaPerturbation (NL-Augmenter after
    yevbar/Yoda-Script).

    Of the main clause, and of those coordinated with it that have a subject of their own (as published: of
    every piece of text between commas). What stands in front of the subject stays there; clauses whose quotes
    or brackets would be torn stay.
    """
    edits: list[Edit] = []
    for root in (i for i, head in enumerate(sentence.heads) if i == head):
        conjoined = [
            child for child in sentence.dependents(root, "conj") if sentence.subject(child) is not None
        ]
        if conjoined and sentence.tags[finite_verb(sentence, root)] not in FINITE:
            continue  # "Very friendly and the food is not bad"
        for head in (root, *conjoined):
            edit = _yoda(sentence, head, [child for child in conjoined if child > head])
            if edit and all(edit[0] >= other[1] or edit[1] <= other[0] for other in edits):
                edits.append(edit)
    if not edits:
        return None
    result = sentence.edit(_with_one_comma(edits))
    return None if result == sentence.text or repeats_more(result, sentence.text) else result


def _with_one_comma(edits: list[Edit]) -> list[Edit]:
    """Drop the comma that ends an edit where the next edit follows at once and begins with one."""
    begin_with_comma = {start for start, _, new in edits if new.startswith(",")}
    return [
        (start, end, new.removesuffix(",") if end in begin_with_comma else new) for start, end, new in edits
    ]


def _yoda(sentence: ParsedSentence, head: int, later: list[int]) -> Edit | None:
    subject = sentence.subject(head)
    if subject is None or sentence.lower(subject) in RELATIVE | {"what", "whoever"}:
        return None
    verb = finite_verb(sentence, head)
    if verb > head:  # what follows its subject's predicate: the parser is wrong
        return None
    first, subject_last = sentence.subtree(subject)
    if is_subordinate(sentence, head, subject):
        return None
    while first < subject and sentence.word(first) in tuple(",;:-–—"):
        first += 1
    if not subject_last < verb or sentence.tags[verb] not in FINITE or is_torn(sentence, first, subject_last):
        return None
    while verb + 1 < len(sentence) and _is_close_to_verb(sentence, verb + 1):
        verb += 1
    last = sentence.subtree(head)[1]
    for other in (*later, *_sharing(sentence, head, verb)):
        last = min(last, _joint_before(sentence, head, other) - 1)
    last = _end_of_clause(sentence, head, verb, last)
    while last > verb and (sentence.pos[last] == "CCONJ" or sentence.word(last) in tuple(".,;:!?-–—")):
        last -= 1
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
        front = (
            f"{sentence.span(first, finite - 1)} "
            f"{whole}{sentence.text[sentence.ends[finite] : sentence.ends[verb]]}"
        )
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


def _sharing(sentence: ParsedSentence, head: int, verb: int) -> list[int]:
    """Return the finite verbs that share a clause's subject and stay behind it ("Old, it was, and fell")."""
    joined = (child for child in sentence.dependents(head, "conj") if child > verb)
    shared = (child for child in joined if sentence.subject(child) is None)
    return [child for child in shared if sentence.tags[finite_verb(sentence, child)] in FINITE]


def _joint_before(sentence: ParsedSentence, head: int, conjoined: int) -> int:
    """Return the first word of a coordinated clause, its conjunction included."""
    first = sentence.subtree(conjoined)[0]
    joints = [child for child in sentence.dependents(head, "cc") if head < child < conjoined]
    return min([first, *joints[-1:]])


def _is_close_to_verb(sentence: ParsedSentence, i: int) -> bool:
    return sentence.lower(i) in ("n't", "n’t", "not") or sentence.relation(i) == "compound:prt"
