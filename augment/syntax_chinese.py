"""Negation, double negation, modal verbs and intensifiers of Chinese sentences: SDA's rules (Zhu et al. 2022, section 4 and the
authors' code) over parses of spaCy's Chinese pipelines (tags of the Penn Chinese Treebank: VV, VA, VC, VE, AD) or of UD ones.

A verb is negated by 不 before it, an event (了, 过, 着, 正在) by 没, 有 by 没有, a degree (很) by 不是; modal verbs, 被, 把 and
prepositional phrases take the negation before themselves. Each function answers with edits, or None where the rule does not
apply.
"""

from __future__ import annotations

from augment.parsed import ParsedSentence
from augment.text import Draws

Edit = tuple[int, int, str]

_NEGATIVE = frozenset({"不", "没", "没有", "未", "并非", "不是"})
_POSITIVE = {"没有": "有", "不是": "是", "不能": "能", "不会": "会", "不应该": "应该", "不可能": "可能", "没": "有"}
_MODAL = frozenset((
    "能", "能够", "应该", "应当", "可能", "会", "必须", "可以", "要", "想", "愿意", "得", "需要", "该", "不能", "不会", "不得不",
))  # fmt: skip
_ASPECT = frozenset({"了", "过", "着"})
_BEFORE_VERB = frozenset({"被", "把", "将"})
_BEFORE_PHRASE = frozenset({"从", "给", "跟", "向", "用", "比", "往", "由"})  # prepositions that a negation stands before
_NOT_NEEDED = {"必须": "不必", "不得不": "不必", "得": "不用"}
# Adverbs of events, and what they are where the event is negated.
_EVENT_ADVERBS = {"已经": "还没", "已": "还没", "曾经": "没", "曾": "没", "正在": "没在", "正": "没在", "在": "没在"}
_NEVER_WAS = frozenset({"曾经", "曾"})  # of a state: 不曾
_DEGREE = frozenset({"很", "非常", "十分", "太", "最", "更", "较", "比较", "极", "特别", "相当"})
_PERHAPS = frozenset({"也许", "或许", "大概", "可能", "一定", "必然"})
_MODALS = ("不能不", "不会不", "必须", "不得不", "应该", "应当", "可能", "也许")
_MODALS_OF_EVENTS = ("不得不", "应该", "应当", "可能", "也许")  # before a verb with 了 or 过
_MODALS_OF_STATES = ("应该", "应当", "可能", "也许")  # before an adjective, 是 or 有, a degree, 已经 and the like
_HEADS = ("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，")
_INTENSIFIERS = ("极度", "非常", "很", "尤其", "特别", "极其", "真正地", "显著地")
_PREFIXES = {
    # The code's list; of it, for the paper's rule, those that negate.
    "paper": ("绝对不可能，", "这不应该，", "这不可能，", "这不会，"),
    "code": (
        "无法理解的是，", "令人惊讶的是，", "令人大跌眼镜的是，", "绝对不可能，",
        "不可理喻的是，", "这不应该，", "这不可能，", "这不会，",
    ),
}  # fmt: skip


def negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.neg`: the main verb loses its negation or gets one; a phrase before a sentence without a verb."""
    if not len(sentence):
        return None
    verb = _main_verb(sentence)
    edits = None if verb is None else _negated(sentence, verb)
    return edits or [(0, 0, draws.choice(_PREFIXES[variant]))]


def double_negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.dn`: the main verb as in `negation_edits`, and a phrase such as 这不可能 before the sentence."""
    verb = _main_verb(sentence)
    if verb is None or _is_question(sentence):
        return None
    return [(0, 0, draws.choice(_PREFIXES[variant])), *_negated(sentence, verb)]


def modal_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.syntax.mv`: a modal verb before the main verb; where that has one, or is negated, 不得不说 and the like before
    the sentence.
    """
    verb = _main_verb(sentence)
    if verb is None or _is_question(sentence):
        return None
    has_modal = sentence.word(verb) in _MODAL or _modal(sentence, verb) is not None
    doubted = any(child < verb and sentence.word(child) in _PERHAPS for child in _dependants(sentence, verb))
    if has_modal or doubted or _negation(sentence, verb) is not None:
        return [(0, 0, draws.choice(_HEADS))]
    place = _place(sentence, verb, adverbs=True)
    if _is_state(sentence, verb) or _degree(sentence, verb) or _event_adverb(sentence, verb) is not None:
        modals = _MODALS_OF_STATES
    else:
        modals = _MODALS_OF_EVENTS if _has_aspect(sentence, verb) else _MODALS
    return [(place, place, draws.choice(modals))]


def intensifier_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """An intensifier before the first adjective that has none."""
    intensifier = draws.choice(_INTENSIFIERS)
    for i in range(len(sentence)):
        adjective = sentence.pos[i] == "ADJ" or sentence.tags[i] == "VA"
        if adjective and not (i and (sentence.word(i - 1) in _DEGREE or sentence.word(i - 1) in _NEGATIVE)):
            return [(sentence.starts[i], sentence.starts[i], intensifier)]
    return None


def _main_verb(sentence: ParsedSentence) -> int | None:
    """The verb, adjective or copula of the root; None where the root is a noun without a copula."""
    root = sentence.root
    if root < 0:
        return None
    verb = sentence.verb(root)
    return verb if sentence.tags[verb][:1] == "V" or sentence.pos[verb] in ("VERB", "AUX", "ADJ") else None


def _negated(sentence: ParsedSentence, verb: int) -> list[Edit]:
    word, start, end = sentence.word(verb), sentence.starts[verb], sentence.ends[verb]
    if word in _POSITIVE:  # 没有, 不是, one word
        return [(start, end, _POSITIVE[word])]
    found = _negation(sentence, verb)
    if found is not None:
        negative = sentence.word(found)
        if negative in _POSITIVE and sentence.relation(found) == "aux":
            return [(sentence.starts[found], sentence.ends[found], _POSITIVE[negative])]
        return [(sentence.starts[found], sentence.ends[found], "是" if negative in ("并非", "不是") else "")]
    if word == "有":
        return [(start, start, "没")]
    modal = _modal(sentence, verb)
    if modal is not None and sentence.word(modal) in _NOT_NEEDED:
        return [(sentence.starts[modal], sentence.ends[modal], _NOT_NEEDED[sentence.word(modal)])]
    place = _place(sentence, verb)
    if modal is not None:
        return [(place, place, "不")]
    adverb, degree = _event_adverb(sentence, verb), _degree(sentence, verb)
    if degree is not None:
        return [(place, place, "不" if degree == "太" else "不是")]
    written = "" if adverb is None else sentence.word(adverb)
    becomes = sentence.tags[verb] == "VA" and written in ("已经", "已")  # 天已经黑了: 还没黑
    if _is_state(sentence, verb) and not becomes:
        if written in _NEVER_WAS:
            return [(sentence.starts[adverb], sentence.ends[adverb], "不曾")]
        return [(place, place, "不")]
    if adverb is None and not _has_aspect(sentence, verb):
        return [(place, place, "不")]
    negation = (place, place, "没")
    if adverb is not None:
        follows = sentence.word(adverb + 1) if adverb + 1 < len(sentence) else ""
        new = "没" if written == "正" and follows == "在" else _EVENT_ADVERBS[written]
        negation = sentence.starts[adverb], sentence.ends[adverb], new
    completed = sorted({c for c in _dependants(sentence, verb) if c > verb and sentence.word(c) == "了"})
    return [negation, *((sentence.starts[c], sentence.ends[c], "") for c in completed)]  # 去了: 没去


def _negation(sentence: ParsedSentence, verb: int) -> int | None:
    """The negative word that belongs to the verb, or to its modal verb."""
    for i in range(verb):
        negative = sentence.word(i) in _NEGATIVE or sentence.word(i) in ("不能", "不会")
        if negative and sentence.heads[i] in (verb, sentence.root, _modal(sentence, verb)):
            return i
    return None


def _modal(sentence: ParsedSentence, verb: int) -> int | None:
    for child in sentence.children(sentence.root):
        if child < verb and sentence.word(child) in _MODAL:
            return child
    return None


def _place(sentence: ParsedSentence, verb: int, adverbs: bool = False) -> int:
    """Where a negation or a modal verb goes, in characters: before the verb's own modal verb, 被, 把, prepositions and their
    objects, and degree adverbs (`adverbs`: any adverbs) right before it.
    """
    first = verb
    subject = sentence.subject(sentence.root)
    subject = -1 if subject is None else subject
    for child in sentence.children(sentence.root):
        if child >= verb:
            continue
        word, tag = sentence.word(child), sentence.tags[child]
        if word in _MODAL or (word in _BEFORE_VERB and tag != "AD"):  # 将 is an adverb as well
            first = min(first, child)
        for i in sentence.children(child):
            is_preposition = sentence.word(i) in _BEFORE_PHRASE and (sentence.tags[i] == "P" or sentence.pos[i] == "ADP")
            if subject < i < child and is_preposition and "PUNCT" not in sentence.pos[i:verb]:
                first = min(first, i)
    while first and (sentence.word(first - 1) in _DEGREE or (adverbs and sentence.pos[first - 1] == "ADV")):
        first -= 1
    return sentence.starts[first]


def _event_adverb(sentence: ParsedSentence, verb: int) -> int | None:
    for child in _dependants(sentence, verb):
        if child < verb and sentence.pos[child] == "ADV" and sentence.word(child) in _EVENT_ADVERBS:
            return child
    return None


def _degree(sentence: ParsedSentence, verb: int) -> str | None:
    """The degree adverb right before the verb or adjective."""
    before = sentence.word(verb - 1) if verb else ""
    return before if before in _DEGREE else None


def _dependants(sentence: ParsedSentence, verb: int) -> list[int]:
    """Of the verb, and of the root, which is another word where the verb is a copula."""
    root = sentence.root
    return sentence.children(verb) if verb == root else [*sentence.children(verb), *sentence.children(root)]


def _has_aspect(sentence: ParsedSentence, verb: int) -> bool:
    return any(child > verb and sentence.word(child) in _ASPECT for child in _dependants(sentence, verb))


def _is_state(sentence: ParsedSentence, verb: int) -> bool:
    return sentence.tags[verb] in ("VA", "VC", "VE") or sentence.pos[verb] == "ADJ" or sentence.word(verb) in ("是", "有")


def _is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip("”’』」 ").endswith(("？", "?"))
