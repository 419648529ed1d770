"""Tell prose from headings, tables and code."""

import re

_NON_LETTERS = bytes(c for c in range(128) if not chr(c).isalpha() and not chr(c).isspace())
_WHITE = bytes(c for c in range(128) if chr(c).isspace())
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff]")  # scripts without spaces


def count_words(sentence: str) -> int:
    """Count the words between blanks; in scripts without blanks every character counts as one."""
    words = sentence.count(" ") + 1
    if sentence.isascii():
        return words
    return max(words, len(_UNSPACED.findall(sentence)))


def is_prose(sentence: str, min_words: int, min_letters: float) -> bool:
    """Return whether a cleaned sentence has enough words and letters, and is not a heading.

    Bytes of UTF-8 beyond ASCII count as letters, so that no script is at a disadvantage. A heading is one of
    wiki markup, as WikiText has them on lines of their own: `= = Life cycle = =`.
    """
    if sentence[:1] == sentence[-1:] == "=":
        return False
    if sentence.count(" ") + 1 < min_words and count_words(sentence) < min_words:
        return False
    if not min_letters:
        return True
    raw = sentence.encode().translate(None, _WHITE)
    return len(raw.translate(None, _NON_LETTERS)) >= min_letters * len(raw)
