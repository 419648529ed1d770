"""Draw figures from the table of a sweep, the papers' among them: `clearly figures FOLDER`.

`clearly sweep` runs it for files that have `figures:`. Each goes to FOLDER/figures/NAME.png. A figure whose
rows have not been evaluated is not drawn.

    lines         a column by what a row is `at`, a line a system (VaSCL, figures 3 and 4; SDA, figure 5)
    differences   every row less the baseline, with its interval (AugCSE, figure 6)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.run_folder import read_json_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Content = dict[str, Any]


class NotThere(Exception):
    """A figure cannot be drawn yet; the message says why."""


def draw(folder: Path) -> None:
    """Draw the figures of a sweep that has been tabulated.

    Args:
        folder: of the sweep's table: runs/sweeps/NAME.
    """
    from finetune.figures.drawing import to_png

    path = folder / "results.json"
    if not path.is_file():
        raise UserError(f"{path} is not there: it is the table of a sweep, made by `clearly sweep`")
    content = read_json_file(path, "remove it; the same `clearly sweep` writes it again")
    place = folder / "figures"
    make_folder(place)
    for name, figure in content.get("figures", {}).items():
        try:
            if figure["kind"] not in DRAWERS:
                raise NotThere(f"there is no kind {figure['kind']!r} any more")
            picture = DRAWERS[figure["kind"]](content, figure)
        except NotThere as reason:
            print(f"{name} is not drawn: {reason}")
            continue
        if figure["title"]:
            picture.suptitle(figure["title"])
        replace_durably(place / f"{name}.png", to_png(picture))
        print(f"drawn: {place / name}.png")


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
    from finetune.figures.drawing import GREY, Line, colour, draw_lines

    key = figure["x"]
    if figure["panels"]:
        panels: dict[str, list[Line]] = {name: [] for name in figure["panels"]}
        for name, places in figure["panels"].items():
            for number, row in enumerate(rows_with(content, "line")):
                points = sorted((float(x), row["mean"][to]) for x, to in places.items() if to in row["mean"])
                if points:
                    line = Line(row["name"], [x for x, _ in points], [y for _, y in points], colour(number))
                    panels[name].append(line)
        if not any(panels.values()):
            raise NotThere("no row has a figure for its columns yet")
        return draw_lines(panels, xlabel=key)
    columns = columns_of(content, figure)
    systems: dict[str, list[dict[str, Any]]] = {}
    for row in rows_with(content, "line", key):
        systems.setdefault(row["at"]["line"], []).append(row)
    if not systems:
        raise NotThere(f"no row with `at: {{{key}}}` has figures")
    for rows in systems.values():  # each alone: of another line `at` may be a text
        rows.sort(key=lambda row: row["at"][key])
    levels = [row for row in rows_with(content, "line") if not set(row["at"]) - {"line"}]
    panels = {title: [] for title in columns}
    for title, drawn in panels.items():
        for number, (label, rows) in enumerate(systems.items()):
            if there := [row for row in rows if title in row["mean"]]:
                xs, ys = [row["at"][key] for row in there], [row["mean"][title] for row in there]
                spread = [row["std"].get(title, 0.0) for row in there]
                drawn.append(Line(label, xs, ys, colour(number), spread=spread))
        for number, row in enumerate(levels):
            if title in row["mean"]:
                style = ("--", ":", "-.")[number % 3]
                drawn.append(Line(row["at"]["line"], [], [row["mean"][title]], GREY, style))
    return draw_lines(panels, xlabel=key)


def differences(content: Content, figure: dict[str, Any]) -> Figure:
    """Draw a panel a column, in it every row's difference to the baseline; grey: its interval holds 0."""
    from finetune.figures.drawing import COLOURS, GREY, Dot, draw_dots

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

if __name__ == "__main__":
    cli.run(draw)
