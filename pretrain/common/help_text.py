"""Make the text of help pages from docstrings and typed fields, in lines of 80 columns."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pydantic import BaseModel

from pretrain.common.typed_values import default_text, type_name

WIDTH = 80


class Flag(NamedTuple):
    """A flag, or a word that may stand without one. `default`: "required" without one."""

    name: str
    kind: str
    default: str
    meaning: str

    @classmethod
    def of_model(cls, model: type[BaseModel]) -> list[Flag]:
        """Return the flags that a flat model's fields are."""
        return [
            cls(name, type_name(field.annotation), default_text(field), field.description or "")
            for name, field in model.model_fields.items()
        ]

    @property
    def typed_as(self) -> str:
        """The flag as people type it."""
        return "--" + self.name.replace("_", "-")


def key_table(flags: Iterable[Flag]) -> str:
    """Return flags as text: name, type and default on one line, the meaning below."""
    lines = []
    for flag in flags:
        default = "required" if flag.default == "required" else f"default {flag.default}"
        lines.append(f"  {flag.name} {flag.kind} ({default})")
        lines += textwrap.wrap(flag.meaning, WIDTH - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def usage_line(usage: str) -> str:
    """Return "usage: " and how a command is written, on as many lines as it takes."""
    text = f"usage: {usage}".replace("[--flag value ...]", "[--flag\xa0value\xa0...]")
    lines = textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * 7, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(lines).replace("\xa0", " ")


def summary(function: Callable) -> str:
    """Return the first paragraph of a function's docstring, as one line."""
    return " ".join(inspect.cleandoc(function.__doc__ or "").split("\n\n")[0].split())


def shorten(meaning: str, width: int) -> str:
    """Return a text that fits on a line: whole, or its first clause, or as many words as fit.

    >>> shorten("test (10 folds; as printed), or dev. The default is test.", 40)
    'test (10 folds; as printed), or dev'
    """
    ends = [match.start() for match in re.finditer(r"[;.] ", meaning)]
    clauses = [meaning[:end] for end in ends if meaning.count("(", 0, end) == meaning.count(")", 0, end)]
    for text in (meaning.rstrip("."), *clauses[:1]):
        if len(text) <= width:
            return text
    return textwrap.shorten(meaning, width, placeholder=" ...", break_on_hyphens=False)


def described_parameters(function: Callable) -> dict[str, str]:
    """Return what a docstring says of each parameter, under "Args:"; one entry may name several."""
    section = inspect.cleandoc(function.__doc__ or "").partition("Args:\n")[2].split("\n\n")[0]
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in section.splitlines():
        entry = re.match(r" {4}(\w+(?:, \w+)*): (.*)", line)
        if entry:
            names = entry[1].split(", ")
            meanings |= dict.fromkeys(names, entry[2])
        elif line.startswith(" " * 8):
            meanings |= {name: f"{meanings[name]} {line.strip()}" for name in names}
        else:
            names = []
    return meanings
