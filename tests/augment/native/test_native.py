"""Compiled loops over letters give what they give in Python."""

import itertools
import random
import runpy
import sys
from types import SimpleNamespace

import pytest
from native_sentences import PlainDraws, plain_cut, plain_look_alike, plain_word_spans
from random_parses import words_of

from augment.core import compiled
from augment.rules.spelling import _urls, look_alike
from augment.rules.word_order import cut, word_spans
from augment.text.draws import Draws
from augment.text.parsed import without_parse
from augment.text.word_forms import repeats


def plain_repeats(text):
    return sum(
        before == after.rstrip(".,;:!?)\"'’”]") and before[-1].isalnum()
        for before, after in itertools.pairwise(text.lower().split())
    )


def test_repeated_words_are_counted_as_in_python():
    rng = random.Random(0)
    words = [*words_of("a A a. a' (a ab aB ab?) 1 1, 1.5 - -- . ' a- a_ É é"), "\x00"]
    spaces = [" "] * 12 + ["  ", "\t", "\n", "\r", "\x0b", "\x0c", "\x1c", "\x1f", "\u00a0", "\x1b", "\x7f"]
    texts = [
        "",
        " ",
        "a",
        "a a",
        " a a ",
        *("".join(map(chr, rng.choices(range(128), k=40))) for _ in range(300)),
    ]
    for _ in range(3000):
        known = [word for word in rng.sample(words, 4) if word.isascii() or rng.random() < 0.2]
        texts.append(
            "".join(rng.choice([*known, "a"]) + rng.choice(spaces) for _ in range(rng.randrange(12)))
        )
    found = list(map(repeats, texts))
    expected = list(map(plain_repeats, texts))
    assert [case for case in zip(texts, found, expected) if case[1] != case[2]] == [] and max(expected) > 2


# -- Letters like others ------------------------------------------------------


def test_letters_like_others_are_those_in_python():
    changed = 0
    for key, rate in itertools.product(range(40), (0.05, 0.5, 1.0)):
        text = "The old mân, www.sea.com: ZEBRA 42 xyz北 😀 a@b.c end"
        compiled = look_alike(without_parse(text), Draws(key), rate)
        plain = plain_look_alike(text, int(rate * (1 << 21)), PlainDraws(key), _urls(text))
        assert compiled == (None if plain == text else plain)
        changed += compiled is not None and "www.sea.com" in compiled and "a@b.c" in compiled
    assert changed > 100


# -- Words between white space -------------------------------------------------


def _runs_of_words(rng: random.Random) -> str:
    """Return words, marks and white space of all kinds, at random."""
    letters = "abzABZ09_éßİǅ北١²\u0301.,.;:-'\"()“”[]/$€😀"
    spaces = (" ", " ", " ", "  ", "\n", "\t ", "\xa0", "\u2003", "\x1c", "\u200b")
    words = words_of("U.S. Mr. J. I. e.g. a.m X Ab. don't (see it), ... - É. xA. A.b.")
    parts = []
    for _ in range(rng.randrange(9)):
        odd = "".join(rng.choices(letters, k=rng.randint(1, 5)))
        parts += (rng.choice([*words, *[odd] * len(words)]), rng.choice(spaces))
    return rng.choice(["", " ", "\xa0"]) * (rng.random() < 0.2) + "".join(
        parts if rng.random() < 0.3 else parts[:-1]
    )


def test_words_are_found_and_cut_as_in_python():
    rng = random.Random(0)
    texts = [_runs_of_words(rng) for _ in range(20_000)]
    spans = list(map(word_spans, texts))
    some = [[span for span in found if rng.random() < 0.5] for found in spans]
    left = list(map(cut, texts, some))
    assert [case for case in zip(texts, spans) if case[1] != plain_word_spans(case[0])] == []
    assert [case for case in zip(texts, some, left) if case[2] != plain_cut(*case[:2])] == []
    assert sum(map(len, spans)) > 50_000 and {len(text) for text in left} >= set(range(30))


def test_a_module_of_other_sources_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "augment._native", SimpleNamespace(INTERFACE=compiled.INTERFACE - 1))
    with pytest.raises(ImportError, match="has changed since it was compiled: run `make install`"):
        runpy.run_path(compiled.__file__)
