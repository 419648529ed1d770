"""Draw what the rows of a sweep's table are: lines, dots, correlations, distances, differences."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from finetune.figures.drawing import (
    COLOURS,
    GREY,
    Dot,
    Line,
    NotThere,
    colour,
    draw_dots,
    draw_lines,
    new_panels,
)
from finetune.geometry.plots import nli_distances
from finetune.results import read
from pretrain.common.errors import UserError

Content = dict[str, Any]
TOLD = 0.05
"""Correlations with a larger p are printed in grey."""


def rows_with(content: Content, *keys: str) -> list[dict[str, Any]]:
    """Return the rows with figures whose `at` has all these keys."""
    return [row for row in content["rows"] if row.get("mean") and all(key in row["at"] for key in keys)]


def columns_of(content: Content, figure: dict[str, Any]) -> list[str]:
    """Return the figure's columns: those it names, or the file's own, that some row has."""
    wanted = figure["columns"] or content["own_columns"]
    found = [title for title in wanted if any(title in row.get("mean", {}) for row in content["rows"])]
    if not found:
        raise NotThere(f"no row has a figure for {', '.join(wanted)} yet")
    return found


def lines(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw columns against what rows are `at`, or rows against `panels`; level lines: rows without `at`."""
    key = figure["x"]
    if figure["panels"]:
        panels = {name: _over_columns(content, places) for name, places in figure["panels"].items()}
        if not any(panels.values()):
            raise NotThere("no row has a figure for its columns yet")
        return draw_lines(panels, xlabel=key)
    columns = columns_of(content, figure)
    systems: dict[str, list[dict[str, Any]]] = {}
    for row in rows_with(content, "line", key):
        systems.setdefault(row["at"]["line"], []).append(row)
    if not systems:
        raise NotThere(f"no row with `at: {{{key}}}` has figures")
    levels = [row for row in rows_with(content, "line") if not set(row["at"]) - {"line"}]
    panels = {
        title: [
            *(_line(number, key, rows, title) for number, rows in enumerate(systems.values())),
            *(_level(number, row, title) for number, row in enumerate(levels)),
        ]
        for title in columns
    }
    return draw_lines(
        {title: [line for line in drawn if line.ys] for title, drawn in panels.items()}, xlabel=key
    )


def _line(number: int, key: str, rows: list[dict[str, Any]], title: str) -> Line:
    there = sorted((row for row in rows if title in row["mean"]), key=lambda row: row["at"][key])
    xs, ys = [row["at"][key] for row in there], [row["mean"][title] for row in there]
    spread = [row["std"].get(title, 0.0) for row in there]
    return Line(rows[0]["at"]["line"], xs, ys, colour(number), spread=spread)


def _level(number: int, row: dict[str, Any], title: str) -> Line:
    ys = [row["mean"][title]] if title in row["mean"] else []
    return Line(row["at"]["line"], [], ys, GREY, ("--", ":", "-.")[number % 3])


def _over_columns(content: Content, places: dict[str, str]) -> list[Line]:
    found = []
    for number, row in enumerate(rows_with(content, "line")):
        there = sorted((float(x), row["mean"][title]) for x, title in places.items() if title in row["mean"])
        if there:
            xs, ys = zip(*there)
            found.append(Line(row["name"], xs, ys, colour(number)))
    return found


def dots(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw a panel a column, dots by `by` and `split` with deviations; open: not told from the baseline."""
    columns, by, split = columns_of(content, figure), figure["by"], figure["split"]
    rows = rows_with(content, by, split)
    if not rows:
        raise NotThere(f"no row with `at: {{{by}, {split}}}` has figures")
    names = list(dict.fromkeys(row["at"][by] for row in rows))
    kinds = list(dict.fromkeys(row["at"][split] for row in rows))

    def dot(row: dict[str, Any], title: str) -> Dot:
        value, spread = row["mean"][title], row["std"].get(title, 0.0)
        apart = (row.get("difference") or {}).get("columns", {}).get(title)
        place, shade = names.index(row["at"][by]), colour(kinds.index(row["at"][split]))
        unsure = apart is not None and not apart["told"]
        return Dot(place, value, value - spread, value + spread, shade, unsure)

    panels = {title: [dot(row, title) for row in rows if title in row["mean"]] for title in columns}
    return draw_dots(panels, names, {str(kind): colour(number) for number, kind in enumerate(kinds)})


def differences(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw a panel a column, in it every row's difference to the baseline; grey: its interval holds 0."""
    rows = [row for row in content["rows"] if (row.get("difference") or {}).get("columns")]
    panels: dict[str, list[Dot]] = {}
    for title in columns_of(content, figure):
        for place, row in enumerate(rows):
            if (apart := row["difference"]["columns"].get(title)) is not None:
                shade = COLOURS[0] if apart["told"] else GREY
                dot = Dot(place, apart["mean"], apart["low"], apart["high"], shade)
                panels.setdefault(title, []).append(dot)
    if not panels:
        raise NotThere("no row has a difference to the baseline yet")
    return draw_dots(panels, [row["name"] for row in rows], {}, f"less {content['baseline']}", zero=True)


def correlations(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw Pearson's correlations of columns over `by`, or the rows; in grey: p >= 0.05."""
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
    names = list(complete)
    size = 1.6 + 0.42 * len(names)
    drawn, (axis,) = new_panels(1)
    drawn.set_size_inches(size + 1, size)
    axis.imshow(np.corrcoef([*complete.values()]), cmap="RdBu", vmin=-1, vmax=1)
    for down, one in enumerate(names):
        for across, other in enumerate(names):
            r, p = stats.pearsonr(complete[one], complete[other])
            colour = "white" if abs(r) > 0.7 else (GREY if p >= TOLD else "black")
            axis.text(across, down, f"{r:.2f}", ha="center", va="center", fontsize=6, color=colour)
    axis.set_xticks(range(len(names)), names, rotation=90)
    axis.set_yticks(range(len(names)), names)
    axis.set_title(f"Pearson's correlations over {len(table)} rows; grey: p of at least {TOLD}", fontsize=8)
    return drawn


def nli(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw distances of `finetune.geometry --measure nli`, a line a model: the first seed of every row."""
    models = []
    for row in content["rows"]:
        for run in row["runs"][:1]:
            with contextlib.suppress(UserError):  # no such file
                tasks = read(Path(run["evaluations"]) / f"geometry-nli-{run['pooling']}.json").tasks
                models += [(row["name"], tasks["nli"].details)] if "nli" in tasks else []
    if not models:
        raise NotThere("no model has geometry-nli yet (clearly sweep FILE --evaluations geometry-nli)")
    return nli_distances(models)


DRAWERS: dict[str, Callable[[Content, dict[str, Any]], Figure]] = {
    "lines": lines,
    "dots": dots,
    "nli": nli,
    "differences": differences,
    "correlations": correlations,
}
"""Kind of a figure -> what draws it from a table's content."""
