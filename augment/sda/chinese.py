"""Negate Chinese sentences, and put modal words into them: SDA's rules (Zhu et al. 2022).

A verb is negated by 不, an event (了, 过, 正在, a date, 后来) by 没有. 曾 becomes 未曾, 已 还没, 有 没有, and 为 不是;
a degree (很) gets 不是. The negation stands behind the subject, times, and adverbs of the sentence (也, 仍),
and before all that it must reach: modal verbs, 被, 把, prepositional phrases, adverbs of manner and of scope
(只, 共). Each function returns edits, or None if the rule does not apply.
"""

from collections.abc import Callable

from augment.sda import chinese_clauses as clauses
from augment.sda.chinese_clauses import WORDS
from augment.text.draws import Draws
from augment.text.parsed import ParsedSentence
from augment.text.word_forms import Edit

_MODALS = ("不能不", "不会不", "不得不", "可能", "也许")  # 必须 and 应该 make a duty of a deed
_MODALS_OF_EVENTS = ("可能", "也许")  # of what has happened
_MODALS_OF_STATES = ("应该", "可能", "也许")  # before an adjective, 是 or 有, a degree, 已经 and the like
_HEADS = ("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，")
# Those of the code's list that assert what follows, such as 令人惊讶的是, are left out.
_PREFIXES = ("绝对不可能，", "这不可能，", "事实并非如此，", "这不是事实，")


def negation_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """Return `entries.neg`'s edits: the main verb negated or affirmed; a phrase if there is no verb."""
    if not len(sentence):
        return None
    verb = clauses.main_verb(sentence)
    edits = None if verb is None else _negated(sentence, verb)
    return edits or [(0, 0, draws.choice(_PREFIXES))]


def double_negation_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """Return `entries.dn`'s edits: the main verb negated, and a phrase such as 这不可能 in front."""
    verb = clauses.main_verb(sentence)
    if verb is None or clauses.is_question(sentence) or sentence.text.startswith(tuple(WORDS.concluding)):
        return None
    edits = _negated(sentence, verb)
    return edits and [(0, 0, draws.choice(_PREFIXES)), *edits]


def modal_edits(sentence: ParsedSentence, draws: Draws) -> list[Edit] | None:
    """Return `entries.mv`'s edits: a modal before the main verb, or 不得不说 and the like in front."""
    verb = clauses.main_verb(sentence)
    if verb is None or clauses.is_question(sentence):
        return None
    word = sentence.word(verb)
    has_modal = (
        any(word in listed for listed in (WORDS.modal, WORDS.positive, WORDS.no_negation))
        or clauses.modal_of(sentence, verb) is not None
        or sentence.text[sentence.ends[verb] :].startswith(("，", "："))  # 值得一提的是，
    )
    before = (sentence.word(child) for child in clauses.dependants(sentence, verb) if child < verb)
    doubted = any(word in WORDS.perhaps for word in before)
    first = clauses.first_in_scope(sentence, verb)
    no_place = not first or clauses.is_subordinate(sentence, verb) or sentence.word(first - 1) == "将"
    if has_modal or doubted or no_place or clauses.negation_of(sentence, verb) is not None:
        place = len(clauses.BUT.match(sentence.text)[0])  # type: ignore[index]  # it may be empty
        return [(place, place, draws.choice(_HEADS))]
    first = _place_of_modal(sentence, verb, first)
    place = sentence.starts[first]
    if (
        clauses.is_state(sentence, verb)
        or clauses.degree_of(sentence, verb)
        or clauses.event_adverb(sentence, verb) is not None
    ):
        modals: tuple[str, ...] = _MODALS_OF_STATES
    else:
        subject = sentence.subject(sentence.root)
        acts = subject is not None and sentence.pos[subject] == "PRON" and first == verb
        acts = acts and not clauses.is_past(sentence, verb)
        modals = _MODALS if acts else _MODALS_OF_EVENTS
    if first and sentence.word(first - 1) in ("也", "并", "并且", "且", "又"):
        modals = tuple(modal for modal in modals if modal != "也许")
    return [(place, place, draws.choice(modals))]


def _place_of_modal(sentence: ParsedSentence, verb: int, first: int) -> int:
    """Return the word that a modal word goes before: behind 因此 and 却, before 一直 and 就."""
    for i in range(verb - 1, first - 1, -1):
        if sentence.word(i) in WORDS.links and sentence.heads[i] in (verb, sentence.root):
            return i + 1
    while first and sentence.word(first - 1) in WORDS.ahead:
        first -= 1
    return first


def _negated(sentence: ParsedSentence, verb: int) -> list[Edit] | None:
    """Return edits that negate the verb, or take its negation away; None if no word can."""
    one = _Verb(sentence, verb)
    change = next(change for condition, change in _RULES if condition(one))
    edits = change and change(one)
    if not edits or not edits[0][2].startswith(("不", "没", "并")):
        return edits
    place = edits[0][0]
    if sentence.text[:place].endswith("还"):  # 还不 says not yet
        return [(place - 1, place, "也"), *edits]
    return edits


class _Verb:
    """A verb to negate, and what the rules ask of it and of the words around it.

    following, previous: the character behind it, the word before it. scope_start: where it begins, with an
    adverb of scope before it: 仅有, 约为. adverb: what makes an event of it; once: the same, if it is 曾 or
    the like. first, place: the first word that a negation must reach, and where it begins.
    """

    def __init__(self, sentence: ParsedSentence, index: int) -> None:
        self.sentence, self.index, self.word = sentence, index, sentence.word(index)
        self.start, self.end = sentence.starts[index], sentence.ends[index]
        self.part_of_speech, self.tag = sentence.pos[index], sentence.tags[index]
        self.following = sentence.text[self.end : self.end + 1]
        self.previous = sentence.word(index - 1) if index else ""
        widened = self.previous in WORDS.scope or self.previous in WORDS.amount
        self.scope_start = sentence.starts[index - widened]
        self.negation, self.modal = clauses.negation_of(sentence, index), clauses.modal_of(sentence, index)
        self.degree, self.having = clauses.degree_of(sentence, index), clauses.having_of(sentence, index)
        self.adverb = clauses.event_adverb(sentence, index)
        self.adverb_word = "" if self.adverb is None else sentence.word(self.adverb)
        self.once = self.adverb if self.adverb_word in WORDS.once else None
        self.first = clauses.first_in_scope(sentence, index)
        self.first_word, self.place = sentence.word(self.first), sentence.starts[self.first]
        self.is_copula = self.word == "为" and clauses.is_copula(sentence, index)
        self.is_lasting = clauses.is_lasting(sentence, index) or self.first_word == "以"  # 以渔业为主
        becomes = self.tag == "VA" and self.adverb_word in ("已经", "已")  # 天已经黑了: 还没黑
        self.is_state = clauses.is_state(sentence, index) and not becomes

    @property
    def place_of_state(self) -> int:
        """`place`, or for some adjectives where they begin: 对后世影响不深远."""
        between = {self.sentence.word(i) for i in range(self.first, self.index)}
        adjective = self.part_of_speech == "ADJ" or self.tag == "VA"
        late = adjective and between & WORDS.before_adjective and not between & WORDS.alike
        return self.start if late else self.place

    @property
    def denies_any(self) -> bool:
        """Whether 任何 follows the negation, and needs it."""
        if self.word in WORDS.positive:
            return "任何" in self.sentence.text[self.end :]
        return self.negation is not None and "任何" in self.sentence.text[self.sentence.ends[self.negation] :]

    @property
    def has_no_negation(self) -> bool:
        sentence, index = self.sentence, self.index
        then = (child for child in clauses.dependants(sentence, index) if child < index)
        return (
            self.word in WORDS.no_negation
            or (
                self.word in ("是", "说", "看", "讲", "言") and self.following in tuple("，,：:")
            )  # 值得一提的是，
            or any(sentence.word(child) == "才" for child in then)
            or clauses.is_subordinate(sentence, index)
            or clauses.has_complement(sentence, index)
            or clauses.DIRECTIONS.fullmatch(self.word) is not None
            or clauses.is_measured(sentence, index)
        )

    @property
    def is_compared(self) -> bool:
        """Whether it begins with a comparison (较低), or what is negated with 不 or 有 (不断, 有权)."""
        alone = self.first == self.index and len(self.word) > 1 and self.part_of_speech == "ADJ"
        return (alone and self.word[0] in "较更最极") or self.first_word[0] in "不有"

    @property
    def is_birth(self) -> bool:
        whole = clauses.with_preposition(self.sentence, self.index)  # 建于
        return whole[-1] == "于" and len(whole) > 1 and not WORDS.born.isdisjoint(whole)

    def put(self, place: int, text: str) -> list[Edit]:
        return [(place, place, text)]

    def replace(self, word: int | None, text: str) -> list[Edit]:
        assert word is not None
        return [(self.sentence.starts[word], self.sentence.ends[word], text)]


def _without_negation(verb: _Verb) -> list[Edit]:
    sentence, found = verb.sentence, verb.negation
    assert found is not None
    compares = sentence.word(found + 1) in ("像", "那么", "这么", "那样", "这样", "如此")
    verbal = verb.part_of_speech in ("VERB", "AUX", "ADJ") or compares
    has_object = sentence.word(found) in ("没有", "没") and not verbal
    new = "有" if has_object else WORDS.negative[sentence.word(found)]
    and_too = not new and found > 0 and sentence.word(found - 1) == "并"  # 并 is a part of 并未
    return [(sentence.starts[found - and_too], sentence.ends[found], new)]


def _not_having(verb: _Verb) -> list[Edit]:
    lasting = [(verb.end, verb.end + 1, "")] if verb.following == "着" else []
    return [(verb.scope_start, verb.start, "没"), *lasting]  # 仅有, 共有: 没有


def _not_being(verb: _Verb) -> list[Edit]:
    whole = verb.word == "是" or verb.word in WORDS.scope  # 也是 may be one word
    return verb.put(verb.scope_start if whole else verb.end - 1, "不")


def _negated_modal(verb: _Verb) -> list[Edit]:
    sentence, modal = verb.sentence, verb.modal
    assert modal is not None
    written = sentence.word(modal)
    if written in WORDS.not_needed:
        return verb.replace(modal, WORDS.not_needed[written])
    if modal and sentence.word(modal - 1) in WORDS.scope:  # 不只会
        return verb.put(sentence.starts[modal - 1], "不")
    return verb.put(sentence.starts[modal] + (len(written) > 1 and written[0] == "将"), "不")  # 将会: 将不会


def _not_doing(verb: _Verb) -> list[Edit]:
    after_and = verb.first and verb.sentence.word(verb.first - 1) == "并"  # 并 is a part of 并不
    short = after_and or verb.first == verb.index or clauses.is_clear(verb.sentence, verb.first)
    return verb.put(verb.place_of_state, "不" if short else "并不")


def _not_done(verb: _Verb) -> list[Edit]:
    sentence, adverb = verb.sentence, verb.adverb
    negation = verb.put(verb.place_of_state, "没有")
    if adverb is not None:
        follows = sentence.word(adverb + 1) if adverb + 1 < len(sentence) else ""
        new = "没" if verb.adverb_word == "正" and follows == "在" else WORDS.event_adverbs[verb.adverb_word]
        negation = verb.replace(adverb, new)
        if verb.once is not None and follows in ("也", "亦", "还", "都", "又"):  # 曾经也: 也未曾
            negation = [(sentence.starts[adverb], sentence.ends[adverb + 1], follows + new)]
    if verb.word == "成" and verb.following != "为":
        end = sentence.ends[verb.index + 1] if clauses.is_done(sentence, verb.index) else verb.end
        return [*negation, (verb.start, end, "成为")]
    completed = {
        c for c in clauses.dependants(sentence, verb.index) if c > verb.index and sentence.word(c) == "了"
    }
    completed |= {i for i in range(verb.first, verb.index) if sentence.word(i) == "了"}
    # 没有花费了: 没有花费; 去了: 没有去
    return [*negation, *(sentence.replacement(c, "") for c in sorted(completed))]


_RULES: tuple[tuple[Callable[[_Verb], object], Callable[[_Verb], list[Edit]] | None], ...] = (
    # what holds of the verb, and the edits that negate it; None: no word can. The first that holds decides.
    (lambda v: v.denies_any, None),
    (
        lambda v: v.word == "没有" and v.sentence.pos[v.index + 1 : v.index + 2] == ("VERB",),  # 没有取得
        lambda v: v.replace(v.index, ""),
    ),
    (lambda v: v.word in WORDS.positive, lambda v: v.replace(v.index, WORDS.positive[v.word])),  # 没有, 不是
    (lambda v: v.negation is not None, _without_negation),
    (lambda v: v.has_no_negation, None),
    (lambda v: v.word == "有" and v.once is not None, lambda v: v.replace(v.once, "未曾")),
    (lambda v: v.word == "有" and v.previous in ("陆续", "相继", "先后"), None),
    (lambda v: v.word == "有", _not_having),
    (lambda v: v.word == "有着", lambda v: v.replace(v.index, "没有")),
    (
        lambda v: len(v.word) == 2 and v.word[0] in "亦也均则即" and v.word[1] == "为",
        lambda v: [(v.start + 1, v.end, "不是")],
    ),
    (lambda v: v.word.endswith("是") and v.once is not None, lambda v: v.replace(v.once, "不曾")),
    (lambda v: v.word.endswith("是"), _not_being),
    (lambda v: v.is_copula and v.following == "止", None),  # 到…为止
    (
        lambda v: v.is_copula,  # 约为: 不是约
        lambda v: [(v.scope_start, v.end, "不是" + v.sentence.text[v.scope_start : v.start])],
    ),
    (lambda v: v.modal is not None, _negated_modal),
    (lambda v: v.first_word == "以" and v.first and v.sentence.pos[v.first - 1] == "PUNCT", None),  # what for
    (lambda v: v.is_compared, lambda v: v.put(v.place, "并非")),
    # 更不相信
    (lambda v: v.degree in ("更", "最") and v.part_of_speech == "VERB", lambda v: v.put(v.start, "不")),
    (lambda v: v.degree is not None, lambda v: v.put(v.place, "不" if v.degree == "太" else "不是")),
    (
        lambda v: v.word in WORDS.having and clauses.is_done(v.sentence, v.index),  # 具有了
        lambda v: [*v.put(v.place, "不"), (v.end, v.sentence.ends[v.index + 1], "")],
    ),
    (lambda v: v.having, lambda v: [*v.put(v.place, "没有"), v.having or (0, 0, "")]),  # 种植有: 没有种植
    (lambda v: v.is_birth, lambda v: v.put(v.place, "并非")),  # 并非建于
    (lambda v: v.is_lasting and v.adverb_word in ("正", "正在", "在"), lambda v: v.replace(v.adverb, "并不")),
    (lambda v: v.is_lasting and v.first_word in ("把", "将", "被"), lambda v: v.put(v.place, "没有")),
    (
        lambda v: (
            v.is_lasting and v.adverb is None and clauses.is_clear(v.sentence, v.first)
        ),  # 在印度不属于违法
        lambda v: v.put(v.start, "不"),
    ),
    (lambda v: v.is_state and v.once is not None, lambda v: v.replace(v.once, "不曾")),
    (lambda v: v.is_state, lambda v: v.put(v.place_of_state, "不")),
    (lambda v: v.adverb is None and not clauses.is_past(v.sentence, v.index), _not_doing),
    (lambda v: True, _not_done),
)
