"""Draw what the rows of a sweep's table are: lines, and differences to the baseline."""

from collections.abc import Callable
from typing import Any

from matplotlib.figure import Figure

from finetune.figures.drawing import COLOURS, GREY, Dot, Line, colour, draw_dots, draw_lines

Content = dict[str, Any]


class NotThere(Exception):
    """A figure cannot be drawn yet; the message says why."""


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


DRAWERS: dict[str, Callable[[Content, dict[str, Any]], Figure]] = {"lines": lines, "differences": differences}
"""Kind of a figure -> what draws it from a table's content."""
