"""SDA's four augmentations in English, on parses written by hand in both label sets."""

import dataclasses
import re

import pytest
from parse_builder import parse

from augment.errors import AugmentationError
from augment.syntax import ENTRIES, dn, mv, neg, pi
from augment.text import Draws
from augment.verbs import base_form, participle

LEMMAS = {
    "travelled": "travel", "goes": "go", "works": "work", "said": "say", "likes": "like", "hopes": "hop", "arrived": "arrive",
}  # fmt: skip

# name: (text, Universal Dependencies, ClearNLP where it differs)
SENTENCES = {
    "travel": (
        "He travelled widely in Europe.",
        "He/PRP/nsubj/2 travelled/VBD/ROOT/0 widely/RB/advmod/2 in/IN/case/5 Europe/NNP/obl/2 ././punct/2",
        "He/PRP/nsubj/2 travelled/VBD/ROOT/0 widely/RB/advmod/2 in/IN/prep/2 Europe/NNP/pobj/4 ././punct/2",
    ),
    "tall": (
        "She is not tall.",
        "She/PRP/nsubj/4 is/VBZ/cop/4 not/RB/advmod/4 tall/JJ/ROOT/0 ././punct/4",
        "She/PRP/nsubj/2 is/VBZ/ROOT/0 not/RB/neg/2 tall/JJ/acomp/2 ././punct/2",
    ),
    "contraction": (
        "Most aren't new.",
        "Most/JJS/nsubj/4 are/VBP/cop/4 n't/RB/advmod/4 new/JJ/ROOT/0 ././punct/4",
        "Most/JJS/nsubj/2 are/VBP/ROOT/0 n't/RB/neg/2 new/JJ/acomp/2 ././punct/2",
    ),
    "cannot": (
        "They can't have seen it.",
        "They/PRP/nsubj/5 ca/MD/aux/5 n't/RB/advmod/5 have/VB/aux/5 seen/VBN/ROOT/0 it/PRP/obj/5 ././punct/5",
        "They/PRP/nsubj/5 ca/MD/aux/5 n't/RB/neg/5 have/VB/aux/5 seen/VBN/ROOT/0 it/PRP/dobj/5 ././punct/5",
    ),
    "repeated": (
        "The dog that bit the dog ran.",
        "The/DT/det/2 dog/NN/nsubj/7 that/WDT/nsubj/4 bit/VBD/acl:relcl/2 the/DT/det/6 dog/NN/obj/4 ran/VBD/ROOT/0 ././punct/7",
        "The/DT/det/2 dog/NN/nsubj/7 that/WDT/nsubj/4 bit/VBD/relcl/2 the/DT/det/6 dog/NN/dobj/4 ran/VBD/ROOT/0 ././punct/7",
    ),
    "is is": (
        "What is here is old.",
        "What/WP/nsubj/3 is/VBZ/cop/3 here/RB/csubj/5 is/VBZ/cop/5 old/JJ/ROOT/0 ././punct/5",
        "What/WP/nsubj/2 is/VBZ/csubj/4 here/RB/advmod/2 is/VBZ/ROOT/0 old/JJ/acomp/4 ././punct/4",
    ),
    "heading": (
        "A history of France.",
        "A/DT/det/2 history/NN/ROOT/0 of/IN/case/4 France/NNP/nmod/2 ././punct/2",
        "A/DT/det/2 history/NN/ROOT/0 of/IN/prep/2 France/NNP/pobj/3 ././punct/2",
    ),
    "word": ("Rain", "Rain/NN/ROOT/0", None),
    "imperative": ("Run!", "Run/VB/ROOT/0 !/./punct/1", None),
    "quotes": (
        'He said "the show goes on" twice.',
        'He/PRP/nsubj/2 said/VBD/ROOT/0 "/``/punct/6 the/DT/det/5 show/NN/nsubj/6 goes/VBZ/ccomp/2 on/RP/compound:prt/6 '
        "\"/''/punct/6 twice/RB/advmod/2 ././punct/2",
        'He/PRP/nsubj/2 said/VBD/ROOT/0 "/``/punct/2 the/DT/det/5 show/NN/nsubj/6 goes/VBZ/ccomp/2 on/RP/prt/6 '
        "\"/''/punct/2 twice/RB/advmod/2 ././punct/2",
    ),
    "url": (
        "It works at https://x.org/is?is=1 too.",
        "It/PRP/nsubj/2 works/VBZ/ROOT/0 at/IN/case/4 https://x.org/is?is=1/NNP/obl/2 too/RB/advmod/2 ././punct/2",
        "It/PRP/nsubj/2 works/VBZ/ROOT/0 at/IN/prep/2 https://x.org/is?is=1/NNP/pobj/3 too/RB/advmod/2 ././punct/2",
    ),
    "passive": (
        "The naïve café in Zürich was reopened.",
        "The/DT/det/3 naïve/JJ/amod/3 café/NN/nsubj:pass/7 in/IN/case/5 Zürich/NNP/nmod/3 was/VBD/aux:pass/7 "
        "reopened/VBN/ROOT/0 ././punct/7",
        "The/DT/det/3 naïve/JJ/amod/3 café/NN/nsubjpass/7 in/IN/prep/3 Zürich/NNP/pobj/4 was/VBD/auxpass/7 "
        "reopened/VBN/ROOT/0 ././punct/7",
    ),
    "have": (
        "She has a dog.",
        "She/PRP/nsubj/2 has/VBZ/ROOT/0 a/DT/det/4 dog/NN/obj/2 ././punct/2",
        "She/PRP/nsubj/2 has/VBZ/ROOT/0 a/DT/det/4 dog/NN/dobj/2 ././punct/2",
    ),
    "no": (
        "I have no money.",
        "I/PRP/nsubj/2 have/VBP/ROOT/0 no/DT/det/4 money/NN/obj/2 ././punct/2",
        "I/PRP/nsubj/2 have/VBP/ROOT/0 no/DT/det/4 money/NN/dobj/2 ././punct/2",
    ),
    "nobody": ("Nobody came.", "Nobody/NN/nsubj/2 came/VBD/ROOT/0 ././punct/2", None),
    "question": ("Does he sleep?", "Does/VBZ/aux/3 he/PRP/nsubj/3 sleep/VB/ROOT/0 ?/./punct/3", None),
    "never": (
        "Anna has never gone home.",
        "Anna/NNP/nsubj/4 has/VBZ/aux/4 never/RB/advmod/4 gone/VBN/ROOT/0 home/RB/advmod/4 ././punct/4",
        "Anna/NNP/nsubj/4 has/VBZ/aux/4 never/RB/neg/4 gone/VBN/ROOT/0 home/RB/advmod/4 ././punct/4",
    ),
    "perfect": ("They've gone home.", "They/PRP/nsubj/3 've/VBP/aux/3 gone/VBN/ROOT/0 home/RB/advmod/3 ././punct/3", None),
    "can": ("You can leave.", "You/PRP/nsubj/3 can/MD/aux/3 leave/VB/ROOT/0 ././punct/3", None),
    "but": ("But he left.", "But/CC/cc/3 he/PRP/nsubj/3 left/VBD/ROOT/0 ././punct/3", None),
    "adverb": (
        "However, American trains arrived.",
        "However/RB/advmod/5 ,/,/punct/5 American/JJ/amod/4 trains/NNS/nsubj/5 arrived/VBD/ROOT/0 ././punct/5",
        None,
    ),
    "does not": (
        "He does not work.",
        "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/advmod/4 work/VB/ROOT/0 ././punct/4",
        "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/neg/4 work/VB/ROOT/0 ././punct/4",
    ),
}
LABELS = ("UD", "ClearNLP")


def sentence(name, labels="UD"):
    text, universal, clear = SENTENCES[name]
    parsed = parse(text, clear if labels == "ClearNLP" and clear else universal)
    return dataclasses.replace(parsed, lemmas=tuple(LEMMAS.get(lemma, lemma) for lemma in parsed.lemmas))


def outcomes(augmentation, name, labels="UD", **parameters):
    """Everything that 300 keys give."""
    return {augmentation(sentence(name, labels), Draws(key), **parameters) for key in range(300)}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("travel", "He did not travel widely in Europe."),
        ("tall", "She is tall."),
        ("contraction", "Most are new."),
        ("cannot", "They can have seen it."),
        ("repeated", "The dog that bit the dog did not run."),
        ("is is", "What is here is not old."),
        ("heading", "No history of France."),
        ("word", "No rain"),
        ("imperative", "Do not run!"),
        ("quotes", 'He did not say "the show goes on" twice.'),
        ("url", "It does not work at https://x.org/is?is=1 too."),
        ("passive", "The naïve café in Zürich was not reopened."),
        ("have", "She does not have a dog."),
        ("no", "I have some money."),
        ("nobody", "Somebody came."),
        ("question", "Does he not sleep?"),
        ("never", "Anna has gone home."),
        ("perfect", "They've not gone home."),
        ("can", "You cannot leave."),
        ("does not", "He does work."),
    ],
)
def test_negation(name, expected, labels):
    assert outcomes(neg, name, labels) == {expected}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("travel", "he did not travel widely in Europe."),
        ("tall", "she is tall."),
        ("repeated", "the dog that bit the dog did not run."),
        ("quotes", 'he did not say "the show goes on" twice.'),
        ("passive", "the naïve café in Zürich was not reopened."),
        ("no", "I have some money."),
        ("nobody", "somebody came."),
        ("never", "Anna has gone home."),
    ],
)
def test_double_negation(name, rest, labels):
    phrases = ("It is not true that", "It can't be that", "It is not the fact that", "Not that")
    assert outcomes(dn, name, labels) == {f"{phrase} {rest}" for phrase in phrases}


def test_the_phrase_stands_behind_a_conjunction_or_an_adverb_with_a_comma():
    assert "But it is not true that he did not leave." in outcomes(dn, "but")
    assert "However, it is not true that American trains did not arrive." in outcomes(dn, "adverb")


@pytest.mark.parametrize("name", ["heading", "word", "imperative", "question"])
def test_double_negation_needs_a_statement(name):
    assert outcomes(dn, name) == outcomes(dn, name, variant="code") == {None}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "travel",
            "must have travelled|should have travelled|ought to have travelled|had to travel|could not but travel"
            "|could not help but travel",
        ),
        ("tall", "must not be|should not be|ought not to be"),
        ("contraction", "must not be|should not be|ought not to be"),
        ("repeated", "must have run|should have run|ought to have run|had to run|could not but run|could not help but run"),
        (
            "passive",
            "must have been|should have been|ought to have been|had to be|could not but be|could not help but be",
        ),
        ("have", "must have|should have|ought to have|has to have|cannot but have|cannot help but have"),
        ("url", "must work|should work|ought to work|has to work|cannot but work|cannot help but work"),
        ("perfect", " must have| should have| ought to have| have to have"),
        ("does not", "must not|should not|ought not to"),
        ("never", "must have|should have|ought to have|has to have"),
    ],
)
def test_modal_verbs(name, expected, labels):
    text = SENTENCES[name][0]
    # what the modal verb and its form take the place of
    finite = {
        "travel": "travelled", "tall": "is not", "contraction": "aren't", "repeated": "ran", "passive": "was", "have": "has",
        "url": "works", "perfect": "'ve", "does not": "does not",
        "never": "has",
    }[name]  # fmt: skip
    assert outcomes(mv, name, labels) == {text.replace(finite, form, 1) for form in expected.split("|")}


@pytest.mark.parametrize("name", ["heading", "word", "imperative", "question", "cannot", "can"])
def test_no_modal_verb_where_none_can_stand(name):
    assert outcomes(mv, name) == {None}


def test_code_variant_puts_an_intensifier_before_adjectives_and_mends_the_article():
    parsed = parse(
        "A tall man met a man.", "A/DT/det/3 tall/JJ/amod/3 man/NN/nsubj/4 met/VBD/ROOT/0 a/DT/det/6 man/NN/obj/4 ././punct/4"
    )
    found = {mv(parsed, Draws(key), variant="code") for key in range(300)}
    assert {"A very tall man met a man.", "An extremely tall man met a man.", "A tall man needed to meet a man."} <= found
    assert not any("a extremely" in text.lower() for text in found)


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("travel", {'"He" travelled widely in Europe.', "He, travelled widely in Europe."}),
        ("repeated", {"The dog, that bit the dog ran."}),
        ("is is", {"What is here, is old."}),
        ("heading", {"A history of France!"}),
        ("word", {"Rain!"}),
        ("imperative", {None}),
        ("quotes", {'He, said "the show goes on" twice.'}),
        ("url", {'"It" works at https://x.org/is?is=1 too.', "It, works at https://x.org/is?is=1 too."}),
        ("passive", {'"The naïve café in Zürich" was reopened.', "The naïve café in Zürich, was reopened."}),
        ("perfect", {"They've gone home!"}),
    ],
)
def test_punctuation_insertion(name, expected, labels):
    assert outcomes(pi, name, labels) == expected


def test_code_variant_of_punctuation_insertion():
    found = outcomes(pi, "repeated", variant="code")
    assert "'The dog that bit the dog' ran." in found and "The dog, that bit the dog ran." in found
    assert outcomes(pi, "word", variant="code") == {'"Rain"', "Rain,", "Rain.", "Rain;", "Rain!"}


def test_code_variant_of_negation_takes_the_first_hit_from_the_left():
    parsed = parse(
        "Men who can pay left.",
        "Men/NNS/nsubj/5 who/WP/nsubj/4 can/MD/aux/4 pay/VB/acl:relcl/1 left/VBD/ROOT/0 ././punct/5",
    )
    assert neg(parsed, Draws(0), variant="code") == "Men who cannot pay left."
    assert neg(parsed, Draws(0)) == "Men who can pay did not leave."
    assert dn(parsed, Draws(0), variant="code") == "Men who cannot pay did not leave."


@pytest.mark.parametrize("variant", ["paper", "code"])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", SENTENCES)
def test_no_word_is_doubled_and_no_quote_broken(name, labels, variant):
    for augmentation in (pi, mv, dn, neg):
        for text in outcomes(augmentation, name, labels, variant=variant) - {None}:
            assert text != SENTENCES[name][0]
            assert text.count('"') % 2 == 0 and "  " not in text
            assert not re.search(r"\b(\w+) \1\b", text), text
            assert text[:1].isupper() or not text[:1].isalpha()
            assert ("https://x.org/is?is=1" in text) == (name == "url")


def test_draws_depend_on_the_key_alone():
    assert [mv(sentence("travel"), Draws(key)) for key in range(20)] == [mv(sentence("travel"), Draws(key)) for key in range(20)]


def test_other_languages_are_refused():
    german = dataclasses.replace(sentence("word"), language="de")
    for entry in ENTRIES:
        with pytest.raises(AugmentationError, match="English and Chinese"):
            entry.function(german, Draws(0))


def test_text_without_words():
    empty = dataclasses.replace(
        sentence("word"), **dict.fromkeys(("starts", "ends", "tags", "pos", "lemmas", "heads", "deps"), ())
    )
    assert [entry.function(empty, Draws(0)) for entry in ENTRIES] == [None] * 4


@pytest.mark.parametrize(
    ("word", "tag", "lemma", "base"),
    [
        ("goes", "VBZ", "go", "go"),
        ("hopes", "VBZ", "hop", "hope"),
        ("tries", "VBZ", "tries", "try"),
        ("misses", "VBZ", "misses", "miss"),
        ("has", "VBZ", "have", "have"),
        ("hoped", "VBD", "hop", "hope"),
        ("stopped", "VBD", "stop", "stop"),
        ("found", "VBD", "found", "find"),
        ("carried", "VBD", "carried", "carry"),
        ("visited", "VBD", "visited", "visit"),
        ("Went", "VBD", "went", "go"),
    ],
)
def test_base_forms(word, tag, lemma, base):
    assert base_form(word, tag, lemma) == base


def test_participles():
    assert [participle("went", "go"), participle("travelled", "travel"), participle("ran", "run")] == ["gone", "travelled", "run"]
