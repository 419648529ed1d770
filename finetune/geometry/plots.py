"""Draw the papers' geometry figures from result files, for one model or several side by side.

alignment_uniformity   SimCSE (Gao et al. 2021), figure 3
neighbourhood_*        VaSCL (Zhang et al. 2022), figure 2a
nli_distances          VaSCL, figure 2b
augmentation_cosine    VaSCL, figure 4b
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from finetune.figures.drawing import GREY, Dot, Line, colour, density, draw_dots, draw_lines
from finetune.results import Evaluation, TaskResult

Named = Sequence[tuple[str, Evaluation]]
"""(label, evaluation "geometry"), one per model."""


def all_figures(models: Named) -> dict[str, Figure]:
    """Return every figure that the models have data for, by its name."""
    figures: dict[str, Figure] = {}
    points = [
        Line(label, [result.tasks["uniformity"].value], [result.tasks["alignment"].value], colour(number), "")
        for number, (label, result) in enumerate(models)
        if {"uniformity", "alignment"} <= set(result.tasks)
    ]
    if points:
        figures["alignment_uniformity"] = draw_lines(
            {"alignment and uniformity, STS-B": points},
            xlabel="uniformity (lower: more spread)",
            ylabel="alignment (lower: closer)",
            xmargin=0.25,
            ymargin=0.25,
        )
    if nli := _with(models, "nli"):
        figures["nli_distances"] = nli_distances([(label, task.details) for label, task in nli])
    for name in dict.fromkeys(task for _, result in models for task in result.tasks):
        if name.startswith("neighbourhood/"):
            of_set = name.removeprefix("neighbourhood/")
            figures[f"neighbourhood_{of_set}"] = neighbourhood(_with(models, name), of_set)
    if drawn := augmentations(models):
        figures["augmentation_cosine"] = drawn
    return figures


def neighbourhood(tasks: Sequence[tuple[str, TaskResult]], name: str) -> Figure:
    """Plot by K the share (%) of the point's own class among the K nearest, and the mean distance to them."""
    purity, distance = [], []
    for number, (label, task) in enumerate(tasks):
        curve = task.details["cosine"]
        purity.append(Line(label, curve["top"], [100 * v for v in curve["purity"]], colour(number)))
        distance.append(Line(label, curve["top"], curve["distance"], colour(number)))
    panels = {f"{name}: same class, %": purity, f"{name}: mean 1 − cosine": distance}
    return draw_lines(panels, 1, xlabel="K nearest", xscale="log", ylim=(0, None))


def nli_distances(models: Sequence[tuple[str, Mapping[str, Any]]]) -> Figure:
    """Draw premises' distances to hypotheses, and their ratio: (label, details of the task nli) a model."""
    distances, ratios = [], [Line("", [1, 1], [0, 1], GREY, marker="")]
    for number, (label, details) in enumerate(models):
        for kind, style in (("entailment", "-"), ("contradiction", "--")):
            distances.append(density(details[kind], f"{label}, {kind}", colour(number), style))
        ratios.append(density(details["ratio"], "", colour(number)))
    panels = {"1 − cosine to the premise": distances, "entailed over contradicting": ratios}
    return draw_lines(panels, 1, ylabel="density", ylim=(0, None))


def augmentations(models: Named) -> Figure | None:
    """Draw the cosine of original and view: a row an augmentation, a dot a model."""
    values = [
        (number, name.removeprefix("augmentation/"), task.scores["cosine"])
        for number, (_, result) in enumerate(models)
        for name, task in result.tasks.items()
        if name.startswith("augmentation/") and task.scores.get("cosine") is not None
    ]
    names = list(dict.fromkeys(name for _, name, _ in values))
    apart = 0.8 / max(1, len(models))
    dots = [
        Dot(names.index(name) + apart * (n - (len(models) - 1) / 2), value, value, value, colour(n))
        for n, name, value in values
    ]
    legend = {label: colour(number) for number, (label, _) in enumerate(models)}
    return draw_dots({"cosine of original and view": dots}, names, legend) if names else None


def _with(models: Named, task: str) -> list[tuple[str, TaskResult]]:
    """Return (label, the model's task) of the models that have it."""
    return [(label, result.tasks[task]) for label, result in models if task in result.tasks]
