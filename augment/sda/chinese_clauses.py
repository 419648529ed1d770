"""Read Chinese clauses for SDA's rules: their verb, its reach, and whether it tells of an event or a state.

Parses are those of spaCy's Chinese pipelines (tags of the Penn Chinese Treebank: VV, VA, VC, VE, AD) or UD's.
The words that the rules know follow: how they are negated, and what may stand before them.
"""

import re

from augment.text.parsed import SUBJECTS, ParsedSentence
from augment.text.word_forms import Edit, word_map, word_set


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
    if word in GETTING:
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
    if len(word) > 1 and word[-1] == "有" and word not in HAVING:
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
    if own and word + sentence.word(behind) in STATES:
        return True
    return word in STATES or (len(word) > 1 and word[-1] == "于" and BORN.isdisjoint(word))


def negation_of(sentence: ParsedSentence, verb: int) -> int | None:
    """Return the negative word that belongs to the verb, or to its modal verb."""
    for i in range(verb):
        if sentence.relation(i) in ("ccomp", "advcl", "conj", "parataxis"):
            continue  # 没有 of another clause
        heads = (verb, sentence.root, modal_of(sentence, verb))
        if sentence.word(i) in NEGATIVE and sentence.heads[i] in heads:
            return i
    return None


def modal_of(sentence: ParsedSentence, verb: int) -> int | None:
    for child in sentence.children(sentence.root):
        helps = sentence.relation(child)[:3] == "aux" or sentence.word(child) == "即将"
        if child < verb and sentence.word(child) in MODAL and helps:
            return child
    return None


def first_in_scope(sentence: ParsedSentence, verb: int) -> int:
    """Return the word that a negation or modal goes before: behind subject, commas, times, `FRONT`."""
    first = 0
    root = sentence.root
    by = (i for i in range(verb) if sentence.word(i) == "被" and sentence.heads[i] == root)
    passive = next(by, verb)
    for subject in (i for i in sentence.dependents(root, *SUBJECTS) if i < passive):
        # what follows 被 is the agent, which the negation goes before
        first = max(end for end in (subject, sentence.subtree(subject)[1]) if end < verb) + 1
    for i in range(first, verb):
        is_mark = sentence.pos[i] == "PUNCT" and sentence.word(i) not in "“”‘’（）《》「」、·"
        ends_clause = sentence.word(i) in SUBORDINATE and sentence.deps[i] in ("mark", "case")  # 当…时
        if is_mark or ends_clause:
            first = i + 1
    while first < verb and (end := _front(sentence, first, verb)):
        first = end
    return first


def _front(sentence: ParsedSentence, i: int, verb: int) -> int:
    """Return where the time or word of `FRONT` that begins at word i, before `verb`, ends; 0: none."""
    head = i  # the phrase that word i opens
    for _ in range(verb - i):  # where heads make a circle, there is no end of it
        if head == sentence.heads[head] or not i < sentence.heads[head] < verb:
            break
        head = sentence.heads[head]
    is_time = sentence.word(head) in TIMES or sentence.deps[head].endswith(":tmod")
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
    return i + 1 if sentence.word(i) in FRONT and sentence.pos[i] != "ADP" else 0  # 将 may be 把


def is_clear(sentence: ParsedSentence, first: int) -> bool:
    """Return whether 不 alone can stand before the word `first`: 不从, 不被, not 不主要."""
    return sentence.pos[first] in ("ADP", "AUX") or sentence.tags[first] in ("P", "LB", "SB", "BA")


def is_subordinate(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether the verb's clause only says when or what for (…后, 以…), which no rule can deny."""
    marks = [c for c in sentence.children(verb) if sentence.deps[c] in ("mark", "case")]
    behind = any(c > verb and sentence.word(c) in SUBORDINATE for c in marks)
    return behind or any(c < verb and sentence.word(c) in ("以", "以便", "来") for c in marks)


def is_copula(sentence: ParsedSentence, verb: int) -> bool:
    return verb != sentence.root or sentence.tags[verb] == "VC"


def is_past(sentence: ParsedSentence, verb: int) -> bool:
    """Return whether the verb tells what has happened: 了, 过, a time before it, or a verb of an event."""
    word = sentence.word(verb)
    is_passive = any(sentence.word(c) == "被" for c in dependants(sentence, verb) if c < verb)
    is_habit = any(sentence.word(i) in HABITS for i in range(verb))  # again and again
    if is_habit or (is_passive and word[0] in "视称认叫"):
        return False
    if is_passive:
        return True
    if word in EVENTS or (len(word) > 1 and (word[-1] in "成到出" or word[0] == "被")):
        return True
    done = any(c > verb and sentence.word(c) in ("了", "过", "着") for c in dependants(sentence, verb))
    if done:
        return True
    if is_lasting(sentence, verb):
        return False
    behind = verb + 1
    if behind < len(sentence) and sentence.word(behind) in RESULTS and sentence.heads[behind] == verb:
        return True
    subject = sentence.subject(sentence.root)
    named = subject is None or sentence.pos[subject] == "PROPN"
    if named or PAST.search(sentence.text, 0, sentence.starts[verb]) is not None:
        return True
    return sentence.pos[verb] == "VERB" and TOLD.search(sentence.text) is not None


def event_adverb(sentence: ParsedSentence, verb: int) -> int | None:
    for child in dependants(sentence, verb):
        if child < verb and sentence.pos[child] == "ADV" and sentence.word(child) in EVENT_ADVERBS:
            return child
    return None


def degree_of(sentence: ParsedSentence, verb: int) -> str | None:
    """Return the degree adverb right before the verb or adjective."""
    before = sentence.word(verb - 1) if verb else ""
    return before if before in DEGREE else None


def dependants(sentence: ParsedSentence, verb: int) -> list[int]:
    """Return the words that depend on the verb, and on the root where that is another word (copula)."""
    root = sentence.root
    return sentence.children(verb) if verb == root else [*sentence.children(verb), *sentence.children(root)]


def is_state(sentence: ParsedSentence, verb: int) -> bool:
    tagged = sentence.tags[verb] in ("VA", "VC", "VE") or sentence.pos[verb] == "ADJ"
    return tagged or sentence.word(verb) in ("是", "有")


def is_question(sentence: ParsedSentence) -> bool:
    return sentence.text.rstrip("”’』」 ").endswith(("？", "?"))


NEGATIVE = {
    "不": "", "没": "", "没有": "", "未": "", "并不": "", "并没": "", "并没有": "", "并未": "", "未曾": "曾",
    "从未": "曾", "尚未": "已", "还没": "已经", "还没有": "已经", "并非": "是", "不是": "是", "不能": "能",
    "不会": "会", "无法": "能",
}  # fmt: skip
"""Negative words that depend on a verb, and what stands where the negation is taken away."""
POSITIVE = word_map(
    "没有=有 不是=是 不能=能 不会=会 无法=能 不应该=应该 不可能=可能 没=有 无=有 并无=有 毫无=有 并非=是 而非=而是 不为=为 不同=相同"
)
"""Negative verbs, and their positive."""
MODAL = word_set("能 能够 应该 应当 可能 会 必须 可以 要 想 愿意 得 需要 该 不能 不会 不得不 即将")
"""Modal verbs."""
NOT_NEEDED = {"必须": "不必", "不得不": "不必", "得": "不用", "必需": "不必", "须": "无须", "即将": "不会"}
"""Modal verbs that 不 does not deny, and their negative."""
EVENT_ADVERBS = word_map("已经=还没 已=还没 曾经=未曾 曾=未曾 正在=没在 正=没在 在=没在")
"""Adverbs of events, and what they are where the event is negated."""
ONCE = word_set("曾经 曾")
"""Those of `EVENT_ADVERBS` that say that something was so."""
SCOPE = word_set("只 仅 仅仅 只是 单单")
"""Words that are negated as a whole: 不只, 不仅."""
AMOUNT = word_set("共 共同 约 大约 分别 至少 各 合共 多")
"""Words that follow the negation of 有 and 为."""
FRONT = word_set(
    "也 都 均 则 就 便 又 还 仍 仍然 依然 却 亦 并 并且 且 而 而且 但 但是 然而 后来 随后 其后 最后 最终 终于 目前 现在 当时 一直 从此 至今 迄今 同时 往往 通常 一般 其实 "
    "当然 显然 因此 所以 于是 另外 此外 几乎 竟 竟然 果然 将 即 后 早 甚至 甚至于 更 乃 既"
)
"""Words between the subject and the verb that a negation follows: connectives, adverbs of time
and of the whole sentence."""
TIMES = word_set("年 月 日 号 世纪 年代 星期 周 时期 期间 初 末 底 今天 昨天 去年 今年 同年 当年 次年 该年")
"""Nouns that end an expression of time."""
PAST = re.compile(
    r"[0-9０-９一二三四五六七八九〇零十]{2,4}年|月[0-9０-９一二三四五六七八九十]{1,3}日|世纪|年代|去年|昨天|昨日|前年|同年|次年|翌年"
    r"|当年|该年|当时|后来|随后|其后|之后|不久|终于|最终|最后|首次"
)
"""Times that have passed."""
NO_NEGATION = word_set(
    "享年 号称 名叫 以至 据说 据悉 如 例如 譬如 如下 共计 总计 即 终年 时年 为期 除 又称 亦称 简称 俗称 而非"
)
"""Verbs that no word negates."""
EVENTS = word_set(
    "死 去世 逝世 牺牲 出生 发现 成 成为 迫使 使 让 造成 导致 获 获得 取得 夺得 赢得 击败 毕业 成立 创立 建立 结束 揭示 失守 抵达 宣布 当选 爆发 完成 战胜 决定 决议 始建 建 "
    "开始 宣言 倒闭 陷入 离开 攻占 占领 入选 晋级 使得 引起 引发 造就 到达 进入 加入 成功 失败 当上 接任 出任 就任 改任 任命 说 说道 表示 指出 补充 补充道 声称 宣称 回答 解释 "
    "强调 透露 写道 请 请求 要求 下令 命令 派 派遣 送给 交给 提出 发表 发行 推出 出版 播出 上映 饰演 扮演 参演"
)
"""Verbs of what happens once; like those that end in 成, 到 and 出 they are negated as past."""
STATES = word_set(
    "包括 属 分为 分成 包含 代表 存在 认为 相信 知道 喜欢 爱 希望 觉得 像 姓 叫 值得 意味 意味着 适合 适用 符合 需要 具 具备 具有 拥有 含有 享有 持有 带有 富有 占有 含 占 呈 "
    "呈现 称 称为 作为 指 意为 当作 视为 相当 相同 相似 类似 反映 象征 表明 显示 住"
)
"""Verbs of what is so for a while: 不 denies them, whatever the time."""
BORN = frozenset("生死建设创始产毕成葬逝卒战")
"""Characters before 于 that tell of an event: 生于, 建于, 毕业于."""
HAVING = word_set("具有 拥有 含有 享有 持有 带有 富有 占有 没有 所有 只有 仅有 惟有")
"""Verbs that end in 有 and keep it where they are negated."""
RESULTS = word_set("成 到 出 完 为 给 入 下 起 掉 走 回 至 上 下来 起来 出来")
"""Words behind a verb that say what came of it."""
GETTING = word_set("获得 取得 值得 觉得 懂得 记得 显得 赢得 夺得 博得 使得 难得 求得")
"""Verbs that end in 得 without the complement that a verb and 得 are for (传得很快)."""
HABITS = word_set("通常 一般 往往 经常 常 常常 总 总是 每 每年 每天 大多 平时 时常")
"""Adverbs of what happens again and again."""
TOLD = re.compile(r"曾|已经|[^为除]了[^解]|[0-9０-９]{3,4}年")
"""Signs that a sentence tells of the past."""
CONCLUDING = ("于是", "所以", "因此", "因而", "从而", "故", "可见", "结果", "总之")
"""Openings that conclude from what stands before them, which no phrase of denial can be."""
DIRECTIONS = re.compile(r"[东南西北][临邻接连靠毗界至抵到濒]|[临邻接连靠毗界至抵濒]")
"""Verbs that say what lies on which side."""
ALIKE = word_set("一样 同样 那么 这么 一般")
"""Words that compare: the negation goes before the whole comparison."""
BEFORE_ADJECTIVE = word_set("对 对于 与 和 跟 同 在 于 由 从 为")
"""Prepositions whose phrase stands before a negated adjective (对人不好)."""
SUBORDINATE = word_set("后 时 之后 以后 之前 以前 前 的时候 期间 之际 以来")
"""Words behind a verb that make its clause depend on another."""
DEGREE = word_set("很 非常 十分 太 最 更 较 比较 极 特别 相当 甚为 颇为 极为 甚 颇")
"""Adverbs of degree."""
PERHAPS = word_set("也许 或许 大概 可能 一定 必然")
"""Adverbs that doubt or insist."""
BUT = re.compile(r"(?:(?:不过|但是|但|然而|可是|而且|并且|例如|同时|而)，?)?")
"""A connective that a phrase at the start of the sentence follows."""
LINKS = word_set("因此 因而 所以 于是 从而 却 又 也 则 并 并且 仍 仍然")
"""Words that a modal word stands behind."""
AHEAD = word_set("就 便 还 既 均 即 一直 几乎 终于 至今 往往 通常 一般 最终 从此 长期 曾")
"""Words that a modal word stands before."""
