"""Rules that move phrases, on parses written by hand in both label sets (UD: nsubj, obj, cop; ClearNLP: dobj,
pobj, attr)."""

import pytest
from parse_builder import outcomes, parse

from augment.rules.phrases import sentence_reordering, subject_object_switch, yoda


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("She saw the birds.", "She/PRP/nsubj/2 saw/VBD/root/0 the/DT/det/4 birds/NNS/obj/2 ././punct/2",
         "The birds saw her."),
        ("She saw the birds.", "She/PRP/nsubj/2 saw/VBD/ROOT/0 the/DT/det/4 birds/NNS/dobj/2 ././punct/2",
         "The birds saw her."),
        ("The dog is in Paris, the dog's city.",
         "The/DT/det/2 dog/NN/nsubj/5 is/VBZ/cop/5 in/IN/case/5 Paris/NNP/root/0 ,/,/punct/10 the/DT/det/8 "
         "dog/NN/nmod:poss/10 's/POS/case/8 city/NN/appos/5 ././punct/5", None),
        ("The dog lives in Paris.",
         "The/DT/det/2 dog/NN/nsubj/3 lives/VBZ/root/0 in/IN/case/5 Paris/NNP/obl/3 ././punct/3",
         "Paris lives in the dog."),
        ("The dogs live in Paris.",
         "The/DT/det/2 dogs/NNS/nsubj/3 live/VBP/ROOT/0 in/IN/prep/3 Paris/NNP/pobj/4 ././punct/3",
         "Paris lives in the dogs."),
        ("He was seen by them.",
         "He/PRP/nsubjpass/3 was/VBD/auxpass/3 seen/VBN/ROOT/0 by/IN/agent/3 them/PRP/pobj/4 ././punct/3",
         "They were seen by him."),
        ("Then I met a friend, who ran.",
         "Then/RB/advmod/3 I/PRP/nsubj/3 met/VBD/root/0 a/DT/det/5 friend/NN/obj/3 ,/,/punct/8 "
         "who/WP/nsubj/8 ran/VBD/acl:relcl/5 ././punct/3", "Then a friend, who ran, met me."),
        ("“Zoë ate apples”", "“/``/punct/3 Zoë/NNP/nsubj/3 ate/VBD/root/0 apples/NNS/obj/3 ”/''/punct/3",
         "“Apples ate Zoë”"),
        ("We've seen dogs.", "We/PRP/nsubj/3 've/VBP/aux/3 seen/VBN/root/0 dogs/NNS/obj/3 ././punct/3",
         "Dogs have seen us."),
        ("Ann and I saw him.",
         "Ann/NNP/nsubj/4 and/CC/cc/3 I/PRP/conj/1 saw/VBD/root/0 him/PRP/obj/4 ././punct/4", None),
        ("He hurt himself.", "He/PRP/nsubj/2 hurt/VBD/root/0 himself/PRP/obj/2 ././punct/2", None),
        ("He sees dogs and runs.",
         "He/PRP/nsubj/2 sees/VBZ/root/0 dogs/NNS/obj/2 and/CC/cc/5 runs/VBZ/conj/2 ././punct/2",
         "Dogs see him and run."),
        ("He sees dogs and runs.",
         "He/PRP/nsubj/2 sees/VBZ/ROOT/0 dogs/NNS/dobj/2 and/CC/cc/2 runs/VBZ/conj/2 ././punct/2",
         "Dogs see him and run."),
        ("He has very old cars.",
         "He/PRP/nsubj/2 has/VBZ/root/0 very/RB/advmod/4 old/JJ/amod/5 cars/NNS/obj/2 ././punct/2",
         "Very old cars have him."),
        ("He saw only dogs.", "He/PRP/nsubj/2 saw/VBD/root/0 only/RB/advmod/4 dogs/NNS/obj/2 ././punct/2",
         "Dogs saw only him."),
        ("He slept; in Rome too.",
         "He/PRP/nsubj/2 slept/VBD/root/0 ;/:/punct/5 in/IN/case/5 Rome/NNP/obl/2 too/RB/advmod/5 "
         "././punct/2", None),
        ("When a dog saw him.",
         "When/WRB/advmod/3 a/DT/det/3 dog/NN/nsubj/4 saw/VBD/root/0 him/PRP/obj/4 ././punct/4", None),
        ("It ate Cr3+.", "It/PRP/nsubj/2 ate/VBD/root/0 Cr3/NN/obj/2 +/:/punct/2 ././punct/2", None),
        ("dogs see dogs", "dogs/NNS/nsubj/2 see/VBP/root/0 dogs/NNS/obj/2", None),
        ("What a day!", "What/WDT/det:predet/3 a/DT/det/3 day/NN/root/0 !/./punct/3", None),
        ("See http://a.com/b", "See/VB/root/0 http://a.com/b/NN/obj/1", None),
        ("Go", "Go/VB/root/0", None),
    ],
)  # fmt: skip
def test_subject_object_switch(text, annotation, expected):
    assert outcomes(subject_object_switch, parse(text, annotation), 3) == {expected}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("You still have much to learn.",
         "You/PRP/nsubj/3 still/RB/advmod/3 have/VBP/root/0 much/JJ/obj/3 to/TO/mark/6 learn/VB/acl/4 "
         "././punct/3", "Much to learn, you still have."),
        ("She is not tall.", "She/PRP/nsubj/4 is/VBZ/cop/4 not/RB/advmod/4 tall/JJ/root/0 ././punct/4",
         "Tall, she is not."),
        ("She isn't tall.", "She/PRP/nsubj/2 is/VBZ/ROOT/0 n't/RB/neg/2 tall/JJ/acomp/2 ././punct/2",
         "Tall, she isn't."),
        ("In 1990, Zoë gave up, and he had a “dog”.",
         "In/IN/case/2 1990/CD/obl/5 ,/,/punct/5 Zoë/NNP/nsubj/5 gave/VBD/root/0 up/RP/compound:prt/5 "
         ",/,/punct/10 and/CC/cc/10 he/PRP/nsubj/10 had/VBD/conj/5 a/DT/det/13 “/``/punct/13 dog/NN/obj/10 "
         "”/''/punct/13 ././punct/5", "In 1990, Zoë gave up, and a “dog”, he had."),
        ("She ran and fell here.", "She/PRP/nsubj/2 ran/VBD/ROOT/0 and/CC/cc/2 fell/VBD/conj/2 "
                                   "here/RB/advmod/4 ././punct/2",
         None),  # what is coordinated stays behind its subject
        ("She saw it and fell here.",
         "She/PRP/nsubj/2 saw/VBD/ROOT/0 it/PRP/dobj/2 and/CC/cc/2 fell/VBD/conj/2 here/RB/advmod/5 "
         "././punct/2", "It, she saw, and fell here."),
        ("She saw it and he fell here.",
         "She/PRP/nsubj/2 saw/VBD/root/0 it/PRP/obj/2 and/CC/cc/6 he/PRP/nsubj/6 fell/VBD/conj/2 "
         "here/RB/advmod/6 ././punct/2", "It, she saw, and here, he fell."),
        ("We've been here.", "We/PRP/nsubj/4 've/VBP/aux/4 been/VBN/cop/4 here/RB/root/0 ././punct/4",
         "Been here, we have."),
        ("Then he left town.", "Then/RB/advmod/3 he/PRP/nsubj/3 left/VBD/root/0 town/NN/obj/3 ././punct/3",
         "Then, town, he left."),
        ("He ran. The dog ate it.",
         "He/PRP/nsubj/2 ran/VBD/root/0 ././punct/2 The/DT/det/5 dog/NN/nsubj/6 ate/VBD/root/0 it/PRP/obj/6 "
         "././punct/6", "He ran. It, the dog ate."),
        ("Common men saw it.", "Common/JJ/amod/2 men/NNS/nsubj/3 saw/VBD/ROOT/0 it/PRP/dobj/3 ././punct/3",
         "It, common men saw."),
        ("I can swim well.", "I/PRP/nsubj/3 can/MD/aux/3 swim/VB/root/0 well/RB/advmod/3 ././punct/3",
         "Swim well, I can."),
        ("“Is he here?”", "“/``/punct/4 Is/VBZ/cop/4 he/PRP/nsubj/4 here/RB/root/0 ?/./punct/4 ”/''/punct/4",
         None),
        ("He \"came to\" Rome.",
         "He/PRP/nsubj/3 \"/``/punct/3 came/VBD/root/0 to/IN/case/6 \"/''/punct/6 Rome/NNP/obl/3 ././punct/3",
         None),
        ("I wanna go.", "I/PRP/nsubj/2 wan/VBP/root/0 na/TO/mark/4 go/VB/xcomp/2 ././punct/2", None),
        ("A day", "A/DT/det/2 day/NN/root/0", None),
        ("He ran.", "He/PRP/nsubj/2 ran/VBD/root/0 ././punct/2", None),
        ("http://a.com/b", "http://a.com/b/NN/root/0", None),
        ("We saw it - call me.",
         "We/PRP/nsubj/2 saw/VBD/root/0 it/PRP/obj/2 -/,/punct/5 call/VB/parataxis/2 me/PRP/obj/5 "
         "././punct/2", "It, we saw - call me."),
        ("Ounces measure weight, pints measure volume.",
         "Ounces/NNS/nsubj/2 measure/VBP/root/0 weight/NN/obj/2 ,/,/punct/6 pints/NNS/nsubj/6 "
         "measure/VBP/parataxis/2 volume/NN/obj/6 ././punct/2",
         "Weight, ounces measure, pints measure volume."),
        # what follows begins with the comma that stands behind the verb
        ("They saw poverty and who fell home.",
         "They/PRP/nsubj/2 saw/VBD/root/0 poverty/NN/obj/2 and/CC/nsubj/6 who/WP/dep/4 fell/VBD/conj/2 "
         "home/NN/obj/6 ././punct/2", "Poverty, they saw, home, and who fell."),
        ("There is one so I left.",
         "There/EX/expl/2 is/VBZ/root/0 one/CD/nsubj/2 so/RB/mark/6 I/PRP/nsubj/6 left/VBD/advcl/2 "
         "././punct/2", "One, there is, so I left."),
        ("Very dear and it was good.",
         "Very/RB/advmod/2 dear/JJ/root/0 and/CC/cc/6 it/PRP/nsubj/6 was/VBD/cop/6 good/JJ/conj/2 "
         "././punct/2",
         None),
    ],
)  # fmt: skip
def test_yoda(text, annotation, expected):
    assert outcomes(yoda, parse(text, annotation), 3) == {expected}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("It rained. He slept.",
         "It/PRP/nsubj/2 rained/VBD/root/0 ././punct/2 He/PRP/nsubj/5 slept/VBD/root/0 ././punct/5",
         {"He slept. It rained."}),
        ("“A!” Zoë? C.",
         "“/``/punct/2 A/NN/ROOT/0 !/./punct/2 ”/''/punct/2 Zoë/NNP/ROOT/0 ?/./punct/5 C/NN/ROOT/0 "
         "././punct/7", {"“A!” C. Zoë?", "Zoë? “A!” C.", "Zoë? C. “A!”", "C. “A!” Zoë?", "C. Zoë? “A!”"}),
        ("It rained.  (“No.” He  slept.) ",
         "It/PRP/nsubj/2 rained/VBD/ROOT/0 ././punct/2 (/-LRB-/punct/8 “/``/punct/8 No/UH/dep/8 ././punct/8 "
         "”/''/punct/8 "
         "He/PRP/nsubj/10 slept/VBD/ROOT/0 ././punct/10 )/-RRB-/punct/10", {"(“No.” He  slept.)  It "
                                                                            "rained. "}),
        # The parser's boundaries that are none: behind abbreviations and initials, before numbers and small
        # letters.
        ("He ran No. 132. It is c. 10 000 years.",
         "He/PRP/nsubj/2 ran/VBD/root/0 No/NN/obj/2 ././punct/2 132/CD/ROOT/0 ././punct/5 It/PRP/nsubj/8 "
         "is/VBZ/ROOT/0 c/NN/root/0 ././punct/9 10/CD/nummod/13 000/CD/nummod/13 years/NNS/ROOT/0 "
         "././punct/13", {"It is c. 10 000 years. He ran No. 132."}),
        ("He saw dogs, etc.', 5,336.",
         "He/PRP/nsubj/2 saw/VBD/root/0 dogs/NNS/obj/2 ,/,/punct/2 etc/FW/conj/3 ././punct/2 '/''/punct/2 "
         ",/,/punct/2 5,336/CD/ROOT/0 ././punct/9", {None}),
        ("He met Dr. Lee. J. Roe of the U.S. Army (cf. Smith) fell.",
         "He/PRP/nsubj/2 met/VBD/ROOT/0 Dr./NNP/obj/2 Lee/NNP/ROOT/0 ././punct/4 J./NNP/ROOT/0 "
         "Roe/NNP/ROOT/0 of/IN/case/11 the/DT/det/11 U.S./NNP/compound/11 Army/NNP/ROOT/0 (/-LRB-/punct/14 "
         "cf./FW/dep/14 Smith/NNP/root/0 )/-RRB-/punct/14 fell/VBD/root/0 ././punct/16",
         {"J. Roe of the U.S. Army (cf. Smith) fell. He met Dr. Lee."}),
        ("It fell.he slept.",
         "It/PRP/nsubj/2 fell/VBD/root/0 ././punct/2 he/PRP/nsubj/5 slept/VBD/root/0 ././punct/5", {None}),
        ("It is 5 p.m. so. He said no. Go.",
         "It/PRP/nsubj/4 is/VBZ/cop/4 5/CD/nummod/4 p.m./NN/root/0 so/RB/ROOT/0 ././punct/5 He/PRP/nsubj/8 "
         "said/VBD/root/0 no/UH/obj/8 ././punct/8 Go/VB/dep/8 ././punct/8",
         {"He said no. Go. It is 5 p.m. so."}),
        ("'It is. He's up.'",
         "'/``/punct/3 It/PRP/nsubj/3 is/VBZ/root/0 ././punct/3 He/PRP/nsubj/7 's/VBZ/cop/7 up/RB/root/0 "
         "././punct/7 '/''/punct/7", {None}),
        ("'It's.' He's up.",
         "'/``/punct/3 It/PRP/nsubj/3 's/VBZ/root/0 ././punct/3 '/''/punct/3 He/PRP/nsubj/8 's/VBZ/cop/8 "
         "up/RB/root/0 ././punct/8", {"He's up. 'It's.'"}),
        ("It was I. He slept.",
         "It/PRP/nsubj/3 was/VBD/cop/3 I/PRP/root/0 ././punct/3 He/PRP/nsubj/6 slept/VBD/root/0 ././punct/6",
         {"He slept. It was I."}),
        ("Yes. Yes.", "Yes/UH/root/0 ././punct/1 Yes/UH/root/0 ././punct/3", {None}),
        ("It rained; he slept.",
         "It/PRP/nsubj/2 rained/VBD/root/0 ;/:/punct/2 he/PRP/nsubj/5 slept/VBD/root/0 ././punct/5", {None}),
        ("“No. Go.”", "“/``/punct/2 No/UH/root/0 ././punct/2 Go/VB/root/0 ././punct/4 ”/''/punct/4", {None}),
        ("See http://a.com. Go", "See/VB/root/0 http://a.com/NN/obj/1 ././punct/1 Go/VB/root/0", {None}),
        ("Go", "Go/VB/root/0", {None}),
    ],
)  # fmt: skip
def test_sentence_reordering(text, annotation, expected):
    assert outcomes(sentence_reordering, parse(text, annotation), 200) == expected
