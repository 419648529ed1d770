"""The language of a text, where it is told; a parser is refused for text in another script, by one error."""

import pytest

from augment.core.errors import AugmentationError
from augment.text.languages import language_of
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
        (["Hello, \U00017000."], "en"),  # a letter, of Tangut, without a name
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


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("The old dog ran home, and it was late.", "en"),
        ("Der alte Hund lief nach Hause, und es war schon spät.", "de"),
        ("Le vieux chien est rentré chez lui, et il était tard pour la promenade.", "fr"),
        ("El perro viejo corrió a casa, y ya era muy tarde para los paseos.", "es"),
        ("O cão velho correu para casa, e já não era cedo para os passeios.", "pt"),
        ("Den gamle hund løb hjem efter maden, og så blev det af med sig selv.", "da"),
        ("Den gamle hunden løp hjem etter maten, og så ble det noe av seg selv.", "nb"),
        ("Старая собака побежала домой, и она была не так рада, как его кошка.", "ru"),
        ("Стара собака побігла додому, і вона не була така рада, як його кішка, що спить.", "uk"),
        ("Ο γέρικος σκύλος έτρεξε σπίτι.", "el"),
        ("老狗跑回家了，天已经很晚了。", "zh"),
        ("年老いた犬は家に走って帰った。", "ja"),
        ("늙은 개가 집으로 달려갔다.", "ko"),
        ("მოხუცი ძაღლი სახლში გაიქცა.", "georgian"),
        ("이 함수는 PyTorch 의 tensor 를 반환합니다", "ko"),
        ("", ""),
        ("12.5 % !", ""),
        ("DataLoader Tensor", ""),  # too little to tell
        ("I do, do I? I do!", ""),  # words of Polish too
        ("import torch as nn", ""),
        ("東京都立大学の概要", "ja"),
        ("東京都立大学概要", ""),  # a heading of Japanese may have Chinese letters alone
        ("x = y + z", ""),
    ],
)
def test_the_language_of_a_text(text, language):
    assert language_of(text) == language
