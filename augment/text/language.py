"""Check that texts are in the language of a parser, by the script that they are written in."""

import unicodedata
from collections import Counter
from collections.abc import Sequence

from augment.core.errors import AugmentationError

# First words of the Unicode names of a script's letters. Other languages are not checked.
_LATIN = ("en", "de", "fr", "es", "it", "nl", "pt", "da", "nb", "sv", "fi", "pl", "ro", "ca", "hr")
_SCRIPTS = {
    **dict.fromkeys(_LATIN, ("LATIN",)),
    **dict.fromkeys(("ru", "uk", "mk"), ("CYRILLIC",)),
    "zh": ("CJK",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA"),
    "ko": ("HANGUL", "CJK"),
    "el": ("GREEK",),
}
_SAMPLE, _CHARACTERS = 200, 400  # texts read, evenly spaced, and characters of each
_FEWEST = 4  # letters below which nothing is decided
_LEAST = 0.3  # least share of the letters; a Chinese letter counts as a Latin word of 4


def check_language(texts: Sequence[str], language: str, parser: str) -> None:
    """Refuse texts most of whose letters are of another script than the parser's language.

    texts: a sample of them is read. language: spaCy's code ("en", "zh"). parser: its name, for the message.
    """
    wanted = _SCRIPTS.get(language)
    if wanted is None:
        return
    step = max(1, len(texts) // _SAMPLE)
    letters = Counter("".join(text[:_CHARACTERS] for text in texts[::step]))
    found: Counter[str] = Counter()
    for letter, count in letters.items():
        if letter.isalpha():
            script = _script(letter)
            found[script] += count * (1 if script in ("LATIN", "CYRILLIC", "GREEK") else 4)
    total = sum(found.values())
    share = sum(found[script] for script in wanted) / max(1, total)
    if total >= _FEWEST and share < _LEAST:
        script = found.most_common(1)[0][0]
        title = "Chinese" if script == "CJK" else script.capitalize()
        example = next(text for text in texts[::step] if script in map(_script, filter(str.isalpha, text)))
        raise AugmentationError(
            f"the parser {parser!r} is for {language!r}, and {1 - share:.0%} of it is in another script "
            f"({title}: {example[:40]!r}): give a parser for the language of the text"
        )


def _script(letter: str) -> str:
    return unicodedata.name(letter, "?").partition(" ")[0]
