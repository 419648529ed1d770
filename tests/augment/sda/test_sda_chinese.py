"""SDA's four augmentations in Chinese, on parses written by hand with the labels of spaCy's Chinese pipelines
and of UD."""

import dataclasses

import pytest
from parse_builder import POS, outcomes, parse

from augment.sda.entries import dn, mv, neg, pi
from augment.text.parsed import ParsedSentence

# name: (text, parse as "word/TAG/relation/head" with heads from 1 and 0 for the root)
SENTENCES = {
    "actor": ("王明饰演主角。", "王明/NR/nsubj/2 饰演/VV/ROOT/0 主角/NN/obj/2 。/PU/punct/2"),
    "planted": ("这里种植有树。", "这里/NN/nsubj/2 种植/VV/ROOT/0 有/VE/xcomp/2 树/NN/obj/2 。/PU/punct/2"),
    "lies": ("1993年，学校位于北京。",
     "1993/CD/nummod/2 年/NT/nmod:tmod/5 ，/PU/punct/2 学校/NN/nsubj/5 位于/VV/ROOT/0 北京/NR/obj/5 。/PU/punct/5"),
    "so": ("所以他去了北京。", "所以/AD/advmod/3 他/PN/nsubj/3 去/VV/ROOT/0 了/AS/aux/3 北京/NR/obj/3 。/PU/punct/3"),
    "spread fast": ("消息传得很快。", "消息/NN/nsubj/2 传/VV/ROOT/0 得/SP/mark/5 很/AD/advmod/5 快/VA/ccomp/2 。/PU/punct/2"),
    "good to": ("他对人好。", "他/PN/nsubj/4 对/P/case/3 人/NN/obl/4 好/VA/ROOT/0 。/PU/punct/4"),
    "all along": ("他一直去北京。", "他/PN/nsubj/3 一直/AD/advmod/3 去/VV/ROOT/0 北京/NR/dobj/3 。/PU/punct/3"),
    "only will": ("他只会去北京。", "他/PN/nsubj/4 只/AD/advmod/4 会/VV/aux:modal/4 去/VV/ROOT/0 北京/NR/obj/4 "
                  "。/PU/punct/4"),
    "once also": ("他曾经也任总理。", "他/PN/nsubj/4 曾经/AD/advmod/4 也/AD/advmod/4 任/VV/ROOT/0 总理/NN/dobj/4 "
                  "。/PU/punct/4"),
    "went": ("他去了北京。", "他/PN/nsubj/2 去/VV/ROOT/0 了/AS/aux:asp/2 北京/NR/dobj/2 。/PU/punct/2"),
    "went UD": ("他去了北京。", "他/PN/nsubj/2 去/VV/ROOT/0 了/AS/aux/2 北京/NR/obj/2 。/PU/punct/2"),
    "likes not": ("他不喜欢咖啡。", "他/PN/nsubj/3 不/AD/neg/3 喜欢/VV/ROOT/0 咖啡/NN/dobj/3 。/PU/punct/3"),
    "good": ("天气很好。", "天气/NN/nsubj/3 很/AD/advmod/3 好/VA/ROOT/0 。/PU/punct/3"),
    "no money": ("我没有钱。", "我/PN/nsubj/2 没有/VE/ROOT/0 钱/NN/dobj/2 。/PU/punct/2"),
    "money": ("我有钱。", "我/PN/nsubj/2 有/VE/ROOT/0 钱/NN/dobj/2 。/PU/punct/2"),
    "teacher": ("她是老师。", "她/PN/nsubj/3 是/VC/cop/3 老师/NN/ROOT/0 。/PU/punct/3"),
    "taken": ("书被他拿走了。", "书/NN/nsubjpass/4 被/LB/auxpass/4 他/PN/nsubj/4 拿走/VV/ROOT/0 了/AS/aux:asp/4 "
                         "。/PU/punct/4"),
    "must": ("他必须走。", "他/PN/nsubj/3 必须/VV/aux:modal/3 走/VV/ROOT/0 。/PU/punct/3"),
    "says": ("他说他去。", "他/PN/nsubj/2 说/VV/ROOT/0 他/PN/nsubj/4 去/VV/ccomp/2 。/PU/punct/2"),
    "was teacher": ("她是老师了。", "她/PN/nsubj/3 是/VC/cop/3 老师/NN/ROOT/0 了/SP/discourse/3 。/PU/punct/3"),
    "gone": ("他已经去北京了。", "他/PN/nsubj/3 已经/AD/advmod/3 去/VV/ROOT/0 北京/NR/dobj/3 了/SP/discourse/3 "
                         "。/PU/punct/3"),
    "been": ("他曾经去过北京。", "他/PN/nsubj/3 曾经/AD/advmod/3 去/VV/ROOT/0 过/AS/aux:asp/3 北京/NR/dobj/3 。/PU/punct/3"),
    "eating": ("他正在吃饭。", "他/PN/nsubj/3 正在/AD/advmod/3 吃/VV/ROOT/0 饭/NN/dobj/3 。/PU/punct/3"),
    "from": ("他从北京来。", "他/PN/nsubj/4 从/P/case/3 北京/NR/nmod:prep/4 来/VV/ROOT/0 。/PU/punct/4"),
    "taller": ("他比我高。", "他/PN/nsubj/4 比/P/case/3 我/PN/nmod:prep/4 高/VA/ROOT/0 。/PU/punct/4"),
    "will": ("他将去北京。", "他/PN/nsubj/3 将/AD/advmod/3 去/VV/ROOT/0 北京/NR/dobj/3 。/PU/punct/3"),
    "had to": ("他不得不走。", "他/PN/nsubj/3 不得不/VV/aux:modal/3 走/VV/ROOT/0 。/PU/punct/3"),
    "fond": ("他非常喜欢咖啡。", "他/PN/nsubj/3 非常/AD/advmod/3 喜欢/VV/ROOT/0 咖啡/NN/dobj/3 。/PU/punct/3"),
    "also": ("他们都去北京。", "他们/PN/nsubj/3 都/AD/advmod/3 去/VV/ROOT/0 北京/NR/dobj/3 。/PU/punct/3"),
    "book": ("他把书看完了。", "他/PN/nsubj/4 把/BA/aux:ba/4 书/NN/dep/4 看完/VV/ROOT/0 了/AS/aux:asp/4 。/PU/punct/4"),
    "since": ("从那时起，他成为了作家。", "从/P/case/2 那时/NT/nmod:prep/6 起/LC/case/2 ，/PU/punct/6 他/PN/nsubj/6 "
              "成为/VV/ROOT/0 了/AS/aux:asp/6 作家/NN/dobj/6 。/PU/punct/6"),
    "will be glad": ("他会非常高兴。", "他/PN/nsubj/4 会/VV/aux:modal/4 非常/AD/advmod/4 高兴/VA/ROOT/0 。/PU/punct/4"),
    "just is": ("这正是问题。", "这/PN/nsubj/4 正/AD/advmod/4 是/VC/cop/4 问题/NN/ROOT/0 。/PU/punct/4"),
    "works": ("他正在北京工作。", "他/PN/nsubj/5 正/AD/advmod/5 在/P/case/4 北京/NR/nmod:prep/5 工作/VV/ROOT/0 "
                          "。/PU/punct/5"),
    "once": ("他曾任总理。", "他/PN/nsubj/3 曾/AD/advmod/3 任/VV/ROOT/0 总理/NN/dobj/3 。/PU/punct/3"),
    "once was": ("他曾是总理。", "他/PN/nsubj/4 曾/AD/advmod/4 是/VC/cop/4 总理/NN/ROOT/0 。/PU/punct/4"),
    "left": ("他已离开北京。", "他/PN/nsubj/3 已/AD/advmod/3 离开/VV/ROOT/0 北京/NR/dobj/3 。/PU/punct/3"),
    "dark": ("天已经黑了。", "天/NN/nsubj/3 已经/AD/advmod/3 黑/VA/ROOT/0 了/SP/discourse/3 。/PU/punct/3"),
    "in 1993": ("1993年，图书馆迁到北京。",
     "1993/CD/nummod/2 年/NT/nmod:tmod/5 ，/PU/punct/2 图书馆/NN/nsubj/5 迁到/VV/ROOT/0 北京/NR/obj/5 。/PU/punct/5"),
    "by": ("系统通过密码记录进度。", "系统/NN/nsubj/4 通过/P/case/3 密码/NN/obl/4 记录/VV/ROOT/0 进度/NN/obj/4 。/PU/punct/4"),
    "mainly": ("电影主要呈现现实。", "电影/NN/nsubj/3 主要/AD/advmod/3 呈现/VV/ROOT/0 现实/NN/obj/3 。/PU/punct/3"),
    "also is": ("他也是作家。", "他/PN/nsubj/3 也是/VC/cop/3 作家/NN/ROOT/0 。/PU/punct/3"),
    "only is": ("他只是作家。", "他/PN/nsubj/4 只/AD/advmod/4 是/VC/cop/4 作家/NN/ROOT/0 。/PU/punct/4"),
    "only has": ("这里仅有水。", "这里/NN/nsubj/3 仅/AD/advmod/3 有/VE/ROOT/0 水/NN/obj/3 。/PU/punct/3"),
    "copula": ("名称为长城。", "名称/NN/nsubj/3 为/VC/cop/3 长城/NR/ROOT/0 。/PU/punct/3"),
    "without": ("他无钱。", "他/PN/nsubj/2 无/VV/ROOT/0 钱/NN/obj/2 。/PU/punct/2"),
    "again and again": ("他不断学习。", "他/PN/nsubj/3 不断/AD/advmod/3 学习/VV/ROOT/0 。/PU/punct/3"),
    "made": ("她将人变成猪。", "她/PN/nsubj/4 将/BA/case/3 人/NN/obl/4 变成/VV/ROOT/0 猪/NN/obj/4 。/PU/punct/4"),
    "named": ("他被国王封为公爵。",
     "他/PN/nsubj:pass/4 被/LB/aux:pass/4 国王/NN/nsubj/4 封为/VV/ROOT/0 公爵/NN/obj/4 。/PU/punct/4"),
    "worth": ("值得一提的是，他来。",
     "值得/VV/acl/4 一提/VV/dep/1 的/DEC/mark/1 是/VC/ROOT/0 ，/PU/punct/4 他/PN/nsubj/7 来/VV/ccomp/4 "
              "。/PU/punct/4"),
    "not until": ("他才来。", "他/PN/nsubj/3 才/AD/advmod/3 来/VV/ROOT/0 。/PU/punct/3"),
    "in order to": ("他省钱，以买房。",
     "他/PN/nsubj/2 省/VV/dep/6 钱/NN/obj/2 ，/PU/punct/6 以/P/mark/6 买/VV/ROOT/0 房/NN/obj/6 。/PU/punct/6"),
    "heading": ("法国历史", "法国/NR/nmod/2 历史/NN/ROOT/0"),
    "question": ("他去北京？", "他/PN/nsubj/2 去/VV/ROOT/0 北京/NR/dobj/2 ？/PU/punct/2"),
    "quotes": ("他说“不”字https://x.org/不。",
     "他/PN/nsubj/2 说/VV/ROOT/0 “/PU/punct/4 不/AD/advmod/6 ”/PU/punct/4 字/NN/dobj/2 "
               "https://x.org/不/NR/dep/2 。/PU/punct/2"),
}  # fmt: skip
PHRASES = ("绝对不可能，", "这不可能，", "事实并非如此，", "这不是事实，")
HEADS = ("不得不说，", "不得不承认，", "不可否认，", "毋庸置疑，", "显而易见，", "诚然，")


def parsed(text: str, annotation: str) -> ParsedSentence:
    sentence = parse(text, annotation)
    return dataclasses.replace(sentence, pos=tuple(POS[tag] for tag in sentence.tags), language="zh")


def sentence(name: str) -> ParsedSentence:
    return parsed(*SENTENCES[name])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("went", "他没有去北京。"),
        ("went UD", "他没有去北京。"),
        ("likes not", "他喜欢咖啡。"),
        ("good", "天气不是很好。"),
        ("was teacher", "她不是老师了。"),
        ("gone", "他还没去北京。"),
        ("been", "他未曾去过北京。"),
        ("eating", "他没在吃饭。"),
        ("from", "他不从北京来。"),
        ("taller", "他不比我高。"),
        ("will", "他将不去北京。"),
        ("had to", "他不必走。"),
        ("fond", "他不是非常喜欢咖啡。"),
        ("also", "他们都不去北京。"),
        ("book", "他没有把书看完。"),
        ("since", "从那时起，他没有成为作家。"),
        ("will be glad", "他不会非常高兴。"),
        ("just is", "这正不是问题。"),
        ("works", "他没在北京工作。"),
        ("once", "他未曾任总理。"),
        ("once was", "他不曾是总理。"),
        ("left", "他还没离开北京。"),
        ("dark", "天还没黑。"),
        ("no money", "我有钱。"),
        ("money", "我没有钱。"),
        ("teacher", "她不是老师。"),
        ("taken", "书没有被他拿走。"),
        ("must", "他不必走。"),
        ("says", "他没有说他去。"),
        ("question", "他不去北京？"),
        ("quotes", "他没有说“不”字https://x.org/不。"),
    ],
)
def test_negation_and_double_negation(name, expected):
    assert outcomes(neg, sentence(name)) == {expected}
    double = {None} if name == "question" else {phrase + expected for phrase in PHRASES}
    assert outcomes(dn, sentence(name)) == double


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("in 1993", "1993年，图书馆没有迁到北京。"),
        ("by", "系统不通过密码记录进度。"),
        ("mainly", "电影并不主要呈现现实。"),
        ("also is", "他也不是作家。"),
        ("only is", "他不只是作家。"),
        ("only has", "这里没有水。"),
        ("copula", "名称不是长城。"),
        ("without", "他有钱。"),
        ("again and again", "他并非不断学习。"),
        ("made", "她没有将人变成猪。"),
        ("named", "他没有被国王封为公爵。"),
        ("actor", "王明没有饰演主角。"),
        ("planted", "这里没有种植树。"),
        ("lies", "1993年，学校不位于北京。"),
        ("good to", "他对人不好。"),
        ("only will", "他不只会去北京。"),
        ("once also", "他也未曾任总理。"),
    ],
)
def test_the_negation_stands_before_all_that_it_reaches(name, expected):
    assert outcomes(neg, sentence(name)) == {expected}


def test_what_concludes_is_not_denied():
    assert outcomes(dn, sentence("so")) == {None}


@pytest.mark.parametrize("name", ["worth", "not until", "in order to", "spread fast"])
def test_clauses_that_take_no_negation_are_denied_as_a_whole(name):
    assert outcomes(neg, sentence(name)) == {phrase + SENTENCES[name][0] for phrase in PHRASES}
    assert outcomes(dn, sentence(name)) == {None}


def test_text_without_a_verb():
    assert outcomes(neg, sentence("heading")) == {phrase + "法国历史" for phrase in PHRASES}
    assert outcomes(dn, sentence("heading")) == outcomes(mv, sentence("heading")) == {None}
    assert outcomes(pi, sentence("heading")) == {"法国历史！"}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("went", {f"他{modal}去了北京。" for modal in ("可能", "也许")}),
        ("good", {f"天气{modal}很好。" for modal in ("应该", "可能", "也许")}),
        ("teacher", {f"她{modal}是老师。" for modal in ("应该", "可能", "也许")}),
        ("taken", {f"书{modal}被他拿走了。" for modal in ("可能", "也许")}),
        ("gone", {f"他{modal}已经去北京了。" for modal in ("应该", "可能", "也许")}),
        ("from", {f"他{modal}从北京来。" for modal in ("可能", "也许")}),
        (
            "says",
            {f"他{modal}说他去。" for modal in ("可能", "也许")},
        ),
        ("also", {f"他们都{modal}去北京。" for modal in ("不能不", "不会不", "不得不", "可能", "也许")}),
        ("all along", {f"他{modal}一直去北京。" for modal in ("可能", "也许")}),
        ("actor", {f"王明{modal}饰演主角。" for modal in ("可能", "也许")}),
        ("no money", {f"{head}我没有钱。" for head in HEADS}),
        ("in order to", {f"{head}他省钱，以买房。" for head in HEADS}),
        ("fond", {f"他{modal}非常喜欢咖啡。" for modal in ("应该", "可能", "也许")}),
        ("must", {f"{head}他必须走。" for head in HEADS}),
        ("likes not", {f"{head}他不喜欢咖啡。" for head in HEADS}),
        ("question", {None}),
    ],
)
def test_modal_verbs(name, expected):
    assert outcomes(mv, sentence(name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("says", {"他说，他去。"}),
        ("went", {"“他”去了北京。", "他，去了北京。"}),
        ("teacher", {"“她”是老师。", "她，是老师。"}),
        ("quotes", {"他，说“不”字https://x.org/不。"}),
    ],
)
def test_punctuation_insertion(name, expected):
    assert outcomes(pi, sentence(name)) == expected


@pytest.mark.parametrize("name", SENTENCES)
def test_no_english_comes_in_and_the_rest_stays(name):
    text = SENTENCES[name][0]
    for augmentation in (pi, mv, dn, neg):
        for new in outcomes(augmentation, sentence(name)) - {None}:
            assert new != text and " " not in new and ("https://x.org/不" in new) == ("https" in text)
            assert new.count("“") == new.count("”")
