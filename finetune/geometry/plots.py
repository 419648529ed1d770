"""Draw the papers' geometry figures from result files, for one model or several side by side.

alignment_uniformity   SimCSE (Gao et al. 2021), figure 3
neighbourhood_*        VaSCL (Zhang et al. 2022), figure 2a
nli_distances          VaSCL, figure 2b
augmentation_cosine    VaSCL, figure 4b
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from finetune.figures.drawing import GREY, Dot, Line, colour, draw_dots, draw_lines
from finetune.results import Evaluation, TaskResult

Drawn = Sequence[tuple[str, str, TaskResult]]
"""(label, colour, a task's figures) of the models that have them."""


def all_figures(models: Sequence[tuple[str, Evaluation]]) -> dict[str, Figure]:
    """Return every figure that the models, (label, evaluation "geometry"), have data for, by its name."""
    found: dict[str, list[tuple[str, str, TaskResult]]] = {}
    for number, (label, result) in enumerate(models):
        for name, task in result.tasks.items():
            found.setdefault(name, []).append((label, colour(number), task))
    figures: dict[str, Figure] = {}
    alignment = {label: task.value for label, _, task in found.get("alignment", ())}
    points = [
        Line(label, [task.value], [alignment[label]], shade, "")
        for label, shade, task in found.get("uniformity", ())
        if label in alignment
    ]
    if points:
        figures["alignment_uniformity"] = draw_lines(
            {"alignment and uniformity, STS-B": points},
            xlabel="uniformity (lower: more spread)",
            ylabel="alignment (lower: closer)",
            xmargin=0.25,
            ymargin=0.25,
        )
    if "nli" in found:
        figures["nli_distances"] = nli_distances(found["nli"])
    augmented: dict[str, Drawn] = {}
    for name, drawn in found.items():
        kind, _, own = name.partition("/")
        if kind == "neighbourhood":
            figures[f"neighbourhood_{own}"] = neighbourhood(drawn, own)
        elif kind == "augmentation" and (
            some := [one for one in drawn if one[2].scores.get("cosine") is not None]
        ):
            augmented[own] = some
    if augmented:
        legend = {label: colour(number) for number, (label, _) in enumerate(models)}
        figures["augmentation_cosine"] = augmentations(augmented, legend)
    return figures


def neighbourhood(models: Drawn, name: str) -> Figure:
    """Plot by K the share (%) of the point's own class among the K nearest, and the mean distance to them."""
    same: list[Line] = []
    apart: list[Line] = []
    for label, shade, task in models:
        curve = task.details["cosine"]
        same.append(Line(label, curve["top"], [100 * share for share in curve["purity"]], shade))
        apart.append(Line(label, curve["top"], curve["distance"], shade))
    panels = {f"{name}: same class, %": same, f"{name}: mean 1 − cosine": apart}
    return draw_lines(panels, 1, xlabel="K nearest", xscale="log", ylim=(0, None))


def nli_distances(models: Drawn) -> Figure:
    """Draw the densities of premises' distances to hypotheses, and of their ratio."""
    panels = {
        "1 − cosine to the premise": [("entailment", "-"), ("contradiction", "--")],
        "entailed over contradicting": [("ratio", "-")],
    }
    lines: dict[str, list[Line]] = {}
    for title, kinds in panels.items():
        for label, shade, task in models:
            for kind, style in kinds:
                edges, density = np.asarray(task.details[kind]["edges"]), task.details[kind]["density"]
                named = f"{label}, {kind}" if kind != "ratio" else ""
                line = Line(named, (edges[1:] + edges[:-1]) / 2, density, shade, style, marker="")
                lines.setdefault(title, []).append(line)
    lines["entailed over contradicting"].insert(0, Line("", [1, 1], [0, 1], GREY, marker=""))
    return draw_lines(lines, 1, ylabel="density", ylim=(0, None))


def augmentations(by_name: dict[str, Drawn], legend: dict[str, str]) -> Figure:
    """Draw the cosine of original and view: a row an augmentation, a dot a model; legend: label -> colour."""
    step, labels = 0.8 / len(legend), list(legend)
    dots = []
    for row, drawn in enumerate(by_name.values()):
        for label, shade, task in drawn:
            place = row + step * (labels.index(label) - (len(labels) - 1) / 2)
            cosine = task.scores["cosine"]
            dots.append(Dot(place, cosine, cosine, cosine, shade))
    return draw_dots({"cosine of original and view": dots}, list(by_name), legend)
