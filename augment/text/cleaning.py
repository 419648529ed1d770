"""Clean text, in Python and as the first steps of a tokenizer.

Clean text is in Unicode form C, without control characters, with one blank for white space. Preparation
cleans every text, so no other text is trained on. A tokenizer that cleans gives raw text the same tokens;
otherwise a line break, a soft hyphen or a no-break space would become pieces that the model has never met.

>>> clean("e.g. a\\u00a0soft\\u00ad hyphen \\n")
'e.g. a soft hyphen'
"""

import json
import re
import unicodedata
from typing import Any

# Control, format and replacement characters, which are removed; and white space. Both are parts of regular
# expressions, in Python and in tokenizers.
_REMOVED = "\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u200c-\u200f\u202a-\u202e\ufffd"
_WHITE = "\t-\r \x85\u00a0\u1680\u2000-\u200b\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
_REMOVE = re.compile(f"[{_REMOVED}]+")
_SPACES = re.compile(f"[{_WHITE}]+")
_UNCLEAN = re.compile(f"[{_REMOVED}{_WHITE.replace(' ', '')}]|  |^ | $")


def clean(text: str) -> str:
    """Return a text as one line: NFC, no control or zero-width characters, single blanks between words."""
    if text.isascii():
        if not text.isprintable():
            text = _REMOVE.sub("", text)
        elif "  " not in text and not text.startswith(" ") and not text.endswith(" "):
            return text  # most texts; this takes less than half of the time
        return " ".join(text.split())
    if _UNCLEAN.search(text) is None and unicodedata.is_normalized("NFC", text):
        return text
    # Form C comes after removal, which may bring a letter and its accent together.
    return _SPACES.sub(" ", unicodedata.normalize("NFC", _REMOVE.sub("", text))).strip(" ")


_NFC, _STRIP = {"type": "NFC"}, {"type": "Strip", "strip_left": True, "strip_right": True}
_REPLACEMENTS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"Regex": _REMOVE.pattern}, "content": ""},
    {"type": "Replace", "pattern": {"Regex": _SPACES.pattern}, "content": " "},
]
# tokenizers flattens sequences. The order of the last two steps has no effect on texts; it records whether
# the normalizer behind them stood alone or in a sequence, so that `without_cleaning` can restore it.
_BEFORE_ONE = [*_REPLACEMENTS, _STRIP, _NFC]
_BEFORE_SEQUENCE = [*_REPLACEMENTS, _NFC, _STRIP]


def with_cleaning(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tokenizer (its JSON) with the steps of `clean` before its normalizer."""
    if without_cleaning(settings) is not settings:
        return settings
    own = settings.get("normalizer")
    if own is not None and own["type"] != "Sequence":
        steps = [*_BEFORE_ONE, own]
    else:
        steps = [*_BEFORE_SEQUENCE, *(own["normalizers"] if own else [])]
    return {**settings, "normalizer": {"type": "Sequence", "normalizers": steps}}


def without_cleaning(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tokenizer without the steps of `with_cleaning`, for clean text."""
    steps = (settings.get("normalizer") or {}).get("normalizers", [])
    own: dict[str, Any] | None
    if steps[:4] == _BEFORE_ONE:
        own = steps[4]
    elif steps[:4] == _BEFORE_SEQUENCE:
        own = {"type": "Sequence", "normalizers": steps[4:]} if steps[4:] else None
    else:
        return settings
    return {**settings, "normalizer": own}


def for_clean_text(tokenizer: Any) -> tuple[Any, bool]:
    """Return a copy of a `tokenizers.Tokenizer` for clean text, and whether the given one cleans."""
    from tokenizers import Tokenizer

    settings = json.loads(tokenizer.to_str())
    own = without_cleaning(settings)
    return Tokenizer.from_str(json.dumps(own, ensure_ascii=False)), own is not settings


class SpecialTokens:
    """The special tokens of a `tokenizers.Tokenizer`, which from now on reads their spelling as text."""

    def __init__(self, tokenizer: Any):
        spelled = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        self._spelled = re.compile("|".join(map(re.escape, spelled)) or "(?!)")
        # Unigram has special tokens among its pieces, and finds them there
        self._is_unigram = type(tokenizer.model).__name__ == "Unigram"
        tokenizer.encode_special_tokens = True

    def count(self, texts: list[str]) -> int:
        """Return how many special tokens are spelled in texts."""
        return sum(len(self._spelled.findall(text)) for text in texts)

    def taken_apart(self, texts: list[str]) -> list[str]:
        """Return the texts, for a Unigram tokenizer with a blank inside each spelled special token."""
        if not self._is_unigram:
            return texts
        return [self._spelled.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
