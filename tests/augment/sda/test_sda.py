"""SDA's four augmentations in English, on parses written by hand in both label sets."""

import dataclasses
import re

import pytest
from parse_builder import outcomes, parse
from sda_sentences import LABELS, SENTENCES, SOUND, sentence

from augment.sda.entries import dn, mv, neg, pi
from augment.text.draws import Draws


def denied(rest):
    """A sentence that its own words cannot negate."""
    return {f"{phrase} {rest}" for phrase in SOUND}


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
        ("said", "“No,” John did not say."),
        ("came and saw", "He did not come and see Rome."),
        ("came, saw, stayed", "He did not come, see but stayed."),
        ("comes", "He does not come and is seen."),
        ("ain't", denied("he ain't here.")),
        ("not only", denied("she is not only tall.")),
        ("no longer", "He is king."),
        ("any", "He does have some money."),
        ("yet", denied("he is not here yet.")),
        ("neither", "Either he or she came."),
        ("no one", "Someone came."),
        ("used to", "He did not use to sing."),
        ("has to", "He does not have to sing."),
        ("there", "There were some dogs."),
        ("do", "Yes, I do not."),
        ("so be it", None),
        ("enclosed", "“Yes; but he did not leave.”"),
        ("participle", "He did not recall it; he slept."),
        ("extended", "It did not extend what we had."),
        ("of a title", None),
        ("no other", denied("it was no other than Bob.")),
        ("shook", "They did not shake it."),
        ("opens with never", "“Give up!”"),
        ("had better", "He had better not go."),
        ("it cost", "It did not cost them."),
        ("did not", "They did go home."),
        ("highly", "She does not highly value it."),
    ],
)
def test_negation(name, expected, labels):
    assert outcomes(neg, sentence(name, labels)) == (expected if isinstance(expected, set) else {expected})


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("IT IS TRUE.", "IT/PRP/nsubj/3 IS/VBZ/cop/3 TRUE/JJ/root/0 ././punct/3", "IT IS NOT TRUE."),
        ("THEY CAN GO.", "THEY/PRP/nsubj/3 CAN/MD/aux/3 GO/VB/root/0 ././punct/3", "THEY CANNOT GO."),
        ("Can they go?", "Can/MD/aux/3 they/PRP/nsubj/3 go/VB/root/0 ?/./punct/3", "Can they not go?"),
        ("IS HE OLD?", "IS/VBZ/cop/3 HE/PRP/nsubj/3 OLD/JJ/root/0 ?/./punct/3", "IS HE NOT OLD?"),
        ("HE CAME AND SAW.", "HE/PRP/nsubj/2 CAME/VBD/root/0 AND/CC/cc/4 SAW/VBD/conj/2 ././punct/2",
         "HE DID NOT COME AND SEE."),
        ("HE HAD BETTER GO.", "HE/PRP/nsubj/2 HAD/VBD/root/0 BETTER/RBR/advmod/4 GO/VB/xcomp/2 ././punct/2",
         "HE HAD BETTER NOT GO."),
        ("GOING HOME.", "GOING/VBG/root/0 HOME/RB/advmod/1 ././punct/1", "NOT GOING HOME."),
        ("Going home.", "Going/VBG/root/0 home/RB/advmod/1 ././punct/1", "Not going home."),
    ],
)  # fmt: skip
def test_negation_keeps_capitals(text, annotation, expected):
    assert neg(parse(text, annotation), Draws(0)) == expected


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [  # a heading that a parser finds no verb in: an apostrophe opens no quotation, single quotes do
        ("'Tis true.", "'/``/punct/3 Tis/RB/advmod/3 true/JJ/root/0 ././punct/3", "Not 'tis true."),
        ("‘Tis true of the dogs’ house.",
         "‘/``/punct/3 Tis/RB/advmod/3 true/JJ/root/0 of/IN/case/8 the/DT/det/6 dogs/NNS/nmod:poss/8 "
         "’/POS/case/6 house/NN/obl/3 ././punct/3", "Not ‘tis true of the dogs’ house."),
        ("'Quite true.'", "'/``/punct/3 Quite/RB/advmod/3 true/JJ/root/0 ././punct/3 '/''/punct/3",
         "'Not quite true.'"),
        ("'Tis' is true.", "'/``/punct/2 Tis/NN/nsubj/5 '/''/punct/2 is/VBZ/cop/5 true/JJ/root/0 ././punct/5",
         "'Tis' is not true."),
    ],
)  # fmt: skip
def test_an_apostrophe_opens_no_quotation(text, annotation, expected):
    assert neg(parse(text, annotation), Draws(0)) == expected


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
        ("came and saw", "he did not come and see Rome."),
        ("neither", "either he or she came."),
        ("no one", "someone came."),
        ("there", "there were some dogs."),
        ("any", "he does have some money."),
    ],
)
def test_double_negation(name, rest, labels):
    published = ("It is not true that", "It can't be that", "It is not the fact that", "Not that")
    assert outcomes(dn, sentence(name, labels)) == {f"{phrase} {rest}" for phrase in SOUND}
    assert outcomes(dn, sentence(name, labels), phrases="published") == {
        f"{phrase} {rest}" for phrase in published
    }


def test_the_phrase_stands_behind_a_conjunction_or_an_adverb_with_a_comma():
    assert "But it is not true that he did not leave." in outcomes(dn, sentence("but"))
    assert "However, it is not true that American trains did not arrive." in outcomes(dn, sentence("adverb"))
    assert "“Yes; but it is not true that he did not leave.”" in outcomes(dn, sentence("enclosed"))


@pytest.mark.parametrize("name", ["heading", "word", "imperative", "question", "ain't", "so be it"])
def test_double_negation_needs_a_statement(name):
    assert outcomes(dn, sentence(name)) == {None}


@pytest.mark.parametrize("labels", LABELS)
def test_a_phrase_of_denial_does_not_tear_speech_from_its_speaker(labels):
    assert outcomes(dn, sentence("said", labels)) == {None}


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("travel", {'"He" travelled widely in Europe.', "He, travelled widely in Europe."}),
        ("repeated", {"The dog, that bit the dog, ran."}),
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
    assert outcomes(pi, sentence(name, labels)) == expected


def test_the_main_clause_is_negated_and_no_relative_one():
    parsed = parse(
        "Men who can pay left.",
        "Men/NNS/nsubj/5 who/WP/nsubj/4 can/MD/aux/4 pay/VB/acl:relcl/1 left/VBD/ROOT/0 ././punct/5",
    )
    assert neg(parsed, Draws(0)) == "Men who can pay did not leave."


@pytest.mark.parametrize(
    ("conjoined", "negation", "object_", "head"), [("8", "advmod", "obj", 10), ("4", "neg", "dobj", 10)]
)
def test_a_negation_of_another_clause_stays(conjoined, negation, object_, head):
    parsed = parse(
        "He does not see and does not hear any dog.",
        f"He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/{negation}/4 see/VB/ROOT/0 and/CC/cc/{conjoined} "
        "does/VBZ/aux/8 "
        f"not/RB/{negation}/8 hear/VB/conj/4 any/DT/det/{head} dog/NN/{object_}/8 ././punct/4",
    )
    assert neg(parsed, Draws(0)) == "He does see and does not hear any dog."


@pytest.mark.parametrize("relations", [("nsubj", "obj"), ("nsubj", "dobj")])
def test_a_title_says_nothing(relations):
    subject, object_ = relations
    parsed = parse(
        "The film “Up” won prizes.",
        f"The/DT/det/2 film/NN/compound/4 “/``/punct/4 Up/NNP/{subject}/6 ”/''/punct/4 won/VBD/ROOT/0 "
        f"prizes/NNS/{object_}/6 "
        "././punct/6",
    )
    assert neg(parsed, Draws(0)) == "The film “Up” did not win prizes."


@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", SENTENCES)
def test_no_word_is_doubled_and_no_quote_broken(name, labels):
    for augmentation in (pi, mv, dn, neg):
        for text in outcomes(augmentation, sentence(name, labels)) - {None}:
            assert text != SENTENCES[name][0]
            assert text.count('"') % 2 == 0 and "  " not in text
            assert not re.search(r"\b(\w+) \1\b", text), text
            assert text[:1].isupper() or not text[:1].isalpha()
            assert ("https://x.org/is?is=1" in text) == (name == "url")


def test_draws_depend_on_the_key_alone():
    assert [mv(sentence("travel"), Draws(key)) for key in range(20)] == [
        mv(sentence("travel"), Draws(key)) for key in range(20)
    ]


def test_text_without_words():
    empty = dataclasses.replace(
        sentence("word"), **dict.fromkeys(("starts", "ends", "tags", "pos", "lemmas", "heads", "deps"), ())
    )
    assert [rule(empty, Draws(0)) for rule in (pi, mv, dn, neg)] == [None] * 4
