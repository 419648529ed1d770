"""SDA's discrete augmentations (Zhu et al. 2022): punctuation insertion, modal verbs, double negation, and negation.

Each has the paper's rule (appendix A; the default) and that of the authors' code (github.com/Zhudongsheng75/SDA) as
`variant`, both on the parse: code that looks words up by their first match edits the wrong one of two equal words, and both
join tokens by spaces, where here everything but the edit stays as it is. English and Chinese, by the language of the parse.
"""

from __future__ import annotations

from augment import syntax_chinese as chinese
from augment import syntax_negation as english
from augment.entry import Entry, Parameter
from augment.errors import AugmentationError
from augment.parsed import ParsedSentence
from augment.text import Draws

PAPER, CODE = "paper", "code"
# Chinese relative clauses stand before their noun, where no comma can part them off.
_CLAUSES = {
    ("en", PAPER): frozenset({"acl", "advcl", "ccomp", "csubj"}),
    ("en", CODE): frozenset({"acl", "advcl", "ccomp", "csubj", "xcomp"}),
    ("zh", PAPER): frozenset({"advcl", "ccomp", "csubj"}),
    ("zh", CODE): frozenset({"advcl", "ccomp", "csubj", "xcomp"}),
}
_NOMINAL_SUBJECT = frozenset({"nsubj"})
_QUOTES = frozenset('"“”„«»「」『』')
_FINAL = ".!?…;:,。！？；：，"
_CLOSING = "\"'”’)]」』）"
_MARKS = {
    # language: (comma, opening quote, closing quote, exclamation mark, the code's final marks)
    "en": (",", '"', '"', "!", (",", ".", ";", "!")),
    "zh": ("，", "“", "”", "！", ("，", "。", "；", "！")),
}


def pi(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Punctuation insertion (SDA, section 4.1 and algorithm 1).

    paper: a comma before (behind, where it comes first) a subordinate clause; without one, double quotes around the subject
    or a comma behind it, evenly; without a subject, "!" at the end. code: a coin decides whether clause or subject is tried
    first, open complements (xcomp) are clauses too, quotes are single; else quotes around the sentence, or a final mark
    drawn from , . ; !

    "He travelled widely in Europe." -> "He, travelled widely in Europe."
    Meaning: preserving. Needs the parse.
    """
    comma, opening, closing, exclamation, finals = _marks(sentence)
    if not len(sentence):
        return None
    rules = [lambda: _comma_at_clause(sentence, variant, comma), lambda: _mark_subject(sentence, draws, variant, comma)]
    if variant == CODE and draws.chance(0.5):
        rules.reverse()
    for rule in rules:
        edits = rule()
        if edits:
            return sentence.edit(edits)
    if variant == CODE and draws.chance(0.5) and not _QUOTES & set(sentence.text):
        return opening + sentence.text + closing
    return _changed(sentence, [_final(sentence, draws.choice(finals) if variant == CODE else exclamation)])


def mv(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Modal verbs (SDA, section 4.2 and algorithm 2).

    paper: one of must, should, ought to, have to, cannot but, cannot help but before the main clause's verb, in its tense.
    code: with have no choice but and need to besides; and, by a coin, or where the verb takes none, an intensifier before
    every adjective instead. None for questions, imperatives, and clauses with a modal verb.

    "He travelled widely in Europe." -> "He must have travelled widely in Europe."
    Meaning: preserving (the paper: "slightly adjusts"). Needs the parse.
    """
    language = _language(sentence)
    rules = [lambda: language.modal_edits(sentence, draws, variant)]
    if variant == CODE:
        rules.append(lambda: language.intensifier_edits(sentence, draws))
        if draws.chance(0.5):
            rules.reverse()
    for rule in rules:
        edits = rule()
        if edits:
            return sentence.edit(edits)
    return None


def neg(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Negation, SDA's negative sample (section 4.4).

    paper: the main clause is negated, or, if it has a negative word (not, never, no, nobody, nothing), loses it; "no" before a
    sentence without a verb. code: the first of a negative word (it goes), an auxiliary and the main verb (not), from the left,
    in whatever clause; a phrase such as "It is not true that" where there is none.

    "He travelled widely in Europe." -> "He did not travel widely in Europe."
    Meaning: altering. Needs the parse.
    """
    edits = _language(sentence).negation_edits(sentence, draws, variant)
    return _changed(sentence, edits) if edits else None


def dn(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Double negation (SDA, section 4.3 and algorithm 3): two negations that cancel each other.

    paper: the main clause is negated, or loses its negation, and a phrase such as "It is not true that" stands before it.
    code: negative words of all clauses go, then auxiliaries and the main verb are negated from the left, two in all; the
    phrase is for sentences that had room for one. None for questions, imperatives, and sentences without a verb.

    "He travelled widely in Europe." -> "It is not true that he did not travel widely in Europe."
    Meaning: preserving. Needs the parse.
    """
    edits = _language(sentence).double_negation_edits(sentence, draws, variant)
    return _changed(sentence, edits) if edits else None


def _language(sentence: ParsedSentence):
    if sentence.language not in _MARKS:
        raise AugmentationError(
            f"pi, mv, dn and neg are written for English and Chinese, and this text was parsed as {sentence.language!r}"
        )
    return english if sentence.is_english else chinese


def _marks(sentence: ParsedSentence):
    _language(sentence)
    return _MARKS[sentence.language]


def _changed(sentence: ParsedSentence, edits: list[tuple[int, int, str]]) -> str | None:
    text = sentence.edit(edits)
    return None if text == sentence.text else text


def _comma_at_clause(sentence: ParsedSentence, variant: str, comma: str) -> list[tuple[int, int, str]] | None:
    """A comma where the first subordinate clause begins, or ends if the sentence begins with it, and no mark is there yet."""
    for i in sentence.with_relation(_CLAUSES[sentence.language, variant]):
        first, last = sentence.subtree(i)
        if variant == PAPER and _is_phrase(sentence, i, first):
            continue
        edit = _comma_behind(sentence, first - 1 if first else last, comma)
        if edit:
            return [edit]
    return None


def _is_phrase(sentence: ParsedSentence, i: int, first: int) -> bool:
    """Whether the clause of word i, whose first word is `first`, is none to part off: "to go", "(the ease) of going"."""
    of_noun = sentence.tags[i] == "VBG" and sentence.tags[first] == "IN" and sentence.relation(i) == "acl"
    return sentence.tags[first] == "TO" or of_noun


def _mark_subject(sentence: ParsedSentence, draws: Draws, variant: str, comma: str) -> list[tuple[int, int, str]] | None:
    """Quotes around the subject of the main clause (else of the first that has one), or a comma behind it."""
    found = sentence.with_relation(_NOMINAL_SUBJECT)
    if not found:
        return None
    root = sentence.root
    subject = next((i for i in found if sentence.heads[i] == root), found[0])
    first, last = sentence.subtree(subject)
    while first < last and not _is_word(sentence, last):
        last -= 1
    while first < last and not _is_word(sentence, first):
        first += 1
    opening, closing = ("'", "'") if variant == CODE and sentence.is_english else _MARKS[sentence.language][1:3]
    marks = _QUOTES | {"'"} if opening == "'" else _QUOTES
    whole_words = _is_free(sentence, sentence.starts[first] - 1) and _is_free(sentence, sentence.ends[last])
    if draws.chance(0.5) and not marks & set(sentence.text) and whole_words:
        return [(sentence.starts[first],) * 2 + (opening,), (sentence.ends[last],) * 2 + (closing,)]
    edit = _comma_behind(sentence, last, comma)
    return [edit] if edit else None


def _comma_behind(sentence: ParsedSentence, i: int, comma: str) -> tuple[int, int, str] | None:
    """A comma behind word i, unless it is the last, or there is a mark already."""
    if i + 1 >= len(sentence) or not _is_word(sentence, i) or not _is_word(sentence, i + 1):
        return None
    place = sentence.ends[i]
    if sentence.is_english and sentence.text[place] != " ":
        return None  # inside of what is written as one word
    return place, place, comma


def _is_word(sentence: ParsedSentence, i: int) -> bool:
    return sentence.text[sentence.starts[i]].isalnum() or sentence.text[sentence.ends[i] - 1].isalnum()


def _is_free(sentence: ParsedSentence, place: int) -> bool:
    """Whether a quotation mark may stand beside the character at `place`: it is none of a word, or lies outside."""
    if not sentence.is_english or not 0 <= place < len(sentence.text):
        return True
    return not sentence.text[place].isalnum() and sentence.text[place] not in "'’-"


def _final(sentence: ParsedSentence, mark: str) -> tuple[int, int, str]:
    """The mark in place of those that end the text, within closing quotes and brackets; behind the text where there is none."""
    text = sentence.text
    end = len(text.rstrip())
    while end and text[end - 1] in _CLOSING:
        end -= 1
    start = end
    while start and text[start - 1] in _FINAL:
        start -= 1
    if start == 0 or (start < end and sentence.ends[-1] == end and _is_word(sentence, len(sentence) - 1)):
        start = end  # nothing but marks, or the point of an abbreviation
    if start == end:
        start = end = len(text.rstrip()) if end == len(text.rstrip()) or start == 0 else end
    return start, end, mark


_VARIANT = Parameter("variant", PAPER, "the paper's rule, or that of the authors' code", choices=(PAPER, CODE))
_SDA = "SDA (Zhu et al. 2022)"
_BEFORE = "He travelled widely in Europe."

ENTRIES = (
    Entry(
        name="pi",
        kind="text",
        paper=f"{_SDA}, section 4.1, algorithm 1",
        parameters=(_VARIANT,),
        description="Punctuation insertion: a comma at a subordinate clause; else quotes around the subject or a comma behind "
        "it; else an exclamation mark at the end.",
        example="pi:variant=code",
        function=pi,
        meaning="preserving",
        needs=("parse",),
        sample=(_BEFORE, "He, travelled widely in Europe."),
    ),
    Entry(
        name="mv",
        kind="text",
        paper=f"{_SDA}, section 4.2, algorithm 2",
        parameters=(_VARIANT,),
        description="Modal verbs: must, should, have to, cannot but ... before the main verb; the code's variant also puts very, "
        "really ... before adjectives.",
        example="mv:variant=code",
        function=mv,
        meaning="preserving",
        needs=("parse",),
        sample=(_BEFORE, "He must have travelled widely in Europe."),
    ),
    Entry(
        name="dn",
        kind="text",
        paper=f"{_SDA}, section 4.3, algorithm 3",
        parameters=(_VARIANT,),
        description='Double negation: the main clause is negated, and a phrase such as "It is not true that" stands before it.',
        example="dn:variant=code",
        function=dn,
        meaning="preserving",
        needs=("parse",),
        sample=(_BEFORE, "It is not true that he did not travel widely in Europe."),
    ),
    Entry(
        name="neg",
        kind="text",
        paper=f"{_SDA}, section 4.4",
        parameters=(_VARIANT,),
        description="Negation of the main clause; a clause that is negated loses its negation. For negatives.",
        example="neg:variant=code",
        function=neg,
        meaning="altering",
        needs=("parse",),
        sample=(_BEFORE, "He did not travel widely in Europe."),
    ),
)
