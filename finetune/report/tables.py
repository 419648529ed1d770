"""The report's tables as data: our figures beside the papers', means over seeds, the best of ours, notes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from finetune.report.published import TABLES, ReferenceTable
from finetune.report.sources import Subject, System, differences
from finetune.results import Evaluation, sample_std
from pretrain.telemetry.formats import format_count, format_seconds

HIGHER, LOWER = "↑", "↓"
GEOMETRY = (  # title, task, score ("" for the headline), better, digits
    ("alignment", "alignment", "", LOWER, 3),
    ("uniformity", "uniformity", "", LOWER, 3),
    ("average cosine", "isotropy", "average_cosine", LOWER, 3),
    ("partition ratio", "isotropy", "partition_ratio_unit", HIGHER, 3),
    ("IsoScore", "isotropy", "isoscore", HIGHER, 3),
    ("effective rank", "isotropy", "effective_rank", HIGHER, 1),
    ("entailment nearer (%)", "nli", "", HIGHER, 1),
)
AUGMENTATION = (
    ("changed (%)", "changed", 1),
    ("tokens changed (%)", "tokens_changed", 1),
    ("cosine", "cosine", 3),
    ("COND-HM", "cond_hm", 1),
    ("SVG", "svg", 2),
    ("Gromov–Hausdorff", "gromov_hausdorff", 3),
    ("as coded", "gromov_hausdorff_as_coded", 2),
    ("pseudo-perplexity", "perplexity_original", 1),
    ("of the view", "perplexity_view", 1),
    ("change", "perplexity_change", 1),
)


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
        """The figure as printed, marks left out; "" where there is none."""
        if self.value is None:
            return self.text
        spread = f" ± {self.std:.{self.digits}f}" if self.std is not None else ""
        return f"{self.value:.{self.digits}f}{spread}"


@dataclass
class Row:
    label: str
    cells: list[Cell]


@dataclass
class Block:
    """Rows under a heading; `reference`: published figures, not ours."""

    heading: str
    rows: list[Row]
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
    def ours(self) -> list[Row]:
        return [row for block in self.blocks if not block.reference for row in block.rows]

    def note(self, text: str) -> int:
        """The number of a note, added if it is new."""
        if text not in self.notes:
            self.notes.append(text)
        return self.notes.index(text) + 1


@dataclass(frozen=True)
class View:
    """A system by one pooling: a row of the tables."""

    label: str
    system: System
    pooling: str


@dataclass(frozen=True)
class Found:
    """One member's figure."""

    value: float
    std: float | None
    evaluation: Evaluation | None


def rows_of(systems: Sequence[System]) -> list[View]:
    """One row a system and pooling; the pooling is named where a system was evaluated with several."""
    rows = []
    for system in systems:
        poolings = list(
            dict.fromkeys(pooling for member in system.members for _, pooling in member.evaluations)
        )
        for pooling in poolings:
            rows.append(
                View(f"{system.label}, {pooling}" if len(poolings) > 1 else system.label, system, pooling)
            )
    return rows


def paper_tables(rows: Sequence[View]) -> tuple[list[Table], set[tuple[str, str]]]:
    """Return every paper's table with our rows that have a figure for it, and the tasks used.

    The tasks are pairs (evaluation, task)."""
    used: set[tuple[str, str]] = set()
    return [_paper_table(reference, rows, used) for reference in TABLES], used


def _paper_table(reference: ReferenceTable, rows: Sequence[View], used: set[tuple[str, str]]) -> Table:
    table = Table(
        reference.key, reference.title, reference.protocol, [column.title for column in reference.columns], []
    )
    ours = []
    for row in rows:
        found = [
            [_find(m, row.pooling, column.sources, used) for column in reference.columns]
            for m in row.system.members
        ]
        if reference.average is not None:
            others = [n for n in range(len(reference.columns)) if n != reference.average]
            for figures in found:
                present = [figure for n in others if (figure := figures[n]) is not None]
                if len(present) == len(others):  # rounded first, as the papers do
                    mean = statistics.fmean(round(figure.value, 2) for figure in present)
                    evaluations = [figure.evaluation for figure in present if figure.evaluation is not None]
                    weak = next((one for one in evaluations if not one.complete), None)
                    figures[reference.average] = Found(mean, None, weak)
        cells = [_cell(table, row, [figures[n] for figures in found]) for n in range(len(reference.columns))]
        if any(cell.value is not None for cell in cells):
            ours.append(Row(row.label, cells))
    if ours:
        table.blocks.append(Block("ours", ours))
        _mark_best(ours, [HIGHER] * len(reference.columns))
        _evaluation_notes(
            table, rows, {source[0] for column in reference.columns for source in column.sources}
        )
    for source in dict.fromkeys(row.source for row in reference.rows):
        published = []
        for line in reference.rows:
            if line.source == source:
                spreads = line.spreads or (None,) * len(line.figures)
                digits = 1 if reference.key in ("glue", "clear_senteval", "anli") else 2
                cells = [
                    Cell(figure, std, 0, digits) for figure, std in zip(line.figures, spreads, strict=True)
                ]
                published.append(Row(line.name, cells))
        table.blocks.append(Block(source, published, reference=True))
    return table


def other_tables(rows: Sequence[View], used: set[tuple[str, str]]) -> list[Table]:
    """A table an evaluation for the tasks that no paper's table has; geometry has tables of its own."""
    tables = []
    names = dict.fromkeys(
        e.evaluation for row in rows for e in _evaluations(row) if e.evaluation != "geometry"
    )
    for name in names:
        tasks = dict.fromkeys(
            (task, result.metric)
            for row in rows
            for e in _evaluations(row)
            if e.evaluation == name
            for task, result in e.tasks.items()
            # the papers' tables average themselves
            if (name, task) not in used and not task.startswith("average of ")
        )
        if not tasks:
            continue
        columns = [f"{task} ({metric})" for task, metric in tasks]
        table = Table(f"other_{name}", f"{name}: other tasks", "headline figures", columns, [])
        ours = []
        for row in rows:
            found = [
                [_find(m, row.pooling, ((name, task, ""),)) for task, _ in tasks] for m in row.system.members
            ]
            cells = [_cell(table, row, [figures[n] for figures in found]) for n in range(len(tasks))]
            if any(cell.value is not None for cell in cells):
                ours.append(Row(row.label, cells))
        table.blocks.append(Block("ours", ours))
        _evaluation_notes(table, rows, {name})
        tables.append(table)
    return tables


def geometry_tables(rows: Sequence[View]) -> list[Table]:
    """One row a model of the general measures; one table a model of the measures by augmentation."""
    measured = [row for row in rows if any(e.evaluation == "geometry" for e in _evaluations(row))]
    if not measured:
        return []
    evaluations = [e for row in measured for e in _evaluations(row) if e.evaluation == "geometry"]
    hoods = dict.fromkeys(task for e in evaluations for task in e.tasks if task.startswith("neighbourhood/"))
    columns = [*GEOMETRY, *((f"{t.split('/', 1)[1]}, cosine purity (%)", t, "", HIGHER, 1) for t in hoods)]
    caption = "↑ higher is better, ↓ lower is better; the partition ratio is that of unit vectors"
    table = Table("geometry", "Measures", caption, [f"{c[0]}\u00a0{c[3]}" for c in columns], [])
    ours = []
    for row in measured:
        cells = []
        for _, task, score, _, digits in columns:
            found = [
                _find(member, row.pooling, (("geometry", task, score),)) for member in row.system.members
            ]
            cells.append(_cell(table, row, found, digits))
        ours.append(Row(row.label, cells))
    _mark_best(ours, [column[3] for column in columns])
    table.blocks.append(Block("ours", ours))
    _evaluation_notes(table, measured, {"geometry"})
    return [
        table,
        *filter(None, (_augmentation_table(number, row) for number, row in enumerate(measured, start=1))),
    ]


def _augmentation_table(number: int, row: View) -> Table | None:
    evaluations = [e for e in _evaluations(row) if e.evaluation == "geometry"]
    names = [name for name in evaluations[0].tasks if name.startswith("augmentation/")]
    if not names:
        return None
    table = Table(
        f"augmentations_{number}",
        f"Augmentations seen by {row.label}",
        "each over the sentences that it changes",
        [title for title, _, _ in AUGMENTATION],
        [],
    )
    lines = []
    for name in names:
        cells = []
        for _, score, digits in AUGMENTATION:
            found = [
                _find(member, row.pooling, (("geometry", name, score),)) for member in row.system.members
            ]
            cells.append(_cell(table, row, found, digits))
        lines.append(Row(name.removeprefix("augmentation/"), cells))
    table.blocks.append(Block("", lines))
    return table


def cost_table(systems: Sequence[System]) -> Table | None:
    """Steps, tokens, time and speed of every run, and the time that its evaluations took."""
    columns = ["seed", "steps", "tokens", "training time", "tokens/s", "peak memory (GB)", "evaluations"]
    caption = "tokens count every view that the encoder read; tokens/s: tokens over training time"
    table = Table("cost", "Cost", caption, columns, [])
    lines = []
    for system in systems:
        for member in system.members:
            lines.append(
                Row(
                    system.label if len(system.members) == 1 else member.name,
                    [Cell(text=t) for t in _cost(member)],
                )
            )
            if member.run and member.summary is None:
                state = (
                    f"at step {member.metrics[-1].get('step', 0):,}" if member.metrics else "without metrics"
                )
                lines[-1].cells[1].notes.append(
                    table.note(f"{member.name} has no report/summary.json: unfinished, {state}")
                )
    table.blocks.append(Block("ours", lines))
    return table if lines else None


def _cost(member: Subject) -> list[str]:
    training = [record for record in member.metrics if "tokens" in record and "seconds" in record]
    last = training[-1] if training else {}
    summary = member.summary or {}
    tokens, seconds = summary.get("tokens", last.get("tokens")), summary.get("seconds", last.get("seconds"))
    peaks = [
        record["memory"]["peak_gb"]
        for record in training
        if (record.get("memory") or {}).get("peak_gb") is not None
    ]
    spent = sum(evaluation.seconds for evaluation in member.evaluations.values())
    return [
        "" if member.seed is None else str(member.seed),
        f"{summary.get('steps', last.get('step', 0)):,}" if member.run else "",
        format_count(tokens) if tokens else "",
        format_seconds(seconds) if seconds else "",
        f"{tokens / seconds:,.0f}" if tokens and seconds else "",
        f"{max(peaks):.2f}" if peaks else "",
        format_seconds(spent) if spent else "",
    ]


def config_table(systems: Sequence[System]) -> Table | None:
    """Keys of the recipes that differ between runs; None for fewer than two runs or no difference."""
    differing = differences(systems)
    runs = [system.label for system in systems if system.members[0].run]
    if len(runs) < 2 or not differing:
        return None
    lines = [
        Row(key, [Cell(text="" if v is None else str(v)) for v in values])
        for key, values in differing.items()
    ]
    caption = "keys whose values differ; name, folder and seed left out"
    return Table("config", "Configuration differences", caption, runs, [Block("", lines)])


# -- figures into cells ------------------------------------------------


def _evaluations(row: View) -> Iterator[Evaluation]:
    for member in row.system.members:
        for (_, pooling), evaluation in member.evaluations.items():
            if pooling == row.pooling:
                yield evaluation


def _find(
    member: Subject,
    pooling: str,
    sources: Sequence[tuple[str, str, str]],
    used: set[tuple[str, str]] | None = None,
) -> Found | None:
    """The first source that the member has a figure for."""
    for name, task, score in sources:
        evaluation = member.evaluations.get((name, pooling))
        result = evaluation.tasks.get(task) if evaluation is not None else None
        if result is None:
            continue
        headline = not score or score == result.metric
        value = result.value if headline else result.scores.get(score)
        if value is not None:
            if used is not None:
                used.add((name, task))
            return Found(float(value), result.std if headline else None, evaluation)
    return None


def _cell(table: Table, row: View, found: Sequence[Found | None], digits: int = 2) -> Cell:
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
    weak = [
        figure.evaluation
        for figure in present
        if figure.evaluation is not None and not figure.evaluation.complete
    ]
    if weak:
        cell.incomplete = True
        said = "; ".join(weak[0].notes) or "the evaluation does not say why"
        cell.notes.append(
            table.note(f"{weak[0].evaluation}, incomplete, not comparable with published figures: {said}")
        )
    return cell


def _mark_best(rows: Sequence[Row], better: Sequence[str]) -> None:
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


def _evaluation_notes(table: Table, rows: Sequence[View], names: set[str]) -> None:
    """Add the notes of complete evaluations under the table, once for all rows.

    Those of incomplete ones are in the cells' own notes.
    """
    said: dict[str, dict[str, None]] = {}
    for row in rows:
        for evaluation in _evaluations(row):
            if evaluation.evaluation in names and evaluation.complete and evaluation.tasks:
                for text in evaluation.notes:
                    said.setdefault(text, {})[row.label] = None
    for text, labels in said.items():
        table.note(f"{', '.join(labels)}: {text}" if len(labels) < len(table.ours) else text)


def as_json(table: Table) -> dict[str, Any]:
    """Plain data, figures at full precision."""
    return {
        "key": table.key,
        "title": table.title,
        "caption": table.caption,
        "columns": table.columns,
        "notes": table.notes,
        "blocks": [
            {
                "heading": block.heading,
                "reference": block.reference,
                "rows": [
                    {"label": row.label, "cells": [vars(cell) for cell in row.cells]} for row in block.rows
                ],
            }
            for block in table.blocks
        ],
    }
