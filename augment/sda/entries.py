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
from augment.sda.punctuation import CODE, PAPER, punctuated
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence

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
