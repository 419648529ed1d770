"""Negation, double negation, modal verbs and intensifiers of Chinese sentences: SDA's rules (Zhu et al. 2022,
section 4 and the authors' code) over parses of spaCy's Chinese pipelines (tags of the Penn Chinese Treebank:
VV, VA, VC, VE, AD) or of UD ones.

A verb is negated by 不, an event (了, 过, 正在, a date, 后来) by 没有, 曾 becomes 未曾 and 已 还没, 有 becomes 没有, 为 不是, a
degree (很) gets 不是. The negation stands behind the subject, times, and adverbs of the sentence (也, 仍), and
before all that it must reach: modal verbs, 被, 把, prepositional phrases, adverbs of manner and of scope (只,
共). Each function answers with edits, or None where the rule does not apply.
"""

from __future__ import annotations

import re

from augment.text.draws import Draws
from augment.text.parsed import SUBJECTS, ParsedSentence

Edit = tuple[int, int, str]

_NEGATIVE = {
    "不": "", "没": "", "没有": "", "未": "", "并不": "", "并没": "", "并没有": "", "并未": "", "未曾": "曾",
    "从未": "曾", "尚未": "已", "还没": "已经", "还没有": "已经", "并非": "是", "不是": "是", "不能": "能",
    "不会": "会", "无法": "能",
}  # fmt: skip
"""Negative words that depend on a verb, and what stands where the negation is taken away."""
_POSITIVE = {
    "没有": "有", "不是": "是", "不能": "能", "不会": "会", "无法": "能", "不应该": "应该", "不可能": "可能", "没": "有",
    "无": "有", "并无": "有", "毫无": "有", "并非": "是", "而非": "而是", "不为": "为", "不同": "相同",
}  # fmt: skip
"""Negative verbs, and their positive."""
_MODAL = frozenset((
    "能", "能够", "应该", "应当", "可能", "会", "必须", "可以", "要", "想", "愿意", "得", "需要", "该", "不能", "不会", "不得不",
    "即将",
))  # fmt: skip
_NOT_NEEDED = {"必须": "不必", "不得不": "不必", "得": "不用", "必需": "不必", "须": "无须", "即将": "不会"}
# Adverbs of events, and what they are where the event is negated.
_EVENT_ADVERBS = {
    "已经": "还没",
    "已": "还没",
    "曾经": "未曾",
    "曾": "未曾",
    "正在": "没在",
    "正": "没在",
    "在": "没在",
}
_ONCE = frozenset({"曾经", "曾"})
_SCOPE = frozenset({"只", "仅", "仅仅", "只是", "单单"})  # negated as a whole: 不只, 不仅
# before 有 and 为 they follow the negation
_AMOUNT = frozenset({"共", "共同", "约", "大约", "分别", "至少", "各", "合共", "多"})
_FRONT = frozenset((
    "也", "都", "均", "则", "就", "便", "又", "还", "仍", "仍然", "依然", "却", "亦", "并", "并且", "且", "而", "而且",
    "但", "但是", "然而", "后来", "随后", "其后", "最后", "最终", "终于", "目前", "现在", "当时", "一直", "从此",
    "至今", "迄今", "同时", "往往", "通常", "一般", "其实", "当然", "显然", "因此", "所以", "于是", "另外", "此外",
    "几乎", "竟", "竟然", "果然", "将", "即", "后", "早",
    "甚至", "甚至于", "更", "乃", "既",
))  # fmt: skip
"""Words between the subject and the verb that a negation follows: connectives, adverbs of time and of the
whole sentence."""
_TIMES = (
    "年",
    "月",
    "日",
    "号",
    "世纪",
    "年代",
    "星期",
    "周",
    "时期",
    "期间",
    "初",
    "末",
    "底",
    "今天",
    "昨天",
    "去年",
    "今年",
    "同年",
    "当年",
    "次年",
    "该年",
)
_PAST = re.compile(
    r"[0-9０-９一二三四五六七八九〇零十]{2,4}年|月[0-9０-９一二三四五六七八九十]{1,3}日|世纪|年代|去年|昨天|昨日|前年|同年|次年|翌年"
    r"|当年|该年|当时|后来|随后|其后|之后|不久|终于|最终|最后|首次"
)
_NO_NEGATION = frozenset({
    "享年", "号称", "名叫", "以至", "据说", "据悉", "如", "例如", "譬如", "如下", "共计", "总计", "即", "终年", "时年",
    "为期", "除", "又称", "亦称", "简称", "俗称", "而非",
})  # fmt: skip
"""Verbs that no word negates."""
_EVENTS = frozenset((
    "死", "去世", "逝世", "牺牲", "出生", "发现", "成", "成为", "迫使", "使", "让", "造成", "导致", "获", "获得",
    "取得", "夺得", "赢得", "击败", "毕业", "成立", "创立", "建立", "结束", "揭示", "失守", "抵达", "宣布", "当选",
    "爆发", "完成", "战胜", "决定", "决议", "始建", "建", "开始", "宣言", "倒闭", "陷入", "离开", "攻占", "占领", "入选", "晋级",
    "使得", "引起", "引发", "造就", "到达", "进入", "加入", "成功", "失败", "当上", "接任", "出任", "就任", "改任", "任命",
    "说", "说道", "表示", "指出", "补充", "补充道", "声称", "宣称", "回答", "解释", "强调", "透露", "写道", "请", "请求", "要求",
    "下令", "命令", "派", "派遣", "送给", "交给", "提出", "发表", "发行", "推出", "出版", "播出", "上映", "饰演", "扮演", "参演",
))  # fmt: skip
"""Verbs of what happens once; with those that end in 成, 到 and 出 they are negated as past."""
_STATES = frozenset(
    (
        "包括",
        "属",
        "分为",
        "分成",
        "包含",
        "代表",
        "存在",
        "认为",
        "相信",
        "知道",
        "喜欢",
        "爱",
        "希望",
        "觉得",
        "像",
        "姓",
        "叫",
        "值得",
        "意味",
        "意味着",
        "适合",
        "适用",
        "符合",
        "需要",
        "具",
        "具备",
        "具有",
        "拥有",
        "含有",
        "享有",
        "持有",
        "带有",
        "富有",
        "占有",
        "含",
        "占",
        "呈",
        "呈现",
        "称",
        "称为",
        "作为",
        "指",
        "意为",
        "当作",
        "视为",
        "相当",
        "相同",
        "相似",
        "类似",
        "反映",
        "象征",
        "表明",
        "显示",
        "住",
    )
)
"""Verbs of what is so for a while: 不 denies them, whatever the time."""
_BORN = frozenset("生死建设创始产毕成葬逝卒战")  # 生于, 建于, 毕业于: what happened
_HAVING = frozenset(
    {"具有", "拥有", "含有", "享有", "持有", "带有", "富有", "占有", "没有", "所有", "只有", "仅有", "惟有"}
)
_RESULTS = frozenset(
    {
        "成",
        "到",
        "出",
        "完",
        "为",
        "给",
        "入",
        "下",
        "起",
        "掉",
        "走",
        "回",
        "至",
        "上",
        "下来",
        "起来",
        "出来",
    }
)
"""Words behind a verb that say what came of it."""
_GETTING = frozenset(
    {"获得", "取得", "值得", "觉得", "懂得", "记得", "显得", "赢得", "夺得", "博得", "使得", "难得", "求得"}
)
"""Words that end in 得 without the complement that a verb and 得 are for (传得很快)."""
_HABITS = frozenset(
    {"通常", "一般", "往往", "经常", "常", "常常", "总", "总是", "每", "每年", "每天", "大多", "平时", "时常"}
)
_TOLD = re.compile(r"曾|已经|[^为除]了[^解]|[0-9０-９]{3,4}年")
_CONCLUDING = ("于是", "所以", "因此", "因而", "从而", "故", "可见", "结果", "总之")
"""What follows them is concluded from what stands before them, which no phrase of denial can be."""
_DIRECTIONS = re.compile(r"[东南西北][临邻接连靠毗界至抵到濒]|[临邻接连靠毗界至抵濒]")
_ALIKE = frozenset({"一样", "同样", "那么", "这么", "一般"})
_BEFORE_ADJECTIVE = frozenset({"对", "对于", "与", "和", "跟", "同", "在", "于", "由", "从", "为"})
_SUBORDINATE = frozenset({"后", "时", "之后", "以后", "之前", "以前", "前", "的时候", "期间", "之际", "以来"})
"""Behind a verb they say that its clause depends on another."""
_DEGREE = frozenset(
    {
        "很",
        "非常",
        "十分",
        "太",
        "最",
        "更",
        "较",
        "比较",
        "极",
        "特别",
        "相当",
        "甚为",
        "颇为",
        "极为",
        "甚",
        "颇",
    }
)
_PERHAPS = frozenset({"也许", "或许", "大概", "可能", "一定", "必然"})
_MODALS = ("不能不", "不会不", "不得不", "可能", "也许")  # 必须 and 应该 make a duty of a deed
_MODALS_OF_EVENTS = ("可能", "也许")  # of what has happened
_MODALS_OF_STATES = ("应该", "可能", "也许")  # before an adjective, 是 or 有, a degree, 已经 and the like
_BUT = re.compile(r"(?:(?:不过|但是|但|然而|可是|而且|并且|例如|同时|而)，?)?")
_LINKS = frozenset(
    {"因此", "因而", "所以", "于是", "从而", "却", "又", "也", "则", "并", "并且", "仍", "仍然"}
)
"""What a modal verb stands behind, and 一直 and the like, which it stands before."""
_AHEAD = frozenset(
    {
        "就",
        "便",
        "还",
        "既",
        "均",
        "即",
        "一直",
        "几乎",
        "终于",
        "至今",
        "往往",
        "通常",
        "一般",
        "最终",
        "从此",
        "长期",
        "曾",
    }
)
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
    """`augment.sda.entries.neg`: the main verb loses its negation or gets one; a phrase before a sentence
    without a verb."""
    if not len(sentence):
        return None
    verb = _main_verb(sentence)
    edits = None if verb is None else _negated(sentence, verb)
    return edits or [(0, 0, draws.choice(_PREFIXES[variant]))]


def double_negation_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.sda.entries.dn`: the main verb as in `negation_edits`, and a phrase such as 这不可能 before the
    sentence."""
    verb = _main_verb(sentence)
    if verb is None or _is_question(sentence) or sentence.text.startswith(_CONCLUDING):
        return None
    edits = _negated(sentence, verb)
    return edits and [(0, 0, draws.choice(_PREFIXES[variant])), *edits]


def modal_edits(sentence: ParsedSentence, draws: Draws, variant: str) -> list[Edit] | None:
    """`augment.sda.entries.mv`: a modal verb before the main verb; where that has one, or is negated, 不得不说
    and the like before the sentence.
    """
    verb = _main_verb(sentence)
    if verb is None or _is_question(sentence):
        return None
    has_modal = sentence.word(verb) in _MODAL or _modal(sentence, verb) is not None
    has_modal = has_modal or sentence.word(verb) in _POSITIVE or sentence.word(verb) in _NO_NEGATION
    has_modal = has_modal or sentence.text[sentence.ends[verb] :].startswith(("，", "："))  # 值得一提的是，
    doubted = any(child < verb and sentence.word(child) in _PERHAPS for child in _dependants(sentence, verb))
    first = _first_in_scope(sentence, verb)
    no_place = not first or _is_subordinate(sentence, verb) or sentence.word(first - 1) == "将"
    if has_modal or doubted or no_place or _negation(sentence, verb) is not None:
        place = _BUT.match(sentence.text).end()
        return [(place, place, draws.choice(_HEADS))]
    first = _place_of_modal(sentence, verb, first)
    place = sentence.starts[first]
    if _is_state(sentence, verb) or _degree(sentence, verb) or _event_adverb(sentence, verb) is not None:
        modals = _MODALS_OF_STATES
    else:
        subject = sentence.subject(sentence.root)
        acts = (
            subject is not None
            and sentence.pos[subject] == "PRON"
            and first == verb
            and not _is_past(sentence, verb)
        )
        modals = _MODALS if acts else _MODALS_OF_EVENTS
    if first and sentence.word(first - 1) in ("也", "并", "并且", "且", "又"):
        modals = tuple(modal for modal in modals if modal != "也许")
    return [(place, place, draws.choice(modals))]


def _place_of_modal(sentence: ParsedSentence, verb: int, first: int) -> int:
    """Return the word that a modal word goes before: behind 因此 and 却, before 一直 and 就."""
    for i in range(verb - 1, first - 1, -1):
        if sentence.word(i) in _LINKS and sentence.heads[i] in (verb, sentence.root):
            return i + 1
    while first and sentence.word(first - 1) in _AHEAD:
        first -= 1
    return first


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
    if word in _POSITIVE and "任何" in sentence.text[end:]:
        return None  # 任何 needs the negation
    if word == "没有" and sentence.pos[verb + 1 : verb + 2] == ("VERB",):
        return [(start, end, "")]  # 没有取得
    if word in _POSITIVE:  # 没有, 不是, one word
        return [(start, end, _POSITIVE[word])]
    found = _negation(sentence, verb)
    if found is not None and "任何" in sentence.text[sentence.ends[found] :]:
        return None  # 任何 needs it
    if found is not None:
        compares = sentence.word(found + 1) in ("像", "那么", "这么", "那样", "这样", "如此")
        verbal = sentence.pos[verb] in ("VERB", "AUX", "ADJ") or compares
        has_object = sentence.word(found) in ("没有", "没") and not verbal
        new = "有" if has_object else _NEGATIVE[sentence.word(found)]
        and_too = not new and found > 0 and sentence.word(found - 1) == "并"  # 并 is a part of 并未
        return [(sentence.starts[found - and_too], sentence.ends[found], new)]
    ends_part = word in ("是", "说", "看", "讲", "言") and sentence.text[end : end + 1] in tuple(
        "，,：:"
    )  # 值得一提的是，
    only_then = any(sentence.word(c) == "才" for c in _dependants(sentence, verb) if c < verb)
    if word in _NO_NEGATION or ends_part or only_then or _is_subordinate(sentence, verb):
        return None
    if _has_complement(sentence, verb) or _DIRECTIONS.fullmatch(word) or _is_measured(sentence, verb):
        return None
    previous = sentence.word(verb - 1) if verb else ""
    before = verb - 1 if previous in _SCOPE or previous in _AMOUNT else verb
    adverb = _event_adverb(sentence, verb)
    once = adverb is not None and sentence.word(adverb) in _ONCE
    if word == "有":
        if once:
            return [(sentence.starts[adverb], sentence.ends[adverb], "未曾")]
        if previous in ("陆续", "相继", "先后"):
            return None
        lasting = [(end, end + 1, "")] if sentence.text[end : end + 1] == "着" else []
        return [(sentence.starts[before], start, "没"), *lasting]  # 仅有, 共有: 没有
    if word == "有着":
        return [(start, end, "没有")]
    if len(word) == 2 and word[0] in "亦也均则即" and word[1] == "为":
        return [(start + 1, end, "不是")]
    if word.endswith("是"):  # 也是 may be one word
        if once:
            return [(sentence.starts[adverb], sentence.ends[adverb], "不曾")]
        place = sentence.starts[before] if word == "是" or word in _SCOPE else end - 1
        return [(place, place, "不")]
    if word == "为" and _is_copula(sentence, verb):
        if sentence.text[end : end + 1] == "止":
            return None  # 到…为止
        # 约为: 不是约
        return [(sentence.starts[before], end, "不是" + sentence.text[sentence.starts[before] : start])]
    modal = _modal(sentence, verb)
    if modal is not None:
        written = sentence.word(modal)
        if written in _NOT_NEEDED:
            return [(sentence.starts[modal], sentence.ends[modal], _NOT_NEEDED[written])]
        place = sentence.starts[modal] + (len(written) > 1 and written[0] == "将")  # 将会: 将不会
        if modal and sentence.word(modal - 1) in _SCOPE:  # 不只会
            place = sentence.starts[modal - 1]
        return [(place, place, "不")]
    first = _first_in_scope(sentence, verb)
    place = sentence.starts[first]
    if sentence.word(first) == "以" and first and sentence.pos[first - 1] == "PUNCT":
        return None  # what for
    compared = first == verb and len(word) > 1 and word[0] in "较更最极" and sentence.pos[verb] == "ADJ"
    if compared or sentence.word(first)[0] in "不有":  # 较低, 不断, 有权
        return [(place, place, "并非")]
    degree = _degree(sentence, verb)
    if degree in ("更", "最") and sentence.pos[verb] == "VERB":
        return [(start, start, "不")]  # 更不相信
    if degree is not None:
        return [(place, place, "不" if degree == "太" else "不是")]
    written = "" if adverb is None else sentence.word(adverb)
    becomes = sentence.tags[verb] == "VA" and written in ("已经", "已")  # 天已经黑了: 还没黑
    if word in _HAVING and _is_done(sentence, verb):
        return [(place, place, "不"), (end, sentence.ends[verb + 1], "")]  # 具有了
    if (having := _having(sentence, verb)) is not None:
        return [(place, place, "没有"), having]  # 种植有: 没有种植
    whole = _with_preposition(sentence, verb)
    if whole[-1] == "于" and len(whole) > 1 and not _BORN.isdisjoint(whole):
        return [(place, place, "并非")]  # 并非建于
    if _is_lasting(sentence, verb) or sentence.word(first) == "以":  # 以渔业为主
        if written in ("正", "正在", "在"):
            return [(sentence.starts[adverb], sentence.ends[adverb], "并不")]
        if sentence.word(first) in ("把", "将", "被"):
            return [(place, place, "没有")]
        if adverb is None and _is_clear(sentence, first):
            return [(start, start, "不")]  # 在印度不属于违法
    before = {sentence.word(i) for i in range(first, verb)}
    adjective = sentence.pos[verb] == "ADJ" or sentence.tags[verb] == "VA"
    if adjective and before & _BEFORE_ADJECTIVE and not before & _ALIKE:
        place = start  # 对后世影响不深远
    if _is_state(sentence, verb) and not becomes:
        return [(sentence.starts[adverb], sentence.ends[adverb], "不曾")] if once else [(place, place, "不")]
    if adverb is None and not _is_past(sentence, verb):
        after_and = first > 0 and sentence.word(first - 1) == "并"  # 并 is a part of 并不
        return [(place, place, "不" if after_and or first == verb or _is_clear(sentence, first) else "并不")]
    negation = (place, place, "没有")
    if adverb is not None:
        follows = sentence.word(adverb + 1) if adverb + 1 < len(sentence) else ""
        new = "没" if written == "正" and follows == "在" else _EVENT_ADVERBS[written]
        negation = sentence.starts[adverb], sentence.ends[adverb], new
        if once and follows in ("也", "亦", "还", "都", "又"):  # 曾经也: 也未曾
            negation = sentence.starts[adverb], sentence.ends[adverb + 1], follows + new
    if word == "成" and sentence.text[end : end + 1] != "为":
        return [negation, (start, sentence.ends[verb + 1] if _is_done(sentence, verb) else end, "成为")]
    completed = {c for c in _dependants(sentence, verb) if c > verb and sentence.word(c) == "了"}
    completed |= {i for i in range(first, verb) if sentence.word(i) == "了"}  # 没有花费了: 没有花费
    return [
        negation,
        *((sentence.starts[c], sentence.ends[c], "") for c in sorted(completed)),
    ]  # 去了: 没有去


def _is_done(sentence: ParsedSentence, verb: int) -> bool:
    return verb + 1 < len(sentence) and sentence.word(verb + 1) == "了"


def _has_complement(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether 得 and how something is done follow the verb, which 不 would have to deny (传得不快)."""
    word, end = sentence.word(verb), sentence.ends[verb]
    if word in _GETTING:
        return False
    return sentence.text[end : end + 1] == "得" or (len(word) > 1 and word[-1] == "得")


def _is_measured(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether a number and its unit stand before an adjective (200米长)."""
    if not verb or not (sentence.pos[verb] == "ADJ" or sentence.tags[verb] == "VA"):
        return False
    if sentence.pos[verb + 1 : verb + 2] == ("NUM",):  # 长176千米
        return True
    unit = verb - 1
    numbers = (sentence.relation(child) == "nummod" for child in sentence.children(unit))
    return sentence.pos[unit] == "NUM" or any(numbers)


def _having(sentence: ParsedSentence, verb: int) -> Edit | None:
    """Return the edit that takes 有 from behind a verb (种植有, 建有), None where there is none."""
    word, end = sentence.word(verb), sentence.ends[verb]
    if len(word) > 1 and word[-1] == "有" and word not in _HAVING:
        return end - 1, end, ""
    behind = verb + 1
    if behind < len(sentence) and sentence.word(behind) == "有" and sentence.heads[behind] == verb:
        return sentence.starts[behind], sentence.ends[behind], ""
    return None


def _with_preposition(sentence: ParsedSentence, verb: int) -> str:
    """Return a verb with the 于 behind it, which may be a word of its own."""
    behind = verb + 1
    is_own = behind < len(sentence) and sentence.word(behind) == "于" and sentence.heads[behind] == verb
    return sentence.word(verb) + ("于" if is_own else "")


def _is_lasting(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether a verb tells what is so for a while, or where (位于), not where it happened (生于)."""
    word, behind = _with_preposition(sentence, verb), verb + 1
    if behind < len(sentence) and sentence.heads[behind] == verb and word + sentence.word(behind) in _STATES:
        return True
    return word in _STATES or (len(word) > 1 and word[-1] == "于" and _BORN.isdisjoint(word))


def _negation(sentence: ParsedSentence, verb: int) -> int | None:
    """The negative word that belongs to the verb, or to its modal verb."""
    for i in range(verb):
        if sentence.relation(i) in ("ccomp", "advcl", "conj", "parataxis"):
            continue  # 没有 of another clause
        if sentence.word(i) in _NEGATIVE and sentence.heads[i] in (
            verb,
            sentence.root,
            _modal(sentence, verb),
        ):
            return i
    return None


def _modal(sentence: ParsedSentence, verb: int) -> int | None:
    for child in sentence.children(sentence.root):
        helps = sentence.relation(child)[:3] == "aux" or sentence.word(child) == "即将"
        if child < verb and sentence.word(child) in _MODAL and helps:
            return child
    return None


def _first_in_scope(sentence: ParsedSentence, verb: int) -> int:
    """The word that a negation or a modal verb of `verb` goes before: the first behind the subject, or the
    last comma, that is neither a time nor one of `_FRONT`.
    """
    first = 0
    passive = next(
        (i for i in range(verb) if sentence.word(i) == "被" and sentence.heads[i] == sentence.root), verb
    )
    subjects = [
        i for i in sentence.children(sentence.root) if sentence.relation(i) in SUBJECTS and i < passive
    ]
    for subject in subjects:  # what follows 被 is the agent, which the negation goes before
        first = max(end for end in (subject, sentence.subtree(subject)[1]) if end < verb) + 1
    for i in range(first, verb):
        is_mark = sentence.pos[i] == "PUNCT" and sentence.word(i) not in "“”‘’（）《》「」、·"
        ends_clause = sentence.word(i) in _SUBORDINATE and sentence.deps[i] in ("mark", "case")  # 当…时
        if is_mark or ends_clause:
            first = i + 1
    while first < verb and (end := _front(sentence, first, verb)):
        first = end
    return first


def _front(sentence: ParsedSentence, i: int, verb: int) -> int:
    """Where the time, or word of `_FRONT`, that begins with word i ends; 0 if there is none. Before
    `verb`."""
    head = i  # the phrase that word i opens
    while head != sentence.heads[head] and i < sentence.heads[head] < verb:
        head = sentence.heads[head]
    is_time = (
        sentence.word(head) in _TIMES or sentence.deps[head].endswith(":tmod") or sentence.tags[head] == "NT"
    )
    is_time = is_time and sentence.word(i) not in ("于", "在")  # 没有于1944年服役
    if is_time and sentence.pos[head] in ("NOUN", "PROPN", "NUM", "ADV"):
        return (
            head
            + 1
            + (head + 1 < verb and sentence.deps[head + 1] == "case" and sentence.heads[head + 1] == head)
        )
    if sentence.word(i) in ("等", "等等"):  # the end of what stands before
        return i + 1
    if (
        sentence.pos[head] == "NOUN"
        and sentence.word(head)[-1:] in tuple("内外上下里中间旁侧")
        and head < verb - 1
    ):
        cases = any(sentence.deps[child] == "case" and child < head for child in sentence.children(head))
        if sentence.relation(head)[:3] == "obl" and not cases:  # 场内设有
            return head + 1
    return i + 1 if sentence.word(i) in _FRONT and sentence.pos[i] != "ADP" else 0  # 将 may be 把


def _is_clear(sentence: ParsedSentence, first: int) -> bool:
    """Whether 不 alone can stand before the word `first`: 不从, 不被, not 不主要."""
    return sentence.pos[first] in ("ADP", "AUX") or sentence.tags[first] in ("P", "LB", "SB", "BA")


def _is_subordinate(sentence: ParsedSentence, verb: int) -> bool:
    """Whether the verb's clause only says when or what for (…后, 以…): a parser's root that no rule can
    deny."""
    marks = [c for c in sentence.children(verb) if sentence.deps[c] in ("mark", "case")]
    behind = any(c > verb and sentence.word(c) in _SUBORDINATE for c in marks)
    return behind or any(c < verb and sentence.word(c) in ("以", "以便", "来") for c in marks)


def _is_copula(sentence: ParsedSentence, verb: int) -> bool:
    return verb != sentence.root or sentence.tags[verb] == "VC"


def _is_past(sentence: ParsedSentence, verb: int) -> bool:
    """Whether the verb tells of something that has happened: 了, 过, a time before it, or a verb of an
    event."""
    word = sentence.word(verb)
    is_passive = any(sentence.word(c) == "被" for c in _dependants(sentence, verb) if c < verb)
    if _is_habit(sentence, verb) or (is_passive and word[0] in "视称认叫"):
        return False
    if is_passive:
        return True
    if word in _EVENTS or (len(word) > 1 and (word[-1] in "成到出" or word[0] == "被")):
        return True
    done = any(c > verb and sentence.word(c) in ("了", "过", "着") for c in _dependants(sentence, verb))
    if done:
        return True
    if _is_lasting(sentence, verb):
        return False
    behind = verb + 1
    if behind < len(sentence) and sentence.word(behind) in _RESULTS and sentence.heads[behind] == verb:
        return True
    subject = sentence.subject(sentence.root)
    named = subject is None or sentence.pos[subject] == "PROPN"
    return (
        named
        or _PAST.search(sentence.text, 0, sentence.starts[verb]) is not None
        or (sentence.pos[verb] == "VERB" and _TOLD.search(sentence.text) is not None)
    )


def _is_habit(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether an adverb says that something happens again and again."""
    return any(sentence.word(i) in _HABITS for i in range(verb))


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


def _is_state(sentence: ParsedSentence, verb: int) -> bool:
    return (
        sentence.tags[verb] in ("VA", "VC", "VE")
        or sentence.pos[verb] == "ADJ"
        or sentence.word(verb) in ("是", "有")
    )


def _is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip("”’』」 ").endswith(("？", "?"))
