"""List SDA's discrete augmentations (Zhu et al. 2022): punctuation insertion, modal verbs, double negation,
and negation.

Each has the paper's rule (appendix A; the default) and the rule of the authors' code
(github.com/Zhudongsheng75/SDA) as `variant`, both on the parse: code that looks words up by their first match
edits the wrong one of two equal words, and both join tokens by spaces, where here everything but the edit
stays as it is. English and Chinese, by the language of the parse.
"""

import functools

from augment.core.entry import Parameter, augmentation
from augment.sda import chinese, modals, negation
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit, balanced

PAPER, CODE = "paper", "code"
SOUND, PUBLISHED = "sound", "published"
_VARIANT = Parameter(
    "variant", PAPER, "the paper's rule, or the rule of the authors' code", choices=(PAPER, CODE)
)
_PHRASES = Parameter(
    "phrases",
    SOUND,
    "those that leave the meaning, or all that are published; of English",
    choices=(SOUND, PUBLISHED),
)
_sda = functools.partial(augmentation, needs="parse", languages="en zh")


@_sda(
    "preserving",
    paper="SDA (Zhu et al. 2022), section 4.1, algorithm 1",
    parameters=(_VARIANT,),
    sample="He travelled widely in Europe. -> He, travelled widely in Europe.",
)
def pi(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Insert punctuation (SDA, section 4.1 and algorithm 1).

    paper: a comma before (behind, where it comes first) a subordinate clause; without one, double quotes
    around the subject or a comma behind it, evenly; without a subject, "!" at the end. code: a coin decides
    whether clause or subject is tried first, open complements (xcomp) are clauses too, quotes are single;
    else quotes around the sentence, or a final mark drawn from , . ; !
    """
    return punctuated(sentence, draws, variant)


@_sda(
    "preserving",
    paper="SDA (Zhu et al. 2022), section 4.2, algorithm 2",
    parameters=(_VARIANT, _PHRASES),
    sample="He travelled widely in Europe. -> He must have travelled widely in Europe.",
)
def mv(sentence: ParsedSentence, draws: Draws, variant: str = PAPER, phrases: str = SOUND) -> str | None:
    """Put a modal verb before the main clause's verb, in its tense (SDA, section 4.2 and algorithm 2).

    paper: one of must, should, ought to, have to, cannot but, cannot help but.
    code: with have no choice but and need to besides; and, by a coin, or where the verb takes none, an
    intensifier before every adjective instead. None for questions, imperatives, and clauses with a modal
    verb. Of these modal verbs, phrases=sound takes those that leave true what the sentence says: not "should
    have travelled", which says that he did not; "cannot" for a clause that is negated. phrases=published: all
    of them. English; in Chinese there is no such choice.

    The paper says that it "slightly adjusts" the meaning.
    """
    if sentence.is_english:
        rules = [lambda: modals.modal_edits(sentence, draws, variant, phrases)]
    else:
        rules = [lambda: chinese.modal_edits(sentence, draws, variant)]
    if variant == CODE:
        language = modals if sentence.is_english else chinese
        rules.append(lambda: language.intensifier_edits(sentence, draws))
        if draws.chance(0.5):
            rules.reverse()
    for rule in rules:
        edits = rule()
        if edits:
            return sentence.edit(edits)
    return None


@_sda(
    "altering",
    paper="SDA (Zhu et al. 2022), section 4.4",
    parameters=(_VARIANT,),
    sample="He travelled widely in Europe. -> He did not travel widely in Europe.",
)
def neg(sentence: ParsedSentence, draws: Draws, variant: str = PAPER) -> str | None:
    """Negate a sentence, or take its negation away: SDA's negative sample (section 4.4).

    paper: the main clause is negated, or, if it has a negative word (not, never, no, nobody, nothing), loses
    it; "no" before a sentence without a verb. code: the first of a negative word (it goes), an auxiliary and
    the main verb (not), from the left, in whatever clause; a phrase such as "It is not true that" where there
    is none.
    """
    edits = (negation if sentence.is_english else chinese).negation_edits(sentence, draws, variant)
    return _changed(sentence, edits) if edits else None


@_sda(
    "preserving",
    paper="SDA (Zhu et al. 2022), section 4.3, algorithm 3",
    parameters=(_VARIANT, _PHRASES),
    sample="He travelled widely in Europe. -> It is not true that he did not travel widely in Europe.",
)
def dn(sentence: ParsedSentence, draws: Draws, variant: str = PAPER, phrases: str = SOUND) -> str | None:
    """Negate a sentence twice, so that the two cancel each other (SDA, section 4.3 and algorithm 3).

    paper: the main clause is negated, or loses its negation, and a phrase such as "It is not true that"
    stands before it.
    code: negative words of all clauses go, then auxiliaries and the main verb are negated from the left, two
    in all; the phrase is for sentences that had room for one. None for questions, imperatives, and sentences
    without a verb.
    """
    if sentence.is_english:
        edits = negation.double_negation_edits(sentence, draws, variant, phrases)
    else:
        edits = chinese.double_negation_edits(sentence, draws, variant)
    return _changed(sentence, edits) if edits else None


def _changed(sentence: ParsedSentence, edits: list[tuple[int, int, str]]) -> str | None:
    text = sentence.edit(edits)
    return None if text == sentence.text else text


# Subordinate clauses, those first that a comma parts off most readily. Chinese relative clauses stand before
# their noun, where no comma can stand.
_CLAUSES = {
    ("en", PAPER): ("advcl", "acl", "ccomp", "csubj"),
    ("en", CODE): ("advcl", "acl", "ccomp", "csubj", "xcomp"),
    ("zh", PAPER): ("advcl", "ccomp", "csubj"),
    ("zh", CODE): ("advcl", "ccomp", "csubj", "xcomp"),
}
_ALL_CLAUSES = {key: frozenset(kinds) for key, kinds in _CLAUSES.items()}
_NOMINAL_SUBJECT = frozenset({"nsubj"})
_QUOTES = frozenset('"“”„«»「」『』')
_FINAL = ".!?…;:,。！？；：，"
_CLOSING = "\"'”’)]」』）"
_MARKS = {
    # language: (comma, opening quote, closing quote, exclamation mark, the code's final marks)
    "en": (",", '"', '"', "!", (",", ".", ";", "!")),
    "zh": ("，", "“", "”", "！", ("，", "。", "；", "！")),
}
# No comma stands behind words with these tags: what they introduce goes on.
_INTRODUCING = frozenset({"IN", "DT", "PDT", "TO", "WDT", "WP", "WP$", "WRB", "PRP$", "CC", "MD"})
_PARTED_OFF = frozenset(
    {"by", "without", "after", "before", "while", "since", "instead", "besides", "despite"}
)
_WH = frozenset({"WDT", "WP", "WP$", "WRB"})


def punctuated(sentence: ParsedSentence, draws: Draws, variant: str) -> str | None:
    """Return the text of `augment.sda.entries.pi`."""
    comma, opening, closing, exclamation, finals = _MARKS[sentence.language]
    if not len(sentence):
        return None
    rules = [
        lambda: _commas_at_clause(sentence, variant, comma),
        lambda: _mark_subject(sentence, draws, variant, comma),
    ]
    if variant == CODE and draws.chance(0.5):
        rules.reverse()
    for rule in rules:
        edits = rule()
        if edits:
            return sentence.edit(edits)
    if variant == CODE and draws.chance(0.5) and not _QUOTES & set(sentence.text):
        return opening + sentence.text + closing
    text = sentence.edit([_final(sentence, draws.choice(finals) if variant == CODE else exclamation)])
    return None if text == sentence.text else text


def _commas_at_clause(sentence: ParsedSentence, variant: str, comma: str) -> list[Edit] | None:
    """Put a comma where a subordinate clause begins (or ends, if first); at both ends of an inserted one."""
    key = sentence.language, variant
    found = sentence.with_relation(_ALL_CLAUSES[key])
    if sentence.is_english and len(found) > 1:
        found.sort(key=lambda i: _CLAUSES[key].index(sentence.relation(i).partition(":")[0]))
    for i in found:
        first, last = sentence.subtree(i)
        if variant == PAPER and _is_phrase(sentence, i, first):
            continue
        edit = _comma_behind(sentence, first - 1 if first else last, comma)
        if edit is None:
            continue
        inserted = first and sentence.is_english and _is_inserted(sentence, i, last)
        closing = _comma_behind(sentence, last, comma) if inserted else None
        return [edit, closing] if closing else [edit]
    return None


def _is_phrase(sentence: ParsedSentence, i: int, first: int) -> bool:
    """Return whether a clause is none to part off: "to go", "(men) I saw", "of going"."""
    relative = sentence.relation(i)[:3] == "acl" and sentence.relation(i) != "acl"
    if relative and sentence.is_english and sentence.tags[first] not in _WH | {"IN"}:
        return True
    if sentence.is_english and (_compares(sentence, first) or _has_no_verb(sentence, i, first)):
        return True
    # "talks about going", but "opened it, by going"
    if sentence.tags[i] == "VBG" and sentence.tags[first] == "IN":
        return sentence.lower(first) not in _PARTED_OFF
    return sentence.tags[first] == "TO"


def _compares(sentence: ParsedSentence, first: int) -> bool:
    """Return whether a clause is the second part of "as long as I have", "more than I know"."""
    opening = sentence.lower(first)
    correlated = first > 1 and sentence.lower(first - 2) in ("as", "so", "such")
    return opening == "than" or (opening == "as" and correlated)


def _has_no_verb(sentence: ParsedSentence, i: int, first: int) -> bool:
    """Return whether a "clause" lacks both verb and conjunction: "(put it) alone in a tank"."""
    verbal = sentence.tags[sentence.verb(i)][:1] in ("V", "M")
    return not verbal and sentence.relation(first) not in ("mark", "advmod", "cc")


def _is_inserted(sentence: ParsedSentence, i: int, last: int) -> bool:
    """Return whether what the clause of word i depends on goes on behind it: "The dog that bit me ran"."""
    if sentence.relation(i)[:3] not in ("acl", "adv") or last + 1 >= len(sentence):
        return False
    return sentence.pos[last + 1] in ("VERB", "AUX")


def _mark_subject(sentence: ParsedSentence, draws: Draws, variant: str, comma: str) -> list[Edit] | None:
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
    single = variant == CODE and sentence.is_english
    opening, closing = ("'", "'") if single else _MARKS[sentence.language][1:3]
    quotes = _QUOTES | {"'"} if opening == "'" else _QUOTES
    whole = _is_free(sentence, sentence.starts[first] - 1) and _is_free(sentence, sentence.ends[last])
    whole = whole and balanced(sentence.text[sentence.starts[first] : sentence.ends[last]])
    quoted = whole and not quotes & set(sentence.text)
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
