"""Read the papers' published figures (published.yaml), for the report to set beside ours."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Source = tuple[str, str, str]
"""(evaluation, task, score); score "" means the task's headline."""


@dataclass(frozen=True)
class Column:
    """A table's column: its title, and where our figure comes from, in order of preference.

    No source: an average over the other columns.
    """

    title: str
    sources: tuple[Source, ...] = ()


@dataclass(frozen=True)
class ReferenceRow:
    """A published row: a figure or None for every column; spreads, where printed, in the same places."""

    name: str
    source: str
    figures: tuple[float | None, ...]
    spreads: tuple[float | None, ...]


@dataclass(frozen=True)
class ReferenceTable:
    """A table of the papers. Higher is better in all of them. digits: after the point, as printed."""

    key: str
    title: str
    protocol: str
    digits: int
    columns: tuple[Column, ...]
    rows: tuple[ReferenceRow, ...]

    @property
    def average(self) -> int | None:
        """The column that is the mean of the others."""
        return next((place for place, column in enumerate(self.columns) if not column.sources), None)


def _source(text: str) -> Source:
    evaluation, task, *score = text.split()
    return evaluation, task, "".join(score)


def _row(source: str, line: str) -> ReferenceRow:
    name, cells = line.split("|")
    parts = [cell.partition("±") for cell in cells.split()]
    figures = tuple(None if figure == "-" else float(figure) for figure, _, _ in parts)
    spreads = tuple(float(spread) if spread else None for _, _, spread in parts)
    return ReferenceRow(name.strip(), source, figures, spreads)


def _table(entry: dict[str, Any]) -> ReferenceTable:
    columns = tuple(Column(title, tuple(map(_source, texts))) for title, texts in entry["columns"].items())
    rows = tuple(
        _row(source, line) for source, text in entry["figures"].items() for line in text.splitlines()
    )
    return ReferenceTable(entry["key"], entry["title"], entry["protocol"], entry["digits"], columns, rows)


TABLES = tuple(map(_table, yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))))
