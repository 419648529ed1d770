"""Put modal verbs into English sentences: which modal verbs a clause can take, and how it is written with one
(SDA).

As published, the past takes "should have travelled", which says that he did not. By default a clause takes
those that leave what it says true: "must have travelled", "had to travel", "could not but travel"; a negated
one "cannot have travelled".
"""

from augment.sda.english import (
    BE,
    HAD,
    HAVE,
    NEED,
    NEGATIVE_ADVERBS,
    NOT,
    PAST_BE,
    Clause,
    coordinated,
    finite_tag,
    is_assertion,
    is_joined,
    is_of_title,
    main_clause,
    negation_before_subject,
    speaker,
    with_auxiliary,
)
from augment.text.draws import Draws
from augment.text.inflection import inflect, lemma_of, may_be_past, participle
from augment.text.negation import is_base_form, joined_base_forms
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, like, named_words, word_set

# What stands before the base form.
_PUBLISHED = ("must", "should", "ought to", "have to", "cannot but", "cannot help but")
_DUTIES = frozenset({"should", "ought to"})  # what is to be done, and so may not be: no fact
_INEVITABLE = frozenset({"cannot but", "cannot help but"})  # of who or what could do otherwise
# What somebody feels or holds, and how things look to them: "cannot help but love", no duty.
_ATTITUDES = named_words("modals.attitudes")
# What is so, whoever wants it: neither a duty nor to be helped.
_STATES = named_words("modals.states")
_MUST, _HAVE_TO = frozenset({"must"}), frozenset({"have to"})
# Of a subject that begins with these, "had to" and "could not but" deny a duty or a choice, not the deed.
_NEGATIVE_SUBJECTS = word_set("no nobody none nothing neither few little hardly scarcely barely nowhere")
_SPEAKING = frozenset({"i", "we"})
_POINTING = frozenset({"it", "this", "that"})
_SOUND_OF_NEGATED = {
    "VBD": ("can", "could", "must"),
    "BE": ("can", "must"),
    "DO": ("can",),
    "STATE": ("must",),  # "he cannot want it" says that he is unable to
    "HAVE": ("can", "must"),
}
_PAST_FORMS = {"have to": "had to", "cannot but": "could not but", "cannot help but": "could not help but"}
_THIRD_FORMS = {"have to": "has to"}
# "must not go", but not "have to not go"
_BEFORE_NOT = frozenset({"must", "should", "ought to", "can", "could"})
# "has to have gone"
_BEFORE_HAVE = frozenset({"must", "should", "ought to", "have to", "can", "could"})
# Adverbs that may stand before a modal verb, as they are of the sentence.
_STAYING = named_words("modals.staying")


def modal_edits(sentence: ParsedSentence, draws: Draws, phrases: str) -> list[Edit] | None:
    """Return `entries.mv`'s edits: the first modal verb, in random order, that the main clause can take."""
    clause = main_clause(sentence)
    if clause is None or not _takes_one(sentence, clause):
        return None
    modals = _PUBLISHED if phrases == "published" else _sound(sentence, clause)
    tried = (_add(sentence, clause, modal) for modal in draws.sample(modals, len(modals)))
    return next(filter(None, tried), None)


def _takes_one(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether the clause states something, with its subject before a verb that stands by itself."""
    finite, subject = clause.finite, clause.subject
    if not is_assertion(sentence, clause) or is_joined(sentence, finite) or is_of_title(sentence, finite):
        return False
    if clause.focus:
        return False  # "it must have been not until May" is no English
    return subject is None or subject < finite or speaker(sentence, finite) == subject


def _sound(sentence: ParsedSentence, clause: Clause) -> tuple[str, ...]:
    """Return the modal verbs that leave true what the clause says."""
    lower = sentence.lower(clause.finite)
    if clause.negation is not None:
        is_past = sentence.tags[clause.finite] == "VBD" or lower in PAST_BE
        kind = "BE" if lower in BE else "HAVE" if lower in HAVE else "DO"
        if kind == "DO" and _is_state_of_others(sentence, clause):
            kind = "STATE"
        return _SOUND_OF_NEGATED["VBD" if is_past else kind]
    subject = clause.subject
    first = "" if subject is None or subject > clause.finite else sentence.lower(sentence.subtree(subject)[0])
    denied = first in _NEGATIVE_SUBJECTS or negation_before_subject(sentence, clause) is not None
    if denied:  # "nobody must know" forbids it
        past = finite_tag(sentence, clause) == "VBD" or lower in HAVE | HAD | PAST_BE
        return ("must",) if past else ()
    behind = sentence.tags[clause.auxiliaries[1] if len(clause.auxiliaries) > 1 else clause.verb]
    if clause.auxiliaries and behind == "VBN" and lower in HAVE | HAD:
        return ("must",)  # "has to have gone" is clumsy
    passive = any(sentence.relation(i) == "aux:pass" for i in clause.auxiliaries)
    passive = passive or sentence.tags[clause.verb] == "VBG"
    dummy = subject is not None and (sentence.relation(subject) == "expl" or sentence.tags[subject] == "EX")
    barred = _DUTIES | _INEVITABLE if passive or dummy or _is_identity(sentence, clause) else _DUTIES
    barred |= _misread(sentence, clause)
    return tuple(modal for modal in _PUBLISHED if modal not in barred)


def _misread(sentence: ParsedSentence, clause: Clause) -> frozenset[str]:
    """Return the modal verbs that make a duty of a fact, or a choice of a state.

    "Has to be revered" says what is to be done, so "have to" is for what somebody did ("had to go") and for
    a guess at what it, this, that or there is. "Must" is a guess at states in the present ("must own"), not
    at deeds ("must go"), passives, or what is so of oneself. Nobody can help to own or to be somewhere.
    """
    word = sentence.lower(clause.verb)
    lemma = "be" if word in BE else lemma_of(word, sentence.tags[clause.verb], sentence.lemmas[clause.verb])
    past = finite_tag(sentence, clause) == "VBD"
    subject = "" if clause.subject is None else sentence.lower(clause.subject)
    if any(sentence.relation(i) == "aux:pass" for i in clause.auxiliaries):
        return _HAVE_TO if past else _HAVE_TO | _MUST
    if lemma == "mean" and subject in _SPEAKING | {"you"}:  # "I mean" says nothing of its own
        return _HAVE_TO | _MUST | _INEVITABLE
    of_oneself = _MUST if subject in _SPEAKING and not past else frozenset()
    if lemma == "be" and not clause.auxiliaries:
        there = clause.subject is not None and sentence.tags[clause.subject] == "EX"
        barred = of_oneself if there or subject in _POINTING else _HAVE_TO | of_oneself
        glad = sentence.pos[clause.head] == "ADJ"  # "be glad", not "be at home"
        if clause.head == clause.verb:
            glad = sentence.has_dependent(clause.head, "acomp")
        return barred if glad else barred | _INEVITABLE
    if lemma in _STATES:
        return _HAVE_TO | _INEVITABLE | of_oneself
    if lemma in _ATTITUDES or clause.auxiliaries:
        return _HAVE_TO | of_oneself
    return frozenset() if past else _HAVE_TO | _MUST


def _is_state_of_others(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether the clause tells what somebody other than speaker and hearer wants, has or feels."""
    if clause.subject is None or sentence.lower(clause.subject) in _SPEAKING | {"you"}:
        return False
    lemma = lemma_of(sentence.word(clause.verb), sentence.tags[clause.verb], sentence.lemmas[clause.verb])
    return lemma in _STATES | _ATTITUDES


def _is_identity(sentence: ParsedSentence, clause: Clause) -> bool:
    """Return whether the clause says what something is, by a noun or number ("cannot but be the first")."""
    if sentence.lower(clause.verb) not in BE:
        return False
    if clause.head != clause.verb:
        return sentence.pos[clause.head] in ("NOUN", "PROPN", "NUM", "PRON")
    return sentence.has_dependent(clause.head, "attr")


def _add(sentence: ParsedSentence, clause: Clause, modal: str) -> list[Edit] | None:
    """Return edits that put `modal` before the verb ("must have travelled", "had to travel"), or None."""
    finite = clause.finite
    word, tag = sentence.word(finite), sentence.tags[finite]
    lower = word.lower()
    if (clause.negation is not None and modal not in _BEFORE_NOT) or _is_barred(sentence, finite, modal):
        return None
    space = " " if lower[0] in "'’" else ""  # he's
    following = [a for a in (*clause.auxiliaries[1:], clause.verb) if a != finite]
    perfect = bool(clause.auxiliaries and following) and sentence.tags[following[0]] == "VBN"
    perfect = perfect and lower in HAVE and (lower not in ("'s", "’s") or sentence.relation(finite) == "aux")
    if perfect:
        if modal not in _BEFORE_HAVE:
            return None
        modal = _agreeing(modal, "VBD" if lower == "had" else tag, lower)
        return _written(sentence, clause, space + modal, "have", [])
    if any(sentence.lower(child) in NEGATIVE_ADVERBS for child in sentence.children(clause.head)):
        return None  # never cannot but
    if lower == "did" and clause.auxiliaries:
        return _without_did(sentence, clause, modal)
    tag = finite_tag(sentence, clause)
    past = lower in PAST_BE or (lower not in BE and tag == "VBD")
    if lower in BE:
        base, done = "be", "been"
    elif lower in ("do", "does") and clause.auxiliaries:
        base, done = "", ""  # does not go: must not go
    elif clause.auxiliaries or tag not in ("VBZ", "VBP", "VBD"):
        return None
    else:
        base = lemma_of(word, "VBD" if past else tag, sentence.lemmas[finite])
        if past and base == lower and not may_be_past(word):
            return None
        done = participle(word, base)
    finished = past and modal in _BEFORE_NOT
    rest = []
    shared_tag = "VBD" if past else "VBZ" if tag == "VBZ" else "VBP"
    for i in coordinated(sentence, clause, shared_tag) if base else ():
        lemma = lemma_of(sentence.word(i), "VBD" if past else tag, sentence.lemmas[i])
        rest.append(sentence.replacement(i, participle(sentence.word(i), lemma) if finished else lemma))
    if finished:
        return _written(sentence, clause, f"{space}{modal}", f"have {done}", rest)
    return _written(sentence, clause, space + _agreeing(modal, "VBD" if past else tag, lower), base, rest)


def _without_did(sentence: ParsedSentence, clause: Clause, modal: str) -> list[Edit] | None:
    """Write "cannot have gone" for "did not go"; return None for an emphatic "did go"."""
    verbs = [clause.verb, *joined_base_forms(sentence, clause.head)]
    if clause.negation is None or len(clause.auxiliaries) > 1:
        return None
    if sentence.tags[clause.verb] not in ("VB", "VBP"):
        return None
    rest = []
    for i in verbs:
        lemma = sentence.lower(i)
        done = inflect(lemma, "VBN")
        if done is None or not is_base_form(lemma):
            return None
        rest.append(sentence.replacement(i, like(sentence.word(i), done)))
    return _written(sentence, clause, modal, "have", rest)


def _is_barred(sentence: ParsedSentence, finite: int, modal: str) -> bool:
    """Return whether no modal can stand before the finite verb: "is to go", "used to", "had better"."""
    lower = sentence.lower(finite)
    following = sentence.lower(finite + 1)
    if following == "to":
        return lower in BE or lower == "used" or (lower in HAVE | NEED and modal.endswith(" to"))
    return lower == "ai" or (following in ("better", "rather") and lower in HAD)


def _written(
    sentence: ParsedSentence, clause: Clause, modal: str, verb: str, rest: list[Edit]
) -> list[Edit] | None:
    """Return the finite word becomes "modal verb"; in a negated clause `verb` follows the `not`."""
    start, end = sentence.starts[clause.finite], sentence.ends[clause.finite]
    if clause.negation is None:
        return with_auxiliary(sentence, clause, modal, verb, rest, _STAYING) if verb else None
    place, word = sentence.ends[clause.negation], sentence.word(clause.finite)
    is_short = sentence.lower(clause.negation) != "not"
    if is_short != (sentence.starts[clause.negation] == end) or sentence.lower(clause.negation) not in NOT:
        return None
    modal, verb = like(word, modal), f" {verb}" if verb else ""
    if modal.lower().strip() == "can":
        return [(start, place, f"{modal}not{verb}"), *rest] if clause.negation == clause.finite + 1 else None
    if modal.lower().strip() == "ought to":  # ought not to go
        modal, verb = modal[:-3], " to" + verb
    if is_short:
        return [(start, place, f"{modal} not{verb}"), *rest]
    return [(start, end, modal), (place, place, verb), *rest]


def _agreeing(modal: str, tag: str, finite: str) -> str:
    if tag == "VBD":
        return _PAST_FORMS.get(modal, modal)
    third = tag == "VBZ" or finite in ("is", "'s", "’s")
    return _THIRD_FORMS.get(modal, modal) if third else modal
