"""What SDA's negation, double negation and punctuation do to constructions that they got wrong on running
text, in UD's labels, and in ClearNLP's where these attach the words otherwise.
"""

import pytest
from parse_builder import outcomes, parse
from sda_sentences import SOUND

from augment.rules.contractions import auxiliary_negation_removal
from augment.sda.english import Clause, clause_of, is_assertion, is_infinitive
from augment.sda.entries import dn, mv, neg, pi


def denied(rest, before=""):
    phrases = [phrase[0].lower() + phrase[1:] if before else phrase for phrase in SOUND]
    return {f"{before}{phrase} {rest}" for phrase in phrases}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        # the form of "do" agrees with the verb
        ("They go home.", "They/PRP/nsubj/2 go/VBP/root/0 home/RB/advmod/2 ././punct/2",
         "They do not go home."),
        ("I go home.", "I/PRP/nsubj/2 go/VBP/ROOT/0 home/RB/advmod/2 ././punct/2", "I do not go home."),
        ("It goes home.", "It/PRP/nsubj/2 goes/VBZ/root/0 home/RB/advmod/2 ././punct/2",
         "It does not go home."),
        # "not until" and "not least" negate no clause
        ("He left, not least for her.",
         "He/PRP/nsubj/2 left/VBD/root/0 ,/,/punct/5 not/RB/advmod/2 least/JJS/advmod/2 for/IN/case/7 "
         "her/PRP/obl/2 ././punct/2", denied("he left, not least for her.")),
        ("It was not until May that he left.",
         "It/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 until/IN/case/5 May/NNP/root/0 that/IN/mark/8 "
         "he/PRP/nsubj/8 left/VBD/advcl/5 ././punct/5", denied("it was not until May that he left.")),
        # the "never" of another clause is not the main clause's
        ("He said that she never came.",
         "He/PRP/nsubj/2 said/VBD/root/0 that/IN/mark/6 she/PRP/nsubj/6 never/RB/advmod/6 came/VBD/ccomp/2 "
         "././punct/2", "He did not say that she never came."),
        ("He says that she knows nothing.",
         "He/PRP/nsubj/2 says/VBZ/root/0 that/IN/mark/5 she/PRP/nsubj/5 knows/VBZ/ccomp/2 nothing/NN/obj/5 "
         "././punct/2", "He does not say that she knows nothing."),
        # "any" stays in a question
        ("Don't you have any money?",
         "Do/VBP/aux/4 n't/RB/advmod/4 you/PRP/nsubj/4 have/VB/root/0 any/DT/det/6 money/NN/obj/4 "
         "?/./punct/4", "Do you have any money?"),
        # adverbs of manner and degree go behind the "not", those of the sentence stay
        ("He highly recommends it.",
         "He/PRP/nsubj/3 highly/RB/advmod/3 recommends/VBZ/root/0 it/PRP/obj/3 ././punct/3",
         "He does not highly recommend it."),
        ("He also runs.", "He/PRP/nsubj/3 also/RB/advmod/3 runs/VBZ/root/0 ././punct/3",
         "He also does not run."),
        ("He very often runs.",
         "He/PRP/nsubj/4 very/RB/advmod/3 often/RB/advmod/4 runs/VBZ/root/0 ././punct/4",
         "He very often does not run."),
        ("He very highly values it.",
         "He/PRP/nsubj/4 very/RB/advmod/3 highly/RB/advmod/4 values/VBZ/root/0 it/PRP/obj/4 ././punct/4",
         "He does not very highly value it."),
        ("HE FULLY KNOWS.", "HE/PRP/nsubj/3 FULLY/RB/advmod/3 KNOWS/VBZ/root/0 ././punct/3",
         "HE DOES NOT FULLY KNOW."),
        # "hardly" is a negation
        ("He hardly slept.", "He/PRP/nsubj/3 hardly/RB/advmod/3 slept/VBD/root/0 ././punct/3", "He slept."),
        # subjects that say how many
        ("All men came.", "All/DT/det/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3", "Not all men came."),
        ("Everyone came.", "Everyone/NN/nsubj/2 came/VBD/root/0 ././punct/2", "Not everyone came."),
        ("Some men came.", "Some/DT/det/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3", "No men came."),
        ("Some of us came.", "Some/DT/nsubj/4 of/IN/case/3 us/PRP/nmod/1 came/VBD/root/0 ././punct/4",
         "None of us came."),
        ("Some 30 men came.", "Some/RB/advmod/2 30/CD/nummod/3 men/NNS/nsubj/4 came/VBD/root/0 ././punct/4",
         "Some 30 men did not come."),
        ("Few men came.", "Few/JJ/amod/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3",
        denied("few men came.")),
        ("The man with all keys came.",
         "The/DT/det/2 man/NN/nsubj/6 with/IN/case/5 all/DT/det/5 keys/NNS/nmod/2 came/VBD/root/0 "
         "././punct/6", "The man with all keys did not come."),
        ("Only men came.", "Only/RB/advmod/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3",
        denied("only men came.")),
        ("Not all men came.", "Not/RB/advmod/2 all/DT/det/3 men/NNS/nsubj/4 came/VBD/root/0 ././punct/4",
         "All men came."),
        # "has yet to" is a negation of its own
        ("He has yet to speak.",
         "He/PRP/nsubj/2 has/VBZ/root/0 yet/RB/advmod/2 to/TO/mark/5 speak/VB/xcomp/2 ././punct/2",
         denied("he has yet to speak.")),
        ("There is no doubt.", "There/EX/expl/2 is/VBZ/root/0 no/DT/det/4 doubt/NN/nsubj/2 ././punct/2",
         "There is some doubt."),
        ("He fell, no doubt.",
         "He/PRP/nsubj/2 fell/VBD/root/0 ,/,/punct/5 no/DT/det/5 doubt/NN/obl:npmod/2 ././punct/2",
         "He did not fall, no doubt."),
        # what is written as one word is not torn
        ("They dont go.", "They/PRP/nsubj/4 do/VBP/aux/4 nt/RB/advmod/4 go/VB/root/0 ././punct/4",
        denied("they dont go.")),
        # a root without a tense, and a finite clause beside it
        ("Living here, he slept.",
         "Living/VBG/root/0 here/RB/advmod/1 ,/,/punct/5 he/PRP/nsubj/5 slept/VBD/parataxis/1 ././punct/1",
         "Living here, he did not sleep."),
        ("At the end they slept.",
         "At/IN/case/3 the/DT/det/3 end/NN/root/0 they/PRP/nsubj/5 slept/VBD/acl:relcl/3 ././punct/3",
         denied("at the end they slept.")),
        ("The man who slept.", "The/DT/det/2 man/NN/root/0 who/WP/nsubj/4 slept/VBD/acl:relcl/2 ././punct/2",
         "No man who slept."),
        ("Ann, go home.", "Ann/NNP/nsubj/3 ,/,/punct/3 go/VB/root/0 home/RB/advmod/3 ././punct/3",
         "Ann, do not go home."),
        ("Where is he?", "Where/WRB/root/0 is/VBZ/cop/1 he/PRP/nsubj/1 ?/./punct/1", None),
        ("Where is he?", "Where/WRB/advmod/2 is/VBZ/ROOT/0 he/PRP/nsubj/2 ?/./punct/2", None),
        ("How are the dogs ...", "How/WRB/root/0 are/VBP/cop/1 the/DT/det/4 dogs/NNS/nsubj/1 ..././punct/1",
         None),
        ("What a day!", "What/WDT/det:predet/3 a/DT/det/3 day/NN/root/0 !/./punct/3", None),
        ("Not nice, not here.",
         "Not/RB/advmod/2 nice/JJ/root/0 ,/,/punct/5 not/RB/advmod/5 here/RB/conj/2 ././punct/2",
         "Nice, not here."),
        ("Lots of room.", "Lots/NNS/root/0 of/IN/case/3 room/NN/nmod/1 ././punct/1", "Not lots of room."),
    ],
)  # fmt: skip
def test_negation(text, annotation, expected):
    assert outcomes(neg, parse(text, annotation)) == (expected if isinstance(expected, set) else {expected})


CAME_AND_LEFT = (
    "He came and she did not leave.",
    "He/PRP/nsubj/2 came/VBD/root/0 and/CC/cc/7 she/PRP/nsubj/7 did/VBD/aux/7 not/RB/advmod/7 "
    "leave/VB/conj/2 ././punct/2",
    "He/PRP/nsubj/2 came/VBD/ROOT/0 and/CC/cc/2 she/PRP/nsubj/7 did/VBD/aux/7 not/RB/neg/7 leave/VB/conj/2 "
    "././punct/2",
)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        # a phrase denies all that follows it: it stands before the last of the clauses
        (CAME_AND_LEFT[0], CAME_AND_LEFT[1], denied("she did leave.", "He came and ")),
        (CAME_AND_LEFT[0], CAME_AND_LEFT[2], denied("she did leave.", "He came and ")),
        # but not before one that is no main clause, whatever the parse makes of it
        ("He says it rains and that it is late.",
         "He/PRP/nsubj/2 says/VBZ/root/0 it/PRP/nsubj/4 rains/VBZ/ccomp/2 and/CC/cc/9 that/IN/mark/9 "
         "it/PRP/nsubj/9 is/VBZ/cop/9 late/JJ/conj/2 ././punct/2", {None}),
        # verbs that share a subject, but not the "not", have no place for it
        ("It was old and fell.",
         "It/PRP/nsubj/3 was/VBD/cop/3 old/JJ/root/0 and/CC/cc/5 fell/VBD/conj/3 ././punct/3", {None}),
        ("It came and was old.",
         "It/PRP/nsubj/2 came/VBD/root/0 and/CC/cc/5 was/VBD/cop/5 old/JJ/conj/2 ././punct/2", {None}),
        ("He came, they are old.",
         "He/PRP/nsubj/2 came/VBD/root/0 ,/,/punct/6 they/PRP/nsubj/6 are/VBP/cop/6 old/JJ/parataxis/2 "
         "././punct/2", {None}),
        # behind a subordinate clause, which is not denied
        ("If it rains, he goes.",
         "If/IN/mark/3 it/PRP/nsubj/3 rains/VBZ/advcl/6 ,/,/punct/6 he/PRP/nsubj/6 goes/VBZ/root/0 "
         "././punct/6", denied("he does not go.", "If it rains, ")),
        ("Yes he came.", "Yes/UH/discourse/3 he/PRP/nsubj/3 came/VBD/root/0 ././punct/3",
        denied("he did not come.", "Yes ")),
        # not having to is no double negation of having to
        ("He must go.", "He/PRP/nsubj/3 must/MD/aux/3 go/VB/root/0 ././punct/3", {None}),
        ("He must not go.",
         "He/PRP/nsubj/4 must/MD/aux/4 not/RB/advmod/4 go/VB/root/0 ././punct/4", {None}),
        ("He had better go.",
         "He/PRP/nsubj/2 had/VBD/root/0 better/RBR/advmod/4 go/VB/xcomp/2 ././punct/2", {None}),
        # capitals
        ("Last July he came.",
         "Last/JJ/amod/2 July/NNP/obl:tmod/4 he/PRP/nsubj/4 came/VBD/root/0 ././punct/4",
         denied("last July he did not come.")),
        ("All men came.", "All/DT/det/2 men/NNS/nsubj/3 came/VBD/root/0 ././punct/3",
        denied("not all men came.")),
        ("Here comes he.", "Here/RB/advmod/2 comes/VBZ/root/0 he/PRP/nsubj/2 ././punct/2", {None}),
        # the negation that goes stands where the phrase comes
        ("It was late, and never a word was heard.",
         "It/PRP/nsubj/3 was/VBD/cop/3 late/JJ/root/0 ,/,/punct/10 and/CC/cc/10 never/RB/advmod/10 "
         "a/DT/det/8 "
         "word/NN/nsubj:pass/10 was/VBD/aux:pass/10 heard/VBN/conj/3 ././punct/3", denied("a word was heard.",
                                                                            "It was late, and ")),
    ],
)  # fmt: skip
def test_double_negation(text, annotation, expected):
    assert outcomes(dn, parse(text, annotation)) == expected


@pytest.mark.parametrize("tag", ["NNP", "RB"])
def test_a_name_that_is_tagged_as_an_adverb_keeps_its_capital(tag):
    sentence = parse("Martelly came.", f"Martelly/{tag}/nsubj/2 came/VBD/root/0 ././punct/2")
    sentence = sentence.__class__(**{
        name: getattr(sentence, name) for name in ("text", "starts", "ends", "tags", "lemmas", "heads",
        "deps", "language")
    }, pos=("ADV", "VERB", "PUNCT"))  # fmt: skip
    assert outcomes(dn, sentence, 40) == denied("Martelly did not come.")


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        # quotes go around whole brackets, or the comma behind them
        ("He (the old man came.",
         "He/PRP/nsubj/6 (/-LRB-/punct/5 the/DT/det/5 old/JJ/amod/5 man/NN/appos/1 came/VBD/root/0 "
         "././punct/6", {"He (the old man, came."}),
        # no comma behind what introduces
        ("The house in which he lived fell.",
         "The/DT/det/2 house/NN/nsubj/7 in/IN/case/4 which/WDT/obl/6 he/PRP/nsubj/6 lived/VBD/acl:relcl/2 "
         "fell/VBD/root/0 ././punct/7", {"The house, in which he lived, fell."}),
        ("He knows what came.",  # "what" is no part of the clause for this parse
         "He/PRP/nsubj/2 knows/VBZ/root/0 what/WP/obj/2 came/VBD/acl:relcl/3 ././punct/2",
         {"He, knows what came.", '"He" knows what came.'}),
        ("The men I met came.",
         "The/DT/det/2 men/NNS/nsubj/5 I/PRP/nsubj/4 met/VBD/acl:relcl/2 came/VBD/root/0 ././punct/5",
         {"The men I met, came.", '"The men I met" came.'}),
        ("He talks about going.",
         "He/PRP/nsubj/2 talks/VBZ/root/0 about/IN/mark/4 going/VBG/advcl/2 ././punct/2",
         {"He, talks about going.", '"He" talks about going.'}),
        ("He left by going.", "He/PRP/nsubj/2 left/VBD/root/0 by/IN/mark/4 going/VBG/advcl/2 ././punct/2",
         {"He left, by going."}),
        # nor within a comparison, nor before what has no verb
        ("He stays as long as she does.",
         "He/PRP/nsubj/2 stays/VBZ/root/0 as/RB/advmod/4 long/RB/advmod/2 as/IN/mark/7 she/PRP/nsubj/7 "
         "does/VBZ/advcl/4 ././punct/2",
         {"He, stays as long as she does.", '"He" stays as long as she does.'}),
        ("He put it alone here.",
         "He/PRP/nsubj/2 put/VBD/root/0 it/PRP/obj/2 alone/JJ/advcl/2 here/RB/advmod/4 ././punct/2",
         {"He, put it alone here.", '"He" put it alone here.'}),
        # the subject of a question is not parted from its verb
        ("Can he go?", "Can/MD/aux/3 he/PRP/nsubj/3 go/VB/root/0 ?/./punct/3", {'Can "he" go?'}),
        ("Who came?", "Who/WP/nsubj/2 came/VBD/root/0 ?/./punct/2", {"Who came?!"}),
        # behind an adjective that says something, not one of a noun
        ("He was glad when she left.",
         "He/PRP/nsubj/3 was/VBD/cop/3 glad/JJ/root/0 when/WRB/advmod/6 she/PRP/nsubj/6 left/VBD/advcl/3 "
         "././punct/3", {"He was glad, when she left."}),
        # an adverbial clause before a complement
        ("He said that he came when she left.",
         "He/PRP/nsubj/2 said/VBD/root/0 that/IN/mark/5 he/PRP/nsubj/5 came/VBD/ccomp/2 when/WRB/advmod/8 "
         "she/PRP/nsubj/8 left/VBD/advcl/5 ././punct/2", {"He said that he came, when she left."}),
    ],
)  # fmt: skip
def test_punctuation(text, annotation, expected):
    assert outcomes(pi, parse(text, annotation)) == expected


@pytest.mark.parametrize(
    ("text", "annotation"),
    [
        ("Here is the book.", "Here/RB/root/0 is/VBZ/cop/1 the/DT/det/4 book/NN/nsubj/1 ././punct/1"),
        ("Ann, go home.", "Ann/NNP/nsubj/3 ,/,/punct/3 go/VB/root/0 home/RB/advmod/3 ././punct/3"),
        ("Its late.", "It/PRP/nsubj/3 s/VBZ/cop/3 late/JJ/root/0 ././punct/3"),
        (
            "It was not until May.",
            "It/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 until/IN/case/5 May/NNP/root/0 ././punct/5",
        ),
        (
            "It was not least he.",
            "It/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 least/RBS/advmod/5 he/PRP/root/0 ././punct/5",
        ),
        ("He did go.", "He/PRP/nsubj/3 did/VBD/aux/3 go/VB/root/0 ././punct/3"),
    ],
)
def test_no_modal_verb(text, annotation):
    assert outcomes(mv, parse(text, annotation)) == {None}


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("They do not go.", "They/PRP/nsubj/4 do/VBP/aux/4 not/RB/advmod/4 go/VB/root/0 ././punct/4",
         "They go."),
        ("It was not least he.",
         "It/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 least/RBS/advmod/5 he/PRP/root/0 ././punct/5", None),
        ("It was not until May.",
         "It/PRP/nsubj/5 was/VBD/cop/5 not/RB/advmod/5 until/IN/case/5 May/NNP/root/0 ././punct/5", None),
        ("Don't you have any money?",
         "Do/VBP/aux/4 n't/RB/advmod/4 you/PRP/nsubj/4 have/VB/root/0 any/DT/det/6 money/NN/obj/4 "
         "?/./punct/4", "Do you have any money?"),
        ("I could not help laughing.",
         "I/PRP/nsubj/4 could/MD/aux/4 not/RB/advmod/4 help/VB/root/0 laughing/VBG/xcomp/4 ././punct/4",
         None),
        ("He has not come in years.",
         "He/PRP/nsubj/4 has/VBZ/aux/4 not/RB/advmod/4 come/VBN/root/0 in/IN/case/6 years/NNS/obl/4 "
         "././punct/4", None),
        ("He does not come any more.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/advmod/4 come/VB/root/0 any/DT/advmod/6 more/RBR/advmod/4 "
         "././punct/4", None),
        ("He does not act like any other man.",
         "He/PRP/nsubj/4 does/VBZ/aux/4 not/RB/advmod/4 act/VB/root/0 like/IN/case/8 any/DT/det/8 "
         "other/JJ/amod/8 man/NN/obl/4 ././punct/4", "He acts like any other man."),
        ("It wasn'ta dog.",
         "It/PRP/nsubj/5 was/VBD/cop/5 n't/RB/advmod/5 a/DT/det/5 dog/NN/root/0 ././punct/5", None),
        ("He didn't fought.", "He/PRP/nsubj/4 did/VBD/aux/4 n't/RB/advmod/4 fought/VB/root/0 ././punct/4",
         None),
    ],
)  # fmt: skip
def test_removal_of_a_negated_auxiliary(text, annotation, expected):
    assert outcomes(auxiliary_negation_removal, parse(text, annotation)) == {expected}


@pytest.mark.parametrize(
    ("mark", "states"), [(".", True), ("!", True), ("?", False), ("??", False), ("?!", False)]
)
def test_a_clause_with_a_question_mark_states_nothing(mark, states):
    """Wherever it stands: here the text goes on."""
    words = f"He/PRP/nsubj/2 left/VBD/ROOT/0 {mark}/./punct/2 No/UH/parataxis/2 ././punct/4"
    sentence = parse(f"He left{mark} No.", words)
    clause = clause_of(sentence, 1)
    assert clause is not None and is_assertion(sentence, clause) == states


@pytest.mark.parametrize(
    ("text", "annotation", "verb", "expected"),
    [
        (
            "He wants to go.",
            "He/PRP/nsubj/2 wants/VBZ/ROOT/0 to/TO/mark/4 go/VB/xcomp/2 ././punct/2",
            3,
            True,
        ),
        ("He wants to go.", "He/PRP/nsubj/2 wants/VBZ/ROOT/0 to/TO/dep/2 go/VB/xcomp/2 ././punct/2", 3, True),
        ("To quickly go.", "To/TO/mark/3 quickly/RB/advmod/3 go/VB/ROOT/0 ././punct/3", 2, True),
        ("Go where to", "Go/VB/ROOT/0 where/RB/dep/3 to/TO/dep/2", 0, False),
        ("He will go.", "He/PRP/nsubj/3 will/MD/aux/3 go/VB/ROOT/0 ././punct/3", 2, False),
    ],
)
def test_an_infinitive_has_its_to_before_it_whatever_that_hangs_on(text, annotation, verb, expected):
    sentence = parse(text, annotation)
    clause = Clause(verb, verb, (), verb, None, None, False, False)
    assert is_infinitive(sentence, clause) is expected
