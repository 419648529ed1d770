"""Evaluate the runs of a sweep, and tabulate statistics over seeds beside the paper's figures.

A column's metric is one of
    dev                      STS-B dev of best/, as evaluated during training: selects best/ and winners
    sts.TASK, sts.average    finetune.sts: Spearman x 100 over all pairs; the mean of the seven tasks
    EVALUATION.TASK[.SCORE]  the headline, or another score, of `python -m finetune.EVALUATION`
    run.seconds_per_step, run.best_step
    average                  the mean of the other columns that the paper has
or a list of such: their mean.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.common.files import replace_durably, to_json
from pretrain.sweep.file import Entry, Sweep
from pretrain.sweep.runs import Plan, Run, failure_line, slug
from pretrain.telemetry.formats import format_seconds

LIGHT = {"sts": "", "geometry": "--measure sts"}
"""Evaluations of every run: seconds on a GPU, a minute or two on a CPU."""
STANDARD = {
    "STS-B dev": "dev",
    "STS-B": "sts.STS-B",
    "7 STS": "sts.average",
    "alignment": "geometry.alignment",
    "uniformity": "geometry.uniformity",
    "s/step": "run.seconds_per_step",
}
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
FINE_TUNED = ("glue", "anli")  # evaluations that take no pooling


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate: a run's best/, or what a recipe starts from (`run` is None)."""

    model: str
    pooling: str
    folder: Path
    run: Run | None = None

    def results(self, evaluation: str) -> Path:
        """Return the file of an evaluation's figures (fine-tuning names it by the model's own pooling)."""
        if evaluation.split("-")[0] in FINE_TUNED and (
            there := sorted(self.folder.glob(f"{evaluation}-*.json"))
        ):
            return there[0]
        return self.folder / f"{evaluation}-{self.pooling}.json"

    def words(self, evaluation: str, flags: str) -> list[str]:
        """Return the command of an evaluation."""
        words = ["-m", f"finetune.{evaluation.split('-')[0]}", self.model, *shlex.split(flags)]
        if evaluation.split("-")[0] not in FINE_TUNED:
            words += ["--pooling", self.pooling]
        return [
            sys.executable,
            *words,
            *(
                ["--json_file", str(self.results("sts"))]
                if evaluation == "sts"
                else ["--out", str(self.folder)]
            ),
        ]


def models_of(entry: Entry, runs: list[Run], out: Path) -> list[EvaluatedModel]:
    """Return the models to evaluate for a row: its finished runs, or what its recipe starts from."""
    if entry.row.kind == "start":
        config = entry.points[0].config(0)
        if config.model.init is None:
            return []
        model = (
            str(Path(config.model.init).resolve()) if Path(config.model.init).exists() else config.model.init
        )
        return [EvaluatedModel(model, entry.row.pooling or config.model.pooling, out / "start" / slug(model))]
    return [
        EvaluatedModel(
            str(run.folder / "best"), entry.row.pooling or run.config.model.pooling, run.folder / "sweep", run
        )
        for run in runs
        if run.state == "done"
    ]


def evaluate(
    models: list[EvaluatedModel],
    evaluations: dict[str, str],
    *,
    environment: dict[str, str],
    print_line: Callable[[str], None],
    check_for_stop: Callable[[], None],
) -> None:
    """Run the evaluations (name -> flags) that have no result yet; report one that fails."""
    wanted = {
        model.results(evaluation): (model, evaluation) for model in models for evaluation in evaluations
    }
    todo = [pair for results, pair in wanted.items() if not results.is_file()]
    started = time.monotonic()
    for number, (model, evaluation) in enumerate(todo):
        left = (
            f"; about {format_seconds((time.monotonic() - started) / number * (len(todo) - number))} left"
            if number
            else ""
        )
        print_line(f"[{number + 1}/{len(todo)}] {evaluation} of {model.model}{left}")
        check_for_stop()
        model.folder.mkdir(parents=True, exist_ok=True)
        log = model.folder / f"{evaluation}.txt"
        with open(log, "wb") as stream:
            words = model.words(evaluation, evaluations[evaluation])
            code = subprocess.run(words, stdout=stream, stderr=stream, env=environment).returncode
        check_for_stop()  # Ctrl-C ends the evaluation too
        if code:
            print_line(f"  FAILED ({code}): {failure_line(log)}")


def metric(model: EvaluatedModel, name: str | list[str]) -> float | None:
    """Return a figure of a model; None: not evaluated (yet)."""
    if isinstance(name, list):
        parts = [value for part in name if (value := metric(model, part)) is not None]
        return statistics.mean(parts) if len(parts) == len(name) else None
    evaluation, _, rest = name.partition(".")
    if name == "dev":
        if model.run is not None:
            return model.run.dev
        evaluation, rest = "sts", "STS-B-dev"
    if evaluation == "run":
        if model.run is None or not (summary := model.run.summary):
            return None
        return {"seconds_per_step": model.run.seconds_per_step, "best_step": summary["best_step"]}[rest]
    path = model.results(evaluation)
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    if evaluation == "sts":
        scores = content["results"]
        scores = scores.get(model.pooling) or next(iter(scores.values()))
        if rest == "average":
            values = [round(scores[task]["spearman_all"], 2) for task in SEVEN if task in scores]
            return statistics.mean(values) if len(values) == len(SEVEN) else None
        return scores[rest]["spearman_all"] if rest in scores else None
    task, _, score = rest.partition(".")
    result = content["tasks"].get(task)
    if result is None:
        return None
    return result["scores"].get(score) if score else result["value"]


def columns_of(sweep: Sweep) -> dict[str, str | list[str]]:
    """Return the paper's columns, then the standard ones that are not among them."""
    named = [name for name in sweep.columns.values() if isinstance(name, str)]
    return sweep.columns | {
        title: name for title, name in STANDARD.items() if name not in named and title not in sweep.columns
    }


def figures(model: EvaluatedModel, sweep: Sweep) -> dict[str, float]:
    """Return column -> figure, where there is one."""
    columns = columns_of(sweep)
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


def collect(sweep: Sweep, plan: Plan, out: Path) -> dict[str, Any]:
    """Return all figures, for results.json; `tabulate` shows a part of them."""
    rows = []
    dev = next(title for title, name in columns_of(sweep).items() if name == "dev")
    for entry in plan.entries:
        row: dict[str, Any] = {
            "name": entry.name,
            "kind": entry.row.kind,
            "note": entry.row.note,
            "paper": entry.row.paper,
            "runs": [],
        }
        rows.append(row)
        if entry.row.kind == "quoted":
            continue
        runs = plan.chosen(entry)
        row["wanted"] = len(plan.seeds) if entry.row.kind == "trained" else 1
        if entry.searched:
            winner = plan.winner(entry)
            row["search"] = {
                "by": sweep.select,
                "best": None if winner is None else entry.points[winner].label,
                "points": len(entry.points),
            }
        for model in models_of(entry, runs, out):
            of_run: dict[str, Any] = {
                "figures": figures(model, sweep),
                "model": model.model,
                "pooling": model.pooling,
            }
            if model.run is not None:
                of_run |= {"seed": model.run.seed, "warnings": model.run.warnings}
            row["runs"].append(of_run)
        row |= statistics_of([run["figures"] for run in row["runs"]], dev)
    return {
        "title": sweep.title,
        "source": sweep.source,
        "paper_reports": sweep.paper_reports,
        "notes": sweep.notes,
        "columns": columns_of(sweep),
        "seeds": plan.seeds,
        "rows": rows,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


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
    the paper's figures.
    """
    titles = list(content["columns"])
    higher_is_better = [
        title for title, name in content["columns"].items() if not str(name).startswith(("geometry.", "run."))
    ]
    lines = [
        f"# {content['title']}",
        "",
        *([f"{content['source']}."] if content["source"] else []),
        "",
        "| " + " | ".join(["row", "figures", *titles]) + " |",
        "|---" * (len(titles) + 2) + "|",
    ]

    def line(name: str, kind: str, values: dict[str, float], spread: dict[str, float] | None = None) -> None:
        cells = [
            _cell(values.get(title), (spread or {}).get(title), 3 if title == "s/step" else 2)
            for title in titles
        ]
        lines.append("| " + " | ".join([name, kind, *cells]) + " |")

    for row in content["rows"]:
        name, runs, named = row["name"].replace("|", "\\|"), row["runs"], len(lines)
        if row["kind"] != "quoted":
            count = f"{len(runs)} of {row['wanted']} seeds" if row["kind"] == "trained" else "as it is"
            if row.get("search"):
                count += f", {row['search']['best'] or 'search unfinished'}"
            line(name, f"ours, {count}", row["mean"], row["std"])
            if len(runs) > 1:
                line(
                    "",
                    "ours, max over seeds",
                    {title: row["max"][title] for title in higher_is_better if title in row["max"]},
                )
                if row["by_dev"]:
                    line("", "ours, seed with the best dev", row["by_dev"])
        if row["paper"] or row["kind"] == "quoted":
            line("" if len(lines) > named else name, "paper", row["paper"])
    lines.append("")
    lines.append(
        f"Ours: mean ± standard deviation over seeds {', '.join(map(str, content['seeds']))}, each at its "
        "best STS-B dev."
        + (f" The paper's figures: {content['paper_reports']}." if content["paper_reports"] else "")
    )
    lines += [f"{note}." for note in content["notes"]]
    for row in content["rows"]:
        lines += [f"{row['name']}: {row['note']}."] if row["note"] else []
        warned = [run for run in row["runs"] if run.get("warnings")]
        lines += [
            f"{row['name']}, seed {run['seed']}: {len(run['warnings'])} alarms, the first at "
            f"{run['warnings'][0]}"
            for run in warned
        ]
    return "\n".join(lines) + "\n"


def correlations(content: dict[str, Any]) -> str:
    """Return Pearson's correlations of the complete columns over rows (means over seeds), in Markdown."""
    rows = [row["mean"] for row in content["rows"] if row.get("mean")]
    titles = [title for title in content["columns"] if rows and all(title in row for row in rows)]
    if len(rows) < 3 or len(titles) < 2:
        return "Correlations between columns need three rows or more with figures.\n"
    values = np.array([[row[title] for title in titles] for row in rows])
    with np.errstate(invalid="ignore"):
        matrix = np.corrcoef(values.T)
    lines = [f"Pearson's correlations over {len(rows)} rows", "", "| | " + " | ".join(titles) + " |"]
    lines.append("|---" * (len(titles) + 1) + "|")
    lines += [
        "| " + " | ".join([title, *(f"{value:.2f}" for value in row)]) + " |"
        for title, row in zip(titles, matrix)
    ]
    return "\n".join(lines) + "\n"


def write(sweep: Sweep, content: dict[str, Any], folder: Path) -> str:
    """Write table.md and results.json; return the table."""
    folder.mkdir(parents=True, exist_ok=True)
    table = tabulate(content) + (f"\n{correlations(content)}" if sweep.correlate else "")
    replace_durably(folder / "table.md", table.encode())
    replace_durably(folder / "results.json", to_json(content))
    return table


def pending(sweep: Sweep, models: list[EvaluatedModel]) -> list[str]:
    """Return the commands of the evaluations that the columns need and that have no result yet."""
    return [
        shlex.join(model.words(evaluation, flags))
        for model in models
        for evaluation, flags in sweep.evaluations.items()
        if not model.results(evaluation).is_file()
    ]


def _cell(value: float | None, spread: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" + (f" ± {spread:.{digits}f}" if spread is not None else "")
