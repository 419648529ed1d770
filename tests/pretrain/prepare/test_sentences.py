"""Sentence splitting: by example, on tokenised and lower-cased text, and against gold boundaries."""

import random

import pytest
from gold_sentences import read_treebank, score
from real_data import DATA, needs_data

from augment.text.cleaning import clean
from pretrain.prepare.sentences import sentences_of, split_sentences


@pytest.mark.parametrize(
    "text",
    [
        "He met Dr. Smith in Washington. | She left.",
        "J. R. R. Tolkien wrote it. | C. S. Lewis read it.",
        "The U.S. Army came. | It left the U.S. | The end was near.",
        "It cost $3.50 in 1999. | 20 people came.",
        "“What is it?” he asked. | “Nothing.” | She sat down.",
        'He said "Go." | "Why?" she replied.',
        "See Fig. 3 and No. 5 for more. | He said no. | They went.",
        "They sold pens, paper, etc. | The shop closed. | Apple Inc. Chairman Jobs spoke.",
        "At 5 p.m. Eastern time it began. | Is it true?! | Yes!",
        "1. Introduction is short. | Then e.g. Paris is named, i.e. France's capital.",
        "Visit example.com today. | Use v1.2.3 instead.",
        "Wait... what? | Nothing…",
        "He has a Ph.D. in physics. | We saw him (it was late.) | Then we left.",
        "Am 26. März 1748 kam er. | Im 19. Jahrhundert nicht. | Er war 26. | Sie ging.",
        "Es fing an. | März war kalt. | Am 126. | März war warm.",
        "Er sagte: „Komm her.“ | Dann ging er bzw. Käthe, vgl. Abs. 3, nach Köln. | »Ja.« | Sie blieb.",
        "Das gilt z. B. für Köln, d. h. u. a. den Dom. | „Komm!“, rief er.",
    ],
)
def test_splits_where_a_reader_would(text):
    wanted = text.split(" | ")
    assert split_sentences(" ".join(wanted)) == wanted


def test_other_scripts():
    assert split_sentences("今天天气很好。我们去公园吧！好吗？") == [
        "今天天气很好。",
        "我们去公园吧！",
        "好吗？",
    ]
    assert split_sentences("「行くぞ。」彼は言った。") == ["「行くぞ。」", "彼は言った。"]
    assert split_sentences("यह एक वाक्य है। यह दूसरा है।") == ["यह एक वाक्य है।", "यह दूसरा है।"]
    assert split_sentences("Это первое. Это второе.") == ["Это первое.", "Это второе."]
    assert split_sentences("هل هذا سؤال؟ نعم.") == ["هل هذا سؤال؟", "نعم."]


def test_nothing_is_lost_or_invented():
    random_ = random.Random(0)
    for _ in range(3000):
        text = clean("".join(random_.choice("aB. !?\"'()…。1é“”J`:;=") for _ in range(random_.randrange(80))))
        assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")


def test_documents():
    assert sentences_of("Title\nOne here. Two here.\n\nThree.") == [
        "Title",
        "One here.",
        "Two here.",
        "Three.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "It is the European lobster . | It is related to H. americanus . | It is 0 @.@ 7 kg .",
        'They are blue , only becoming " lobster red " . | " Is it so ? " | " Yes . " | She left .',
        '" What is it ? " he asked . | " Nothing . | Be quiet . " | He went .',
        "`` I know . '' | They ( it was late . ) | Nobody came ! ! | Why ? !",
        "He met Mr . Smith . | See No . 5 of it . | The band was at Panic ! at the Disco .",
        "In the end . . . he came . | We waited . . . | The door opened .",
        "it was mr. smith. | he came at 5 p.m. on monday. | why? | nobody knew.",
        "the u.s. army came . | she said so , too . | are you there ? | i am .",
        '" what is it ? " he asked . | " nothing . " | she went away . | " it is late , " said the king .',
        "i like it!!! :) | it is good. | see www.example.com for it.",
    ],
)
def test_tokenised_and_lower_cased_text_is_split(text):
    wanted = text.split(" | ")
    assert split_sentences(" ".join(wanted)) == wanted


def test_a_lost_line_break_ends_a_sentence():
    assert split_sentences("The race is over.He won it. Use System.Out or index.html now.") == [
        "The race is over.", "He won it.", "Use System.Out or index.html now."
    ]  # fmt: skip


@pytest.mark.parametrize("tokenised", [False, True])
@pytest.mark.parametrize("lowered", [False, True])
def test_plain_sentences_are_parted_however_they_are_written(tokenised, lowered):
    """A property: of any plain sentences in a row, in any of four ways of writing, each comes back."""
    choose = random.Random(int(tokenised) * 2 + lowered)
    words = ["river", "stone", "cloud", "winter", "garden", "letter", "music", "window", "forest", "market"]
    for _ in range(200):
        wanted = []
        for _ in range(choose.randrange(1, 8)):
            sentence = " ".join(choose.choices(words, k=choose.randrange(2, 9))).capitalize()
            if choose.random() < 0.3:
                quote = choose.choice(['"{}{}"', "({}{})"])
                sentence = quote.format(sentence, choose.choice(".!?"))
            else:
                sentence += choose.choice(".!?")
            if tokenised:
                sentence = _apart(sentence)
            wanted.append(sentence.lower() if lowered else sentence)
        assert split_sentences(" ".join(wanted)) == wanted


def _apart(sentence: str) -> str:
    for mark in '".!?()':
        sentence = sentence.replace(mark, f" {mark} ")
    return " ".join(sentence.split())


@needs_data("UD/English-EWT/en_ewt-ud-test.conllu.gz")
@pytest.mark.parametrize("between", ["\n", " "], ids=["paragraphs", "one line"])
@pytest.mark.parametrize("written", ["as it is", "lowered", "tokenised", "both"])
def test_gold_boundaries_are_found_better_than_by_spacy(written, between):
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("sentencizer")
    lowered, tokenised = written in ("lowered", "both"), written in ("tokenised", "both")
    documents = read_treebank(DATA / "UD/English-EWT/en_ewt-ud-test.conllu.gz", tokenised, lowered)
    ours = score(documents, sentences_of, between)
    theirs = score(documents, lambda text: [sentence.text for sentence in pipeline(text).sents], between)
    assert ours[2] > theirs[2] and ours[0] > theirs[0]


@needs_data("UD/Chinese/zh_gsdsimp-ud-dev.conllu.gz", "UD/Chinese/zh_gsdsimp-ud-test.conllu.gz")
@pytest.mark.parametrize("split", ["dev", "test"])
def test_chinese_boundaries(split):
    documents = read_treebank(DATA / f"UD/Chinese/zh_gsdsimp-ud-{split}.conllu.gz")
    precision, recall, _ = score(documents, sentences_of, "\n")
    assert precision > 0.995 and recall > 0.99


@needs_data("text/wikitext-2/valid.txt")
def test_wikitext_is_split():
    """Its 217 thousand tokens have some 8,000 sentences, hardly one of them longer than 100 words."""
    sentences = sentences_of((DATA / "text/wikitext-2/valid.txt").read_text("utf-8"))
    assert len(sentences) > 8000
    assert sum(len(sentence.split()) > 100 for sentence in sentences) < 0.002 * len(sentences)
