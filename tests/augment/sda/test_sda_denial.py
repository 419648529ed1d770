"""What SDA's negation and double negation in English leave alone, and where `not` and the phrase stand."""

import pytest
from parse_builder import outcomes, parse

from augment.sda.entries import dn, neg

NEGATIONS = [
    # "not a little" means much
    (
        "It is a little odd.",
        "It/PRP/nsubj/5 is/VBZ/cop/5 a/DT/det/4 little/JJ/obl:npmod/5 odd/JJ/root/0 ././punct/5",
        " it is a little odd.",
    ),
    (
        "Any of them help.",
        "Any/DT/nsubj/4 of/IN/case/3 them/PRP/nmod/1 help/VBP/root/0 ././punct/4",
        " any of them help.",
    ),
    (
        "Are you free today.",
        "Are/VBP/cop/3 you/PRP/nsubj/3 free/JJ/root/0 today/NN/obl:tmod/3 ././punct/3",
        "Are you not free today.",
    ),
    (
        "It is still open.",
        "It/PRP/nsubj/4 is/VBZ/cop/4 still/RB/advmod/4 open/JJ/root/0 ././punct/4",
        "It is still not open.",
    ),
    ("See you there", "See/VB/root/0 you/PRP/obj/1 there/RB/advmod/1", None),
    ("Why not go?", "Why/WRB/advmod/3 not/RB/advmod/3 go/VB/root/0 ?/./punct/3", None),
    ("Dear Mr. Smith:", "Dear/JJ/amod/2 Mr./NNP/root/0 Smith/NNP/flat/2 :/:/punct/2", None),
    ("On what evidence?", "On/IN/case/3 what/WDT/det/3 evidence/NN/root/0 ?/./punct/3", None),
    (
        "Not sure if he came.",
        "Not/RB/advmod/2 sure/JJ/root/0 if/IN/mark/5 he/PRP/nsubj/5 came/VBD/ccomp/2 ././punct/2",
        "Sure if he came.",
    ),
]
DENIALS = [
    (
        "So he came.",
        "So/RB/advmod/3 he/PRP/nsubj/3 came/VBD/root/0 ././punct/3",
        "So it is not true that he did not come.",
    ),
    (
        "Very friendly and the food is good.",
        "Very/RB/advmod/2 friendly/JJ/root/0 and/CC/cc/7 the/DT/det/5 food/NN/nsubj/7 is/VBZ/cop/7 "
        "good/JJ/conj/2 ././punct/2",
        "Very friendly and it is not true that the food is not good.",
    ),
    (
        "Because he came.",
        "Because/IN/mark/3 he/PRP/nsubj/3 came/VBD/root/0 ././punct/3",
        None,
    ),
    (
        "It rained, he said.",
        "It/PRP/nsubj/2 rained/VBD/ccomp/5 ,/,/punct/5 he/PRP/nsubj/5 said/VBD/root/0 ././punct/5",
        None,
    ),
]


@pytest.mark.parametrize(("text", "annotation", "expected"), NEGATIONS)
def test_negation(text, annotation, expected):
    """A phrase of denial, of which there are several, is expected by what follows it."""
    found = outcomes(neg, parse(text, annotation), 30)
    if expected and expected.startswith(" "):
        assert found == {phrase + expected for phrase in PHRASES}
    else:
        assert found == {expected}


@pytest.mark.parametrize(("text", "annotation", "expected"), DENIALS)
def test_double_negation(text, annotation, expected):
    found = outcomes(dn, parse(text, annotation), 30)
    assert expected in found
    assert expected is not None or found == {None}


PHRASES = ("It is not true that", "It is not the case that", "It can't be that")
