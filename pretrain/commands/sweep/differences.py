"""The differences of a sweep's rows to its baseline, seed by seed, and what can be told from them.

Runs with the same seed read the same batches with the same dropout, whatever their objective: what differs
between them is what the rows change. A row that reads other batches shares less with the baseline; its
differences seed by seed are as valid, and their interval is wider.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from finetune.answers import resampled_effects
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.commands.sweep.evaluations import EvaluatedModel
from pretrain.commands.sweep.file import Entry, Sweep
from pretrain.telemetry.intervals import interval, paired_error, unpaired_error

Rows = dict[str, list[EvaluatedModel]]
"""Row -> its evaluated models, in the order of the row's `runs` in the table's content."""
Noises = dict[tuple[str, int], np.ndarray]
"""(Row, number of a run) -> what each draw of the pairs adds to its figure of a task, float64[B]."""


def baseline_of(sweep: Sweep, entries: Sequence[Entry]) -> str | None:
    """Return the row that others are compared with: the one the file names, else the first trained one.

    Of a row with a grid it is the first cell. None: no row that is left (`--rows`) is trained.
    """
    named = [entry.name for entry in entries if entry.of == sweep.baseline]
    trained = [entry.name for entry in entries if entry.runs]
    return next(iter([*named, *trained]), None)


def add_differences(content: dict[str, Any], rows: Rows, baseline: str | None) -> None:
    """Add to each row of a table's content (`pretrain.commands.sweep.table.collect`) its `difference`."""
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
    # seed -> number of the run; empty where the row is a model as it is
    by_seed = [
        {model.run.seed: number for number, model in enumerate(side) if model.run is not None}
        for side in models
    ]
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
        first, second = (
            [row["runs"][number]["figures"][title] for number in which] for row, which in zip(pair, chosen)
        )
        error = None
        if not one_seed:
            differences = [one - other for one, other in zip(first, second)]
            error = paired_error(differences) if common else unpaired_error(first, second)
        noise = _noise([noise_of(task) for task in tasks_of(metrics[title])], pair, chosen)
        around = interval(float(np.mean(first) - np.mean(second)), error, noise)
        if around is not None:
            columns[title] = {
                "mean": around.mean,
                "low": around.low,
                "high": around.high,
                "told": around.told,
                "over_pairs": noise is not None,
            }
    return {
        "to": pair[1]["name"],
        "seeds": common,
        "one_seed": one_seed,
        "columns": columns,
    }


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
    """Return the STS tasks whose mean a metric is; none where it is something else.

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
