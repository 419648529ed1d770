"""Define the errors that a user of the augmentations is meant to read, and how they quote input."""

import difflib
import reprlib
from collections.abc import Iterable


class AugmentationError(ValueError):
    """Report a bad specification, table or input: what is wrong, where, and what to do about it."""


class CannotLoad(AugmentationError):
    """Report a model or tokenizer that cannot be loaded (`augment.core.pretrained`)."""


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxset = 3, 6, 6, 6, 6

    def repr_int(self, x: int, level: int) -> str:
        # beyond 4,300 digits Python refuses to write a number
        return f"a number of {x.bit_length()} bits" if x.bit_length() > 200 else repr(x)


_SHORT = _Short()


def shortened(text: str, max_length: int = 200) -> str:
    """Return a text as a message names it, without its end if it is long."""
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return the name that a misspelt one most likely stands for; None if none is like it.

    Case, `-` and `_` are ignored. A third of the letters may be wrong, and one of a short name: `plan` is no
    misspelt `lanes`.

    >>> nearest_name("mpl", ["mlp", "none"]), nearest_name("text", ["time", "out"])
    ('mlp', None)
    """
    plain = {_plain(one): one for one in names}
    typed = _plain(name)
    matches = difflib.get_close_matches(typed, plain, 3, 0.65)
    alike = (near for near in matches if _edits(typed, near) <= max(1, max(len(typed), len(near)) // 3))
    return next((plain[near] for near in alike), None)


def _edits(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap with the next (optimal string alignment)."""
    before, last = list[int](), list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        now = [row]
        for column, another in enumerate(other, start=1):
            now.append(min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != another)))
            if before and column > 1 and letter == other[column - 2] and another == one[row - 2]:
                now[-1] = min(now[-1], before[column - 2] + 1)
        before, last = last, now
    return last[-1]


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def excerpt(value: object) -> str:
    """Return a value as a message quotes it: its `repr`, of long texts and large trees only a part.

    The time does not grow with the value. A few lines of YAML make a tree of a billion nodes, by aliases.

    >>> excerpt("del-word")
    "'del-word'"
    >>> len(excerpt("x" * 10**6)), excerpt(list(range(10**6)))
    (200, '[0, 1, 2, 3, 4, 5, ...]')
    """
    return _SHORT.repr(value)
