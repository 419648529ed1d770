"""List SDA's discrete augmentations (Zhu et al. 2022): punctuation insertion, modal verbs, double negation,
and negation.

They are the paper's rules (appendix A) on the parse. The authors' code (github.com/Zhudongsheng75/SDA) looks
words up by their first match, edits the wrong one of two equal words, and joins tokens by spaces, where here
everything but the edit stays as it is. English and Chinese, by the language of the parse.
"""

from augment.sda import chinese, modals, negation
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, balanced, named_words


def pi(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Insert punctuation (SDA, section 4.1 and algorithm 1).

    A comma before (behind, if it comes first) a subordinate clause; without one, double quotes around the
    subject or a comma behind it, evenly; without a subject, "!" at the end.
    """
    comma, exclamation = _MARKS[sentence.language][0], _MARKS[sentence.language][3]
    if not len(sentence):
        return None
    edits = _commas_at_clause(sentence, comma) or _mark_subject(sentence, draws, comma)
    return _edited(sentence, edits or [_final(sentence, exclamation)])


def mv(sentence: ParsedSentence, draws: Draws, phrases: str = "sound") -> str | None:
    """Put a modal verb before the main clause's verb, in its tense (SDA, section 4.2 and algorithm 2).

    One of must, should, ought to, have to, cannot but, cannot help but. None for questions, imperatives, and
    clauses with a modal verb. Of these modal verbs, phrases=sound takes those that leave true what the
    sentence says: not "should have travelled", which says that he did not; "cannot" for a clause that is
    negated. phrases=published: all of them. English; in Chinese there is no such choice.

    The paper says that it "slightly adjusts" the meaning.
    """
    if sentence.is_english:
        edits = modals.modal_edits(sentence, draws, phrases)
    else:
        edits = chinese.modal_edits(sentence, draws)
    return _edited(sentence, edits)


def neg(sentence: ParsedSentence, draws: Draws) -> str | None:
    """Negate a sentence, or take its negation away: SDA's negative sample (section 4.4).

    The main clause is negated, or, if it has a negative word (not, never, no, nobody, nothing), loses it;
    "no" before a sentence without a verb.
    """
    return _edited(sentence, (negation if sentence.is_english else chinese).negation_edits(sentence, draws))


def dn(sentence: ParsedSentence, draws: Draws, phrases: str = "sound") -> str | None:
    """Negate a sentence twice, so that the two cancel each other (SDA, section 4.3 and algorithm 3).

    The main clause is negated, or loses its negation, and a phrase such as "It is not true that" stands
    before it. None for questions, imperatives, and sentences without a verb.
    """
    if sentence.is_english:
        edits = negation.double_negation_edits(sentence, draws, phrases)
    else:
        edits = chinese.double_negation_edits(sentence, draws)
    return _edited(sentence, edits)


def _edited(sentence: ParsedSentence, edits: list[Edit] | None) -> str | None:
    text = sentence.edit(edits or ())
    return None if text == sentence.text else text


# Subordinate clauses, those first that a comma parts off most readily. Chinese relative clauses stand before
# their noun, where no comma can stand.
_CLAUSES = {"en": ("advcl", "acl", "ccomp", "csubj"), "zh": ("advcl", "ccomp", "csubj")}
_ALL_CLAUSES = {key: frozenset(kinds) for key, kinds in _CLAUSES.items()}
_NOMINAL_SUBJECT = frozenset({"nsubj"})
_QUOTES = frozenset('"“”„«»「」『』')
_FINAL = ".!?…;:,。！？；：，"
_CLOSING = "\"'”’)]」』）"
_MARKS = {
    "en": tuple(',""!'),
    "zh": tuple("，“”！"),
}  # by language: comma, opening and closing quote, exclamation mark
# No comma stands behind words with these tags: what they introduce goes on.
_INTRODUCING = frozenset({"IN", "DT", "PDT", "TO", "WDT", "WP", "WP$", "WRB", "PRP$", "CC", "MD"})
_PARTED_OFF = named_words("entries.parted_off")
_WH = frozenset({"WDT", "WP", "WP$", "WRB"})


def _commas_at_clause(sentence: ParsedSentence, comma: str) -> list[Edit] | None:
    """Put a comma where a subordinate clause begins (or ends, if first); at both ends of an inserted one."""
    found = sentence.with_relation(_ALL_CLAUSES[sentence.language])
    if sentence.is_english and len(found) > 1:
        kinds = _CLAUSES["en"]
        found.sort(key=lambda i: kinds.index(sentence.relation(i).partition(":")[0]))
    for i in found:
        first, last = sentence.subtree(i)
        if _is_phrase(sentence, i, first):
            continue
        edit = _comma_behind(sentence, first - 1 if first else last, comma)
        if edit is None:
            continue
        # what the clause depends on goes on behind it: "The dog that bit me ran"
        parts = first and sentence.is_english and sentence.relation(i)[:3] in ("acl", "adv")
        inserted = parts and sentence.pos[last + 1 : last + 2] in (("VERB",), ("AUX",))
        closing = _comma_behind(sentence, last, comma) if inserted else None
        return [edit, closing] if closing else [edit]
    return None


def _is_phrase(sentence: ParsedSentence, i: int, first: int) -> bool:
    """Return whether a clause is none to part off: "to go", "(men) I saw", "of going"."""
    relation, opening = sentence.relation(i), sentence.lower(first)
    if sentence.is_english:
        if relation[:3] == "acl" and relation != "acl" and sentence.tags[first] not in _WH | {"IN"}:
            return True
        correlated = first > 1 and sentence.lower(first - 2) in ("as", "so", "such")
        if opening == "than" or (opening == "as" and correlated):
            return True  # "as long as I have", "more than I know"
        verbal = sentence.tags[sentence.verb(i)][:1] in ("V", "M")
        if not verbal and sentence.relation(first) not in ("mark", "advmod", "cc"):
            return True  # "(put it) alone in a tank"
    # "talks about going", but "opened it, by going"
    if sentence.tags[i] == "VBG" and sentence.tags[first] == "IN":
        return opening not in _PARTED_OFF
    return sentence.tags[first] == "TO"


def _mark_subject(sentence: ParsedSentence, draws: Draws, comma: str) -> list[Edit] | None:
    """Put quotes around the main clause's subject (else the first there is), or a comma behind it."""
    root = sentence.root
    found = [i for i in sentence.with_relation(_NOMINAL_SUBJECT) if sentence.tags[i] not in _WH]
    if not found:
        return None
    subject = next((i for i in found if sentence.heads[i] == root), found[0])
    first, last = sentence.subtree(subject)
    while first < last and not _is_word(sentence, last):
        last -= 1
    while first < last and not _is_word(sentence, first):
        first += 1
    _, opening, closing, _ = _MARKS[sentence.language]
    whole = _is_free(sentence, sentence.starts[first] - 1) and _is_free(sentence, sentence.ends[last])
    whole = whole and balanced(sentence.text[sentence.starts[first] : sentence.ends[last]])
    quoted = whole and not _QUOTES & set(sentence.text)
    inverted = sentence.is_english and first > 0 and sentence.pos[first - 1] in ("VERB", "AUX")
    if quoted and (draws.chance(0.5) or inverted):
        return [(sentence.starts[first],) * 2 + (opening,), (sentence.ends[last],) * 2 + (closing,)]
    edit = None if inverted else _comma_behind(sentence, last, comma, head=subject)
    return [edit] if edit else None


def _comma_behind(sentence: ParsedSentence, i: int, comma: str, head: int = -1) -> Edit | None:
    """Put a comma behind word i unless a mark is there or the word introduces more ("That, is all": head)."""
    if i + 1 >= len(sentence) or not _is_word(sentence, i) or not _is_word(sentence, i + 1):
        return None
    place = sentence.ends[i]
    introduces = sentence.tags[i] in _INTRODUCING or sentence.relation(i) == "amod"
    if sentence.is_english and (sentence.text[place] != " " or (i != head and introduces)):
        return None  # inside of what is written as one word, or of a phrase
    return place, place, comma


def _is_word(sentence: ParsedSentence, i: int) -> bool:
    return sentence.text[sentence.starts[i]].isalnum() or sentence.text[sentence.ends[i] - 1].isalnum()


def _is_free(sentence: ParsedSentence, place: int) -> bool:
    """Return whether a quotation mark may stand beside the character at `place`: it is part of no word."""
    if not sentence.is_english or not 0 <= place < len(sentence.text):
        return True
    return not sentence.text[place].isalnum() and sentence.text[place] not in "'’-"


def _final(sentence: ParsedSentence, mark: str) -> Edit:
    """Put the mark in place of final ones, behind a question mark, within closing quotes and brackets."""
    text = sentence.text
    end = len(text.rstrip())
    while end and text[end - 1] in _CLOSING:
        end -= 1
    start = end
    while start and text[start - 1] in _FINAL:
        start -= 1
    if start == 0 or (start < end and sentence.ends[-1] == end and _is_word(sentence, len(sentence) - 1)):
        start = end  # nothing but marks, or the point of an abbreviation
    if text[start:end].endswith(("?", "？")):
        start = end  # still a question
    if start == end:
        start = end = len(text.rstrip()) if end == len(text.rstrip()) or start == 0 else end
    return start, end, mark
