"""The report's figures: learning curves of runs, and the geometry of models, side by side."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure

from finetune.geometry import plots
from finetune.report.cells import View
from finetune.report.sources import Subject, System
from finetune.results import Evaluation
from pretrain.telemetry.formats import flatten

POINTS = 400
"""Most points of one curve: evenly spaced records, the first and the last among them."""
CURVES = {
    "loss/mlm": "masked-language loss (nats)",
    "loss/contrastive": "contrastive loss (nats)",
    "evaluation/heldout_mlm_loss": "held-out masked-language loss (nats)",
    "evaluation/stsb-dev": "STS-B dev (Spearman × 100)",
    "evaluation/partner_found": "top-1 retrieval of the other view (share)",
    "evaluation/partner_loss": "held-out contrastive loss (nats)",
    "alignment": "alignment of views",
    "uniformity": "uniformity",
    "effective_rank": "effective rank",
    "length_r2": "R² of the length from the vector",
    "discriminator_accuracy": "augmentations that AugCSE's discriminator tells (share)",
    "gradient_norm": "gradient norm",
    "tokens_per_second": "tokens per second",
}


def curve(subject: Subject, name: str) -> tuple[list[int], list[float]]:
    """Return (steps, values) of a metric, as written in metrics.jsonl, thinned to `POINTS`."""
    points = [
        (record["step"], value)
        for record in subject.metrics
        if "step" in record
        for key, value in flatten(record)
        if key == name
    ]
    if len(points) > POINTS:
        points = [points[round(n * (len(points) - 1) / (POINTS - 1))] for n in range(POINTS)]
    return [step for step, _ in points], [value for _, value in points]


def curve_names(systems: Sequence[System]) -> list[str]:
    """Return metrics with two records or more in some run: `CURVES`, then losses and evaluations."""
    counts: dict[str, int] = {}
    for system in systems:
        for member in system.members:
            mine: dict[str, int] = {}
            for record in member.metrics:
                for key, _ in flatten(
                    {k: v for k, v in record.items() if k in ("loss", "evaluation") or k in CURVES}
                ):
                    mine[key] = mine.get(key, 0) + 1
            for key, count in mine.items():
                counts[key] = max(counts.get(key, 0), count)
    constant = {"evaluation/partner_among"}
    others = [key for key in counts if key not in CURVES and key not in constant and key != "loss/total"]
    return [key for key in [*CURVES, *others] if counts.get(key, 0) > 1]


def learning_curve(systems: Sequence[System], name: str) -> Figure:
    """Draw one line a run, one colour a system, the same in every figure made of the same systems."""
    figure, axis = plots.plt.subplots()
    for number, system in enumerate(systems):
        for place, member in enumerate(system.members):
            steps, values = curve(member, name)
            if steps:
                colour = plots.COLOURS[number % len(plots.COLOURS)]
                marker = "." if len(steps) < 15 else None
                axis.plot(
                    steps,
                    values,
                    color=colour,
                    label=None if place else system.label,
                    linewidth=1.1,
                    marker=marker,
                )
    axis.set(xlabel="step", title=CURVES.get(name, name))
    if len(axis.get_legend_handles_labels()[0]) > 1:
        axis.legend()
    return figure


def draw_curves(systems: Sequence[System]) -> Iterator[tuple[str, Figure]]:
    """Yield (name of a file and of an element, figure) for every curve that the runs have."""
    for name in curve_names(systems):
        yield name.replace("/", "_"), learning_curve(systems, name)


def geometry_rows(rows: Sequence[View]) -> list[tuple[str, Evaluation]]:
    """Return (label, evaluation) of the first member of every row that has a geometry."""
    found = []
    for row in rows:
        for member in row.system.members:
            if ("geometry", row.pooling) in member.evaluations:
                found.append((row.label, member.evaluations["geometry", row.pooling]))
                break
    return found


def draw(systems: Sequence[System], rows: Sequence[View]) -> dict[str, dict[str, tuple[str, bytes]]]:
    """Return section -> figure's name -> (svg element, png): "curves" and "geometry"."""
    sections: dict[str, dict[str, tuple[str, bytes]]] = {"curves": {}, "geometry": {}}
    with plots.style():
        runs = [system for system in systems if any(member.metrics for member in system.members)]
        for key, figure in draw_curves(runs):
            sections["curves"][key] = (plots.to_png(figure), plots.to_svg(figure, f"curve-{key}"))[::-1]
        models = geometry_rows(rows)
        for name, make in plots.all_figures(models).items() if models else ():
            drawn = make()
            if drawn is not None:
                sections["geometry"][name] = (plots.to_png(drawn), plots.to_svg(drawn, f"geometry-{name}"))[
                    ::-1
                ]
    return sections
