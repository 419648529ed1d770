"""The report's figures: learning curves of runs, and the geometry of models, side by side."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from matplotlib.figure import Figure

from finetune.figures.drawing import Line, colour, draw_lines
from finetune.report.sources import Subject, System
from finetune.report.tables import SystemRow, evaluations_of
from finetune.results import Evaluation
from pretrain.telemetry.formats import flatten

POINTS = 400
"""Most points of one curve: evenly spaced records, the first and the last among them."""
CURVES = yaml.safe_load(Path(__file__).with_name("curves.yaml").read_text("utf-8"))
"""Metric -> its title."""


def curve(subject: Subject, name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a metric, as written in metrics.jsonl, thinned to `POINTS`."""
    points = [
        (record["step"], value)
        for record in subject.metrics
        if "step" in record
        for key, value in flatten(record)
        if key == name
    ]
    if len(points) > POINTS:
        points = [points[round(n * (len(points) - 1) / (POINTS - 1))] for n in range(POINTS)]
    return [step for step, _ in points], [value for _, value in points]


def curve_names(systems: Sequence[System]) -> list[str]:
    """Return metrics with two records or more in some run: `CURVES`, then losses and evaluations."""
    several: dict[str, None] = {}
    for member in (member for system in systems for member in system.members):
        counts = Counter(
            key
            for record in member.metrics
            for key, _ in flatten(record)
            if key.partition("/")[0] in ("loss", "evaluation", *CURVES)
        )
        several |= dict.fromkeys(key for key, count in counts.items() if count > 1)
    others = [key for key in several if key not in (*CURVES, "evaluation/partner_among", "loss/total")]
    return [key for key in [*CURVES, *others] if key in several]


def draw_curves(systems: Sequence[System], names: Sequence[str] | None = None) -> dict[str, Figure]:
    """Draw a figure a curve of `names` (None: all that the runs have), a line a run, a colour a system."""
    figures = {}
    for name in curve_names(systems) if names is None else names:
        lines = [
            Line(system.label, *points, colour(number), marker="." if len(points[0]) < 15 else "")
            for number, system in enumerate(systems)
            for member in system.members
            if (points := curve(member, name))[0]
        ]
        figures[name.replace("/", "_")] = draw_lines({CURVES.get(name, name): lines}, xlabel="step")
    return figures


def geometry_rows(rows: Sequence[SystemRow]) -> list[tuple[str, Evaluation]]:
    """Return (label, geometry) of every row that has one, labelled or not; of seeds the first."""
    found = []
    for row in rows:
        parts = [one for one in evaluations_of(row) if one.evaluation.split("-")[0] == "geometry"]
        if parts:
            tasks = {task: result for part in reversed(parts) for task, result in part.tasks.items()}
            found.append((row.label, replace(parts[0], tasks=tasks)))
    return found
