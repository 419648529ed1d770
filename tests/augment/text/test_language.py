"""A parser is refused for text in a script other than its language's, with one message and no parse."""

import pytest

from augment.core.errors import AugmentationError
from augment.text.parsing import check_language, find_parser, parse_texts

ENGLISH = ["The old dog ran home.", "It is late."]
CHINESE = ["今天天气很好。", "他没有来。"]


@pytest.mark.parametrize(
    ("texts", "language", "said"),
    [
        (CHINESE, "en", r"'p' is for 'en', and 100% of it .* \(Chinese: '今天天气很好。'\)"),
        (
            ENGLISH,
            "zh",
            r"'p' is for 'zh', and 100% of it .* \(Latin: 'The old dog ran home.'\)",
        ),
        (["Привет, мир"], "en", "Cyrillic: 'Привет, мир'"),
        (CHINESE, "ru", "Chinese"),
        (CHINESE * 9 + ENGLISH, "en", "Chinese"),
        (["12 .", *CHINESE], "en", "'今天天气很好。'"),  # the text shown is one of those that are meant
    ],
)
def test_another_script_is_refused(texts, language, said):
    with pytest.raises(AugmentationError, match=said):
        check_language(texts, language, "p")


@pytest.mark.parametrize(
    ("texts", "language"),
    [
        (ENGLISH, "en"),
        (CHINESE, "zh"),
        ([], "en"),
        (["", "12.5 % !"], "zh"),
        (["Hello, 世界."], "en"),  # a word of another script, in either
        (["我用 Python 写 DataLoader。"], "zh"),
        ([*ENGLISH, *ENGLISH, CHINESE[0]], "en"),
        (CHINESE, "xx"),  # a language whose script is not known
        (["ひらがなとカタカナ"], "ja"),
        (["Zoë"], "zh"),  # too little to tell
    ],
)
def test_what_may_be_of_the_language_is_taken(texts, language):
    check_language(texts, language, "p")


def test_all_of_the_texts_are_sampled():
    with pytest.raises(AugmentationError):
        check_language([*ENGLISH * 100, *CHINESE * 900], "en", "p")


def test_a_parser_parses_no_other_script():
    try:
        parser = find_parser()
    except AugmentationError as error:
        pytest.skip(str(error))
    if not next(iter(parse_texts(ENGLISH, parser))).is_english:
        pytest.skip(f"{parser} is not for English")
    with pytest.raises(AugmentationError, match="give a parser for the language of the text"):
        list(parse_texts(iter(CHINESE), parser))
    assert list(parse_texts(iter([]), parser)) == []
