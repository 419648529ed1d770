"""Read Chinese clauses for SDA's rules: their verb, its reach, and whether it tells of an event or a state.

Parses are those of spaCy's Chinese pipelines (tags of the Penn Chinese Treebank: VV, VA, VC, VE, AD) or UD's.
The words that the rules know follow: how they are negated, and what may stand before them.
"""

import re
from types import SimpleNamespace

from augment.text.parsed import SUBJECTS, ParsedSentence
from augment.text.word_forms import Edit, word_map, word_set, word_table


def main_verb(sentence: ParsedSentence) -> int | None:
    """Return the verb, adjective or copula of the root; None if the root is a noun without a copula."""
    root = sentence.root
    if root < 0:
        return None
    verb = sentence.verb(root)
    return verb if sentence.tags[verb][:1] == "V" or sentence.pos[verb] in ("VERB", "AUX", "ADJ") else None


def is_done(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether 了 follows the verb."""
    return verb + 1 < len(sentence) and sentence.word(verb + 1) == "了"


def has_complement(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether 得 and how something is done follow the verb, which 不 would have to deny (传得不快)."""
    word, end = sentence.word(verb), sentence.ends[verb]
    if word in WORDS.getting:
        return False
    return sentence.text[end : end + 1] == "得" or (len(word) > 1 and word[-1] == "得")


def is_measured(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether a number and its unit stand before an adjective (200米长)."""
    if not verb or not (sentence.pos[verb] == "ADJ" or sentence.tags[verb] == "VA"):
        return False
    if sentence.pos[verb + 1 : verb + 2] == ("NUM",):  # 长176千米
        return True
    unit = verb - 1
    numbers = (sentence.relation(child) == "nummod" for child in sentence.children(unit))
    return sentence.pos[unit] == "NUM" or any(numbers)


def having_of(sentence: ParsedSentence, verb: int) -> Edit | None:
    """Return the edit that takes 有 from behind a verb (种植有, 建有), None if there is none."""
    word, end = sentence.word(verb), sentence.ends[verb]
    if len(word) > 1 and word[-1] == "有" and word not in WORDS.having:
        return end - 1, end, ""
    behind = verb + 1
    if behind < len(sentence) and sentence.word(behind) == "有" and sentence.heads[behind] == verb:
        return sentence.replacement(behind, "")
    return None


def with_preposition(sentence: ParsedSentence, verb: int) -> str:
    """Return a verb with the 于 behind it, which may be a word of its own."""
    behind = verb + 1
    is_own = behind < len(sentence) and sentence.word(behind) == "于" and sentence.heads[behind] == verb
    return sentence.word(verb) + ("于" if is_own else "")


def is_lasting(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether a verb tells what is so for a while, or where (位于), not where it happened (生于)."""
    word, behind = with_preposition(sentence, verb), verb + 1
    own = behind < len(sentence) and sentence.heads[behind] == verb
    if own and word + sentence.word(behind) in WORDS.states:
        return True
    return word in WORDS.states or (len(word) > 1 and word[-1] == "于" and WORDS.born.isdisjoint(word))


def negation_of(sentence: ParsedSentence, verb: int) -> int | None:
    """Return the negative word that belongs to the verb, or to its modal verb."""
    for i in range(verb):
        if sentence.relation(i) in ("ccomp", "advcl", "conj", "parataxis"):
            continue  # 没有 of another clause
        heads = (verb, sentence.root, modal_of(sentence, verb))
        if sentence.word(i) in WORDS.negative and sentence.heads[i] in heads:
            return i
    return None


def modal_of(sentence: ParsedSentence, verb: int) -> int | None:
    modals = (i for i in sentence.children(sentence.root) if i < verb and sentence.word(i) in WORDS.modal)
    return next((i for i in modals if sentence.relation(i)[:3] == "aux" or sentence.word(i) == "即将"), None)


def first_in_scope(sentence: ParsedSentence, verb: int) -> int:
    """Return the word that a negation or modal goes before: behind subject, commas, times, `WORDS.front`."""
    first = 0
    root = sentence.root
    by = (i for i in range(verb) if sentence.word(i) == "被" and sentence.heads[i] == root)
    passive = next(by, verb)
    for subject in (i for i in sentence.dependents(root, *SUBJECTS) if i < passive):
        # what follows 被 is the agent, which the negation goes before
        first = max(end for end in (subject, sentence.subtree(subject)[1]) if end < verb) + 1
    for i in range(first, verb):
        is_mark = sentence.pos[i] == "PUNCT" and sentence.word(i) not in "“”‘’（）《》「」、·"
        ends_clause = sentence.word(i) in WORDS.subordinate and sentence.deps[i] in ("mark", "case")  # 当…时
        if is_mark or ends_clause:
            first = i + 1
    while first < verb and (end := _front(sentence, first, verb)):
        first = end
    return first


def _front(sentence: ParsedSentence, i: int, verb: int) -> int:
    """Return where the time or word of `WORDS.front` that begins at word i, before `verb`, ends; 0: none."""
    head = i  # the phrase that word i opens
    for _ in range(verb - i):  # if heads make a circle, there is no end of it
        if head == sentence.heads[head] or not i < sentence.heads[head] < verb:
            break
        head = sentence.heads[head]
    is_time = sentence.word(head) in WORDS.times or sentence.deps[head].endswith(":tmod")
    is_time = is_time or sentence.tags[head] == "NT"
    is_time = is_time and sentence.word(i) not in ("于", "在")  # 没有于1944年服役
    if is_time and sentence.pos[head] in ("NOUN", "PROPN", "NUM", "ADV"):
        end = head + 1
        return end + (end < verb and sentence.deps[end] == "case" and sentence.heads[end] == head)
    if sentence.word(i) in ("等", "等等"):  # the end of what stands before
        return i + 1
    inside = sentence.word(head)[-1:] in tuple("内外上下里中间旁侧")
    if inside and sentence.pos[head] == "NOUN" and head < verb - 1:
        cases = any(sentence.deps[child] == "case" and child < head for child in sentence.children(head))
        if sentence.relation(head)[:3] == "obl" and not cases:  # 场内设有
            return head + 1
    return i + 1 if sentence.word(i) in WORDS.front and sentence.pos[i] != "ADP" else 0  # 将 may be 把


def is_clear(sentence: ParsedSentence, first: int) -> bool:
    """Return whether 不 alone can stand before the word `first`: 不从, 不被, not 不主要."""
    return sentence.pos[first] in ("ADP", "AUX") or sentence.tags[first] in ("P", "LB", "SB", "BA")


def is_subordinate(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether the verb's clause only says when or what for (…后, 以…), which no rule can deny."""
    marks = [c for c in sentence.children(verb) if sentence.deps[c] in ("mark", "case")]
    behind = any(c > verb and sentence.word(c) in WORDS.subordinate for c in marks)
    return behind or any(c < verb and sentence.word(c) in ("以", "以便", "来") for c in marks)


def is_copula(sentence: ParsedSentence, verb: int) -> bool:
    return verb != sentence.root or sentence.tags[verb] == "VC"


def is_past(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether the verb tells what has happened: 了, 过, a time before it, or a verb of an event."""
    word = sentence.word(verb)
    is_passive = any(sentence.word(c) == "被" for c in dependants(sentence, verb) if c < verb)
    is_habit = any(sentence.word(i) in WORDS.habits for i in range(verb))  # again and again
    if is_habit or (is_passive and word[0] in "视称认叫"):
        return False
    if is_passive:
        return True
    if word in WORDS.events or (len(word) > 1 and (word[-1] in "成到出" or word[0] == "被")):
        return True
    done = any(c > verb and sentence.word(c) in ("了", "过", "着") for c in dependants(sentence, verb))
    if done:
        return True
    if is_lasting(sentence, verb):
        return False
    behind = verb + 1
    if behind < len(sentence) and sentence.word(behind) in WORDS.results and sentence.heads[behind] == verb:
        return True
    subject = sentence.subject(sentence.root)
    named = subject is None or sentence.pos[subject] == "PROPN"
    if named or PAST.search(sentence.text, 0, sentence.starts[verb]) is not None:
        return True
    return sentence.pos[verb] == "VERB" and TOLD.search(sentence.text) is not None


def event_adverb(sentence: ParsedSentence, verb: int) -> int | None:
    before = (child for child in dependants(sentence, verb) if child < verb and sentence.pos[child] == "ADV")
    return next((child for child in before if sentence.word(child) in WORDS.event_adverbs), None)


def degree_of(sentence: ParsedSentence, verb: int) -> str | None:
    """Return the degree adverb right before the verb or adjective."""
    before = sentence.word(verb - 1) if verb else ""
    return before if before in WORDS.degree else None


def dependants(sentence: ParsedSentence, verb: int) -> list[int]:
    """Return the words that depend on the verb, and on the root if that is another word (copula)."""
    root = sentence.root
    return sentence.children(verb) if verb == root else [*sentence.children(verb), *sentence.children(root)]


def is_state(sentence: ParsedSentence, verb: int) -> bool:
    tagged = sentence.tags[verb] in ("VA", "VC", "VE") or sentence.pos[verb] == "ADJ"
    return tagged or sentence.word(verb) in ("是", "有")


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip("”’』」 ").endswith(("？", "?"))


WORDS = SimpleNamespace(
    **{
        name: word_map(words) if "=" in words else word_set(words)
        for name, words in word_table("chinese_words.tsv")
    }
)
"""The sets and maps of word_lists/chinese_words.tsv, which says what each is for."""
PAST = re.compile(
    r"[0-9０-９一二三四五六七八九〇零十]{2,4}年|月[0-9０-９一二三四五六七八九十]{1,3}日|世纪|年代|去年|昨天|昨日|前年|同年|次年|翌年"
    r"|当年|该年|当时|后来|随后|其后|之后|不久|终于|最终|最后|首次"
)
"""Times that have passed."""
TOLD = re.compile(r"曾|已经|[^为除]了[^解]|[0-9０-９]{3,4}年")
"""Signs that a sentence tells of the past."""
DIRECTIONS = re.compile(r"[东南西北][临邻接连靠毗界至抵到濒]|[临邻接连靠毗界至抵濒]")
"""Verbs that say what lies on which side."""
BUT = re.compile(r"(?:(?:不过|但是|但|然而|可是|而且|并且|例如|同时|而)，?)?")
"""A connective that a phrase at the start of the sentence follows."""
