"""Negate Chinese sentences, and put modal words and intensifiers into them: SDA's rules (Zhu et al. 2022).

A verb is negated by 不, an event (了, 过, 正在, a date, 后来) by 没有. 曾 becomes 未曾, 已 还没, 有 没有, and 为 不是;
a degree (很) gets 不是. The negation stands behind the subject, times, and adverbs of the sentence (也, 仍),
and before all that it must reach: modal verbs, 被, 把, prepositional phrases, adverbs of manner and of scope
(只, 共). Each function returns edits, or None where the rule does not apply.
"""

from __future__ import annotations

from augment.sda import chinese_words as words
from augment.sda.chinese_clauses import (
    degree_of,
    dependants,
    event_adverb,
    first_in_scope,
    has_complement,
    having_of,
    is_clear,
    is_copula,
    is_done,
    is_lasting,
    is_measured,
    is_past,
    is_question,
    is_state,
    is_subordinate,
    main_verb,
    modal_of,
    negation_of,
    with_preposition,
)
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit

_MODALS = ("不能不", "不会不", "不得不", "可能", "也许")  # 必须 and 应该 make a duty of a deed
_MODALS_OF_EVENTS = ("可能", "也许")  # of what has happened
_MODALS_OF_STATES = ("应该", "可能", "也许")  # before an adjective, 是 or 有, a degree, 已经 and the like
_HEADS = ("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，")
_INTENSIFIERS = ("极度", "非常", "很", "尤其", "特别", "极其", "真正地", "显著地")
_PREFIXES = {
    # The code's list (below) has some that assert what follows, such as 令人惊讶的是; for the paper's rule those
    # that deny it.
    "paper": ("绝对不可能，", "这不可能，", "事实并非如此，", "这不是事实，"),
    "code": (
        "无法理解的是，", "令人惊讶的是，", "令人大跌眼镜的是，", "绝对不可能，",
        "不可理喻的是，", "这不应该，", "这不可能，", "这不会，",
    ),
}  # fmt: skip


def negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """Return the edits of `augment.sda.entries.neg`: the main verb loses its negation or gets one; a phrase
    before a sentence without a verb."""
    if not len(sentence):
        return None
    verb = main_verb(sentence)
    edits = None if verb is None else _negated(sentence, verb)
    return edits or [(0, 0, draws.choice(_PREFIXES[variant]))]


def double_negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """Return the edits of `augment.sda.entries.dn`: the main verb as in `negation_edits`, and a phrase such
    as 这不可能 before the sentence."""
    verb = main_verb(sentence)
    if verb is None or is_question(sentence) or sentence.text.startswith(words.CONCLUDING):
        return None
    edits = _negated(sentence, verb)
    return edits and [(0, 0, draws.choice(_PREFIXES[variant])), *edits]


def modal_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """Return the edits of `augment.sda.entries.mv`: a modal verb before the main verb; where that has one, or
    is negated, 不得不说 and the like before the sentence."""
    verb = main_verb(sentence)
    if verb is None or is_question(sentence):
        return None
    has_modal = sentence.word(verb) in words.MODAL or modal_of(sentence, verb) is not None
    has_modal = has_modal or sentence.word(verb) in words.POSITIVE or sentence.word(verb) in words.NO_NEGATION
    has_modal = has_modal or sentence.text[sentence.ends[verb] :].startswith(("，", "："))  # 值得一提的是，
    doubted = any(
        child < verb and sentence.word(child) in words.PERHAPS for child in dependants(sentence, verb)
    )
    first = first_in_scope(sentence, verb)
    no_place = not first or is_subordinate(sentence, verb) or sentence.word(first - 1) == "将"
    if has_modal or doubted or no_place or negation_of(sentence, verb) is not None:
        opening = words.BUT.match(sentence.text)
        assert opening is not None  # it may be empty
        place = opening.end()
        return [(place, place, draws.choice(_HEADS))]
    first = _place_of_modal(sentence, verb, first)
    place = sentence.starts[first]
    if is_state(sentence, verb) or degree_of(sentence, verb) or event_adverb(sentence, verb) is not None:
        modals: tuple[str, ...] = _MODALS_OF_STATES
    else:
        subject = sentence.subject(sentence.root)
        acts = (
            subject is not None
            and sentence.pos[subject] == "PRON"
            and first == verb
            and not is_past(sentence, verb)
        )
        modals = _MODALS if acts else _MODALS_OF_EVENTS
    if first and sentence.word(first - 1) in ("也", "并", "并且", "且", "又"):
        modals = tuple(modal for modal in modals if modal != "也许")
    return [(place, place, draws.choice(modals))]


def _place_of_modal(sentence: ParsedSentence, verb: int, first: int) -> int:
    """Return the word that a modal word goes before: behind 因此 and 却, before 一直 and 就."""
    for i in range(verb - 1, first - 1, -1):
        if sentence.word(i) in words.LINKS and sentence.heads[i] in (verb, sentence.root):
            return i + 1
    while first and sentence.word(first - 1) in words.AHEAD:
        first -= 1
    return first


def intensifier_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """Return the edit that puts an intensifier before the first adjective that has none."""
    intensifier = draws.choice(_INTENSIFIERS)
    for i in range(len(sentence)):
        adjective = sentence.pos[i] == "ADJ" or sentence.tags[i] == "VA"
        if adjective and not (
            i and (sentence.word(i - 1) in words.DEGREE or sentence.word(i - 1) in words.NEGATIVE)
        ):
            return [(sentence.starts[i], sentence.starts[i], intensifier)]
    return None


def _negated(sentence: ParsedSentence, verb: int) -> list[Edit] | None:
    """Return edits that negate the verb, or take its negation away; None where no word can."""
    edits = _with_negation(sentence, verb)
    if edits is None or not edits[0][2].startswith(("不", "没", "并")):
        return edits
    place = edits[0][0]
    if sentence.text[:place].endswith("还"):  # 还不 says not yet
        return [(place - 1, place, "也"), *edits]
    return edits


def _with_negation(sentence: ParsedSentence, verb: int) -> list[Edit] | None:
    word, start, end = sentence.word(verb), sentence.starts[verb], sentence.ends[verb]
    if word in words.POSITIVE and "任何" in sentence.text[end:]:
        return None  # 任何 needs the negation
    if word == "没有" and sentence.pos[verb + 1 : verb + 2] == ("VERB",):
        return [(start, end, "")]  # 没有取得
    if word in words.POSITIVE:  # 没有, 不是, one word
        return [(start, end, words.POSITIVE[word])]
    found = negation_of(sentence, verb)
    if found is not None and "任何" in sentence.text[sentence.ends[found] :]:
        return None  # 任何 needs it
    if found is not None:
        compares = sentence.word(found + 1) in ("像", "那么", "这么", "那样", "这样", "如此")
        verbal = sentence.pos[verb] in ("VERB", "AUX", "ADJ") or compares
        has_object = sentence.word(found) in ("没有", "没") and not verbal
        new = "有" if has_object else words.NEGATIVE[sentence.word(found)]
        and_too = not new and found > 0 and sentence.word(found - 1) == "并"  # 并 is a part of 并未
        return [(sentence.starts[found - and_too], sentence.ends[found], new)]
    ends_part = word in ("是", "说", "看", "讲", "言") and sentence.text[end : end + 1] in tuple(
        "，,：:"
    )  # 值得一提的是，
    only_then = any(sentence.word(c) == "才" for c in dependants(sentence, verb) if c < verb)
    if word in words.NO_NEGATION or ends_part or only_then or is_subordinate(sentence, verb):
        return None
    if has_complement(sentence, verb) or words.DIRECTIONS.fullmatch(word) or is_measured(sentence, verb):
        return None
    previous = sentence.word(verb - 1) if verb else ""
    before = verb - 1 if previous in words.SCOPE or previous in words.AMOUNT else verb
    adverb = event_adverb(sentence, verb)
    once = adverb if adverb is not None and sentence.word(adverb) in words.ONCE else None
    if word == "有":
        if once is not None:
            return [(sentence.starts[once], sentence.ends[once], "未曾")]
        if previous in ("陆续", "相继", "先后"):
            return None
        lasting = [(end, end + 1, "")] if sentence.text[end : end + 1] == "着" else []
        return [(sentence.starts[before], start, "没"), *lasting]  # 仅有, 共有: 没有
    if word == "有着":
        return [(start, end, "没有")]
    if len(word) == 2 and word[0] in "亦也均则即" and word[1] == "为":
        return [(start + 1, end, "不是")]
    if word.endswith("是"):  # 也是 may be one word
        if once is not None:
            return [(sentence.starts[once], sentence.ends[once], "不曾")]
        place = sentence.starts[before] if word == "是" or word in words.SCOPE else end - 1
        return [(place, place, "不")]
    if word == "为" and is_copula(sentence, verb):
        if sentence.text[end : end + 1] == "止":
            return None  # 到…为止
        # 约为: 不是约
        return [(sentence.starts[before], end, "不是" + sentence.text[sentence.starts[before] : start])]
    modal = modal_of(sentence, verb)
    if modal is not None:
        written = sentence.word(modal)
        if written in words.NOT_NEEDED:
            return [(sentence.starts[modal], sentence.ends[modal], words.NOT_NEEDED[written])]
        place = sentence.starts[modal] + (len(written) > 1 and written[0] == "将")  # 将会: 将不会
        if modal and sentence.word(modal - 1) in words.SCOPE:  # 不只会
            place = sentence.starts[modal - 1]
        return [(place, place, "不")]
    first = first_in_scope(sentence, verb)
    place = sentence.starts[first]
    if sentence.word(first) == "以" and first and sentence.pos[first - 1] == "PUNCT":
        return None  # what for
    compared = first == verb and len(word) > 1 and word[0] in "较更最极" and sentence.pos[verb] == "ADJ"
    if compared or sentence.word(first)[0] in "不有":  # 较低, 不断, 有权
        return [(place, place, "并非")]
    degree = degree_of(sentence, verb)
    if degree in ("更", "最") and sentence.pos[verb] == "VERB":
        return [(start, start, "不")]  # 更不相信
    if degree is not None:
        return [(place, place, "不" if degree == "太" else "不是")]
    written = "" if adverb is None else sentence.word(adverb)
    becomes = sentence.tags[verb] == "VA" and written in ("已经", "已")  # 天已经黑了: 还没黑
    if word in words.HAVING and is_done(sentence, verb):
        return [(place, place, "不"), (end, sentence.ends[verb + 1], "")]  # 具有了
    if (having := having_of(sentence, verb)) is not None:
        return [(place, place, "没有"), having]  # 种植有: 没有种植
    whole = with_preposition(sentence, verb)
    if whole[-1] == "于" and len(whole) > 1 and not words.BORN.isdisjoint(whole):
        return [(place, place, "并非")]  # 并非建于
    if is_lasting(sentence, verb) or sentence.word(first) == "以":  # 以渔业为主
        if adverb is not None and written in ("正", "正在", "在"):
            return [(sentence.starts[adverb], sentence.ends[adverb], "并不")]
        if sentence.word(first) in ("把", "将", "被"):
            return [(place, place, "没有")]
        if adverb is None and is_clear(sentence, first):
            return [(start, start, "不")]  # 在印度不属于违法
    preceding = {sentence.word(i) for i in range(first, verb)}
    adjective = sentence.pos[verb] == "ADJ" or sentence.tags[verb] == "VA"
    if adjective and preceding & words.BEFORE_ADJECTIVE and not preceding & words.ALIKE:
        place = start  # 对后世影响不深远
    if is_state(sentence, verb) and not becomes:
        return (
            [(place, place, "不")] if once is None else [(sentence.starts[once], sentence.ends[once], "不曾")]
        )
    if adverb is None and not is_past(sentence, verb):
        after_and = first > 0 and sentence.word(first - 1) == "并"  # 并 is a part of 并不
        return [(place, place, "不" if after_and or first == verb or is_clear(sentence, first) else "并不")]
    negation = (place, place, "没有")
    if adverb is not None:
        follows = sentence.word(adverb + 1) if adverb + 1 < len(sentence) else ""
        new = "没" if written == "正" and follows == "在" else words.EVENT_ADVERBS[written]
        negation = sentence.starts[adverb], sentence.ends[adverb], new
        if once is not None and follows in ("也", "亦", "还", "都", "又"):  # 曾经也: 也未曾
            negation = sentence.starts[adverb], sentence.ends[adverb + 1], follows + new
    if word == "成" and sentence.text[end : end + 1] != "为":
        return [negation, (start, sentence.ends[verb + 1] if is_done(sentence, verb) else end, "成为")]
    completed = {c for c in dependants(sentence, verb) if c > verb and sentence.word(c) == "了"}
    completed |= {i for i in range(first, verb) if sentence.word(i) == "了"}  # 没有花费了: 没有花费
    return [
        negation,
        *((sentence.starts[c], sentence.ends[c], "") for c in sorted(completed)),
    ]  # 去了: 没有去
