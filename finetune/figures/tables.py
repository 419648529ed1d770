"""Draw what the rows of a sweep's table are: lines, dots, correlations, distances."""

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from finetune.figures.drawing import GREY, HEIGHT, NotThere, columns_of, panels, rows_with
from finetune.geometry import plots
from finetune.results import Evaluation, read
from pretrain.common.errors import UserError

Content = dict[str, Any]
TOLD = 0.05
"""Correlations with a larger p are printed in grey."""


def lines(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw columns against what rows are `at`, a line a system, its deviation over seeds as bars.

    With `panels`, what is to the right are columns, and each row is a line. A row without a place to the
    right is a level line.

    Raises:
        NotThere: no row has figures.
    """
    if figure["panels"]:
        return _lines_over_columns(content, figure)
    columns, key = columns_of(content, figure), figure["x"]
    systems: dict[str, list[dict[str, Any]]] = {}
    for row in rows_with(content, "line", key):
        systems.setdefault(row["at"]["line"], []).append(row)
    levels = [row for row in rows_with(content, "line") if not set(row["at"]) - {"line"}]
    if not systems:
        raise NotThere(f"no row with `at: {{{key}}}` has figures")
    drawn, axes = panels(len(columns))
    for axis, title in zip(axes, columns):
        for number, (name, rows) in enumerate(systems.items()):
            there = sorted((row for row in rows if title in row["mean"]), key=lambda row: row["at"][key])
            _line(axis, name, number, [row["at"][key] for row in there], there, title)
        for number, row in enumerate(row for row in levels if title in row["mean"]):
            style = ("--", ":", "-.")[number % 3]
            axis.axhline(row["mean"][title], color=GREY, linestyle=style, label=row["at"]["line"])
        axis.set(title=title, xlabel=key)
    _one_legend(drawn, axes)
    return drawn


def _lines_over_columns(content: Content, figure: dict[str, Any]) -> Figure:
    drawn, axes = panels(len(figure["panels"]))
    count = 0
    for axis, (name, places) in zip(axes, figure["panels"].items()):
        for number, row in enumerate(rows_with(content, "line")):
            there = [(float(x), title) for x, title in places.items() if title in row["mean"]]
            if there:
                count += 1
                xs, titles = zip(*sorted(there))
                ys = [row["mean"][title] for title in titles]
                colour = plots.COLOURS[number % len(plots.COLOURS)]
                axis.plot(xs, ys, marker=".", color=colour, label=row["name"])
        axis.set(title=name, xlabel=figure["x"])
    if not count:
        raise NotThere("no row has a figure for its columns yet")
    _one_legend(drawn, axes)
    return drawn


def _line(axis: Axes, name: str, number: int, xs: list, rows: list[dict[str, Any]], title: str) -> None:
    if not rows:
        return
    colour = plots.COLOURS[number % len(plots.COLOURS)]
    spread = [row["std"].get(title, 0.0) for row in rows]
    ys = [row["mean"][title] for row in rows]
    axis.errorbar(xs, ys, yerr=spread, color=colour, marker=".", capsize=2, linewidth=1.1, label=name)


def dots(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw a panel a column and a line of dots for each `by`, in a colour for each `split`.

    Bars are the deviation over seeds; an open dot cannot be told from the baseline.

    Raises:
        NotThere: no row has figures.
    """
    columns, by, split = columns_of(content, figure), figure["by"], figure["split"]
    rows = rows_with(content, by, split)
    if not rows:
        raise NotThere(f"no row with `at: {{{by}, {split}}}` has figures")
    names = list(dict.fromkeys(row["at"][by] for row in rows))
    kinds = list(dict.fromkeys(row["at"][split] for row in rows))
    drawn, axes = panels(len(columns), max(HEIGHT, 0.9 + 0.2 * len(names)))
    for axis, title in zip(axes, columns):
        for number, kind in enumerate(kinds):
            colour = plots.COLOURS[number]
            for row in (row for row in rows if row["at"][split] == kind and title in row["mean"]):
                found = (row.get("difference") or {}).get("columns", {}).get(title)
                face = "white" if found is not None and not found["told"] else colour
                place, spread = names.index(row["at"][by]), row["std"].get(title, 0.0)
                axis.errorbar(
                    row["mean"][title], place, xerr=spread, color=colour, marker="o", markersize=4, mfc=face
                )
            axis.plot([], [], color=colour, marker="o", linestyle="", label=str(kind))
        axis.set_yticks(range(len(names)), names if axis in axes[::4] else [""] * len(names))
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_title(title)
    _one_legend(drawn, axes)
    return drawn


def correlations(content: Content, figure: dict[str, Any]) -> tuple[Figure, str]:
    """Draw and tabulate Pearson's correlations between columns over what `by` names.

    With `split`, a column is one for each of its values, but for columns of the model that runs start from.
    Without `by` it is over the rows. Printed in grey, or with ~: p >= 0.05.

    Raises:
        NotThere: fewer than three of what is compared, or fewer than two columns, are complete.
    """
    by, split = figure["by"], figure["split"]
    table: dict[str, dict[str, float]] = {}
    for row in rows_with(content, *filter(None, (by, split))):
        values = table.setdefault(row["at"][by] if by else row["name"], {})
        for title in figure["columns"] or content["own_columns"]:
            if title in row["mean"]:
                of_start = str(content["columns"][title]).startswith("start.")
                whole = of_start or not split
                values[title if whole else f"{row['at'][split]}: {title}"] = row["mean"][title]
    titles = list(dict.fromkeys(title for values in table.values() for title in values))
    complete = {
        title: column
        for title in titles
        if np.ptp(column := np.array([values.get(title, np.nan) for values in table.values()])) > 0
    }
    if len(table) < 3 or len(complete) < 2:
        raise NotThere("correlations need three rows and two columns whose figures are complete")
    names, found = list(complete), {}
    for one in names:
        for other in names:
            result = stats.pearsonr(complete[one], complete[other])
            found[one, other] = (float(result.statistic), float(result.pvalue))
    size = 1.6 + 0.42 * len(names)
    drawn, axis = plots.plt.subplots(figsize=(size + 1, size))
    matrix = np.array([[found[one, other][0] for other in names] for one in names])
    axis.imshow(matrix, cmap="RdBu", vmin=-1, vmax=1)
    for down, one in enumerate(names):
        for across, other in enumerate(names):
            r, p = found[one, other]
            colour = "white" if abs(r) > 0.7 else (GREY if p >= TOLD else "black")
            axis.text(across, down, f"{r:.2f}", ha="center", va="center", fontsize=6, color=colour)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    heading = [f"Pearson's correlations over {len(table)} rows; ~: p of at least {TOLD}", ""]
    text = [*heading, "| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for one in names:
        cells = [("~ " if p >= TOLD else "") + f"{r:.2f}" for r, p in (found[one, other] for other in names)]
        text.append("| " + " | ".join([one, *cells]) + " |")
    return drawn, "\n".join(text) + "\n"


def nli(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw premises' distances to hypotheses, and of the entailed over the contradicting, a line a model.

    Of the first seed's run of every row (`finetune.geometry --measure nli`).

    Raises:
        NotThere: no row has been measured.
    """
    models = []
    for row in content["rows"]:
        for run in row["runs"][:1]:
            if (found := evaluation_of(run, "geometry-nli")) is not None and "nli" in found.tasks:
                models.append((row["name"], found.tasks["nli"].details))
    if not models:
        raise NotThere("no model has geometry-nli yet (clearly sweep FILE --evaluations geometry-nli)")
    drawn, (left, right) = panels(2)
    colours = cycle(plots.COLOURS)
    for name, details in models:
        colour = next(colours)
        plots.density(left, details["entailment"], colour, "-", f"{name}, entailment")
        plots.density(left, details["contradiction"], colour, "--", f"{name}, contradiction")
        plots.density(right, details["ratio"], colour, "-", "")
    left.set(xlabel="1 − cosine to the premise", ylabel="density")
    right.set(xlabel="distance, entailed over contradicting", ylabel="density")
    right.axvline(1, color=GREY, linewidth=0.8)
    for axis in (left, right):
        axis.set_ylim(bottom=0)
    _one_legend(drawn, [left])
    return drawn


def evaluation_of(run: dict[str, Any], name: str) -> Evaluation | None:
    """Return an evaluation of a run in a sweep's table; None: there is none."""
    path = Path(run["evaluations"]) / f"{name}-{run['pooling']}.json"
    try:
        return read(path) if path.is_file() else None
    except UserError:
        return None


def _one_legend(figure: Figure, axes: list[Axes]) -> None:
    known: dict[str, Any] = {}
    for axis in axes:
        handles, labels = axis.get_legend_handles_labels()
        known |= dict(zip(labels, handles))
    if len(known) > 1:
        figure.legend(
            known.values(), known.keys(), loc="outside lower center", ncols=min(3, len(figure.axes))
        )
