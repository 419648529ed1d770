"""Cleaning and sentence splitting."""

from __future__ import annotations

import random

import pytest

from pretrain.text import clean, count_words, is_prose, sentences_of, split_sentences


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
    ],
)
def test_splits_where_a_reader_would(text):
    wanted = text.split(" | ")
    assert split_sentences(" ".join(wanted)) == wanted


def test_other_scripts():
    assert split_sentences("今天天气很好。我们去公园吧！好吗？") == ["今天天气很好。", "我们去公园吧！", "好吗？"]
    assert split_sentences("「行くぞ。」彼は言った。") == ["「行くぞ。」", "彼は言った。"]
    assert split_sentences("यह एक वाक्य है। यह दूसरा है।") == ["यह एक वाक्य है।", "यह दूसरा है।"]
    assert split_sentences("Это первое. Это второе.") == ["Это первое.", "Это второе."]
    assert split_sentences("هل هذا سؤال؟ نعم.") == ["هل هذا سؤال؟", "نعم."]


def test_nothing_is_lost_or_invented():
    random_ = random.Random(0)
    for _ in range(300):
        text = clean("".join(random_.choice("aB. !?\"'()…。1é“”J") for _ in range(random_.randrange(80))))
        assert "".join(split_sentences(text)).replace(" ", "") == text.replace(" ", "")


def test_clean():
    assert clean(" a\t b\u00a0c\u200bd\r\n") == "a b c d"
    assert clean("co\u00adop e\u0301\x00\x07") == "coop \u00e9"
    assert clean("\ufeffA") == "A"
    assert clean("a\x01b") == "ab"


def test_documents():
    assert sentences_of("Title\nOne here. Two here.\n\nThree.") == ["Title", "One here.", "Two here.", "Three."]
    wrapped = "One sentence that\nis wrapped. Two.\n\nA new\nparagraph."
    assert sentences_of(wrapped, unwrap=True) == ["One sentence that is wrapped.", "Two.", "A new paragraph."]


def test_prose():
    assert is_prose("Four words are here.", 4, 0.6) and not is_prose("Three words here.", 4, 0.6)
    assert not is_prose("12 34 = 56 | 78 a b", 4, 0.6)
    assert is_prose("今天天气很好", 4, 0.6) and count_words("今天天气") == 4
    assert is_prose("Это четыре слова здесь", 4, 0.6)
