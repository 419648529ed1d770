"""Sentences for SDA's four augmentations in English, parsed by hand in both label sets."""

import dataclasses

from parse_builder import parse

LEMMAS = {
    "travelled": "travel", "goes": "go", "works": "work", "said": "say", "likes": "like", "hopes": "hop",
    "values": "value",
    "arrived": "arrive",
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
        "The/DT/det/2 dog/NN/nsubj/7 that/WDT/nsubj/4 bit/VBD/acl:relcl/2 the/DT/det/6 dog/NN/obj/4 "
        "ran/VBD/ROOT/0 ././punct/7",
        "The/DT/det/2 dog/NN/nsubj/7 that/WDT/nsubj/4 bit/VBD/relcl/2 the/DT/det/6 dog/NN/dobj/4 "
        "ran/VBD/ROOT/0 ././punct/7",
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
        'He/PRP/nsubj/2 said/VBD/ROOT/0 "/``/punct/6 the/DT/det/5 show/NN/nsubj/6 goes/VBZ/ccomp/2 '
        "on/RP/compound:prt/6 "
        "\"/''/punct/6 twice/RB/advmod/2 ././punct/2",
        'He/PRP/nsubj/2 said/VBD/ROOT/0 "/``/punct/2 the/DT/det/5 show/NN/nsubj/6 goes/VBZ/ccomp/2 '
        "on/RP/prt/6 "
        "\"/''/punct/2 twice/RB/advmod/2 ././punct/2",
    ),
    "url": (
        "It works at https://x.org/is?is=1 too.",
        "It/PRP/nsubj/2 works/VBZ/ROOT/0 at/IN/case/4 https://x.org/is?is=1/NNP/obl/2 too/RB/advmod/2 "
        "././punct/2",
        "It/PRP/nsubj/2 works/VBZ/ROOT/0 at/IN/prep/2 https://x.org/is?is=1/NNP/pobj/3 too/RB/advmod/2 "
        "././punct/2",
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
    "perfect": (
        "They've gone home.",
        "They/PRP/nsubj/3 've/VBP/aux/3 gone/VBN/ROOT/0 home/RB/advmod/3 ././punct/3",
        None,
    ),
    "can": ("You can leave.", "You/PRP/nsubj/3 can/MD/aux/3 leave/VB/ROOT/0 ././punct/3", None),
    "but": ("But he left.", "But/CC/cc/3 he/PRP/nsubj/3 left/VBD/ROOT/0 ././punct/3", None),
    "adverb": (
        "However, American trains arrived.",
        "However/RB/advmod/5 ,/,/punct/5 American/JJ/amod/4 trains/NNS/nsubj/5 arrived/VBD/ROOT/0 "
        "././punct/5",
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
        # a parser's error
        "“/``/punct/2 No/UH/ccomp/5 ,/,/punct/2 ”/''/punct/2 said/VBD/ROOT/0 John/NNP/dobj/5 ././punct/5",
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
        "He/PRP/nsubj/4 does/VBZ/aux/4 n't/RB/advmod/4 have/VB/ROOT/0 any/DT/det/6 money/NN/obj/4 "
        "././punct/4",
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
        "“/``/punct/5 Yes/UH/discourse/6 ;/:/punct/2 but/CC/cc/6 he/PRP/nsubj/6 left/VBD/ROOT/0 ././punct/6 "
        "”/''/punct/6",
        None,
    ),
    "participle": (  # a tagger's error
        "He recalled it; he slept.",
        "He/PRP/nsubj/2 recalled/VBN/ROOT/0 it/PRP/obj/2 ;/,/punct/6 he/PRP/nsubj/6 slept/VBD/parataxis/2 "
        "././punct/2",
        "He/PRP/nsubj/2 recalled/VBN/ROOT/0 it/PRP/dobj/2 ;/:/punct/2 he/PRP/nsubj/6 slept/VBD/parataxis/2 "
        "././punct/2",
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
        "It/PRP/nsubj/2 was/VBD/ROOT/0 no/DT/det/4 other/JJ/acomp/2 than/IN/prep/4 Bob/NNP/pobj/5 "
        "././punct/2",
    ),
    "did not": (
        "They did not go home.",
        "They/PRP/nsubj/4 did/VBD/aux/4 not/RB/advmod/4 go/VB/ROOT/0 home/RB/advmod/4 ././punct/4",
        "They/PRP/nsubj/4 did/VBD/aux/4 not/RB/neg/4 go/VB/ROOT/0 home/RB/advmod/4 ././punct/4",
    ),
    "was not": (
        "It wasn't late.",
        "It/PRP/nsubj/4 was/VBD/cop/4 n't/RB/advmod/4 late/JJ/ROOT/0 ././punct/4",
        "It/PRP/nsubj/2 was/VBD/ROOT/0 n't/RB/neg/2 late/JJ/acomp/2 ././punct/2",
    ),
    "highly": (
        "She highly values it.",
        "She/PRP/nsubj/3 highly/RB/advmod/3 values/VBZ/ROOT/0 it/PRP/obj/3 ././punct/3",
        "She/PRP/nsubj/3 highly/RB/advmod/3 values/VBZ/ROOT/0 it/PRP/dobj/3 ././punct/3",
    ),
    # a tagger's error
    "shook": ("They shook it.", "They/PRP/nsubj/2 shook/VBP/ROOT/0 it/PRP/obj/2 ././punct/2", None),
}
LABELS = ("UD", "ClearNLP")
SOUND = ("It is not true that", "It is not the case that", "It can't be that")


def sentence(name, labels="UD"):
    text, universal, clear = SENTENCES[name]
    parsed = parse(text, clear if labels == "ClearNLP" and clear else universal)
    return dataclasses.replace(parsed, lemmas=tuple(LEMMAS.get(lemma, lemma) for lemma in parsed.lemmas))
