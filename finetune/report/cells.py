"""The cells of the report's tables: a row's figures over its members, their notes, the best of ours."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from finetune.report.sources import Subject, System
from finetune.results import Evaluation, sample_std

HIGHER, LOWER = "↑", "↓"
FigureSource = tuple[str, str, str]
"""Where a figure comes from: (evaluation, task, score); score "" means the task's headline."""


@dataclass
class Cell:
    """Hold a figure.

    std: over `seeds` if there are several, else the evaluation's own; notes: numbers of the table's notes.
    """

    value: float | None = None
    std: float | None = None
    seeds: int = 0
    digits: int = 2
    incomplete: bool = False
    notes: list[int] = field(default_factory=list)
    best: bool = False
    text: str = ""

    @property
    def marks(self) -> str:
        """What is printed above the figure: a dagger where it is not comparable, and its notes' numbers."""
        return ("†" if self.incomplete else "") + ",".join(map(str, self.notes))

    def __str__(self) -> str:
        """Return the figure as printed, marks left out; "" where there is none."""
        if self.value is None:
            return self.text
        spread = f" ± {self.std:.{self.digits}f}" if self.std is not None else ""
        return f"{self.value:.{self.digits}f}{spread}"


@dataclass
class TableRow:
    label: str
    cells: list[Cell]


@dataclass
class Block:
    """Rows under a heading; `reference`: published figures, not ours."""

    heading: str
    rows: list[TableRow]
    reference: bool = False


@dataclass
class Table:
    """columns: titles; notes: numbered from 1 as in the cells."""

    key: str
    title: str
    caption: str
    columns: list[str]
    blocks: list[Block]
    notes: list[str] = field(default_factory=list)

    @property
    def ours(self) -> list[TableRow]:
        return [row for block in self.blocks if not block.reference for row in block.rows]

    def note(self, text: str) -> int:
        """Return the number of a note, added if it is new."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1


@dataclass(frozen=True)
class SystemRow:
    """A system by one pooling: a row of the tables."""

    label: str
    system: System
    pooling: str


@dataclass(frozen=True)
class MemberFigure:
    """One member's figure."""

    value: float
    std: float | None
    evaluation: Evaluation


def our_rows(
    table: Table,
    views: Sequence[SystemRow],
    columns: Sequence[Sequence[FigureSource]],
    digits: Sequence[int] | None = None,
) -> list[TableRow]:
    """Return the views that have a figure for the table, a cell for each column; notes go to the table.

    Args:
        columns: where each column's figure comes from, in order of preference; none: it is the mean of the
            other columns.
        digits: after the point, a column; 2 without it.
    """
    rows = []
    for view in views:
        members = []
        for member in view.system.members:
            figures = [_find(member, view.pooling, sources) for sources in columns]
            mean = _mean([figure for figure, sources in zip(figures, columns) if sources])
            members.append([figure if sources else mean for figure, sources in zip(figures, columns)])
        cells = [
            _cell(table, view, of_members, digits[n] if digits else 2)
            for n, of_members in enumerate(zip(*members, strict=True))
        ]
        if any(cell.value is not None for cell in cells):
            rows.append(TableRow(view.label, cells))
    return rows


def _mean(figures: Sequence[MemberFigure | None]) -> MemberFigure | None:
    """Return the mean of figures that were rounded first, as the papers do; None if one is absent."""
    present = [figure for figure in figures if figure is not None]
    if len(present) < len(figures) or not present:
        return None
    weak = next((one.evaluation for one in present if not one.evaluation.complete), None)
    mean = statistics.fmean(round(figure.value, 2) for figure in present)
    return MemberFigure(mean, None, weak or present[0].evaluation)


def evaluations_of(row: SystemRow) -> Iterator[Evaluation]:
    """Yield the evaluations of a row's members with its pooling."""
    for member in row.system.members:
        for (_, pooling), evaluation in member.evaluations.items():
            if pooling == row.pooling:
                yield evaluation


def _find(member: Subject, pooling: str, sources: Sequence[FigureSource]) -> MemberFigure | None:
    """Return the first source's figure that the member has."""
    for name, task, score in sources:
        evaluation = member.evaluations.get((name, pooling))
        if evaluation is None or task not in evaluation.tasks:
            continue
        result = evaluation.tasks[task]
        headline = not score or score == result.metric
        value = result.value if headline else result.scores.get(score)
        if value is not None:
            return MemberFigure(float(value), result.std if headline else None, evaluation)
    return None


def _cell(table: Table, row: SystemRow, found: Sequence[MemberFigure | None], digits: int = 2) -> Cell:
    """Return one row's figures over its members as mean and standard deviation.

    A note says which members have none.
    """
    present = [figure for figure in found if figure is not None]
    if not present:
        return Cell(digits=digits)
    values = [figure.value for figure in present]
    std = sample_std(values) if len(values) > 1 else present[0].std
    cell = Cell(statistics.fmean(values), std, len(values), digits)
    if len(present) < len(found):
        cell.notes.append(table.note(f"{row.label}: {len(present)} of {len(found)} seeds have this figure"))
    weak = [figure.evaluation for figure in present if not figure.evaluation.complete]
    if weak:
        cell.incomplete = True
        said = "; ".join(weak[0].notes) or "the evaluation does not say why"
        cell.notes.append(
            table.note(f"{weak[0].evaluation}, incomplete, not comparable with published figures: {said}")
        )
    return cell


def mark_best(rows: Sequence[TableRow], better: Sequence[str]) -> None:
    """Mark the best of ours in every column, ties as printed included, unless all tie."""
    for place, direction in enumerate(better):
        cells = [row.cells[place] for row in rows]
        printed = [(cell, round(cell.value, cell.digits)) for cell in cells if cell.value is not None]
        if len(printed) < 2:
            continue
        choose: Callable[..., float] = max if direction == HIGHER else min
        best = choose(value for _, value in printed)
        winners = [cell for cell, value in printed if value == best]
        for cell in winners:
            cell.best = len(winners) < len(printed)


def add_evaluation_notes(table: Table, rows: Sequence[SystemRow], names: set[str]) -> None:
    """Add the notes of complete evaluations under the table, once for all rows.

    Those of incomplete ones are in the cells' own notes.
    """
    said: dict[str, dict[str, None]] = {}
    for row in rows:
        for evaluation in evaluations_of(row):
            if evaluation.evaluation in names and evaluation.complete and evaluation.tasks:
                for text in evaluation.notes:
                    said.setdefault(text, {})[row.label] = None
    for text, labels in said.items():
        table.note(f"{', '.join(labels)}: {text}" if len(labels) < len(table.ours) else text)
