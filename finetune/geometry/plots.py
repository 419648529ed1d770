"""Draw the papers' geometry figures from result files, for one model or several side by side.

Figures are written as SVG or PNG.

alignment_uniformity   SimCSE (Gao et al. 2021), figure 3
neighbourhood_*        VaSCL (Zhang et al. 2022), figure 2a
nli_*                  VaSCL, figure 2b
augmentation_*         AugCSE (Tang et al. 2022), figure 6's columns as bars; VaSCL, figure 4b
pca, tsne              AugCSE, figures 2 and 4: coloured by augmentation
"""

import io
import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from functools import partial

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from finetune.results import Evaluation, TaskResult

COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#59a14f",
    "#e15759",
    "#b07aa1",
    "#76b7b2",
    "#9c755f",
    "#ff9da7",
    "#8cd17d",
    "#d4a6c8",
)
"""Tableau's, without the yellow: all are legible on white and on near-black."""
_INK = "#010203"
"""Stands for the colour of the text around an inlined figure."""

Named = Sequence[tuple[str, Evaluation]]
"""(label, evaluation "geometry"), one per model."""

AUGMENTATION_MEASURES = {
    "cosine": "cosine of original and view",
    "perplexity_change": "pseudo-perplexity, view − original",
    "cond_hm": "COND-HM",
    "svg": "singular value gap",
    "gromov_hausdorff": "Gromov–Hausdorff (bottleneck)",
}


@contextmanager
def style():
    """Set up small figures for a column of some 400 px; no frame on top and right."""
    settings = {
        "figure.figsize": (4.6, 3.2),
        "figure.constrained_layout.use": True,
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.fontsize": 8,
        "legend.frameon": False,
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "axes.prop_cycle": plt.cycler(color=COLOURS),
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
        ),
    }
    with plt.rc_context(settings):
        yield


def to_svg(figure: Figure, name: str) -> str:
    """Return the figure as an <svg> element for a page, and close the figure.

    Transparent, in the page's text colour, with ids of its own.
    """
    file = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    plt.close(figure)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    prefix = re.sub(r"\W+", "-", name)
    # matplotlib names groups figure_1, axes_1 ... in every figure; a page may have each id once.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{prefix}-\1"', text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    return re.sub(
        r'(<svg[^>]*?) width="[^"]+" height="[^"]+"|(<svg[^>]*?) height="[^"]+"', r"\1\2", text, count=1
    ).strip()


def to_png(figure: Figure, dots_per_inch: int = 150) -> bytes:
    """Return the figure as a PNG on white; the figure stays open."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=dots_per_inch, facecolor="white")
    return file.getvalue()


def alignment_uniformity(models: Named) -> Figure | None:
    """Draw one point a model: lower left is better on both."""
    points = [
        (label, result.tasks["uniformity"].value, result.tasks["alignment"].value)
        for label, result in models
        if {"uniformity", "alignment"} <= set(result.tasks)
    ]
    if not points:
        return None
    figure, axis = plt.subplots()
    for number, (label, x, y) in enumerate(points):
        axis.scatter([x], [y], color=COLOURS[number % len(COLOURS)], label=label, zorder=3)
    axis.set(xlabel="uniformity (lower: more spread)", ylabel="alignment (lower: closer)")
    axis.set(title="alignment and uniformity, STS-B")
    axis.margins(0.25)
    _legend(axis, len(points))
    return figure


def neighbourhood(models: Named, what: str, name: str) -> Figure:
    """Plot by K, in the set `name`, "purity" (share of true positives in the top K) or mean "distance"."""
    found = _with(models, f"neighbourhood/{name}")
    figure, axis = plt.subplots()
    for number, (label, task) in enumerate(found):
        curve = task.details["cosine"]
        values = [100 * v for v in curve[what]] if what == "purity" else curve[what]
        axis.plot(curve["top"], values, marker=".", color=COLOURS[number % len(COLOURS)], label=label)
    if what == "purity":
        axis.set(xlabel="K", ylabel="%", title=f"of the same class among the top K, {name}")
    else:
        axis.set(xlabel="K", ylabel="1 − cosine", title=f"mean distance to the top K, {name}")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    _legend(axis, len(found))
    return figure


def nli_distances(models: Named) -> Figure | None:
    """Draw distributions of premise-hypothesis distances, contradiction dashed."""
    found = _with(models, "nli")
    if not found:
        return None
    figure, axis = plt.subplots()
    for number, (label, task) in enumerate(found):
        for key, line in (("entailment", "-"), ("contradiction", "--")):
            density(axis, task.details[key], COLOURS[number % len(COLOURS)], line, f"{label}, {key}")
    axis.set(
        xlabel="1 − cosine to the premise", ylabel="density", title="entailed and contradicting hypotheses"
    )
    axis.set_ylim(bottom=0)
    _legend(axis, 2 * len(found))
    return figure


def nli_difference(models: Named) -> Figure | None:
    """Draw the distribution of how much farther the contradicting hypothesis lies than the entailed one."""
    found = _with(models, "nli")
    if not found:
        return None
    figure, axis = plt.subplots()
    for number, (label, task) in enumerate(found):
        density(axis, task.details["difference"], COLOURS[number % len(COLOURS)], "-", label)
    axis.set(
        xlabel="1 − cosine: contradiction − entailment",
        ylabel="density",
        title="right of 0: entailment is nearer",
    )
    axis.axvline(0, color=_INK, linewidth=0.8)
    axis.set_ylim(bottom=0)
    _legend(axis, len(found))
    return figure


def augmentations(models: Named, measure: str) -> Figure | None:
    """Draw a measure of `AUGMENTATION_MEASURES` as bars: a group an augmentation, a bar a model."""
    names = _augmentations(models, measure)
    if not names:
        return None
    figure, axis = plt.subplots(figsize=(4.6, 0.9 + len(names) * max(0.32, 0.17 * len(models))))
    height = 0.8 / len(models)
    for number, (label, result) in enumerate(models):
        places, values = [], []
        for row, name in enumerate(names):
            task = result.tasks.get(f"augmentation/{name}")
            if task is not None and task.scores.get(measure) is not None:
                places.append(row + (number - (len(models) - 1) / 2) * height)
                values.append(task.scores[measure])
        axis.barh(places, values, height, color=COLOURS[number % len(COLOURS)], label=label)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set(title=AUGMENTATION_MEASURES[measure])
    if len(models) > 1:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def scatter(label: str, result: Evaluation, method: str) -> Figure | None:
    """Draw "pca" or "tsne" of a sample of originals and their views, coloured by augmentation."""
    task = result.tasks.get("projection")
    if task is None or not task.details.get(method):
        return None
    figure, axis = plt.subplots(figsize=(4.6, 4.2))
    for number, (name, cloud) in enumerate(task.details[method].items()):
        x, y = zip(*cloud, strict=True)
        # Not the ink: a raster image keeps its colours on a dark page.
        colour = "#8a8f94" if name == "original" else COLOURS[(number - 1) % len(COLOURS)]
        axis.scatter(x, y, s=5, color=colour, alpha=0.75, linewidths=0, label=name, rasterized=True)
    title = {"pca": "PCA", "tsne": "t-SNE"}[method]
    if method == "pca":
        shares = task.details["pca_variance"]
        axis.set(xlabel=f"{100 * shares[0]:.0f}% of the variance", ylabel=f"{100 * shares[1]:.0f}%")
    else:
        axis.set(xticks=[], yticks=[])
    axis.set_title(f"{title}: {label}")
    figure.legend(loc="outside lower center", ncols=3, markerscale=2.5, handletextpad=0.2, columnspacing=0.8)
    return figure


def all_figures(models: Named) -> dict[str, Callable[[], Figure | None]]:
    """Map a name to a function that draws it, or gives None without data; draw inside `style()`."""
    figures: dict[str, Callable[[], Figure | None]] = {
        "alignment_uniformity": partial(alignment_uniformity, models),
        "nli_distances": partial(nli_distances, models),
        "nli_difference": partial(nli_difference, models),
    }
    tasks = dict.fromkeys(
        task for _, result in models for task in result.tasks if task.startswith("neighbourhood/")
    )
    for task in tasks:
        for what in ("purity", "distance"):
            name = task.removeprefix("neighbourhood/")
            figures[f"neighbourhood_{what}_{name}"] = partial(neighbourhood, models, what, name)
    for measure in AUGMENTATION_MEASURES:
        figures[f"augmentation_{measure}"] = partial(augmentations, models, measure)
    for number, (label, result) in enumerate(models):
        for method in ("pca", "tsne"):
            name = method if len(models) == 1 else f"{method}_{number + 1}"
            figures[name] = partial(scatter, label, result, method)
    return figures


def histogram(values: np.ndarray, bins: int = 60, highest: float | None = None) -> dict[str, list[float]]:
    """Return density and bin edges, rounded, for a result file; from 0 to `highest`, where that is given."""
    span = None if highest is None else (0.0, highest)
    heights, edges = np.histogram(values, bins=bins, range=span, density=True)
    return {"density": [round(float(v), 5) for v in heights], "edges": [round(float(v), 5) for v in edges]}


def density(axis, content: dict[str, list[float]], colour: str, line: str, label: str) -> None:
    """Draw a `histogram` as a curve."""
    edges = np.asarray(content["edges"])
    axis.plot(
        (edges[1:] + edges[:-1]) / 2, content["density"], line, color=colour, label=label, linewidth=1.3
    )


def _with(models: Named, task: str) -> list[tuple[str, TaskResult]]:
    """Return (label, the model's task) of the models that have it."""
    return [(label, result.tasks[task]) for label, result in models if task in result.tasks]


def _augmentations(models: Named, measure: str) -> list[str]:
    names: dict[str, None] = {}
    for _, result in models:
        for name, task in result.tasks.items():
            if name.startswith("augmentation/") and task.scores.get(measure) is not None:
                names[name.removeprefix("augmentation/")] = None
    return list(names)


def _legend(axis, entries: int) -> None:
    if entries > 1:
        axis.legend(fontsize=7 if entries > 6 else 8)
