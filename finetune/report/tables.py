"""The report's tables as data: our figures beside the papers', geometry, recipes that differ, and cost."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from finetune.report.cells import (
    HIGHER,
    LOWER,
    Block,
    Cell,
    FigureSource,
    SystemRow,
    Table,
    TableRow,
    add_evaluation_notes,
    evaluations_of,
    mark_best,
    our_rows,
)
from finetune.report.sources import Subject, System, differences
from pretrain.telemetry.formats import format_count, format_seconds

GEOMETRY = (  # title, task, score ("" for the headline), better, digits
    ("alignment", "alignment", "", LOWER, 3),
    ("uniformity", "uniformity", "", LOWER, 3),
    ("average cosine", "isotropy", "average_cosine", LOWER, 3),
    ("effective rank", "isotropy", "effective_rank", HIGHER, 1),
    ("entailment nearer (%)", "nli", "", HIGHER, 1),
)
AUGMENTATION = (
    ("changed (%)", "changed", 1),
    ("tokens changed (%)", "tokens_changed", 1),
    ("Jaccard", "jaccard", 2),
    ("cosine", "cosine", 3),
    ("COND-HM", "cond_hm", 1),
    ("SVG", "svg", 2),
    ("Gromov–Hausdorff", "gromov_hausdorff", 3),
    ("as coded", "gromov_hausdorff_as_coded", 2),
    ("pseudo-perplexity", "perplexity_original", 1),
    ("of the view", "perplexity_view", 1),
    ("change", "perplexity_change", 1),
)


Sources = list[list[FigureSource]]
"""Where our figure of each column comes from, in order of preference; none: the mean of other columns."""


def _published(entry: dict[str, Any]) -> tuple[Table, Sources]:
    """Return a table of published.yaml with the papers' rows, and its sources. Higher is better in all."""
    blocks = [
        Block(source, [_published_row(line, entry["digits"]) for line in text.splitlines()], reference=True)
        for source, text in entry["figures"].items()
    ]
    sources = [[_figure_source(text) for text in texts] for texts in entry["columns"].values()]
    return Table(entry["key"], entry["title"], entry["protocol"], list(entry["columns"]), blocks), sources


def _figure_source(text: str) -> FigureSource:
    evaluation, task, *score = text.split()
    return evaluation, task, "".join(score)


def _published_row(line: str, digits: int) -> TableRow:
    name, cells = line.split("|")
    parts = [cell.partition("±") for cell in cells.split()]
    return TableRow(
        name.strip(),
        [
            Cell(None if figure == "-" else float(figure), float(spread) if spread else None, 0, digits)
            for figure, _, spread in parts
        ],
    )


PUBLISHED = [
    _published(entry)
    for entry in yaml.safe_load(Path(__file__).with_name("published.yaml").read_text("utf-8"))
]


def rows_of(systems: Sequence[System]) -> list[SystemRow]:
    """Return one row a system and pooling; the pooling is named where a system was evaluated with several."""
    rows = []
    for system in systems:
        poolings = list(
            dict.fromkeys(pooling for member in system.members for _, pooling in member.evaluations)
        )
        for pooling in poolings:
            rows.append(
                SystemRow(
                    f"{system.label}, {pooling}" if len(poolings) > 1 else system.label, system, pooling
                )
            )
    return rows


def paper_tables(rows: Sequence[SystemRow]) -> list[Table]:
    """Return every paper's table with our rows that have a figure for it."""
    tables = []
    for published, sources in PUBLISHED:
        table = replace(published, blocks=[], notes=[])
        if ours := our_rows(table, rows, sources):
            table.blocks.append(Block("ours", ours))
            mark_best(ours, [HIGHER] * len(sources))
            add_evaluation_notes(table, rows, {name for one in sources for name, _, _ in one})
        table.blocks += published.blocks
        tables.append(table)
    return tables


def other_tables(rows: Sequence[SystemRow]) -> list[Table]:
    """Return a table an evaluation for the tasks that no paper's table has.

    Geometry has tables of its own.
    """
    of_papers = {(name, task) for _, sources in PUBLISHED for one in sources for name, task, _ in one}
    tasks: dict[str, dict[tuple[str, str], None]] = {}
    for evaluation in (one for row in rows for one in evaluations_of(row) if one.evaluation != "geometry"):
        name = evaluation.evaluation
        for task, result in evaluation.tasks.items():
            # the papers' tables average themselves
            if (name, task) not in of_papers and not task.startswith("average of "):
                tasks.setdefault(name, {})[task, result.metric] = None
    tables = []
    for name, columns in tasks.items():
        titles = [f"{task} ({metric})" for task, metric in columns]
        table = Table(f"other_{name}", f"{name}: other tasks", "headline figures", titles, [])
        table.blocks.append(Block("ours", our_rows(table, rows, [[(name, task, "")] for task, _ in columns])))
        add_evaluation_notes(table, rows, {name})
        tables.append(table)
    return tables


def geometry_tables(rows: Sequence[SystemRow]) -> list[Table]:
    """Return a table of the general measures, a row a model, and one a model of its augmentations."""
    measured = [row for row in rows if _geometry_tasks(row)]
    if not measured:
        return []
    hoods = dict.fromkeys(
        task for row in measured for task in _geometry_tasks(row) if task.startswith("neighbourhood/")
    )
    columns = [*GEOMETRY, *((f"{t.split('/', 1)[1]}, cosine purity (%)", t, "", HIGHER, 1) for t in hoods)]
    caption = "↑ higher is better, ↓ lower is better"
    table = Table("geometry", "Measures", caption, [f"{c[0]}\u00a0{c[3]}" for c in columns], [])
    sources = [[("geometry", task, score)] for _, task, score, _, _ in columns]
    ours = our_rows(table, measured, sources, [column[4] for column in columns])
    mark_best(ours, [column[3] for column in columns])
    table.blocks.append(Block("ours", ours))
    add_evaluation_notes(table, measured, {"geometry"})
    seen = (_augmentation_table(number, row) for number, row in enumerate(measured, start=1))
    return [*([table] if ours else []), *filter(None, seen)]


def _geometry_tasks(row: SystemRow) -> list[str]:
    """Return the tasks of a row's geometry, over its members; none where it has not been measured."""
    return [task for one in evaluations_of(row) if one.evaluation == "geometry" for task in one.tasks]


def _augmentation_table(number: int, row: SystemRow) -> Table | None:
    names = dict.fromkeys(name for name in _geometry_tasks(row) if name.startswith("augmentation/"))
    if not names:
        return None
    table = Table(
        f"augmentations_{number}",
        f"Augmentations seen by {row.label}",
        "each over the sentences that it changes",
        [title for title, _, _ in AUGMENTATION],
        [],
    )
    digits = [digits for _, _, digits in AUGMENTATION]
    lines = [
        TableRow(name.removeprefix("augmentation/"), one.cells)
        for name in names
        for one in our_rows(table, [row], [[("geometry", name, s)] for _, s, _ in AUGMENTATION], digits)
    ]
    table.blocks.append(Block("", lines))
    return table


def cost_table(systems: Sequence[System]) -> Table:
    """Return steps, tokens, time and speed of every run, and the time that its evaluations took."""
    columns = ["seed", "steps", "tokens", "training time", "tokens/s", "peak memory (GB)", "evaluations"]
    caption = "tokens count every view that the encoder read; tokens/s: tokens over training time"
    table = Table("cost", "Cost", caption, columns, [])
    lines = []
    for system in systems:
        for member in system.members:
            lines.append(
                TableRow(
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
    return table


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
    """Return the keys of the recipes that differ between runs.

    None for fewer than two runs, or where no key differs.
    """
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
