"""English verb forms, as far as negation and modal verbs need them: the base form of a finite verb, and its past participle.

The parse's lemma says what the base form is. The table of irregular verbs corrects it where a parser leaves a past form as it
is, and has the participles, which no parse holds. Not a general inflector: it never makes a past or an -ing form.
"""

from __future__ import annotations

# Base, past, participle; forms that a verb has besides are parted by /. Verbs whose past is regular are not listed.
_TABLE = """
arise arose arisen|awake awoke awoken|bear bore borne|beat beat beaten|become became become|befall befell befallen|
beget begot begotten|begin began begun|behold beheld beheld|bend bent bent|beset beset beset|bet bet bet|bid bid/bade bid|
bind bound bound|bite bit bitten|bleed bled bled|blow blew blown|break broke broken|breed bred bred|bring brought brought|
broadcast broadcast broadcast|build built built|burn burnt burnt|burst burst burst|buy bought bought|cast cast cast|
catch caught caught|choose chose chosen|cling clung clung|come came come|cost cost cost|creep crept crept|cut cut cut|
deal dealt dealt|dig dug dug|dive dove dived|do did done|draw drew drawn|dream dreamt dreamt|drink drank drunk|
drive drove driven|dwell dwelt dwelt|eat ate eaten|fall fell fallen|feed fed fed|feel felt felt|fight fought fought|
find found found|fit fit fit|flee fled fled|fling flung flung|fly flew flown|forbid forbade forbidden|forecast forecast forecast|
foresee foresaw foreseen|forget forgot forgotten|forgive forgave forgiven|forgo forwent forgone|forsake forsook forsaken|
freeze froze frozen|get got got|give gave given|go went gone|grind ground ground|grow grew grown|hang hung hung|
have had had|hear heard heard|hide hid hidden|hit hit hit|hold held held|hurt hurt hurt|keep kept kept|kneel knelt knelt|
know knew known|lay laid laid|lead led led|lean leant leant|leap leapt leapt|learn learnt learnt|leave left left|
lend lent lent|let let let|lie lay lain|light lit lit|lose lost lost|make made made|mean meant meant|meet met met|
mislead misled misled|mistake mistook mistaken|misunderstand misunderstood misunderstood|outdo outdid outdone|
overcome overcame overcome|oversee oversaw overseen|overtake overtook overtaken|overthrow overthrew overthrown|
partake partook partaken|pay paid paid|prove proved proven|put put put|quit quit quit|read read read|rebuild rebuilt rebuilt|
redo redid redone|remake remade remade|rend rent rent|repay repaid repaid|retake retook retaken|rewrite rewrote rewritten|
rid rid rid|ride rode ridden|ring rang rung|rise rose risen|run ran run|say said said|see saw seen|seek sought sought|
sell sold sold|send sent sent|set set set|shake shook shaken|shed shed shed|shine shone shone|shoot shot shot|
show showed shown|shrink shrank shrunk|shut shut shut|sing sang sung|sink sank sunk|sit sat sat|slay slew slain|
sleep slept slept|slide slid slid|sling slung slung|slit slit slit|smell smelt smelt|sow sowed sown|speak spoke spoken|
speed sped sped|spell spelt spelt|spend spent spent|spill spilt spilt|spin spun spun|spit spat spat|split split split|
spoil spoilt spoilt|spread spread spread|spring sprang sprung|stand stood stood|steal stole stolen|stick stuck stuck|
sting stung stung|stink stank stunk|stride strode stridden|strike struck struck|string strung strung|strive strove striven|
swear swore sworn|sweep swept swept|swell swelled swollen|swim swam swum|swing swung swung|take took taken|
teach taught taught|tear tore torn|tell told told|think thought thought|throw threw thrown|thrust thrust thrust|
tread trod trodden|undergo underwent undergone|understand understood understood|undertake undertook undertaken|
undo undid undone|uphold upheld upheld|upset upset upset|wake woke woken|wear wore worn|weave wove woven|weep wept wept|
wet wet wet|win won won|wind wound wound|withdraw withdrew withdrawn|withhold withheld withheld|
withstand withstood withstood|wring wrung wrung|write wrote written
"""
_ROWS = [row.split() for row in _TABLE.replace("\n", "").split("|")]
BASE_OF_PAST = {past: base for base, pasts, _ in _ROWS for past in pasts.split("/")}
PARTICIPLE = {base: participle for base, _, participle in _ROWS}
_VOWELS = frozenset("aeiou")


def base_form(word: str, tag: str, lemma: str) -> str:
    """The base form of a verb: word, its Penn Treebank tag (VBZ, VBP, VBD, VB) and the lemma that the parse has for it.

    A lemma that does not make the word by the rules of spelling ("hop" for "hoped") is not believed.
    """
    word, lemma = word.lower(), lemma.lower()
    if tag in ("VB", "VBP"):
        return word
    if tag == "VBZ":
        return lemma if word in _present(lemma) else _without_s(word)
    if word in BASE_OF_PAST:  # a past such as found is no form of to found
        return BASE_OF_PAST[word]
    return lemma if word in _past(lemma) or not word.endswith("ed") else _without_ed(word)


def participle(past: str, base: str) -> str:
    """The past participle of a verb, given its past and its base form."""
    return PARTICIPLE.get(base, past.lower())


def looks_past(word: str) -> bool:
    """Whether a word may be a past tense (a tagger takes "finished" for a participle now and then)."""
    word = word.lower()
    return word.endswith("ed") or word in BASE_OF_PAST


def _without_s(word: str) -> str:
    if word == "has":
        return "have"
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "zzes", "ches", "shes", "oes")):
        return word[:-2]
    return word.removesuffix("s")


def _present(base: str) -> set[str]:
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        return {base + "es", base + base[-1] + "es"}  # misses, quizzes
    return {base + "s", base.removesuffix("y") + "ies"}


def _past(base: str) -> set[str]:
    doubled = base + base[-1:] + "ed" if base[-1:] not in _VOWELS else ""
    return {(base + "d") if base.endswith("e") else (base + "ed"), base.removesuffix("y") + "ied", doubled} - {
        base + "ed" if _doubles(base) else ""
    }


def _without_ed(word: str) -> str:
    stem = word[:-2]
    if stem.endswith("i"):
        return stem[:-1] + "y"
    return stem + "e" if _doubles(stem) else stem


def _doubles(base: str) -> bool:
    """Whether the past doubles the last letter: one syllable that ends in consonant, vowel, consonant ("hop")."""
    ends = len(base) > 2 and base[-1] not in "aeiouwxy" and base[-2] in _VOWELS and base[-3] not in _VOWELS
    return ends and sum(letter in _VOWELS for letter in base) == 1
