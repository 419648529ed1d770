"""Tabulate statistics of a sweep's runs over seeds, and what differs, beside the paper's figures."""

import datetime
import os
import platform
import statistics
from contextlib import suppress
from pathlib import Path
from typing import Any

from pretrain.commands.sweep.differences import Rows, add_differences, baseline_of, tasks_of
from pretrain.commands.sweep.evaluations import EvaluatedModel, metric, models_of
from pretrain.commands.sweep.file import Row, Sweep
from pretrain.commands.sweep.runs import SweepPlan
from pretrain.common.files import make_folder, replace_durably, to_json
from pretrain.telemetry.intervals import interval_text

STANDARD = {
    "STS-B dev": "dev",
    "STS-B": "sts.STS-B",
    "7 STS": "sts.average",
    "alignment": "geometry.alignment",
    "uniformity": "geometry.uniformity",
    "s/step": "run.seconds_per_step",
}


def columns_of(sweep: Sweep) -> dict[str, str | list[str]]:
    """Return the paper's columns, then the standard ones that are not among them."""
    named = [name for name in sweep.columns.values() if isinstance(name, str)]
    return sweep.columns | {
        title: name for title, name in STANDARD.items() if name not in named and title not in sweep.columns
    }


def figures(model: EvaluatedModel, sweep: Sweep, row: Row) -> dict[str, float]:
    """Return column -> figure, where there is one; {KEY} of a metric is the row's `at`."""
    columns: dict[str, str | list[str]] = {}
    for title, name in columns_of(sweep).items():
        with suppress(KeyError):  # a column of rows that have the key
            columns[title] = name if isinstance(name, list) else name.format_map(row.at)
    values = {
        title: value
        for title, name in columns.items()
        if name != "average" and (value := metric(model, name)) is not None
    }
    for title in (title for title, name in columns.items() if name == "average"):
        others = [other for other in sweep.columns if other != title]
        if all(other in values for other in others):
            values[title] = statistics.mean(values[other] for other in others)
    return values


def collect(sweep: Sweep, plan: SweepPlan, out: Path) -> dict[str, Any]:
    """Return all figures, for results.json; `tabulate` shows a part of them."""
    rows: list[dict[str, Any]] = []
    models: Rows = {}
    dev = next(title for title, name in columns_of(sweep).items() if name == "dev")
    for entry in plan.entries:
        row: dict[str, Any] = {
            "name": entry.name,
            "kind": entry.row.kind,
            "note": entry.row.note,
            "paper": entry.row.paper,
            "spread": entry.row.spread,
            "at": entry.row.at,
            "runs": [],
        }
        rows.append(row)
        if entry.row.kind == "quoted":
            continue
        runs = plan.runs_of(entry)
        row["wanted"] = len(plan.seeds_of(entry)) if entry.row.kind == "trained" else 1
        models[entry.name] = models_of(entry, runs, out)
        for model in models[entry.name]:
            of_run: dict[str, Any] = {
                "figures": figures(model, sweep, entry.row),
                "model": model.model,
                "pooling": model.pooling,
                "evaluations": str(model.folder),
            }
            if model.run is not None:
                summary = model.run.summary
                assert summary is not None  # `models_of` gives finished runs
                of_run |= {"seed": model.run.seed, "warnings": model.run.warnings}
                of_run["best_step"] = summary["best_step"]
            row["runs"].append(of_run)
        row |= statistics_of([run["figures"] for run in row["runs"]], dev)
    content: dict[str, Any] = {
        "title": sweep.title,
        "source": sweep.source,
        "paper_reports": sweep.paper_reports,
        "notes": sweep.notes,
        "figures": {name: figure.model_dump() for name, figure in sweep.figures.items()},
        "columns": columns_of(sweep),
        "own_columns": list(sweep.columns) or list(STANDARD),
        "seeds": plan.seeds,
        "rows": rows,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    add_differences(content, models, baseline_of(sweep, plan.entries))
    return content


def statistics_of(runs: list[dict[str, float]], dev: str) -> dict[str, dict[str, float]]:
    """Return mean, std (of a sample) and max over seeds of the columns that every seed has.

    by_dev: the figures of the seed that is best in the column `dev`.
    """
    result: dict[str, dict[str, float]] = {"mean": {}, "std": {}, "max": {}}
    for title in dict.fromkeys(title for run in runs for title in run):
        values = [run[title] for run in runs if title in run]
        if len(values) == len(runs):
            result["mean"][title] = statistics.mean(values)
            result["max"][title] = max(values)
            if len(values) > 1:
                result["std"][title] = statistics.stdev(values)
    result["by_dev"] = max(runs, key=lambda run: run[dev]) if dev in result["mean"] else {}
    return result


def tabulate(content: dict[str, Any]) -> str:
    """Return the table in Markdown.

    Each row has our mean ± std, with several seeds also their max and the seed with the best STS-B dev, then
    the paper's figures; between them, what is left of ours when the baseline's are taken away.
    """
    titles = list(content["columns"])
    higher_is_better = [
        title
        for title, name in content["columns"].items()
        if not str(name).startswith(("geometry", "run.", "start."))
    ]
    lines = [
        f"# {content['title']}",
        "",
        *([f"{content['source']}."] if content["source"] else []),
        "",
        "| " + " | ".join(["row", "figures", *titles]) + " |",
        "|---" * (len(titles) + 2) + "|",
    ]

    def line(
        name: str,
        kind: str,
        values: dict[str, float],
        spread: dict[str, float] | None = None,
    ) -> None:
        cells = [
            _cell(values.get(title), (spread or {}).get(title), 3 if title == "s/step" else 2)
            for title in titles
        ]
        lines.append("| " + " | ".join([name, kind, *cells]) + " |")

    for row in content["rows"]:
        name, runs, named = row["name"].replace("|", "\\|"), row["runs"], len(lines)
        if row["kind"] != "quoted":
            count = f"{len(runs)} of {row['wanted']} seeds" if row["kind"] == "trained" else "as it is"
            line(name, f"ours, {count}", row["mean"], row["std"])
            if len(runs) > 1:
                line(
                    "",
                    "ours, max over seeds",
                    {title: row["max"][title] for title in higher_is_better if title in row["max"]},
                )
                if row["by_dev"]:
                    line("", "ours, seed with the best dev", row["by_dev"])
            if (row.get("difference") or {}).get("columns"):
                lines.append("| " + " | ".join(["", *_differences(row["difference"], titles)]) + " |")
        if row["paper"] or row["kind"] == "quoted":
            line("" if len(lines) > named else name, "paper", row["paper"], row["spread"])
    lines.append("")
    lines.append(
        f"Ours: mean ± standard deviation over seeds {', '.join(map(str, content['seeds']))}, each at its "
        "best step, by STS-B dev; from random weights, by the held-out masked-language loss if there is one."
        + (f" The paper's figures: {content['paper_reports']}." if content["paper_reports"] else "")
    )
    lines += _about_differences(content)
    lines += [f"{note}." for note in content["notes"]]
    for row in content["rows"]:
        lines += [f"{row['name']}: {row['note']}."] if row["note"] else []
        best = [run for run in row["runs"] if not run["model"].endswith("/export")]
        unimproved = [str(run["seed"]) for run in best if run.get("best_step") == 0]
        if unimproved:
            lines.append(
                f"{row['name']}, of seed {', '.join(unimproved)}: no step was better than the start, "
                "so its figures are those of the model that it started from."
            )
        warned = [run for run in row["runs"] if run.get("warnings")]
        lines += [
            f"{row['name']}, seed {run['seed']}: {len(run['warnings'])} alarms, the first at "
            f"{run['warnings'][0]}"
            for run in warned
        ]
    return "\n".join(lines) + "\n"


def _differences(difference: dict[str, Any], titles: list[str]) -> list[str]:
    """Return the cells of a row's differences; ~ before what cannot be told from none."""
    cells = []
    for title in titles:
        found = difference["columns"].get(title)
        cells.append("" if found is None else interval_text(found["mean"], found["low"], found["high"]))
    return [f"less {difference['to']}".replace("|", "\\|"), *cells]


def _about_differences(content: dict[str, Any]) -> list[str]:
    """Return what must be known to read the differences."""
    compared = [row for row in content["rows"] if (row.get("difference") or {}).get("columns")]
    if not compared:
        return []
    baseline = content["baseline"]
    lines = [
        f"Less {baseline}: the difference, and its 95% interval over seeds (Student's t), in columns of STS "
        "over the sentence pairs too. Runs with the same seed read the same batches with the same dropout, "
        "where the row changes neither batch nor data. "
        f"~: the interval holds 0, so the row cannot be told from {baseline} by that column. One interval in "
        "twenty misses: of twenty rows that do nothing, expect one to look otherwise."
    ]
    for row in compared:
        found = row["difference"]
        alone = [
            title
            for title, around in found["columns"].items()
            if tasks_of(content["columns"][title]) and not around["over_pairs"]
        ]
        if alone:
            lines.append(
                f"{row['name']}: intervals of {', '.join(alone)} are over seeds alone; similarities of the "
                f"pairs were not kept, or they are other pairs than those of {baseline}."
            )
        if found["one_seed"]:
            lines.append(f"{row['name']}: one seed, so its interval says nothing of other seeds.")
    return lines


def write(content: dict[str, Any], folder: Path) -> str:
    """Write table.md and results.json; return the table."""
    make_folder(folder)
    table = tabulate(content)
    replace_durably(folder / "table.md", table.encode())
    replace_durably(folder / "results.json", to_json(content))
    return table


def _cell(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")
