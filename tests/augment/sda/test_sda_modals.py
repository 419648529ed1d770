"""SDA's modal verbs in English, on parses written by hand in both label sets."""

import pytest
from parse_builder import outcomes, parse
from sda_sentences import LABELS, SENTENCES, sentence

from augment.sda.entries import mv

# name: (what the modal verb and its form take the place of, the sound phrases, those that are published
# besides)
MODALS = {
    "travel": (
        "travelled",
        "must have travelled|had to travel|could not but travel|could not help but travel",
        "should have travelled|ought to have travelled",
    ),
    "tall": (
        "is not",
        "must not be|cannot be",
        "must not be|should not be|ought not to be",
    ),
    "contraction": (
        "aren't",
        "must not be|cannot be",
        "must not be|should not be|ought not to be",
    ),
    "repeated": (
        "ran",
        "must have run|had to run|could not but run|could not help but run",
        "should have run|ought to have run",
    ),
    "passive": (
        "was",
        "must have been",
        "should have been|ought to have been|could not but be|could not help but be|had to be",
    ),
    "have": (
        "has",
        "must have",
        "should have|ought to have|has to have|cannot but have|cannot help but have",
    ),
    "url": (
        "works",
        "cannot but work|cannot help but work",
        "should work|ought to work|must work|has to work",
    ),
    "perfect": (
        "'ve",
        " must have",
        " should have| ought to have| have to have",
    ),
    "does not": (
        "does not",
        "cannot",
        "must not|should not|ought not to",
    ),
    "never": (
        "has",
        "must have",
        "should have|ought to have|has to have",
    ),
    "came and saw": (
        "came and saw",
        "must have come and seen|had to come and see|could not but come and see"
        "|could not help but come and see",
        "should have come and seen|ought to have come and seen",
    ),
    "said": (
        "said John",
        "John must have said|John had to say|John could not but say|John could not help but say",
        "John should have said|John ought to have said",
    ),
    "has to": (
        "has to",
        "must have to",
        "should have to|cannot but have to|cannot help but have to",
    ),
    "there": (
        "were",
        "must have been|had to be",
        "should have been|ought to have been|could not but be|could not help but be",
    ),
    "no longer": (
        "is",
        "must be",
        "cannot but be|cannot help but be|should be|ought to be|has to be",
    ),
    "it cost": (
        "cost",
        "must have cost",
        "should have cost|ought to have cost|had to cost|could not but cost|could not help but cost",
    ),
    "shook": (
        "shook",
        "must have shaken|had to shake|could not but shake|could not help but shake",
        "should have shaken|ought to have shaken",
    ),
    "any": ("doesn't", "must not", "must not|should not|ought not to"),
    "did not": (
        "did not go",
        "cannot have gone|could not have gone|must not have gone",
        "must not have gone|should not have gone|ought not to have gone",
    ),
    "was not": (
        "wasn't",
        "cannot have been|could not have been|must not have been",
        "must not have been|should not have been|ought not to have been",
    ),
    "highly": (
        "highly values",
        "must highly value",
        "should highly value|ought to highly value|has to highly value|cannot but highly value"
        "|cannot help but highly value",
    ),
}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", MODALS)
def test_modal_verbs(name, labels):
    """By default none that says what the sentence does not: "should have travelled" says that he did not
    travel."""
    finite, sound, published = MODALS[name]
    negated = name in ("tall", "contraction", "does not", "any", "did not", "was not")
    whole = published if negated else f"{sound}|{published}"
    for phrases, forms in (("sound", sound), ("published", whole)):
        expected = {SENTENCES[name][0].replace(finite, form, 1) for form in forms.split("|")}
        assert outcomes(mv, sentence(name, labels), phrases=phrases) == expected, phrases


@pytest.mark.parametrize(
    "name",
    [
        "heading",
        "word",
        "imperative",
        "question",
        "cannot",
        "can",
        "used to",
        "ain't",
        "so be it",
        "had better",
    ],
)
def test_no_modal_verb_where_none_can_stand(name):
    assert outcomes(mv, sentence(name)) == {None}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("It is used.", "It/PRP/nsubj:pass/3 is/VBZ/aux:pass/3 used/VBN/root/0 ././punct/3", set()),
        (
            "He is looking.",
            "He/PRP/nsubj/3 is/VBZ/aux/3 looking/VBG/root/0 ././punct/3",
            {"He must be looking."},
        ),
        ("I own it.", "I/PRP/nsubj/2 own/VBP/root/0 it/PRP/obj/2 ././punct/2", set()),
        ("I mean it.", "I/PRP/nsubj/2 mean/VBP/root/0 it/PRP/obj/2 ././punct/2", set()),
        (
            "I was at home.",
            "I/PRP/nsubj/4 was/VBD/cop/4 at/IN/case/4 home/NN/root/0 ././punct/4",
            {"I must have been at home."},
        ),
        (
            "It sounds odd.",
            "It/PRP/nsubj/2 sounds/VBZ/root/0 odd/JJ/xcomp/2 ././punct/2",
            {"It must sound odd.", "It cannot but sound odd.", "It cannot help but sound odd."},
        ),
        (
            "I'm glad.",
            "I/PRP/nsubj/3 'm/VBP/cop/3 glad/JJ/root/0 ././punct/3",
            {"I cannot but be glad.", "I cannot help but be glad."},
        ),
        (
            "He goes.",
            "He/PRP/nsubj/2 goes/VBZ/root/0 ././punct/2",
            {"He cannot but go.", "He cannot help but go."},
        ),
        (  # "must" forbids the hearer what it guesses of others
            "You do not want it.",
            "You/PRP/nsubj/4 do/VBP/aux/4 not/RB/advmod/4 want/VB/root/0 it/PRP/obj/4 ././punct/4",
            {"You cannot want it."},
        ),
        (
            "They do not want it.",
            "They/PRP/nsubj/4 do/VBP/aux/4 not/RB/advmod/4 want/VB/root/0 it/PRP/obj/4 ././punct/4",
            {"They must not want it."},
        ),
        ("Nobody goes.", "Nobody/NN/nsubj/2 goes/VBZ/root/0 ././punct/2", set()),  # "must" would forbid it
    ],
)
def test_a_modal_verb_makes_no_duty_of_a_fact(text, annotation, expected):
    found = outcomes(mv, parse(text, annotation), 60)
    assert found - {None} == expected
