"""SDA's four augmentations in English, on parses written by hand in both label sets."""

import dataclasses
import re

import pytest
from parse_builder import parse

from augment.errors import AugmentationError
from augment.syntax import ENTRIES, dn, mv, neg, pi
from augment.text import Draws

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
    "opens with never": (
        "“Never give up!”",
        "“/``/punct/3 Never/RB/advmod/3 give/VB/ROOT/0 up/RP/compound:prt/3 !/./punct/3 ”/''/punct/3",
        "“/``/punct/3 Never/RB/neg/3 give/VB/ROOT/0 up/RP/prt/3 !/./punct/3 ”/''/punct/3",
    ),
    "had better": (
        "He had better go.",
        "He/PRP/nsubj/2 had/VBD/ROOT/0 better/RBR/advmod/4 go/VB/xcomp/2 ././punct/2",
        "He/PRP/nsubj/4 had/VBD/aux/4 better/RBR/advmod/4 go/VB/ROOT/0 ././punct/4",
    ),
    "it cost": ("It cost them.", "It/PRP/nsubj/2 cost/VBP/ROOT/0 them/PRP/obj/2 ././punct/2", None),
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
    "said": (
        "“No,” said John.",
        "“/``/punct/2 No/UH/ccomp/5 ,/,/punct/2 ”/''/punct/2 said/VBD/ROOT/0 John/NNP/nsubj/5 ././punct/5",
        "“/``/punct/2 No/UH/ccomp/5 ,/,/punct/2 ”/''/punct/2 said/VBD/ROOT/0 John/NNP/dobj/5 ././punct/5",  # a parser's error
    ),
    "came and saw": (
        "He came and saw Rome.",
        "He/PRP/nsubj/2 came/VBD/ROOT/0 and/CC/cc/4 saw/VBD/conj/2 Rome/NNP/obj/4 ././punct/2",
        "He/PRP/nsubj/2 came/VBD/ROOT/0 and/CC/cc/2 saw/VBD/conj/2 Rome/NNP/dobj/4 ././punct/2",
    ),
    "came, saw, stayed": (
        "He came, saw but stayed.",
        "He/PRP/nsubj/2 came/VBD/ROOT/0 ,/,/punct/4 saw/VBD/conj/2 but/CC/cc/6 stayed/VBD/conj/2 ././punct/2",
        "He/PRP/nsubj/2 came/VBD/ROOT/0 ,/,/punct/2 saw/VBD/conj/2 but/CC/cc/4 stayed/VBD/conj/4 ././punct/2",
    ),
    "comes": (
        "He comes and is seen.",
        "He/PRP/nsubj/2 comes/VBZ/ROOT/0 and/CC/cc/5 is/VBZ/aux:pass/5 seen/VBN/conj/2 ././punct/2",
        "He/PRP/nsubj/2 comes/VBZ/ROOT/0 and/CC/cc/2 is/VBZ/auxpass/5 seen/VBN/conj/2 ././punct/2",
    ),
    "ain't": (
        "He ain't here.",
        "He/PRP/nsubj/4 ai/VBZ/cop/4 n't/RB/advmod/4 here/RB/ROOT/0 ././punct/4",
        "He/PRP/nsubj/2 ai/VBZ/ROOT/0 n't/RB/neg/2 here/RB/advmod/2 ././punct/2",
    ),
    "not only": (
        "She is not only tall.",
        "She/PRP/nsubj/5 is/VBZ/cop/5 not/RB/advmod/4 only/RB/advmod/5 tall/JJ/ROOT/0 ././punct/5",
        "She/PRP/nsubj/2 is/VBZ/ROOT/0 not/RB/neg/2 only/RB/advmod/5 tall/JJ/acomp/2 ././punct/2",
    ),
    "no longer": (
        "He is no longer king.",
        "He/PRP/nsubj/5 is/VBZ/cop/5 no/DT/advmod/4 longer/RBR/advmod/5 king/NN/ROOT/0 ././punct/5",
        "He/PRP/nsubj/2 is/VBZ/ROOT/0 no/DT/neg/4 longer/RBR/advmod/2 king/NN/attr/2 ././punct/2",
    ),
    "any": (
        "He doesn't have any money.",
        "He/PRP/nsubj/4 does/VBZ/aux/4 n't/RB/advmod/4 have/VB/ROOT/0 any/DT/det/6 money/NN/obj/4 ././punct/4",
        "He/PRP/nsubj/4 does/VBZ/aux/4 n't/RB/neg/4 have/VB/ROOT/0 any/DT/det/6 money/NN/dobj/4 ././punct/4",
    ),
    "yet": (
        "He is not here yet.",
        "He/PRP/nsubj/4 is/VBZ/cop/4 not/RB/advmod/4 here/RB/ROOT/0 yet/RB/advmod/4 ././punct/4",
        "He/PRP/nsubj/2 is/VBZ/ROOT/0 not/RB/neg/2 here/RB/advmod/2 yet/RB/advmod/2 ././punct/2",
    ),
    "neither": (
        "Neither he nor she came.",
        "Neither/CC/cc:preconj/2 he/PRP/nsubj/5 nor/CC/cc/4 she/PRP/conj/2 came/VBD/ROOT/0 ././punct/5",
        "Neither/CC/preconj/2 he/PRP/nsubj/5 nor/CC/cc/2 she/PRP/conj/2 came/VBD/ROOT/0 ././punct/5",
    ),
    "no one": ("No one came.", "No/DT/det/2 one/NN/nsubj/3 came/VBD/ROOT/0 ././punct/3", None),
    "used to": (
        "He used to sing.",
        "He/PRP/nsubj/2 used/VBD/ROOT/0 to/TO/mark/4 sing/VB/xcomp/2 ././punct/2",
        "He/PRP/nsubj/2 used/VBD/ROOT/0 to/TO/aux/4 sing/VB/xcomp/2 ././punct/2",
    ),
    "has to": (
        "He has to sing.",
        "He/PRP/nsubj/2 has/VBZ/ROOT/0 to/TO/mark/4 sing/VB/xcomp/2 ././punct/2",
        "He/PRP/nsubj/2 has/VBZ/ROOT/0 to/TO/aux/4 sing/VB/xcomp/2 ././punct/2",
    ),
    "there": (
        "There were no dogs.",
        "There/EX/expl/2 were/VBD/ROOT/0 no/DT/det/4 dogs/NNS/nsubj/2 ././punct/2",
        "There/EX/expl/2 were/VBD/ROOT/0 no/DT/det/4 dogs/NNS/attr/2 ././punct/2",
    ),
    "do": ("Yes, I do.", "Yes/UH/discourse/4 ,/,/punct/4 I/PRP/nsubj/4 do/VBP/ROOT/0 ././punct/4", None),
    "so be it": ("So be it.", "So/RB/advmod/2 be/VB/ROOT/0 it/PRP/nsubj/2 ././punct/2", None),
    "enclosed": (
        "“Yes; but he left.”",
        "“/``/punct/5 Yes/UH/discourse/6 ;/:/punct/2 but/CC/cc/6 he/PRP/nsubj/6 left/VBD/ROOT/0 ././punct/6 ”/''/punct/6",
        None,
    ),
    "participle": (  # a tagger's error
        "He recalled it; he slept.",
        "He/PRP/nsubj/2 recalled/VBN/ROOT/0 it/PRP/obj/2 ;/,/punct/6 he/PRP/nsubj/6 slept/VBD/parataxis/2 ././punct/2",
        "He/PRP/nsubj/2 recalled/VBN/ROOT/0 it/PRP/dobj/2 ;/:/punct/2 he/PRP/nsubj/6 slept/VBD/parataxis/2 ././punct/2",
    ),
    "extended": (  # a tagger's error before a subordinate clause
        "It extended what we had.",
        "It/PRP/nsubj/2 extended/VBN/ROOT/0 what/WP/obj/5 we/PRP/nsubj/5 had/VBD/ccomp/2 ././punct/2",
        "It/PRP/nsubj/2 extended/VBN/ROOT/0 what/WP/dobj/5 we/PRP/nsubj/5 had/VBD/ccomp/2 ././punct/2",
    ),
    "of a title": (
        "It sells The Makes Here.",
        "It/PRP/nsubj/2 sells/NNS/nmod/4 The/DT/det/4 Makes/VBZ/ROOT/0 Here/RB/advmod/4 ././punct/4",
        None,
    ),
    "no other": (
        "It was no other than Bob.",
        "It/PRP/nsubj/4 was/VBD/cop/4 no/DT/det/4 other/JJ/ROOT/0 than/IN/case/6 Bob/NNP/obl/4 ././punct/4",
        "It/PRP/nsubj/2 was/VBD/ROOT/0 no/DT/det/4 other/JJ/acomp/2 than/IN/prep/4 Bob/NNP/pobj/5 ././punct/2",
    ),
    "shook": ("They shook it.", "They/PRP/nsubj/2 shook/VBP/ROOT/0 it/PRP/obj/2 ././punct/2", None),  # a tagger's error
}
LABELS = ("UD", "ClearNLP")


def sentence(name, labels="UD"):
    text, universal, clear = SENTENCES[name]
    parsed = parse(text, clear if labels == "ClearNLP" and clear else universal)
    return dataclasses.replace(parsed, lemmas=tuple(LEMMAS.get(lemma, lemma) for lemma in parsed.lemmas))


def outcomes(augmentation, name, labels="UD", **parameters):
    """Everything that 100 keys give."""
    parsed = sentence(name, labels)
    return {augmentation(parsed, Draws(key), **parameters) for key in range(100)}


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
        ("ain't", None),
        ("not only", None),
        ("no longer", "He is king."),
        ("any", "He does have some money."),
        ("yet", None),
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
        ("no other", None),
        ("shook", "They did not shake it."),
        ("opens with never", "“Give up!”"),
        ("had better", "He had better not go."),
        ("it cost", "It did not cost them."),
    ],
)
def test_negation(name, expected, labels):
    assert outcomes(neg, name, labels) == {expected}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("IT IS TRUE.", "IT/PRP/nsubj/3 IS/VBZ/cop/3 TRUE/JJ/root/0 ././punct/3", "IT IS NOT TRUE."),
        ("THEY CAN GO.", "THEY/PRP/nsubj/3 CAN/MD/aux/3 GO/VB/root/0 ././punct/3", "THEY CANNOT GO."),
        ("Can they go?", "Can/MD/aux/3 they/PRP/nsubj/3 go/VB/root/0 ?/./punct/3", "Can they not go?"),
        ("IS HE OLD?", "IS/VBZ/cop/3 HE/PRP/nsubj/3 OLD/JJ/root/0 ?/./punct/3", "IS HE NOT OLD?"),
        ("HE CAME AND SAW.", "HE/PRP/nsubj/2 CAME/VBD/root/0 AND/CC/cc/4 SAW/VBD/conj/2 ././punct/2", "HE DID NOT COME AND SEE."),
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
         "‘/``/punct/3 Tis/RB/advmod/3 true/JJ/root/0 of/IN/case/8 the/DT/det/6 dogs/NNS/nmod:poss/8 ’/POS/case/6 "
         "house/NN/obl/3 ././punct/3", "Not ‘tis true of the dogs’ house."),
        ("'Quite true.'", "'/``/punct/3 Quite/RB/advmod/3 true/JJ/root/0 ././punct/3 '/''/punct/3", "'Not quite true.'"),
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
        ("said", "“No,” John did not say."),
        ("came and saw", "he did not come and see Rome."),
        ("neither", "either he or she came."),
        ("no one", "someone came."),
        ("there", "there were some dogs."),
        ("any", "he does have some money."),
    ],
)
def test_double_negation(name, rest, labels):
    phrases = ("It is not true that", "It can't be that", "It is not the fact that", "Not that")
    assert outcomes(dn, name, labels) == {f"{phrase} {rest}" for phrase in phrases}


def test_the_phrase_stands_behind_a_conjunction_or_an_adverb_with_a_comma():
    assert "But it is not true that he did not leave." in outcomes(dn, "but")
    assert "However, it is not true that American trains did not arrive." in outcomes(dn, "adverb")
    assert "“Yes; but it is not true that he did not leave.”" in outcomes(dn, "enclosed")


@pytest.mark.parametrize("name", ["heading", "word", "imperative", "question", "ain't", "so be it"])
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
        (
            "came and saw",
            "must have come and seen|should have come and seen|ought to have come and seen|had to come and see"
            "|could not but come and see|could not help but come and see",
        ),
        (
            "said",
            "John must have said|John should have said|John ought to have said|John had to say|John could not but say"
            "|John could not help but say",
        ),
        ("has to", "must have to|should have to|cannot but have to|cannot help but have to"),
        (
            "there",
            "must have been|should have been|ought to have been|had to be|could not but be|could not help but be",
        ),
        ("no longer", "must be|should be|ought to be|has to be|cannot but be|cannot help but be"),
        ("it cost", "must have cost|should have cost|ought to have cost|had to cost|could not but cost|could not help but cost"),
        (
            "shook",
            "must have shaken|should have shaken|ought to have shaken|had to shake|could not but shake|could not help but shake",
        ),
    ],
)
def test_modal_verbs(name, expected, labels):
    text = SENTENCES[name][0]
    # what the modal verb and its form take the place of
    finite = {
        "travel": "travelled", "tall": "is not", "contraction": "aren't", "repeated": "ran", "passive": "was", "have": "has",
        "url": "works", "perfect": "'ve", "does not": "does not",
        "never": "has", "came and saw": "came and saw", "said": "said John", "has to": "has to", "there": "were",
        "no longer": "is", "shook": "shook", "it cost": "cost",
    }[name]  # fmt: skip
    assert outcomes(mv, name, labels) == {text.replace(finite, form, 1) for form in expected.split("|")}


@pytest.mark.parametrize(
    "name", ["heading", "word", "imperative", "question", "cannot", "can", "used to", "ain't", "so be it", "had better"]
)
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


@pytest.mark.parametrize(("conjoined", "negation", "object_", "head"), [("8", "advmod", "obj", 10), ("4", "neg", "dobj", 10)])
def test_two_negations_that_reach_one_word(conjoined, negation, object_, head):
    """The second "any" is of both clauses; each edit is made once."""
    parsed = parse(
        "He does not see and does not hear any dog.",
        f"He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/{negation}/4 see/VB/ROOT/0 and/CC/cc/{conjoined} does/VBZ/aux/8 "
        f"not/RB/{negation}/8 hear/VB/conj/4 any/DT/det/{head} dog/NN/{object_}/8 ././punct/4",
    )
    assert dn(parsed, Draws(0), variant="code") == "He does see and does hear some dog."
    assert neg(parsed, Draws(0)) == "He does see and does not hear any dog."


def test_edits_of_two_clauses_over_one_word_are_not_both_made():
    """The subject that a "not" is put behind has a clause with a "not" of its own; the prefix makes up for the second."""
    rows = (
        "“/``/punct/2 Yes/UH/ccomp/5 ,/,/punct/5 ”/''/punct/2 said/VBD/ROOT/0 men/NNS/nsubj/5 who/WP/nsubj/10 do/VBP/aux/10 "
        "n't/RB/{}/10 pay/VB/{}/6 ././punct/5"
    )
    for negation, clause in (("advmod", "acl:relcl"), ("neg", "relcl")):
        parsed = parse("“Yes,” said men who don't pay.", rows.format(negation, clause))
        found = {dn(parsed, Draws(key), variant="code") for key in range(100)}
        assert len(found) > 5 and all(text.endswith(" “Yes,” said men who do pay.") for text in found)


@pytest.mark.parametrize("relations", [("nsubj", "obj"), ("nsubj", "dobj")])
def test_a_title_says_nothing(relations):
    subject, object_ = relations
    parsed = parse(
        "The film “Up” won prizes.",
        f"The/DT/det/2 film/NN/compound/4 “/``/punct/4 Up/NNP/{subject}/6 ”/''/punct/4 won/VBD/ROOT/0 prizes/NNS/{object_}/6 "
        "././punct/6",
    )
    assert neg(parsed, Draws(0)) == "The film “Up” did not win prizes."


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
