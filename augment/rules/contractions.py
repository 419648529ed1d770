"""Spell contractions out, and remove negated auxiliaries: rules of AugCSE."""

from augment.text.draws import Draws
from augment.text.inflection import inflect
from augment.text.negation import assertive, is_base_form, joined_base_forms, needs_negation
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import (
    Edit,
    like,
    named_words,
    overlap,
    rewrite,
    upper_first,
    word_set,
    word_table,
)

# Auxiliaries that "not" contracts with, and those that lose their negation (NL-Augmenter's list).
_CONTRACTED = {word: f"{word}n't" for word in named_words("contractions.before_not")}
_CONTRACTED |= {"can": "can't", "will": "won't"}
_IRREGULAR = {"ca": "can", "wo": "will", "sha": "shall"}
_NEGATED = word_set("am are can could had has have is may might must shall should was were will would")
_DO = word_set("do does did")
_PRONOUNS = word_set("i you he she it we they there")
_BE_HAVE = {word: (short, word_set(behind)) for word, short, behind in word_table("short_forms.tsv")}
_SHORT = {"'m": "am", "'re": "are", "'ve": "have", "'ll": "will"}


def contractions(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Spell contractions out, or, if there are none, contract the forms that can be.

    Words and tags decide (as published: a map of 77 strings): "it's" is "it is" or "it has", "John's" stays,
    "don't you know" becomes "do you not know", and no clause ends in a contraction ("Yes, it is.").
    """
    lower = [word.lower().replace("’", "'") for word in sentence.words]
    return rewrite(sentence, _expansions(sentence, lower)) or rewrite(sentence, _short_forms(sentence, lower))


def auxiliary_negation_removal(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Remove "not" and "n't" behind auxiliaries, and "do" with them.

    The verb takes the form that "do" had ("did not go": "went"); "not only" stays, as it negates nothing. As
    published, "does not" stays and "can't" leaves "ca".
    """
    words = [word.lower().replace("’", "'") for word in sentence.words]
    edits: list[Edit] = []
    for i in range(1, len(words)):
        if words[i] not in ("not", "n't") or needs_negation(words, i):
            continue
        if sentence.text[sentence.ends[i] : sentence.ends[i] + 1].isalnum():  # "wasn'ta"
            continue
        auxiliary = _IRREGULAR.get(words[i - 1], words[i - 1])
        start, end = sentence.starts[i - 1], sentence.ends[i]
        old = sentence.word(i - 1)
        found: list[Edit] = []
        if auxiliary in _NEGATED:
            if words[i - 1] == "ca" and words[i] == "not":
                continue
            found = [(start, end, like(old, auxiliary) if len(old) > 1 else auxiliary)]
        elif auxiliary in _DO:
            found = _without_do(sentence, i, auxiliary)
        if found and "?" not in sentence.text:
            found += assertive(sentence, words, i)
        # "do not do not go": the verb of the first is the auxiliary of the second
        if not overlap(found, edits):
            edits += found
    return rewrite(sentence, edits)


def _without_do(sentence: ParsedSentence, i: int, auxiliary: str) -> list[Edit]:
    """Remove "not" (word i) with its "do" and inflect the verb; in questions or without verb "not" alone."""
    only_not = [(sentence.ends[i - 1], sentence.ends[i], "")]
    near = range(i + 1, min(i + 5, len(sentence)))
    verb = next((j for j in near if sentence.tags[j] in ("VB", "VBP")), None)
    if verb is None:
        return only_not
    between = range(i + 1, verb)
    if any(sentence.pos[j] not in ("ADV", "PART") for j in between):
        return only_not
    tag = {"do": "VBP", "does": "VBZ", "did": "VBD"}[auxiliary]
    base = sentence.lower(verb)
    form = inflect(base, tag) if is_base_form(base) else None
    if base == "be":
        return [(sentence.starts[i - 1], sentence.starts[i + 1], "")] if auxiliary == "do" else []
    joined = joined_base_forms(sentence, verb)
    forms = [inflect(sentence.lower(j), tag) for j in joined]
    if form is None or None in forms:
        return []
    others = [sentence.replacement(j, other or "") for j, other in zip(joined, forms)]
    opens = sentence.word(i - 1)[:1].isupper()
    if not between:
        return [(sentence.starts[i - 1], sentence.ends[verb], upper_first(form) if opens else form), *others]
    first = sentence.word(i + 1)
    edits = [(sentence.starts[i - 1], sentence.ends[i + 1], upper_first(first) if opens else first)]
    return [*edits, sentence.replacement(verb, form), *others]


def _expansions(sentence: ParsedSentence, lower: list[str]) -> list[Edit]:
    """Return the edits that spell contractions out ("it's": "it is"); lower: words, lower-case."""
    edits: list[Edit] = []
    for i in range(1, len(lower)):
        word = lower[i]
        if sentence.starts[i] != sentence.ends[i - 1]:
            continue
        if word == "n't" and lower[i - 1] != "ai":
            edits += _not(sentence, lower, i)
        elif word == "'s" and lower[i - 1] == "let":
            edits.append(sentence.replacement(i, " us"))
        elif (whole := full_form(sentence, lower, i)) is not None:
            edits.append(sentence.replacement(i, f" {whole}"))
    return edits


def full_form(sentence: ParsedSentence, lower: list[str], i: int) -> str | None:
    """Return the auxiliary that word i is short for ("'ve": "have"), or None; lower: words, lower-case."""
    word = lower[i]
    if word == "'s":
        if sentence.tags[i] == "POS" or lower[i - 1] not in _BE_HAVE["is"][1] | {"when", "why", "here"}:
            return None
        return "has" if _perfect(sentence, lower, i) else "is"
    if word == "'d":
        if lower[i - 1] not in _PRONOUNS | {"who"}:
            return None
        return "had" if _perfect(sentence, lower, i) or lower[i + 1 : i + 2] == ["better"] else "would"
    return _SHORT.get(word)


def _perfect(sentence: ParsedSentence, lower: list[str], i: int) -> bool:
    """Return whether the ambiguous 's or 'd (word i) is "has" or "had", as in "it's been"."""
    for j in range(i + 1, min(i + 4, len(lower))):
        if sentence.pos[j] == "ADV" or lower[j] in ("n't", "not"):
            continue
        if lower[i] == "'s":  # "it's been" has "has"; "it's called" is a passive
            if sentence.relation(i) == "aux" and sentence.tags[j] == "VBN":
                return True
            return lower[j] in ("been", "got", "had", "become", "come", "gone", "grown", "happened", "taken")
        return sentence.tags[j] == "VBN" or (sentence.tags[j] == "VBD" and lower[j] != "be")
    return False


def _not(sentence: ParsedSentence, lower: list[str], i: int) -> list[Edit]:
    """Spell "n't" (word i) out, behind the subject if that follows ("don't you": "do you not")."""
    whole = _IRREGULAR.get(lower[i - 1], lower[i - 1])
    if whole not in _CONTRACTED and whole not in ("may", "shall", "ought", "dare"):
        return []
    old = sentence.word(i - 1)
    edits = [sentence.replacement(i - 1, like(old, whole))] if whole != lower[i - 1] else []
    if i + 1 < len(lower) and lower[i + 1] in _PRONOUNS and (i == 1 or lower[i - 2] not in _PRONOUNS):
        return [*edits, sentence.replacement(i, ""), (sentence.ends[i + 1], sentence.ends[i + 1], " not")]
    for head in (i - 1, sentence.heads[i - 1]):  # "isn't the man here": "is the man not here"
        subject = sentence.subject(head)
        if subject is not None and subject > i and sentence.subtree(subject)[0] == i + 1:
            behind = sentence.ends[sentence.subtree(subject)[1]]
            return [*edits, sentence.replacement(i, ""), (behind, behind, " not")]
    return [*edits, sentence.replacement(i, "not" if whole == "can" else " not")]


def _short_forms(sentence: ParsedSentence, lower: list[str]) -> list[Edit]:
    """Return the edits that contract full forms ("it is": "it's"); lower: words, lower-case."""
    edits: list[Edit] = []
    last = -1
    for i in range(len(lower) - 1):
        if i <= last:  # a part of the edit before
            continue
        first, second = lower[i], lower[i + 1]
        if sentence.text[sentence.ends[i] : sentence.starts[i + 1]] != " ":
            if first == "can" and second == "not":  # "cannot", cut in two
                edits.append((sentence.ends[i], sentence.ends[i + 1], "'t"))
                last = i + 1
            continue
        following = sentence.pos[i + 2] if i + 2 < len(lower) else "PUNCT"
        short, pronouns = _BE_HAVE.get(second, ("", frozenset()))
        denied = second == "not" and first in _CONTRACTED and following not in ("PUNCT", "PRON")
        if denied and not needs_negation(lower, i + 1):
            edits.append(sentence.replacement(i, like(sentence.word(i), _CONTRACTED[first]), i + 1))
            last = i + 1
        elif first in pronouns and _contracts(sentence, lower, i + 1, following):
            edits.append((sentence.ends[i], sentence.ends[i + 1], short))
            last = i + 1
    return edits


def _contracts(sentence: ParsedSentence, lower: list[str], i: int, following: str) -> bool:
    """Return whether auxiliary i, behind a pronoun, is weak: its verb or predicate follows in its clause."""
    if following in ("PUNCT", "CCONJ", "SCONJ") or sentence.word(i).isupper() or lower[i + 1] == "to":
        return False
    if following == "PRON" and (i + 2 == len(lower) or sentence.pos[i + 2] == "PUNCT"):
        return False  # "What is it?"
    if lower[i] in ("has", "have", "had"):  # not the full verb: "he had a dog"
        done = ("VBN", "VBD")
        skips_adverb = sentence.pos[i + 1] == "ADV" and sentence.tags[i + 1] not in done
        behind = i + 2 if skips_adverb else i + 1
        return behind < len(lower) and sentence.tags[behind] in done
    return True
