"""Sentences in another tense, on parses written by hand in both label sets."""

import pytest
from parse_builder import outcomes, parse

from augment.rules.clause_forms import finite_form
from augment.rules.tense import tense


@pytest.mark.parametrize(
    ("text", "annotation", "to", "expected"),
    [
        ("She does not know where he lives.",
         "She/PRP/nsubj/4 does/VBZ/aux/4 not/RB/advmod/4 know/VB/root/0 where/WRB/advmod/7 he/PRP/nsubj/7 "
         "lives/VBZ/ccomp/4 ././punct/4", "past", "She did not know where he lived."),
        ("She does not know where he lives.",
         "She/PRP/nsubj/4 does/VBZ/aux/4 not/RB/neg/4 know/VB/ROOT/0 where/WRB/advmod/7 he/PRP/nsubj/7 "
         "lives/VBZ/ccomp/4 ././punct/4", "future", "She will not know where he will live."),
        ("They weren't tall and ran.",
         "They/PRP/nsubj/4 were/VBD/cop/4 n't/RB/advmod/4 tall/JJ/root/0 and/CC/cc/6 ran/VBD/conj/4 "
         "././punct/4", "present", "They aren't tall and run."),
        ("They weren't tall.", "They/PRP/nsubj/2 were/VBD/ROOT/0 n't/RB/neg/2 tall/JJ/acomp/2 ././punct/2",
         "future", "They won't be tall."),
        ("I'm not fond of it.",
         "I/PRP/nsubj/4 'm/VBP/cop/4 not/RB/advmod/4 fond/JJ/root/0 of/IN/case/6 it/PRP/obl/4 ././punct/4",
         "future", "I will not be fond of it."),
        ("He will go when she comes.",
         "He/PRP/nsubj/3 will/MD/aux/3 go/VB/root/0 when/WRB/advmod/6 she/PRP/nsubj/6 comes/VBZ/advcl/3 "
         "././punct/3", "past", "He went when she came."),
        ("He went when she came.",
         "He/PRP/nsubj/2 went/VBD/root/0 when/WRB/advmod/5 she/PRP/nsubj/5 came/VBD/advcl/2 ././punct/2",
         "future", "He will go when she comes."),
        ("I won't be here, I'll run.",
         "I/PRP/nsubj/5 wo/MD/aux/5 n't/RB/advmod/5 be/VB/cop/5 here/RB/root/0 ,/,/punct/9 I/PRP/nsubj/9 "
         "'ll/MD/aux/9 run/VB/parataxis/5 ././punct/5", "present", None),
        ("“Zoë has been seen”, he said.",
         "“/``/punct/5 Zoë/NNP/nsubj:pass/5 has/VBZ/aux/5 been/VBN/aux:pass/5 seen/VBN/ccomp/9 ”/''/punct/5 "
         ",/,/punct/9 he/PRP/nsubj/9 said/VBD/root/0 ././punct/9", "future",
         "“Zoë will have been seen”, he will say."),
        ("People also run; people can run.",
         "People/NNS/nsubj/3 also/RB/advmod/3 run/VBP/root/0 ;/:/punct/3 people/NNS/nsubj/7 can/MD/aux/7 "
         "run/VB/parataxis/3 ././punct/3", "past", "People also ran; people could run."),
        ("He would go; people can run.",  # past already
         "He/PRP/nsubj/3 would/MD/aux/3 go/VB/root/0 ;/:/punct/3 people/NNS/nsubj/7 can/MD/aux/7 "
         "run/VB/parataxis/3 ././punct/3", "past", None),
        ("There are dogs.", "There/EX/expl/2 are/VBP/ROOT/0 dogs/NNS/attr/2 ././punct/2", "past",
         "There were dogs."),
        ("We've been here.", "We/PRP/nsubj/4 've/VBP/aux/4 been/VBN/cop/4 here/RB/root/0 ././punct/4", "past",
         "We had been here."),
        ("We’ve been here.", "We/PRP/nsubj/4 ’ve/VBP/aux/4 been/VBN/cop/4 here/RB/root/0 ././punct/4", "past",
         "We had been here."),
        ("It's never late.", "It/PRP/nsubj/4 's/VBZ/cop/4 never/RB/advmod/4 late/JJ/root/0 ././punct/4",
         "future", "It will never be late."),
        ("Is he here?", "Is/VBZ/cop/3 he/PRP/nsubj/3 here/RB/root/0 ?/./punct/3", "future", None),
        ("He will come and see it.",
         "He/PRP/nsubj/3 will/MD/aux/3 come/VB/root/0 and/CC/cc/5 see/VB/conj/3 it/PRP/obj/5 ././punct/3",
         "past", "He came and saw it."),
        ("He will come and see it.",
         "He/PRP/nsubj/3 will/MD/aux/3 come/VB/ROOT/0 and/CC/cc/3 see/VB/conj/3 it/PRP/dobj/5 ././punct/3",
         "present", "He comes and sees it."),
        ("He and she had money.",
         "He/PRP/nsubj/4 and/CC/cc/3 she/PRP/conj/1 had/VBD/root/0 money/NN/obj/4 ././punct/4", "present",
         "He and she have money."),
        ("I and she were happy.",  # as the parser of EWT has it
         "I/PRP/nsubj/5 and/CC/cc/5 she/PRP/nsubj/5 were/VBD/cop/5 happy/JJ/root/0 ././punct/5", "present",
         "I and she are happy."),
        ("I loved you and he loved me.",
         "I/PRP/nsubj/2 loved/VBD/root/0 you/PRP/obj/2 and/CC/cc/6 he/PRP/nsubj/6 loved/VBD/conj/2 "
         "me/PRP/obj/6 ././punct/2", "present", "I love you and he loves me."),
        ("She was tried and sentenced.",
         "She/PRP/nsubj:pass/3 was/VBD/aux:pass/3 tried/VBN/root/0 and/CC/cc/5 sentenced/VBD/conj/3 "
         "././punct/3", "present", "She is tried and sentenced."),
        ("She was tried and slept.",
         "She/PRP/nsubjpass/3 was/VBD/auxpass/3 tried/VBN/ROOT/0 and/CC/cc/3 slept/VBD/conj/3 ././punct/3",
         "present", "She is tried and sleeps."),
        ("I wasn't here.", "I/PRP/nsubj/4 was/VBD/cop/4 n't/RB/advmod/4 here/RB/root/0 ././punct/4",
         "present", "I am not here."),
        ("He ran as if he were old.",
         "He/PRP/nsubj/2 ran/VBD/root/0 as/IN/mark/7 if/IN/mark/7 he/PRP/nsubj/7 were/VBD/cop/7 "
         "old/JJ/advcl/2 ././punct/2", "present", "He runs as if he is old."),
        ("It ran as if it were old.",
         "It/PRP/nsubj/2 ran/VBD/root/0 as/IN/mark/7 if/IN/mark/7 it/PRP/nsubj/7 were/VBD/cop/7 "
         "old/JJ/advcl/2 ././punct/2", "present", "It runs as if it is old."),
        ("He used to sing.", "He/PRP/nsubj/2 used/VBD/root/0 to/TO/mark/4 sing/VB/xcomp/2 ././punct/2",
         "present", None),
        ("He used to sing.", "He/PRP/nsubj/2 used/VBD/root/0 to/TO/mark/4 sing/VB/xcomp/2 ././punct/2",
         "future", None),
        ("He had better go.", "He/PRP/nsubj/2 had/VBD/root/0 better/RBR/advmod/4 go/VB/xcomp/2 ././punct/2",
         "future", None),
        ("He sang and used to dance.",
         "He/PRP/nsubj/2 sang/VBD/root/0 and/CC/cc/4 used/VBD/conj/2 to/TO/mark/6 dance/VB/xcomp/4 "
         "././punct/2", "present", None),
        ("He sang and had better go.",
         "He/PRP/nsubj/2 sang/VBD/root/0 and/CC/cc/4 had/VBD/conj/2 better/RBR/advmod/6 go/VB/xcomp/4 "
         "././punct/2", "future", None),
        ("He does better.", "He/PRP/nsubj/2 does/VBZ/root/0 better/RBR/advmod/2 ././punct/2", "past",
         "He did better."),
        ("He cannot sing.", "He/PRP/nsubj/4 can/MD/aux/4 not/RB/advmod/4 sing/VB/root/0 ././punct/4", "past",
         "He could not sing."),
        ("He ain't old.", "He/PRP/nsubj/4 ai/VBZ/cop/4 n't/RB/advmod/4 old/JJ/root/0 ././punct/4", "past",
        None),
        ("“No,” said John.",
         "“/``/punct/2 No/UH/ccomp/5 ,/,/punct/2 ”/''/punct/2 said/VBD/root/0 John/NNP/obj/5 ././punct/5",
         "future", None),
        ("“No,” said John.",
         "“/``/punct/2 No/UH/ccomp/5 ,/,/punct/2 ”/''/punct/2 said/VBD/ROOT/0 John/NNP/nsubj/5 ././punct/5",
         "present", "“No,” says John."),
        ("They are generally not covered.",
         "They/PRP/nsubj:pass/5 are/VBP/aux:pass/5 generally/RB/advmod/5 not/RB/advmod/5 covered/VBN/root/0 "
         "././punct/5", "future", "They will generally not be covered."),
        ("They are generally covered.",
         "They/PRP/nsubj:pass/4 are/VBP/aux:pass/4 generally/RB/advmod/4 covered/VBN/root/0 ././punct/4",
         "future", "They will generally be covered."),
        ("Thats late.", "That/PRP/nsubj/3 s/VBZ/cop/3 late/JJ/root/0 ././punct/3", "past", None),  # one word
        ("He left in 1955.", "He/PRP/nsubj/2 left/VBD/root/0 in/IN/case/4 1955/CD/obl/2 ././punct/2",
         "future", None),
        ("He left in 1955.", "He/PRP/nsubj/2 left/VBD/root/0 in/IN/case/4 1955/CD/obl/2 ././punct/2",
         "random", "He leaves in 1955."),
        ("He left in 2031.", "He/PRP/nsubj/2 left/VBD/root/0 in/IN/case/4 2031/CD/obl/2 ././punct/2",
         "future", None),
        ("He leaves in 2031.", "He/PRP/nsubj/2 leaves/VBZ/root/0 in/IN/case/4 2031/CD/obl/2 ././punct/2",
         "future", "He will leave in 2031."),
        ("He left in the 1990s.",
         "He/PRP/nsubj/2 left/VBD/root/0 in/IN/case/5 the/DT/det/5 1990s/NNS/obl/2 "
         "././punct/2", "future", None),
        ("He left last week.", "He/PRP/nsubj/2 left/VBD/root/0 last/JJ/amod/4 week/NN/obl:tmod/2 ././punct/2",
         "random", None),
        ("He leaves tomorrow.", "He/PRP/nsubj/2 leaves/VBZ/root/0 tomorrow/NN/obl:tmod/2 ././punct/2",
         "random", "He will leave tomorrow."),
        ("They will go.", "They/PRP/nsubj/3 will/MD/aux/3 go/VB/root/0 ././punct/3", "present", "They go."),
        ("He ran.", "He/PRP/nsubj/2 ran/VBD/root/0 ././punct/2", "past", None),
        ("A day", "A/DT/det/2 day/NN/root/0", "past", None),
        ("http://a.com", "http://a.com/NN/root/0", "past", None),
    ],
)  # fmt: skip
def test_tense(text, annotation, to, expected):
    assert outcomes(tense, parse(text, annotation), 3, to=to) == {expected}


def test_tense_draws_one_of_the_other_two():
    ran = "He/PRP/nsubj/2 ran/VBD/root/0 ././punct/2"
    assert outcomes(tense, parse("He ran.", ran)) == {"He runs.", "He will run."}
    assert outcomes(tense, parse("We ran.", ran.replace("He", "We"))) == {"We run.", "We will run."}


def test_finite_forms():
    assert [finite_form("be", "present", *who) for who in ((1, False), (2, True), (3, False), (3, True))] == [
        "am",
        "are",
        "is",
        "are",
    ]
    assert finite_form("be", "past", 1, False) == "was" and finite_form("have", "present", 3, False) == "has"
    assert finite_form("go", "past", 3, True) == "went" and finite_form("go", "present", 3, True) == "go"
