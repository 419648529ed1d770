"""Which losses and mechanisms of a sweep's runs do something: a table below the sweep's own."""

import statistics
from typing import Any

from pretrain.sweep.differences import Rows
from pretrain.sweep.runs import Run
from pretrain.telemetry.mechanisms import SHARE, figures_in, inert_in
from pretrain.telemetry.metrics_file import read_metrics


def last_figures(run: Run) -> dict[str, float]:
    """Return the figures of a run's last row of metrics that say whether it is alive; {}: it has none."""
    rows = [record for record in read_metrics(run.folder / "metrics.jsonl") if "loss" in record]
    return figures_in(rows[-1]) if rows else {}


def add_mechanisms(content: dict[str, Any], rows: Rows) -> None:
    """Add to each trained row of `content` what its runs' losses and mechanisms do at their end.

    mechanisms: {"mean": figure -> mean over the seeds, of figures that all have; "inert": the figures of what
    does nothing in that mean, at the thresholds of `pretrain.telemetry.mechanisms`}.
    """
    for row in content["rows"]:
        if "levels" in row:  # one run of a designed experiment
            continue
        runs = [model.run for model in rows.get(row["name"], ()) if model.run is not None]
        found = [last_figures(run) for run in runs]
        mean = {
            name: statistics.mean(figures[name] for figures in found)
            for name in (found[0] if found else {})
            if all(name in figures for figures in found)
        }
        if mean:
            inert = [figure for figures in inert_in(mean).values() for figure in figures]
            row["mechanisms"] = {"mean": mean, "inert": inert}


def describe_mechanisms(content: dict[str, Any]) -> str:
    """Return the table in Markdown: a line for each row, what is inert in bold; "" where there is nothing.

    A share that is 1 in all rows, that of the contrastive loss itself, is left out.
    """
    rows = {row["name"]: row["mechanisms"] for row in content["rows"] if "mechanisms" in row}
    titles = [
        title
        for title in dict.fromkeys(title for row in rows.values() for title in row["mean"])
        if not title.endswith(SHARE) or any(row["mean"].get(title, 1.0) != 1.0 for row in rows.values())
    ]
    if not titles:
        return ""
    lines = [
        "",
        "Is the mechanism alive? Means over seeds of the last row of metrics; **inert** is what does nothing "
        "(docs/objectives.md says what the figures are, and from where on they are inert).",
        "",
        "| " + " | ".join(["row", *titles]) + " |",
        "|---" * (len(titles) + 1) + "|",
    ]
    for name, row in rows.items():
        cells = [
            _cell(row["mean"][title], title in row["inert"]) if title in row["mean"] else ""
            for title in titles
        ]
        lines.append("| " + " | ".join([name.replace("|", "\\|"), *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: float, inert: bool) -> str:
    return f"**inert: {value:.4g}**" if inert else f"{value:.4g}"
