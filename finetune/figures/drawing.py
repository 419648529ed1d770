"""Draw lines, and rows of values with intervals, in panels; write figures as PNG, or as SVG for a page."""

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = tuple(mpl.colors.to_hex(one) for one in mpl.colormaps["tab10"](np.r_[:7, 8:10]))
GREY = "#9aa4ad"
"""Of what cannot be told from the baseline."""
INK = "#010203"
"""Of page.mplstyle; stands for the colour of the text around an inlined figure."""
WIDTH, HEIGHT = 3.4, 2.7  # of one panel of several, in inches
ACROSS = 4  # panels in a row, at most, if a figure says nothing else
style.use(Path(__file__).with_name("page.mplstyle"))


class Line(NamedTuple):
    """A line of a panel. Without xs it is level, at ys[0]; spread: half a bar's height at each point."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: str
    style: str = "-"
    marker: str = "."
    spread: Sequence[float] | None = None


class Dot(NamedTuple):
    """A value in a row of a panel, with its interval."""

    row: float
    value: float
    low: float
    high: float
    colour: str


def colour(number: int) -> str:
    """Return the colour of what has a number, the same in every figure."""
    return COLOURS[number % len(COLOURS)]


def draw_lines(panels: Mapping[str, Sequence[Line]], across: int = ACROSS, **settings: Any) -> Figure:
    """Draw a panel a title, with settings as `Axes.set` takes them; one legend names all lines."""
    figure, axes = new_panels(len(panels), across=across)
    for axis, (title, lines) in zip(axes, panels.items(), strict=True):
        for line in lines:
            shape: dict[str, Any] = {"color": line.colour, "linestyle": line.style, "label": line.label}
            if len(line.xs):
                shape |= {"marker": line.marker, "linewidth": 1.1, "capsize": 2}
                axis.errorbar(line.xs, line.ys, yerr=line.spread, **shape)
            else:
                axis.axhline(line.ys[0], **shape)
        axis.set(title=title, **settings)
    add_legend(figure)
    return figure


def draw_dots(
    panels: Mapping[str, Sequence[Dot]],
    names: Sequence[str],
    legend: Mapping[str, str],
    xlabel: str = "",
    zero: bool = False,
) -> Figure:
    """Draw a panel a title, in it a row a name with its dots; legend: label -> colour; zero: mark 0."""
    figure, axes = new_panels(len(panels), max(HEIGHT, 0.9 + 0.22 * len(names)))
    for number, (axis, (title, dots)) in enumerate(zip(axes, panels.items(), strict=True)):
        for dot in dots:
            axis.plot([dot.low, dot.high], [dot.row, dot.row], color=dot.colour, linewidth=1.2)
            axis.plot(dot.value, dot.row, color=dot.colour, marker="o", markersize=4)
        if zero:
            axis.axvline(0, color=GREY, linewidth=0.8)
        axis.set_yticks(range(len(names)), names if number % ACROSS == 0 else [""] * len(names))
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set(title=title, xlabel=xlabel)
    for label, of_label in legend.items():
        axes[0].plot([], [], color=of_label, marker="o", linestyle="", label=label)
    add_legend(figure)
    return figure


def new_panels(count: int, height: float = HEIGHT, across: int = ACROSS) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels, at most `across` in a row, and the panels."""
    columns = min(count, across)
    rows = -(-count // columns)
    width = 4.6 if columns == 1 else WIDTH * columns
    figure = Figure(figsize=(width, max(3.2, height) if count == 1 else height * rows))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def add_legend(figure: Figure) -> None:
    """Name below the panels what is labelled in any of them, unless that is one thing alone."""
    legends = (axis.get_legend_handles_labels() for axis in figure.axes)
    labelled = {label: handle for legend in legends for handle, label in zip(*legend)}
    if len(labelled) > 1:
        columns = min(3, max(2, len(figure.axes)))
        figure.legend(labelled.values(), labelled.keys(), loc="outside lower center", ncols=columns)


def histogram(values: np.ndarray, bins: int = 60, highest: float | None = None) -> dict[str, list[float]]:
    """Return density and bin edges, rounded, for a result file; from 0 to `highest`, if that is given."""
    span = None if highest is None else (0.0, highest)
    heights, edges = np.histogram(values, bins=bins, range=span, density=True)
    return {"density": [round(float(v), 5) for v in heights], "edges": [round(float(v), 5) for v in edges]}


def to_svg(figure: Figure, name: str) -> str:
    """Return an <svg> element for a page; `name` sets its ids apart from the page's other figures'."""
    file = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    prefix = re.sub(r"\W+", "-", name)
    text = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{prefix}-", text)
    head, rest = text.split(">", 1)
    return re.sub(r' (width|height)="[^"]+"', "", head) + ">" + rest.strip()


def to_png(figure: Figure) -> bytes:
    """Return the figure as a PNG on white."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, facecolor="white")
    return file.getvalue()
