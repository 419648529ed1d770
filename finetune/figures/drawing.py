"""What the figures of a sweep share: panels, and the rows that have figures."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.geometry import plots

GREY = "#9aa4ad"
"""Of what cannot be told from the baseline."""
WIDTH, HEIGHT = 3.4, 2.7  # of a panel, in inches


class NotThere(Exception):
    """A figure cannot be drawn yet; the message says why."""


def panels(count: int, height: float = HEIGHT, across: int = 4) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, at most `across` in a row."""
    columns = min(count, across)
    rows = -(-count // columns)
    figure, axes = plots.plt.subplots(rows, columns, squeeze=False, figsize=(WIDTH * columns, height * rows))
    flat = list(axes.flat)
    for axis in flat[count:]:
        axis.set_visible(False)
    return figure, flat[:count]


def rows_with(content: dict[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Return the rows with figures whose `at` has all these keys."""
    return [row for row in content["rows"] if row.get("mean") and all(key in row["at"] for key in keys)]


def columns_of(content: dict[str, Any], figure: dict[str, Any]) -> list[str]:
    """Return the figure's columns: those it names, or the file's own, that some row has.

    Raises:
        NotThere: no row has any.
    """
    wanted = figure["columns"] or content["own_columns"]
    found = [title for title in wanted if any(title in row.get("mean", {}) for row in content["rows"])]
    if not found:
        raise NotThere(f"no row has a figure for {', '.join(wanted)} yet")
    return found
