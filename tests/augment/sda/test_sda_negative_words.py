"""What SDA's rules do with a negation that stands before the subject, a participle or a word without a verb,
and with subjects that are negative by themselves."""

import pytest
from parse_builder import outcomes, parse

from augment.sda.entries import dn, mv, neg
from augment.text.draws import Draws

BEFORE_SUBJECT = {
    "of the verb": "Not/RB/advmod/3 everyone/NN/nsubj/3 agreed/VBD/root/0 ././punct/3",
    "of the subject": "Not/RB/advmod/2 everyone/NN/nsubj/3 agreed/VBD/root/0 ././punct/3",
}


@pytest.mark.parametrize("labels", BEFORE_SUBJECT)
def test_a_not_before_the_subject_is_its_negation(labels):
    parsed = parse("Not everyone agreed.", BEFORE_SUBJECT[labels])
    assert outcomes(neg, parsed, 20) == {"Everyone agreed."}
    found = outcomes(dn, parsed, 20)
    assert "It is not true that everyone agreed." in found
    assert all(text.endswith(" everyone agreed.") for text in found)


def test_a_not_before_one_or_a_single_thing_is_its_negation_too():
    parsed = parse(
        "Not a soul came.", "Not/RB/advmod/4 a/DT/det/3 soul/NN/nsubj/4 came/VBD/root/0 ././punct/4"
    )
    assert neg(parsed, Draws(0)) == "A soul came."


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("Not going well", "Not/RB/advmod/2 going/VBG/root/0 well/RB/advmod/2", "Going well"),
        (
            "Definitely not going there.",
            "Definitely/RB/advmod/3 not/RB/advmod/3 going/VBG/root/0 there/RB/advmod/3 ././punct/3",
            "Definitely going there.",
        ),
        ("Not seen there.", "Not/RB/advmod/2 seen/VBN/root/0 there/RB/advmod/2 ././punct/2", "Seen there."),
    ],
)
def test_a_not_before_a_participle_is_its_negation(text, annotation, expected):
    assert outcomes(neg, parse(text, annotation), 20) == {expected}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("But not so.", "But/CC/cc/3 not/RB/advmod/3 so/RB/root/0 ././punct/3", "But so."),
        (
            "Certainly not a good idea.",
            "Certainly/RB/advmod/5 not/RB/advmod/5 a/DT/det/5 good/JJ/amod/5 idea/NN/root/0 ././punct/5",
            "Certainly a good idea.",
        ),
        ("Certainly not.", "Certainly/RB/advmod/2 not/RB/root/0 ././punct/2", "Certainly."),
        ("Not.", "Not/RB/root/0 ././punct/1", None),
        ("Not any good.", "Not/RB/advmod/3 any/RB/advmod/3 good/JJ/root/0 ././punct/3", None),
        ("Not at all.", "Not/RB/advmod/3 at/IN/case/3 all/DT/root/0 ././punct/3", None),
        (
            "A not so good idea.",
            "A/DT/det/5 not/RB/advmod/4 so/RB/advmod/4 good/JJ/amod/5 idea/NN/root/0 ././punct/5",
            None,
        ),
    ],
)
def test_a_not_in_words_without_a_verb_is_their_negation(text, annotation, expected):
    assert outcomes(neg, parse(text, annotation), 20) == {expected}


@pytest.mark.parametrize(
    ("text", "negated"),
    [
        ("ALL MEN CAME.", "NOT ALL MEN CAME."),
        ("All men came.", "Not all men came."),
        ("SOME MEN CAME.", "NO MEN CAME."),
        ("NOT ALL MEN CAME.", "ALL MEN CAME."),
    ],
)
def test_a_counted_subject_keeps_its_capitals(text, negated):
    words = text.rstrip(".").split()
    opening = ["NOT/RB/advmod/4"] if len(words) == 4 else []
    head = len(words)
    annotation = (
        f"{words[-3]}/DT/det/{head - 1} {words[-2]}/NNS/nsubj/{head} {words[-1]}/VBD/root/0 ././punct/{head}"
    )
    parsed = parse(text, " ".join([*opening, annotation]))
    assert neg(parsed, Draws(0)) == negated
    capitals = negated if negated.isupper() else negated[0].lower() + negated[1:]
    assert {text.partition("that ")[2] or text.partition("be ")[2] for text in denials(parsed)} == {capitals}


def denials(parsed):
    return outcomes(dn, parsed, 20)


@pytest.mark.parametrize(
    ("text", "more", "negated"),
    [
        ("He knew neither Ann nor Bob.", "", "He knew either Ann or Bob."),
        ("He knew neither Ann nor Bob nor Eve.", "nor/CC/cc/8 Eve/NNP/conj/4", None),
    ],
)
def test_neither_turns_with_its_only_nor_and_is_denied_with_several(text, more, negated):
    """ "Either Ann or Bob nor Eve" is no English."""
    parsed = parse(
        text,
        "He/PRP/nsubj/2 knew/VBD/root/0 neither/CC/cc:preconj/4 Ann/NNP/obj/2 nor/CC/cc/6 Bob/NNP/conj/4 "
        f"{more} ././punct/2",
    )
    found = outcomes(neg, parsed, 20)
    assert found == {negated} if negated else all(one.endswith(text[0].lower() + text[1:]) for one in found)


@pytest.mark.parametrize("opening", ["No", "Few", "Neither"])
def test_a_negative_subject_takes_must_of_the_past_alone(opening):
    parsed = parse(f"{opening} men came.", f"{opening}/DT/det/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3")
    found = outcomes(mv, parsed, 40)
    assert found - {None} == {f"{opening} men must have come."}


@pytest.mark.parametrize("subject", ["Nobody", "Nothing", "None"])
def test_a_negative_subject_takes_no_modal_verb_in_the_present(subject):
    """ "Nobody must know" forbids it."""
    parsed = parse(f"{subject} goes.", f"{subject}/NN/nsubj/2 goes/VBZ/root/0 ././punct/2")
    assert outcomes(mv, parsed, 40) == {None}
    assert f"{subject} ought to go." in outcomes(mv, parsed, 40, phrases="published")


def test_a_not_before_the_subject_makes_it_negative():
    parsed = parse("Not everyone agreed.", BEFORE_SUBJECT["of the verb"])
    assert outcomes(mv, parsed, 40) == {"Not everyone must have agreed."}
