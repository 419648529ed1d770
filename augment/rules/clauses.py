"""Cut a sentence down to its triples, or put it under a factive verb: rules of AugCSE."""

from augment.rules.clause_forms import RELATIVE, finite_form, finite_verb, is_plural, phrase, spelled_out
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import balanced, named_words, word_set, word_table

_NEGATIVE = word_set("not n't n’t never no hardly")
_DIRECT = ("obj", "attr", "acomp", "xcomp")
_RELATIVE_TAGS = ("WDT", "WP", "WP$", "WRB")
_FACTIVE = sorted(named_words("clauses.factive"))
_GROUPS = named_words("clauses.groups")
_OF_NO_ONE = word_set("male males female females fraternity sorority hosts masculine feminine")
_PRONOUNS = {
    word: pronoun for pair in word_table("gender_pairs.tsv") for word, pronoun in zip(pair, ("he", "she"))
}
for _gender_of_names, _names in word_table("given_names.tsv"):
    _PRONOUNS |= dict.fromkeys(_names.split(), "he" if _gender_of_names == "male" else "she")
for _word in _OF_NO_ONE:
    _PRONOUNS.pop(_word, None)
_SINGULAR_PRONOUNS = {"i": "I", "you": "you", "he": "he", "she": "she", "we": "we", "they": "they"}


def summarization(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Return a sentence's triples of subject, verb and object, "!" in front of a negated verb.

    Unlike the published rule, it writes names whole, shares a subject among coordinated verbs, and takes what
    a preposition brings if a verb has no object. None if there is no triple, or if it is the whole sentence.
    """
    triples: list[str] = []
    for head, pos in enumerate(sentence.pos):
        if pos not in ("VERB", "AUX") and sentence.verb(head) == head:
            continue
        if sentence.relation(head) in ("aux", "aux:pass", "cop"):
            continue
        subjects = _subjects(sentence, head)
        verb = sentence.verb(head)
        objects = _objects(sentence, head, verb) if subjects else []
        negated = any(sentence.lower(child) in _NEGATIVE for child in sentence.children(head))
        spoken = f"{'!' if negated else ''}{_spoken(sentence, head, verb)}"
        for subject in subjects:
            name = _name(sentence, subject)
            triples += [f"{name} {spoken} {_name(sentence, thing, verb != head)}" for thing in objects]
    result = ", ".join(dict.fromkeys(triples))
    if not result or not balanced(result) or result.rstrip(".") == sentence.text.rstrip("."):
        return None
    return result


def factive_verb(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Return "X acknowledged that they did it" for "X did it", with a random factive verb.

    The verb takes the sentence's tense. The pronoun is a personal pronoun's own, "he" or "she" by word lists,
    "they" for plural people, "it" for groups of people. None for other subjects, for questions, and for
    sentences that do not start with their subject.
    """
    root = sentence.root
    if root < 0:
        return None
    subject = sentence.subject(root)
    if subject is None or sentence.relation(subject) not in ("nsubj", "nsubj:pass"):
        return None
    span = phrase(sentence, subject)
    finite = finite_verb(sentence, root)
    if span is None or span[0] or span[1] >= finite or sentence.tags[finite] not in ("VBD", "VBZ", "VBP"):
        return None
    pronoun = _pronoun(sentence, subject)
    if pronoun is None or sentence.text.rstrip()[-1:] == "?":
        return None
    named = sentence.span(*span)
    if not balanced(named) or sentence.text[sentence.ends[span[1]] :][:1] != " ":
        return None
    plural = pronoun in ("I", "you", "we", "they")
    lemma = draws.choice(_FACTIVE)
    verb = finite_form(lemma, "past" if sentence.tags[finite] == "VBD" else "present", 3, plural)
    place = sentence.starts[0], sentence.ends[span[1]]
    return sentence.edit([(*place, f"{named} {verb} that {pronoun}")])


def _subjects(sentence: ParsedSentence, head: int) -> list[int]:
    subject, clause, steps = sentence.subject(head), head, 0
    while subject is None and sentence.relation(clause) == "conj" and steps < len(sentence):
        clause, steps = sentence.heads[clause], steps + 1  # the steps end if heads make a circle
        subject = sentence.subject(clause)
    if subject is None or sentence.relation(subject) == "expl":
        return []
    if sentence.pos[subject] not in ("NOUN", "PROPN", "PRON", "NUM"):
        return []
    if sentence.lower(subject) in RELATIVE:
        if sentence.relation(head) != "acl:relcl":
            return []
        subject = sentence.heads[head]
    return [subject, *_conjoined(sentence, subject)]


def _spoken(sentence: ParsedSentence, head: int, verb: int) -> str:
    """Return the verb, in the passive with what makes it one: "was sold"."""
    first = head
    if sentence.relation(head) == "conj" and sentence.tags[head] == "VBN" and not sentence.auxiliaries(head):
        first = sentence.heads[head]  # "was sold and repaired"
    passive = [i for i in sentence.auxiliaries(first) if sentence.relation(i) == "aux:pass" and i < verb]
    if not passive:
        return sentence.word(verb)
    whole = spelled_out(sentence, passive[-1])
    return f"{whole} {sentence.word(verb)}" if whole else sentence.word(verb)


def _conjoined(sentence: ParsedSentence, i: int) -> list[int]:
    nominal = ("NOUN", "PROPN", "PRON")
    return [child for child in sentence.dependents(i, "conj") if sentence.pos[child] in nominal]


def _objects(sentence: ParsedSentence, head: int, verb: int) -> list[int]:
    if verb != head:
        return [head, *_conjoined(sentence, head)] if head > verb else []
    direct = [
        child
        for child in sentence.dependents(head, *_DIRECT)
        if child > verb and (sentence.pos[child] not in ("VERB", "AUX") or _is_infinitive(sentence, child))
    ]
    if not direct:
        for child in sentence.children(head):
            oblique = child > verb and sentence.relation(child)[:3] == "obl"
            if oblique and sentence.has_dependent(child, "case"):  # a time or measure has no preposition
                direct.append(child)
            elif child > verb and sentence.relation(child) in ("prep", "obl:agent"):
                direct += sentence.dependents(child, "pobj")
        direct = direct[:1]  # what stands nearest to the verb
    direct = [child for child in direct if sentence.tags[child] not in _RELATIVE_TAGS]
    return [thing for child in direct for thing in (child, *_conjoined(sentence, child))]


def _is_infinitive(sentence: ParsedSentence, i: int) -> bool:
    return i > 0 and sentence.tags[i] == "VB" and sentence.tags[i - 1] == "TO"


def _name(sentence: ParsedSentence, i: int, said: bool = False) -> str:
    """Return word i with what belongs to its name or number; said: with the preposition that "be" says."""
    parts = [i - 1, i] if _is_infinitive(sentence, i) else [i]
    if said and i and sentence.relation(i - 1) == "case" and sentence.heads[i - 1] == i:
        parts = [i - 1, i]
    if not sentence.word(i)[:1].isalnum():
        for child in sentence.children(i):  # "$", "200 billion"
            if sentence.relation(child) == "nummod":
                first, last = sentence.subtree(child)
                parts += range(first, last + 1)
    if sentence.pos[i] == "PROPN":
        names = sentence.dependents(i, "compound", "flat", "flat:name")
        parts += [child for child in names if sentence.pos[child] == "PROPN"]
    first, last = min(parts), max(parts)
    return sentence.span(first, last) if last - first + 1 == len(parts) else sentence.word(i)


def _pronoun(sentence: ParsedSentence, subject: int) -> str | None:
    word = sentence.lower(subject)
    if word in _SINGULAR_PRONOUNS:
        return _SINGULAR_PRONOUNS[word]
    if sentence.has_dependent(subject, "conj"):
        return "they" if is_plural(sentence, subject) and _gender(sentence, subject) else None
    gender = _gender(sentence, subject)
    if gender:
        return "they" if sentence.tags[subject] in ("NNS", "NNPS") else gender
    return "it" if word in _GROUPS and word != "police" else None


def _gender(sentence: ParsedSentence, subject: int) -> str | None:
    """Return "he" or "she" for a person by word lists: a noun, or the first part of a name."""
    if sentence.pos[subject] == "NOUN":
        return _PRONOUNS.get(sentence.lower(subject))
    parts = [subject, *(child for child in sentence.children(subject) if sentence.pos[child] == "PROPN")]
    return _PRONOUNS.get(sentence.word(min(parts)))
