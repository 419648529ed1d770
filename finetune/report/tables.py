"""The report's tables as data: our figures beside the papers', geometry, and recipes that differ."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from finetune.report.sources import Subject, System, differences
from finetune.results import Evaluation, sample_std

FigureSource = tuple[str, str, str]
"""Where a figure comes from: (evaluation, task, score); score "" means the task's headline."""


@dataclass
class Cell:
    """A figure; std: over `seeds` if several, else the evaluation's; notes: numbers of the table's."""

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
        """What is printed above the figure: a dagger if it is not comparable, and its notes' numbers."""
        return ("†" if self.incomplete else "") + ",".join(map(str, self.notes))

    def __str__(self) -> str:
        """Return the figure as printed, marks left out; "" if there is none."""
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


MemberFigure = tuple[float, float | None, Evaluation]
"""One member's figure, its deviation, and the evaluation that it is of."""


def our_rows(
    table: Table, views: Sequence[SystemRow], columns: Sequence[Sequence[FigureSource]], digits: int = 2
) -> list[TableRow]:
    """Return the views that have a figure, a cell a column by its sources; none: mean of the others."""
    rows = []
    for view in views:
        members = []
        for member in view.system.members:
            figures = [_find(member, view.pooling, sources) for sources in columns]
            mean = _mean([figure for figure, sources in zip(figures, columns) if sources])
            members.append([figure if sources else mean for figure, sources in zip(figures, columns)])
        cells = [_cell(table, view, of_members, digits) for of_members in zip(*members, strict=True)]
        if any(cell.value is not None for cell in cells):
            rows.append(TableRow(view.label, cells))
    return rows


def _mean(figures: Sequence[MemberFigure | None]) -> MemberFigure | None:
    """Return the mean of figures that were rounded first, as the papers do; None if one is absent."""
    present = [figure for figure in figures if figure is not None]
    if len(present) < len(figures) or not present:
        return None
    weak = next((evaluation for _, _, evaluation in present if not evaluation.complete), present[0][2])
    return statistics.fmean(round(value, 2) for value, _, _ in present), None, weak


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
            return float(value), result.std if headline else None, evaluation
    return None


def _cell(table: Table, row: SystemRow, figures: Sequence[MemberFigure | None], digits: int) -> Cell:
    """Return one row's figures over its members as mean and standard deviation; a note names who has none."""
    present = [figure for figure in figures if figure is not None]
    if not present:
        return Cell(digits=digits)
    values = [value for value, _, _ in present]
    std = sample_std(values) if len(values) > 1 else present[0][1]
    cell = Cell(statistics.fmean(values), std, len(values), digits)
    if len(present) < len(figures):
        cell.notes.append(table.note(f"{row.label}: {len(present)} of {len(figures)} seeds have this figure"))
    weak = [evaluation for _, _, evaluation in present if not evaluation.complete]
    if weak:
        cell.incomplete = True
        said = "; ".join(weak[0].notes) or "the evaluation does not say why"
        cell.notes.append(
            table.note(f"{weak[0].evaluation}, incomplete, not comparable with published figures: {said}")
        )
    return cell


def mark_best(rows: Sequence[TableRow]) -> None:
    """Mark the highest of ours in every column, ties as printed included, unless all tie."""
    for cells in zip(*(row.cells for row in rows), strict=True):
        printed = [(cell, round(cell.value, cell.digits)) for cell in cells if cell.value is not None]
        best = max((value for _, value in printed), default=0.0)
        winners = [cell for cell, value in printed if value == best]
        for cell in winners:
            cell.best = len(winners) < len(printed)


def add_evaluation_notes(table: Table, rows: Sequence[SystemRow], names: set[str]) -> None:
    """Note what complete evaluations say, once for all rows; of incomplete ones cells' notes do."""
    said: dict[str, dict[str, None]] = {}
    for row in rows:
        for evaluation in evaluations_of(row):
            if evaluation.evaluation in names and evaluation.complete and evaluation.tasks:
                for text in evaluation.notes:
                    said.setdefault(text, {})[row.label] = None
    for text, labels in said.items():
        table.note(f"{', '.join(labels)}: {text}" if len(labels) < len(table.ours) else text)


Sources = list[list[FigureSource]]
"""Where our figure of each column comes from, in order of preference; none: the mean of other columns."""


def _published(entry: dict[str, Any]) -> tuple[Table, Sources]:
    """Return a table of published.yaml with the papers' rows, and its sources. Higher is better in all."""
    blocks = [
        Block(source, [_published_row(line, entry["digits"]) for line in text.splitlines()], reference=True)
        for source, text in entry["figures"].items()
    ]
    written = [[text.split() for text in texts] for texts in entry["columns"].values()]
    sources = [[(name, task, "".join(score)) for name, task, *score in texts] for texts in written]
    return Table(entry["key"], entry["title"], entry["protocol"], list(entry["columns"]), blocks), sources


def _published_row(line: str, digits: int) -> TableRow:
    name, figures = line.split("|")
    cells = []
    for figure, _, spread in (text.partition("±") for text in figures.split()):
        value = None if figure == "-" else float(figure)
        cells.append(Cell(value, float(spread) if spread else None, 0, digits))
    return TableRow(name.strip(), cells)


PUBLISHED = [
    _published(entry)
    for entry in yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))
]


def rows_of(systems: Sequence[System]) -> list[SystemRow]:
    """Return one row per system and pooling; the pooling is named if a system was evaluated with several."""
    rows = []
    for system in systems:
        poolings = dict.fromkeys(pooling for member in system.members for _, pooling in member.evaluations)
        for pooling in poolings:
            label = f"{system.label}, {pooling}" if len(poolings) > 1 else system.label
            rows.append(SystemRow(label, system, pooling))
    return rows


def paper_tables(rows: Sequence[SystemRow]) -> list[Table]:
    """Return every paper's table with our rows that have a figure for it."""
    tables = []
    for published, sources in PUBLISHED:
        table = replace(published, blocks=[], notes=[])
        if ours := our_rows(table, rows, sources):
            table.blocks.append(Block("ours", ours))
            mark_best(ours)
            add_evaluation_notes(table, rows, {name for one in sources for name, _, _ in one})
        table.blocks += published.blocks
        tables.append(table)
    return tables


def other_tables(rows: Sequence[SystemRow]) -> list[Table]:
    """Return a table an evaluation for the tasks that no paper's table has, those of figures aside."""
    of_papers = {(name, task) for _, sources in PUBLISHED for one in sources for name, task, _ in one}
    tasks: dict[str, dict[tuple[str, str], None]] = {}
    for evaluation in (one for row in rows for one in evaluations_of(row)):
        name = evaluation.evaluation
        for task, result in evaluation.tasks.items():
            # the papers' tables average themselves; a figure has all augmentations
            if (name, task) not in of_papers and not task.startswith(("average of ", "augmentation/")):
                tasks.setdefault(name, {})[task, result.metric] = None
    tables = []
    for name, columns in tasks.items():
        titles = [f"{task} ({metric})" for task, metric in columns]
        table = Table(f"other_{name}", f"{name}: other tasks", "headline figures", titles, [])
        digits = 3 if name.split("-")[0] == "geometry" else 2
        ours = our_rows(table, rows, [[(name, task, "")] for task, _ in columns], digits)
        table.blocks.append(Block("ours", ours))
        add_evaluation_notes(table, rows, {name})
        tables.append(table)
    return tables


def config_table(systems: Sequence[System]) -> Table | None:
    """Return the keys of the recipes that differ between runs; None if none does."""
    differing = differences(systems)
    runs = [system.label for system in systems if system.members[0].run]
    if len(runs) < 2 or not differing:
        return None
    lines = [
        TableRow(key, [Cell(text="" if v is None else str(v)) for v in values])
        for key, values in differing.items()
    ]
    caption = "keys whose values differ; name, folder and seed left out"
    return Table("config", "Configuration differences", caption, runs, [Block("", lines)])
