"""Contractions, negations and discourse markers, on parses written by hand in both label sets."""

import pytest
from parse_builder import draws, outcomes, parse

from augment.rules.contractions import auxiliary_negation_removal, contractions
from augment.rules.discourse import discourse_markers


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("I'm sure he doesn't know.",
         "I/PRP/nsubj/3 'm/VBP/cop/3 sure/JJ/root/0 he/PRP/nsubj/7 does/VBZ/aux/7 n't/RB/advmod/7 "
         "know/VB/ccomp/3 ././punct/3", "I am sure he does not know."),
        ("It's been cold, it's late.",
         "It/PRP/nsubj/4 's/VBZ/aux/4 been/VBN/cop/4 cold/JJ/root/0 ,/,/punct/4 it/PRP/nsubj/8 's/VBZ/cop/8 "
         "late/JJ/parataxis/4 ././punct/4", "It has been cold, it is late."),
        ("It's done harm.", "It/PRP/nsubj/3 's/VBZ/aux/3 done/VBN/root/0 harm/NN/obj/3 ././punct/3",
         "It has done harm."),
        ("It's done now.",
         "It/PRP/nsubj:pass/3 's/VBZ/aux:pass/3 done/VBN/root/0 now/RB/advmod/3 ././punct/3",
         "It is done now."),
        ("It's done now.", "It/PRP/nsubjpass/3 's/VBZ/auxpass/3 done/VBN/ROOT/0 now/RB/advmod/3 ././punct/3",
         "It is done now."),
        ("I'd gone; he'd go.",
         "I/PRP/nsubj/3 'd/VBD/aux/3 gone/VBN/ROOT/0 ;/:/punct/3 he/PRP/nsubj/7 'd/MD/aux/7 go/VB/conj/3 "
         "././punct/3", "I had gone; he would go."),
        ("You'd better go.", "You/PRP/nsubj/4 'd/MD/aux/4 better/RB/advmod/4 go/VB/ROOT/0 ././punct/4",
         "You had better go."),
        ("Don't you know John's café?",
         "Do/VBP/aux/4 n't/RB/neg/4 you/PRP/nsubj/4 know/VB/ROOT/0 John/NNP/poss/7 's/POS/case/5 "
         "café/NN/dobj/4 ?/./punct/4", "Do you not know John's café?"),
        ("He can't and won't.",
         "He/PRP/nsubj/2 ca/MD/root/0 n't/RB/advmod/2 and/CC/cc/5 wo/MD/conj/2 n't/RB/advmod/5 ././punct/2",
         "He cannot and will not."),
        ("Isn't the man here?",
         "Is/VBZ/cop/5 n't/RB/advmod/5 the/DT/det/4 man/NN/nsubj/5 here/RB/root/0 ?/./punct/5",
         "Is the man not here?"),
        ("“Let’s go”", "“/``/punct/4 Let/VB/ROOT/0 ’s/PRP/nsubj/4 go/VB/ccomp/2 ”/''/punct/2", "“Let us go”"),
        ("He is not here; he is not there.",
         "He/PRP/nsubj/4 is/VBZ/cop/4 not/RB/advmod/4 here/RB/root/0 ;/:/punct/4 he/PRP/nsubj/9 "
         "is/VBZ/cop/9 not/RB/advmod/9 there/RB/parataxis/4 ././punct/4", "He's not here; he's not there."),
        ("Dogs do not bark.", "Dogs/NNS/nsubj/4 do/VBP/aux/4 not/RB/neg/4 bark/VB/ROOT/0 ././punct/4",
         "Dogs don't bark."),
        ("They have gone.", "They/PRP/nsubj/3 have/VBP/aux/3 gone/VBN/ROOT/0 ././punct/3", "They've gone."),
        ("What is it?", "What/WP/root/0 is/VBZ/cop/1 it/PRP/nsubj/1 ?/./punct/1", None),
        ("They have dogs.", "They/PRP/nsubj/2 have/VBP/ROOT/0 dogs/NNS/dobj/2 ././punct/2", None),
        ("Yes, it is.", "Yes/UH/discourse/4 ,/,/punct/4 it/PRP/nsubj/4 is/VBZ/root/0 ././punct/4", None),
        ("http://x.com/don", "http://x.com/don/NN/root/0", None),
        ("Cats", "Cats/NNS/root/0", None),
    ],
)  # fmt: skip
def test_contractions(text, annotation, expected):
    assert contractions(parse(text, annotation), draws()) == expected


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("He does not live here and can't swim.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/neg/4 live/VB/ROOT/0 here/RB/advmod/4 and/CC/cc/4 "
         "ca/MD/aux/9 n't/RB/neg/9 swim/VB/conj/4 ././punct/4", "He lives here and can swim."),
        ("She didn't go. It is not not so.",
         "She/PRP/nsubj/4 did/VBD/aux/4 n't/RB/advmod/4 go/VB/root/0 ././punct/4 It/PRP/nsubj/10 "
         "is/VBZ/cop/10 not/RB/advmod/10 not/RB/advmod/10 so/RB/root/0 ././punct/10",
         "She went. It is not so."),
        ("Do not always run.", "Do/VB/aux/4 not/RB/neg/4 always/RB/advmod/4 run/VB/ROOT/0 ././punct/4",
         "Always run."),
        ("Don’t they won’t?",
         "Do/VBP/aux/4 n’t/RB/neg/4 they/PRP/nsubj/4 wo/MD/root/0 n’t/RB/neg/4 ?/./punct/4", "Do they will?"),
        ("It cannot be.", "It/PRP/nsubj/4 can/MD/aux/4 not/RB/advmod/4 be/VB/root/0 ././punct/4",
         "It can be."),
        ("“He was not Zoë,” she said",
         "“/``/punct/8 He/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 Zoë/NNP/ccomp/8 ,”/,/punct/8 "
         "she/PRP/nsubj/8 said/VBD/root/0", "“He was Zoë,” she said"),
        ("He is not only tall but also old.",
         "He/PRP/nsubj/5 is/VBZ/cop/5 not/RB/advmod/5 only/RB/advmod/5 tall/JJ/root/0 but/CC/cc/8 "
         "also/RB/advmod/8 old/JJ/conj/5 ././punct/5", None),
        ("It may or may not rain.",
         "It/PRP/nsubj/6 may/MD/aux/6 or/CC/cc/4 may/MD/conj/2 not/RB/advmod/6 rain/VB/root/0 ././punct/6",
         None),
        ("He isn't here yet.",
         "He/PRP/nsubj/4 is/VBZ/cop/4 n't/RB/advmod/4 here/RB/root/0 yet/RB/advmod/4 ././punct/4", None),
        ("He has not yet come.",
         "He/PRP/nsubj/5 has/VBZ/aux/5 not/RB/advmod/5 yet/RB/advmod/5 come/VBN/root/0 ././punct/5", None),
        ("I didn't see anyone.",
         "I/PRP/nsubj/4 did/VBD/aux/4 n't/RB/neg/4 see/VB/ROOT/0 anyone/NN/dobj/4 ././punct/4",
         "I saw someone."),
        ("He didn't eat or drink.",
         "He/PRP/nsubj/4 did/VBD/aux/4 n't/RB/advmod/4 eat/VB/root/0 or/CC/cc/6 drink/VB/conj/4 ././punct/4",
         "He ate or drank."),
        ("He doesn't eat or drink.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 n't/RB/neg/4 eat/VB/ROOT/0 or/CC/cc/4 drink/VB/conj/4 ././punct/4",
         "He eats or drinks."),
        ("He won't come till five.",
         "He/PRP/nsubj/4 wo/MD/aux/4 n't/RB/advmod/4 come/VB/root/0 till/IN/case/6 five/CD/obl/4 ././punct/4",
         None),
        ("I could not but laugh.",
         "I/PRP/nsubj/5 could/MD/aux/5 not/RB/advmod/5 but/CC/cc/5 laugh/VB/root/0 ././punct/5", None),
        ("He doesn't smoke, nor do I.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 n't/RB/advmod/4 smoke/VB/root/0 ,/,/punct/7 nor/CC/cc/7 "
         "do/VBP/conj/4 I/PRP/nsubj/7 ././punct/4", None),
        # "Any" is made "some" once, by the negation that it stands behind; without that one going it stays.
        ("He does not see and does not hear any dog.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/advmod/4 see/VB/root/0 and/CC/cc/8 does/VBZ/aux/8 "
         "not/RB/advmod/8 hear/VB/conj/4 any/DT/det/10 dog/NN/obj/8 ././punct/4",
         "He sees and hears some dog."),
        ("He does not see and doesn't hear any dog.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/neg/4 see/VB/ROOT/0 and/CC/cc/4 does/VBZ/aux/8 n't/RB/neg/8 "
         "hear/VB/conj/4 any/DT/det/10 dog/NN/dobj/8 ././punct/4", "He sees and hears some dog."),
        ("He did not go without any dog.",
         "He/PRP/nsubj/4 did/VBD/aux/4 not/RB/neg/4 go/VB/ROOT/0 without/IN/prep/4 any/DT/det/7 "
         "dog/NN/pobj/5 ././punct/4", "He went without any dog."),
        # The verb of one "do" is the other.
        ("They do not do not go.",
         "They/PRP/nsubj/6 do/VBP/aux/6 not/RB/advmod/6 do/VBP/aux/6 not/RB/advmod/6 go/VB/root/0 "
         "././punct/6", "They do not go."),
        # A coordinated base form that has no other form.
        ("He did not eat or ½.",
         "He/PRP/nsubj/4 did/VBD/aux/4 not/RB/advmod/4 eat/VB/root/0 or/CC/cc/6 ½/VB/conj/4 ././punct/4",
         None),
        # What is the past of another verb is a base form here.
        ("It did not bore me.",
         "It/PRP/nsubj/4 did/VBD/aux/4 not/RB/advmod/4 bore/VB/root/0 me/PRP/obj/4 ././punct/4",
         "It bored me."),
        ("He did not wound it or ground it.",
         "He/PRP/nsubj/4 did/VBD/aux/4 not/RB/advmod/4 wound/VB/root/0 it/PRP/obj/4 or/CC/cc/7 "
         "ground/VB/conj/4 it/PRP/obj/7 ././punct/4", "He wounded it or grounded it."),
        ("They do not rent it.",
         "They/PRP/nsubj/4 do/VBP/aux/4 not/RB/advmod/4 rent/VB/root/0 it/PRP/obj/4 ././punct/4",
         "They rent it."),
        ("He does not also really quite know.",  # the verb is looked for within four words
         "He/PRP/nsubj/7 does/VBZ/aux/7 not/RB/advmod/7 also/RB/advmod/7 really/RB/advmod/7 "
         "quite/RB/advmod/7 know/VB/root/0 ././punct/7", "He also really quite knows."),
        ("Not Bob", "Not/RB/advmod/2 Bob/NNP/root/0", None),
        ("knot http://not.com", "knot/NN/root/0 http://not.com/NN/dep/1", None),
        ("Go", "Go/VB/root/0", None),
    ],
)  # fmt: skip
def test_auxiliary_negation_removal(text, annotation, expected):
    assert auxiliary_negation_removal(parse(text, annotation), draws()) == expected


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("He left because it was late.",
         "He/PRP/nsubj/2 left/VBD/root/0 because/IN/mark/6 it/PRP/nsubj/6 was/VBD/cop/6 late/JJ/advcl/2 "
         "././punct/2", {"He left since it was late.", "He left as it was late."}),
        ("He left because it was late.",
         "He/PRP/nsubj/2 left/VBD/ROOT/0 because/IN/mark/5 it/PRP/nsubj/5 was/VBD/advcl/2 late/JJ/acomp/5 "
         "././punct/2", {"He left since it was late.", "He left as it was late."}),
        ("As a result, he fell.",
         "As/IN/case/3 a/DT/det/3 result/NN/obl/6 ,/,/punct/6 he/PRP/nsubj/6 fell/VBD/root/0 ././punct/6",
         {f"{new}, he fell." for new in ("Accordingly", "Consequently", "Hence", "Therefore", "Thus",
         "For this reason")}),
        ("She also won.", "She/PRP/nsubj/3 also/RB/advmod/3 won/VBD/ROOT/0 ././punct/3",
         {"She additionally won.", "She likewise won."}),
        ("Café, for example", "Café/NN/root/0 ,/,/punct/1 for/IN/case/4 example/NN/nmod/1",
        {"Café, for instance"}),
        # "example of" and "example to" are no marker
        ("He was for example of it.",
         "He/PRP/nsubj/4 was/VBD/cop/4 for/IN/case/4 example/NN/root/0 of/IN/case/6 it/PRP/nmod/4 "
         "././punct/4", {None}),
        ("He ran for example to me, a cat.",
         "He/PRP/nsubj/2 ran/VBD/root/0 for/IN/case/4 example/NN/obl/2 to/IN/case/6 me/PRP/obl/2 ,/,/punct/8 "
         "a/DT/det/8 cat/NN/conj/6 ././punct/2", {None}),
        ("He ran, but she sat.",
         "He/PRP/nsubj/2 ran/VBD/root/0 ,/,/punct/6 but/CC/cc/6 she/PRP/nsubj/6 sat/VBD/conj/2 ././punct/2",
         {"He ran, yet she sat."}),
        ("“But,” he said sincerely since July, as a result of it.",
         "“/``/punct/5 But/CC/ccomp/5 ,”/,/punct/5 he/PRP/nsubj/5 said/VBD/root/0 sincerely/RB/advmod/5 "
         "since/IN/case/8 July/NNP/obl/5 ,/,/punct/5 as/IN/case/12 a/DT/det/12 result/NN/obl/5 "
         "of/IN/case/14 it/PRP/nmod/12 ././punct/5", {None}),
        ("I've lived here since I was born.",
         "I/PRP/nsubj/3 've/VBP/aux/3 lived/VBN/root/0 here/RB/advmod/3 since/IN/mark/8 I/PRP/nsubj/8 "
         "was/VBD/aux:pass/8 born/VBN/advcl/3 ././punct/3", {None}),
        ("two years later moved http://also.com",
         "two/CD/nummod/2 years/NNS/obl/4 later/RB/advmod/4 moved/VBD/root/0 http://also.com/NN/obj/4",
         {None}),
        ("His later works.", "His/PRP$/nmod:poss/3 later/RB/advmod/3 works/VBZ/root/0 ././punct/3", {None}),
        ("Also", "Also/RB/root/0", {None}),
        # a correction is no contrast
        ("It was no fancy, but a duty.",
         "It/PRP/nsubj/4 was/VBD/cop/4 no/DT/det/4 fancy/NN/root/0 ,/,/punct/8 but/CC/cc/8 a/DT/det/8 "
         "duty/NN/conj/4 ././punct/4", {None}),
        ("He was here, then, in May.",
         "He/PRP/nsubj/3 was/VBD/cop/3 here/RB/root/0 ,/,/punct/3 then/RB/advmod/3 ,/,/punct/3 in/IN/case/8 "
         "May/NNP/obl/3 ././punct/3", {None}),
        ("He slept, while she was reading.",
         "He/PRP/nsubj/2 slept/VBD/root/0 ,/,/punct/7 while/IN/mark/7 she/PRP/nsubj/7 was/VBD/aux/7 "
         "reading/VBG/advcl/2 ././punct/2", {None}),
        ("If he ran, she then fell.",
         "If/IN/mark/3 he/PRP/nsubj/3 ran/VBD/advcl/7 ,/,/punct/7 she/PRP/nsubj/7 then/RB/advmod/7 "
         "fell/VBD/root/0 ././punct/7", {None}),
        ("It was because he ran.",
         "It/PRP/nsubj/5 was/VBD/cop/5 because/IN/mark/5 he/PRP/nsubj/5 ran/VBD/root/0 ././punct/5", {None}),
        ("However, he ran.", "However/RB/advmod/4 ,/,/punct/4 he/PRP/nsubj/4 ran/VBD/root/0 ././punct/4",
         {"Nevertheless, he ran.", "Nonetheless, he ran."}),
    ],
)  # fmt: skip
def test_discourse_markers(text, annotation, expected):
    assert outcomes(discourse_markers, parse(text, annotation)) == expected


def test_one_of_several_markers():
    sentence = parse("She also won because he also ran.",
                     "She/PRP/nsubj/3 also/RB/advmod/3 won/VBD/root/0 because/IN/mark/7 he/PRP/nsubj/7 "
                     "also/RB/advmod/7 ran/VBD/advcl/3 ././punct/3")  # fmt: skip
    found = outcomes(discourse_markers, sentence, 100)
    assert len(found) == 2 + 2 + 2 and "She also won because he likewise ran." in found
