"""Tabulate statistics of a sweep's runs over seeds, and what differs, beside the paper's figures.

Runs with the same seed read the same batches with the same dropout, whatever their objective: what differs
between them is what the rows change. A row that reads other batches shares less with the baseline; its
differences seed by seed are as valid, and their interval is wider.
"""

import datetime
import os
import platform
import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from finetune.answers import resampled_effects
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.commands.sweep.evaluations import EvaluatedModel, metric, models_of
from pretrain.commands.sweep.file import Row, Sweep, TableEntry
from pretrain.commands.sweep.runs import SweepPlan
from pretrain.common.files import make_folder, replace_durably, to_json
from pretrain.telemetry.formats import table
from pretrain.telemetry.intervals import Interval, interval, paired_error, unpaired_error

Rows = dict[str, list[EvaluatedModel]]
"""Row -> its evaluated models, in the order of the row's `runs` in the table's content."""
Noises = dict[tuple[str, int], np.ndarray]
"""(Row, number of a run) -> what each draw of the pairs adds to its figure of a task, float64[B]."""
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
    """Return column -> figure, if there is one; {KEY} of a metric is the row's `at`."""
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
            **entry.row.model_dump(include={"kind", "note", "paper", "spread", "at"}),
            "runs": [],
        }
        rows.append(row)
        if entry.row.kind == "quoted":
            continue
        runs = plan.runs_of(entry)
        row["wanted"] = len(plan.seeds_of(entry)) if entry.row.kind == "trained" else 1
        models[entry.name] = models_of(entry, runs, out)
        for model in models[entry.name]:
            run_row: dict[str, Any] = {
                "figures": figures(model, sweep, entry.row),
                "model": model.model,
                "pooling": model.pooling,
                "evaluations": str(model.folder),
            }
            if model.run is not None:
                summary = model.run.summary
                assert summary is not None  # `models_of` gives finished runs
                run_row |= {"seed": model.run.seed, "best_step": summary["best_step"]}
            row["runs"].append(run_row)
        row |= statistics_of([run["figures"] for run in row["runs"]], dev)
    content: dict[str, Any] = {
        **sweep.model_dump(include={"title", "source", "paper_reports", "notes", "figures"}),
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


# -- what differs from the baseline -------------------------------------


def baseline_of(sweep: Sweep, entries: Sequence[TableEntry]) -> str | None:
    """Return the row that others are compared with: the one the file names, else the first trained one.

    Of a row with a grid it is the first cell. None: no row that is left (`--rows`) is trained.
    """
    named = [entry.name for entry in entries if entry.of == sweep.baseline]
    trained = [entry.name for entry in entries if entry.runs]
    return next(iter([*named, *trained]), None)


def add_differences(content: dict[str, Any], rows: Rows, baseline: str | None) -> None:
    """Add to each row of a table's content (`collect`) its `difference`."""
    content["baseline"] = baseline
    evaluated = {row["name"]: row for row in content["rows"] if row["runs"]}
    if baseline is None or baseline not in evaluated:
        return
    noise_of = cache(lambda task: _noises(task, rows, baseline))  # drawn once for all rows and columns
    for name, row in evaluated.items():
        if name != baseline:
            row["difference"] = _difference((row, evaluated[baseline]), rows, content["columns"], noise_of)


def _difference(
    pair: tuple[dict, dict], rows: Rows, metrics: dict[str, Any], noise_of: Any
) -> dict[str, Any]:
    models = [rows[row["name"]] for row in pair]
    # seed -> number of the run; empty if the row is a model as it is
    by_seed = [{one.run.seed: n for n, one in enumerate(side) if one.run is not None} for side in models]
    common = [seed for seed in by_seed[0] if seed in by_seed[1]]
    chosen = [
        [seeds[seed] for seed in common] if common else list(range(len(side)))
        for side, seeds in zip(models, by_seed)
    ]
    # of a single run nobody knows what another seed would give; only a model as it is has no seeds
    one_seed = any(seeds and len(which) == 1 for seeds, which in zip(by_seed, chosen))
    columns = {}
    for title in pair[0]["mean"]:
        if title not in pair[1]["mean"] or str(metrics[title]).startswith(("run.", "start.")):
            continue
        runs = ([row["runs"][number] for number in which] for row, which in zip(pair, chosen))
        first, second = ([run["figures"][title] for run in side] for side in runs)
        error = None
        if not one_seed:
            differences = [one - other for one, other in zip(first, second)]
            error = paired_error(differences) if common else unpaired_error(first, second)
        noise = _noise([noise_of(task) for task in tasks_of(metrics[title])], pair, chosen)
        around = interval(float(np.mean(first) - np.mean(second)), error, noise)
        if around is not None:
            columns[title] = asdict(around) | {"told": around.differs, "over_pairs": noise is not None}
    return {"to": pair[1]["name"], "seeds": common, "one_seed": one_seed, "columns": columns}


def _noise(tasks: list[Noises], pair: tuple[dict, dict], chosen: list[list[int]]) -> np.ndarray | None:
    """Return what draws of the pairs add to the difference of two means, float64[B]; None: not known."""
    keys = [[(row["name"], number) for number in which] for row, which in zip(pair, chosen)]
    if not tasks or any(key not in noises for noises in tasks for side in keys for key in side):
        return None
    first, second = (np.mean([noises[key] for noises in tasks for key in side], axis=0) for side in keys)
    return first - second


def _noises(task: str, rows: Rows, baseline: str) -> Noises:
    """Return what other draws of a task's pairs would add to the figures of runs.

    Runs have it whose similarities were kept, and are of the same pairs as the baseline's.
    """
    kept = {
        (name, number): answers
        for name, models in rows.items()
        for number, model in enumerate(models)
        if (answers := model.answers(task)) is not None
    }
    first = next((key for key in kept if key[0] == baseline), None)
    return {} if first is None else resampled_effects([task], kept, first)[0]


def tasks_of(metric: str | list[str]) -> list[str]:
    """Return the STS tasks whose mean a metric is; none if it is something else.

    >>> tasks_of("sts.STS-B"), tasks_of("dev"), tasks_of("glue.RTE")
    (['STS-B'], ['STS-B-dev'], [])
    """
    if isinstance(metric, list):
        parts = [tasks_of(part) for part in metric]
        return [task for part in parts for task in part] if all(parts) else []
    if metric == "dev":
        return ["STS-B-dev"]
    if metric == "sts.average":
        return list(SEVEN_TASKS)
    return [metric.removeprefix("sts.")] if metric.startswith("sts.") else []


# -- the table ---------------------------------------------------------


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
    rows: list[tuple[str, ...]] = []

    def line(name: str, kind: str, values: dict[str, float], spread: dict[str, float] | None = None) -> None:
        spread = spread or {}
        cells = [_cell(values.get(t), spread.get(t), 3 if t == "s/step" else 2) for t in titles]
        rows.append((name, kind, *cells))

    for row in content["rows"]:
        name, runs, named = row["name"], row["runs"], len(rows)
        if row["kind"] != "quoted":
            count = f"{len(runs)} of {row['wanted']} seeds" if row["kind"] == "trained" else "as it is"
            line(name, f"ours, {count}", row["mean"], row["std"])
            if len(runs) > 1:
                most = {title: row["max"][title] for title in higher_is_better if title in row["max"]}
                line("", "ours, max over seeds", most)
                if row["by_dev"]:
                    line("", "ours, seed with the best dev", row["by_dev"])
            if (row.get("difference") or {}).get("columns"):
                rows.append(("", *_differences(row["difference"], titles)))
        if row["paper"] or row["kind"] == "quoted":
            line("" if len(rows) > named else name, "paper", row["paper"], row["spread"])
    lines = [
        f"# {content['title']}",
        "",
        *([f"{content['source']}."] if content["source"] else []),
        "",
        table(("row", "figures", *titles), rows),
        "",
        f"Ours: mean ± standard deviation over seeds {', '.join(map(str, content['seeds']))}, each at its "
        "best step, by STS-B dev; from random weights, by the held-out masked-language loss if there is one."
        + (f" The paper's figures: {content['paper_reports']}." if content["paper_reports"] else ""),
    ]
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
    return "\n".join(lines) + "\n"


def _differences(difference: dict[str, Any], titles: list[str]) -> list[str]:
    """Return the cells of a row's differences; ~ before what cannot be told from none."""
    cells = []
    for title in titles:
        found = difference["columns"].get(title)
        cells.append("" if found is None else str(Interval(found["mean"], found["low"], found["high"])))
    return [f"less {difference['to']}", *cells]


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
    text = tabulate(content)
    replace_durably(folder / "table.md", text.encode())
    replace_durably(folder / "results.json", to_json(content))
    return text


def _cell(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")
