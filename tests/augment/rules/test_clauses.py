"""Triples and factive verbs, on parses written by hand in both label sets, and what the rules of clauses and
phrases do with no words."""

import pytest
from parse_builder import draws, outcomes, parse, tagged

from augment.rules.clauses import factive_verb, summarization
from augment.rules.phrases import sentence_reordering, subject_object_switch, yoda
from augment.rules.tense import tense


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("Stillwater is not a 2010 film.",
         "Stillwater/NNP/nsubj/6 is/VBZ/cop/6 not/RB/advmod/6 a/DT/det/6 2010/CD/nummod/6 film/NN/root/0 "
         "././punct/6", "Stillwater !is film"),
        ("Stillwater is not a 2010 film.",
         "Stillwater/NNP/nsubj/2 is/VBZ/ROOT/0 not/RB/neg/2 a/DT/det/6 2010/CD/nummod/6 film/NN/attr/2 "
         "././punct/2", "Stillwater !is film"),
        ("Tom and Ann Lee saw dogs, and ate it.",
         "Tom/NNP/nsubj/5 and/CC/cc/4 Ann/NNP/compound/4 Lee/NNP/conj/1 saw/VBD/root/0 dogs/NNS/obj/5 "
         ",/,/punct/9 and/CC/cc/9 ate/VBD/conj/5 it/PRP/obj/9 ././punct/5",
         "Tom saw dogs, Ann Lee saw dogs, Tom ate it, Ann Lee ate it"),
        ("The man who wrote “Zoë” ran to http://a.com.",
         "The/DT/det/2 man/NN/nsubj/8 who/WP/nsubj/4 wrote/VBD/acl:relcl/2 “/``/punct/6 Zoë/NNP/obj/4 "
         "”/''/punct/6 ran/VBD/root/0 to/IN/case/10 http://a.com/NN/obl/8 ././punct/8",
         "man wrote Zoë, man ran http://a.com"),
        ("He ran.", "He/PRP/nsubj/2 ran/VBD/root/0 ././punct/2", None),
        ("I see dogs.", "I/PRP/nsubj/2 see/VBP/root/0 dogs/NNS/obj/2 ././punct/2", None),
        # the passive is told, a time is no object, an infinitive is one with its "to"
        ("It was sold last week in Rome and seen.",
         "It/PRP/nsubj:pass/3 was/VBD/aux:pass/3 sold/VBN/root/0 last/JJ/amod/5 week/NN/obl:tmod/3 "
         "in/IN/case/7 Rome/NNP/obl/3 and/CC/cc/9 seen/VBN/conj/3 ././punct/3", "It was sold Rome"),
        ("I now want to go.",
         "I/PRP/nsubj/3 now/RB/advmod/3 want/VBP/root/0 to/TO/mark/5 go/VB/xcomp/3 ././punct/3",
         "I want to go"),
        ("It is now at home.",
         "It/PRP/nsubj/5 is/VBZ/cop/5 now/RB/advmod/5 at/IN/case/5 home/NN/root/0 ././punct/5",
         "It is at home"),
        ("They spent some $20 million.",
         "They/PRP/nsubj/2 spent/VBD/root/0 some/DT/det/4 $/$/obj/2 20/CD/compound/6 million/CD/nummod/4 "
         "././punct/2", "They spent $20 million"),
        ("He asked what came.",
         "He/PRP/nsubj/2 asked/VBD/root/0 what/WP/obj/2 came/VBD/acl:relcl/3 ././punct/2", None),
        ("A day", "A/DT/det/2 day/NN/root/0", None),
    ],
)  # fmt: skip
def test_summarization(text, annotation, expected):
    assert outcomes(summarization, parse(text, annotation), 2) == {expected}


@pytest.mark.parametrize(
    ("text", "annotation", "pattern"),
    [
        ("Peter left.", "Peter/NNP/nsubj/2 left/VBD/root/0 ././punct/2", "Peter {} that he left."),
        ("I am “Zoë”.", "I/PRP/nsubj/4 am/VBP/cop/4 “/``/punct/4 Zoë/NNP/root/0 ”/''/punct/4 ././punct/4",
         "I {} that I am “Zoë”."),
        ("The old queens ran, ran.",
         "The/DT/det/3 old/JJ/amod/3 queens/NNS/nsubj/4 ran/VBD/ROOT/0 ,/,/punct/6 ran/VBD/conj/4 "
         "././punct/4", "The old queens {} that they ran, ran."),
        ("The company was sold.",
         "The/DT/det/2 company/NN/nsubjpass/4 was/VBD/auxpass/4 sold/VBN/ROOT/0 ././punct/4",
         "The company {} that it was sold."),
        ("The police came.", "The/DT/det/2 police/NNS/nsubj/3 came/VBD/root/0 ././punct/3", None),
        ("Tables fell.", "Tables/NNS/nsubj/2 fell/VBD/root/0 ././punct/2", None),
        ("Then he ran.", "Then/RB/advmod/3 he/PRP/nsubj/3 ran/VBD/root/0 ././punct/3", None),
        ("http://a.com", "http://a.com/NN/root/0", None),
        ("Peter", "Peter/NNP/root/0", None),
    ],
)  # fmt: skip
def test_factive_verb(text, annotation, pattern):
    found = outcomes(factive_verb, parse(text, annotation))
    if pattern is None:
        assert found == {None}
        return
    before, after = pattern.split("{}")
    verbs = {result[len(before) : -len(after)] for result in found}
    assert len(found) > 8 and all(result.startswith(before) and result.endswith(after) for result in found)
    assert all(verb.isalpha() for verb in verbs) and ("knew" in verbs) == ("am" not in text)


def test_a_root_that_is_said_to_be_coordinated():
    """What hangs on white space becomes a root and keeps its relation."""
    sentence = parse("Runs there.", "Runs/VBZ/conj/0 there/RB/advmod/1 ././punct/1")
    assert outcomes(summarization, sentence, 2) == {None}


@pytest.mark.parametrize(
    "function", [subject_object_switch, yoda, tense, sentence_reordering, summarization, factive_verb]
)
def test_empty(function):
    assert function(tagged(""), draws()) is None
