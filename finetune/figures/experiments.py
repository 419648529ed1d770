"""Draw what an experiment found: the differences of its rows to the baseline."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from finetune.figures.drawing import GREY, HEIGHT, NotThere, columns_of, panels
from finetune.geometry import plots

_LINE = 0.22  # height of a row, in inches


def differences(content: dict[str, Any], figure: dict[str, Any]) -> Figure:
    """Draw a panel a column, and in it every row's difference to the baseline with its interval.

    Grey: the interval holds 0.

    Raises:
        NotThere: no row has a difference.
    """
    titles = columns_of(content, figure)
    rows = [row for row in content["rows"] if (row.get("difference") or {}).get("columns")]
    titles = [title for title in titles if any(title in row["difference"]["columns"] for row in rows)]
    if not titles:
        raise NotThere("no row has a difference to the baseline yet")
    drawn, axes = panels(len(titles), max(HEIGHT, 0.9 + _LINE * len(rows)))
    for axis, title in zip(axes, titles):
        for place, row in enumerate(rows):
            if (found := row["difference"]["columns"].get(title)) is not None:
                _interval(axis, place, found, plots.COLOURS[0] if found["told"] else GREY)
        _names(axis, [row["name"] for row in rows] if axis in axes[::4] else [""] * len(rows))
        axis.set(title=title, xlabel=f"less {content['baseline']}")
    return drawn


def _interval(axis: Axes, place: float, found: dict[str, float], colour: str) -> None:
    axis.plot([found["low"], found["high"]], [place, place], color=colour, linewidth=1.2)
    axis.plot(found["mean"], place, color=colour, marker="o", markersize=4)


def _names(axis: Axes, names: list[str]) -> None:
    axis.axvline(0, color=GREY, linewidth=0.8)
    axis.set_yticks(range(len(names)), names)
    axis.set_ylim(len(names) - 0.5, -0.5)
