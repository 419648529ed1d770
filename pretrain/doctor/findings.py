"""What an examination finds, and how it is printed."""

from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

Level = Literal["good", "note", "wrong"]
_MARKS: dict[Level, tuple[str, str]] = {
    "good": ("ok   ", "green"),
    "note": ("note ", "yellow"),
    "wrong": ("WRONG", "red"),
}


@dataclass(frozen=True)
class Finding:
    """One thing found.

    level: good; note: works, but slower or with less than it could; wrong: something will fail.
    what: the finding, with its figure. todo: what to do about it; "" where nothing is to be done.
    """

    level: Level
    what: str
    todo: str = ""


def show(console: Console, finding: Finding) -> None:
    """Print a finding, with what to do about it."""
    mark, colour = _MARKS[finding.level]
    console.print(Text.assemble("  ", (mark, colour), "  ", finding.what), soft_wrap=True)
    if finding.todo:
        console.print(Text(f"         -> {finding.todo}"), soft_wrap=True)
