"""The differences of a sweep's rows to its baseline, seed by seed, and what can be told from them.

Runs with the same seed read the same batches with the same dropout, whatever their objective: what differs
between them is what the rows change. A row that reads other batches is compared as an independent one, and
says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pretrain.common.errors import UserError
from pretrain.sweep.evaluations import SEVEN, EvaluatedModel
from pretrain.sweep.file import Entry, Sweep
from pretrain.sweep.runs import Run
from pretrain.telemetry.intervals import Interval, Resampled, interval, paired_error, unpaired_error

_DECIDES_BATCHES = ("shards", "manifest", "tokenizer")  # of a run's inputs (`pretrain.start.inputs`)

Rows = dict[str, list[EvaluatedModel]]
"""Row -> its evaluated models, in the order of the row's `runs` in the table's content."""


def baseline_of(sweep: Sweep, entries: Sequence[Entry]) -> str | None:
    """Return the row that others are compared with: the one the file names, else the first trained one.

    Of a row with a grid it is the first cell. None: no row that is left (`--rows`) is trained.
    """
    named = [entry.name for entry in entries if entry.of == sweep.baseline]
    trained = [entry.name for entry in entries if entry.runs]
    return next(iter([*named, *trained]), None)


def unpaired(first: Run, second: Run) -> list[str]:
    """Return why two finished runs of one seed did not read the same batches; nothing: they did."""
    reasons = []
    one, other = first.config, second.config
    for key in ("train.global_batch", "train.batch_warmup_steps", "train.batch_start", "data.lanes"):
        section, name = key.split(".")
        values = [getattr(getattr(config, section), name) for config in (one, other)]
        if values[0] != values[1]:
            reasons.append(f"{key} is {values[0]}, not {values[1]}")
    inputs = [(run.summary or {}).get("inputs", {}) for run in (first, second)]
    differing = [name for name in _DECIDES_BATCHES if inputs[0].get(name) != inputs[1].get(name)]
    if differing:
        reasons.append(f"other data ({', '.join(differing)})")
    return reasons


def add_differences(content: dict[str, Any], rows: Rows, baseline: str | None, judged_by: str) -> None:
    """Add to each row of a table's content its `difference` to the baseline, and whether it is `grey`.

    Args:
        content: of `pretrain.sweep.table.collect`.
        judged_by: the column that decides whether a row is grey.
    """
    content |= {"baseline": baseline, "judged_by": judged_by}
    found = {row["name"]: row for row in content["rows"] if row["runs"]}
    if baseline is None or baseline not in found:
        return
    noises = _Noises(content["columns"], rows, baseline)
    for name, row in found.items():
        if name == baseline:
            continue
        row["difference"] = _difference(name, baseline, found, rows, noises)
        judged = row["difference"]["columns"].get(judged_by)
        row["grey"] = None if judged is None else not judged["told"]


def judging_column(sweep: Sweep, columns: Collection[str]) -> str:
    """Return the column that decides whether a row is grey: the file's, its average, or its first.

    Raises:
        UserError: the file names a column that the table does not have.
    """
    if sweep.judged_by and sweep.judged_by not in columns:
        raise UserError(f"judged_by {sweep.judged_by!r}: no such column; there are {', '.join(columns)}")
    averages = [title for title, name in sweep.columns.items() if name in ("sts.average", "average")]
    return sweep.judged_by or next(iter([*averages, *sweep.columns, *columns]))


def _difference(
    name: str, baseline: str, found: dict[str, dict], rows: Rows, noises: _Noises
) -> dict[str, Any]:
    mine, others = _Side(found[name], rows[name]), _Side(found[baseline], rows[baseline])
    common = [seed for seed in mine.by_seed if seed in others.by_seed]
    reasons: list[str] = []
    if common:
        reasons = unpaired(*(side.models[side.by_seed[common[0]]].run for side in (mine, others)))  # type: ignore[arg-type]
    elif mine.by_seed and others.by_seed:
        reasons = ["no seed in common"]
    if reasons or not common:  # or one of them is a model as it is
        chosen = [list(range(len(side.models))) for side in (mine, others)]
    else:
        chosen = [[side.by_seed[seed] for seed in common] for side in (mine, others)]
    # of a single run nobody knows what another seed would give; only a model as it is has no seeds
    one_seed = any(side.by_seed and len(which) == 1 for side, which in zip((mine, others), chosen))
    titles = [title for title in found[name]["mean"] if title in found[baseline]["mean"]]
    columns = {}
    for title in titles:
        metric = noises.columns[title]
        if isinstance(metric, str) and metric.startswith(("run.", "start.")):
            continue
        first, second = (side.values(title, which) for side, which in zip((mine, others), chosen))
        paired = [one - other for one, other in zip(first, second)] if common and not reasons else []
        error = None
        if not one_seed:
            error = paired_error(paired) if paired else unpaired_error(first, second)
        noise = noises.of(title, (name, chosen[0]), (baseline, chosen[1]))
        mean = float(np.mean(first) - np.mean(second))
        if (around := interval(mean, error, noise)) is not None:
            columns[title] = _as_json(around, noise is not None)
    return {"to": baseline, "seeds": common, "one_seed": one_seed, "unpaired": reasons, "columns": columns}


def _as_json(around: Interval, over_pairs: bool) -> dict[str, Any]:
    return {
        "mean": around.mean,
        "low": around.low,
        "high": around.high,
        "told": around.told,
        "over_pairs": over_pairs,
    }


class _Side:
    """A row's runs. by_seed: seed -> number of the run; empty where the row is a model as it is."""

    def __init__(self, row: dict[str, Any], models: list[EvaluatedModel]):
        self.row, self.models = row, models
        self.by_seed = {
            model.run.seed: number for number, model in enumerate(models) if model.run is not None
        }

    def values(self, title: str, which: Sequence[int]) -> list[float]:
        return [self.row["runs"][number]["figures"][title] for number in which]


class _Noises:
    """What other draws of the pairs would add to the figures of runs, each computed once.

    A column of Spearman correlations has it for the runs whose similarities were kept, and are of the same
    pairs as the baseline's.
    """

    def __init__(self, columns: dict[str, Any], rows: Rows, baseline: str):
        self.columns = columns
        self._baseline = baseline
        self._rows = rows
        self._of_task: dict[str, dict[tuple[str, int], np.ndarray]] = {}

    def of(self, title: str, *sides: tuple[str, Sequence[int]]) -> np.ndarray | None:
        """Return float64[B] for the difference of two sides' means, or None where a run has none."""
        tasks = tasks_of(self.columns[title])
        if not tasks:
            return None
        means = []
        for name, which in sides:
            of_runs = []
            for number in which:
                parts = [self._task(task).get((name, number)) for task in tasks]
                known = [part for part in parts if part is not None]
                if len(known) < len(parts):
                    return None
                of_runs.append(np.mean(known, axis=0))
            means.append(np.mean(of_runs, axis=0))
        return means[0] - means[1]

    def _task(self, task: str) -> dict[tuple[str, int], np.ndarray]:
        """Return for every run with pairs of this task what each draw adds to its figure: float64[B]."""
        if task not in self._of_task:
            found = {
                (name, number): kept
                for name, models in self._rows.items()
                for number, model in enumerate(models)
                if (kept := model.similarities(task)) is not None
            }
            pairs = next((gold for (name, _), (gold, _) in found.items() if name == self._baseline), None)
            noises: dict[tuple[str, int], np.ndarray] = {}
            if pairs is not None:
                found = {key: kept for key, kept in found.items() if np.array_equal(kept[0], pairs)}
                # the last draw is the pairs as they are
                drawn = Resampled(task, pairs).spearman([values for _, values in found.values()])
                noises = {
                    key: draws[:-1] - draws[-1]
                    for key, draws in zip(found, drawn)
                    if np.isfinite(draws).all()
                }
            self._of_task[task] = noises
        return self._of_task[task]


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
        return list(SEVEN)
    return [metric.removeprefix("sts.")] if metric.startswith("sts.") else []
