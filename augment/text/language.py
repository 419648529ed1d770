"""Check that texts are in the language of a parser, by the script that they are written in."""

import unicodedata
from collections import Counter
from collections.abc import Sequence

from augment.core.errors import AugmentationError

# First words of the Unicode names of a script's letters. Other languages are not checked.
_LATIN = frozenset({"LATIN"})
_HAN = frozenset({"CJK"})
_KANA = frozenset({"CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"})
_CYRILLIC = frozenset({"CYRILLIC"})
_SCRIPTS = {
    **dict.fromkeys(("en", "de", "fr", "es", "it", "nl", "pt", "da", "nb", "sv", "fi", "pl", "ro", "ca",
    "hr"), _LATIN),
    **dict.fromkeys(("ru", "uk", "mk"), _CYRILLIC),
    "zh": _HAN,
    "ja": _KANA,
    "ko": frozenset({"HANGUL", "CJK"}),
    "el": frozenset({"GREEK"}),
}  # fmt: skip
_TITLES = {_LATIN: "Latin", _HAN: "Chinese", _KANA: "Japanese", _CYRILLIC: "Cyrillic"}
_SAMPLE = 200  # texts read, evenly spaced
_CHARACTERS = 400  # read of each text
_FEWEST = 4  # letters below which nothing is decided
_LEAST = 0.3  # least share of the letters; a Chinese letter counts as a Latin word of 4
_LETTERS_A_WORD = 4


def check_language(texts: Sequence[str], language: str, parser: str) -> None:
    """Refuse texts most of whose letters are of another script than the parser's language.

    texts: a sample of them is read. language: spaCy's code ("en", "zh"). parser: its name, for the message.

    Raises:
        AugmentationError: less than 30% of the letters are of the language's scripts.
    """
    wanted = _SCRIPTS.get(language)
    if wanted is None:
        return
    step = max(1, len(texts) // _SAMPLE)
    letters = Counter("".join(text[:_CHARACTERS] for text in texts[::step]))
    found: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            script = unicodedata.name(letter, "?").partition(" ")[0]
            found[script] += count * (1 if script in ("LATIN", "CYRILLIC", "GREEK") else _LETTERS_A_WORD)
    total = sum(found.values())
    share = sum(found[script] for script in wanted) / max(1, total)
    if total >= _FEWEST and share < _LEAST:
        other, _ = found.most_common(1)[0]
        example = next(
            text
            for text in texts[::step]
            if any(unicodedata.name(letter, "?").startswith(other) for letter in text)
        )
        raise AugmentationError(
            f"the parser {parser!r} is for {language!r}, and {1 - share:.0%} of what it is given is written "
            "in another script "
            f"({_title(other)}: {example[:40]!r}): give a parser for the language of the text"
        )


def _title(script: str) -> str:
    return next((title for scripts, title in _TITLES.items() if script in scripts), script.capitalize())
