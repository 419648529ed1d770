"""Evaluate the runs of a sweep by the commands of finetune, and read their figures.

A column's metric is one of
    dev                      STS-B dev of best/, as evaluated during training, which selects best/
    dev.last                 the same of the last step
    sts.TASK, sts.average    finetune.sts: Spearman x 100 over all pairs; the mean of the seven tasks
    EVALUATION.TASK[.SCORE]  the headline, or another score, of `clearly EVALUATION`
    start.EVALUATION...      the same of the model that the run started from
    run.seconds_per_step, run.best_step
    run.NAME                 a score of best/ during training, as metrics.jsonl names it: heldout_mlm_loss ...
    average                  the mean of the other columns that the paper has
or a list of such: their mean. {KEY} in one stands for that key of the row's `at`.
"""

import hashlib
import shlex
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from augment.core.own_code import require_allowed
from finetune.answers import Answers, answers_file, read_answers
from pretrain.commands.sweep.file import TableEntry
from pretrain.commands.sweep.runs import SweepRun, Trainer, slug
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder
from pretrain.common.processes import failure_line, start_logged, wait_for_end
from pretrain.common.run_folder import read_json_file

LIGHT = {"sts": "", "geometry": "--measure sts"}
"""Evaluations of every run: seconds on a GPU, a minute or two on a CPU."""
FINE_TUNED = ("glue", "anli")  # evaluations that take no pooling


@dataclass(frozen=True)
class EvaluatedModel:
    """A model to evaluate: a run's best/ or export/, or what a recipe starts from (`run` is None)."""

    model: str
    pooling: str
    folder: Path
    run: SweepRun | None = None

    def results(self, evaluation: str) -> Path:
        """Return the file of an evaluation's figures (fine-tuning names it by the model's own pooling)."""
        pooling = "*" if evaluation.split("-")[0] in FINE_TUNED else self.pooling
        there = sorted(self.folder.glob(f"{evaluation}-{pooling}.json"))
        return there[0] if there else self.folder / f"{evaluation}-{self.pooling}.json"

    @property
    def start(self) -> "EvaluatedModel | None":
        """What the model was trained from; itself, if it was not; None: from random weights."""
        if self.run is None:
            return self
        return _start(self.run.config.model.init, self.pooling, self.run.folder.parents[1])

    def answers(self, task: str) -> Answers | None:
        """Return the similarities of an STS task's pairs, with the gold scores; None: they were not kept."""
        path = self.results("sts")
        about = _tasks(path).get(task, {}).get("answers") if path.is_file() else None
        found = None if about is None else read_answers(answers_file(path), task, about)
        if isinstance(found, str):
            raise UserError(f"{found}: remove {path}, and the same command evaluates it anew")
        return found

    def words(self, evaluation: str, flags: str) -> list[str]:
        """Return the command of an evaluation."""
        name, _, label = evaluation.partition("-")
        words = [sys.executable, "-m", f"finetune.{name}", self.model, *shlex.split(flags)]
        if name == "geometry" and label:
            words += ["--label", label]
        if name not in FINE_TUNED:
            words += ["--pooling", self.pooling]
        return [*words, "--out", str(self.folder)]


def models_of(entry: TableEntry, runs: list[SweepRun], out: Path) -> list[EvaluatedModel]:
    """Return the models to evaluate for a row: its finished runs, or what its recipe starts from."""
    if entry.row.kind == "start":
        config = entry.config(0)
        start = _start(config.model.init, entry.row.pooling or config.model.pooling, out)
        return [] if start is None else [start]
    weights = entry.row.weights
    return [
        EvaluatedModel(
            str(run.folder / weights),
            entry.row.pooling or run.config.model.pooling,
            run.folder / ("sweep" if weights == "best" else f"sweep-{weights}"),
            run,
        )
        for run in runs
        if run.state == "done"
    ]


def _start(init: str | None, pooling: str, out: Path) -> EvaluatedModel | None:
    if init is None or pooling == "words":  # which is of runs that were trained so
        return None
    model = str(Path(init).resolve()) if Path(init).exists() else init
    if model == init and ":" in init:  # a function, as FILE.py:NAME
        require_allowed(init.rpartition(":")[0])
    digest = hashlib.sha256(model.encode()).hexdigest()[:10]  # a slug is cut, and leaves letters out
    return EvaluatedModel(model, pooling, out / "start" / f"{slug(model)}-{digest}")


def evaluate(
    models: list[EvaluatedModel], evaluations: dict[str, str], trainer: Trainer, jobs: int = 1
) -> None:
    """Run the evaluations (name -> flags) that have no result yet, `jobs` at a time; report failures."""
    pairs = [(model, evaluation) for model in models for evaluation in evaluations]
    wanted = {model.results(evaluation): (model, evaluation) for model, evaluation in pairs}
    todo = [pair for results, pair in wanted.items() if not results.is_file()]

    def run(number: int, pair: tuple[EvaluatedModel, str]) -> None:
        model, evaluation = pair
        trainer.check_for_stop()
        trainer.print_line(f"[{number}/{len(todo)}] {evaluation} of {model.model}")
        make_folder(model.folder)
        log = model.folder / f"{evaluation}.txt"
        process = start_logged(model.words(evaluation, evaluations[evaluation]), log, trainer.environment)
        if code := wait_for_end(process, trainer.check_for_stop):
            trainer.failures[f"{evaluation} of {model.model}"] = line = failure_line(log, code)
            trainer.print_line(f"  FAILED ({code}): {line}")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, range(1, len(todo) + 1), todo))  # what the first to fail raises begins no more


def metric(model: EvaluatedModel, name: str | list[str]) -> float | None:
    """Return a figure of a model; None: not evaluated (yet)."""
    if isinstance(name, list):
        parts = [value for part in name if (value := metric(model, part)) is not None]
        return statistics.mean(parts) if len(parts) == len(name) else None
    evaluation, _, rest = name.partition(".")
    if evaluation == "start":
        return None if model.start is None else metric(model.start, rest)
    if name == "dev.last":
        summary = model.run and model.run.summary
        return (summary or {}).get("trained", {}).get("stsb-dev")  # None if it was no number, too
    if name == "dev":
        if model.run is not None:
            return model.run.dev
        evaluation, rest = "sts", "STS-B-dev"
    if evaluation == "run":
        if model.run is None or not (summary := model.run.summary):
            return None
        if rest == "seconds_per_step":
            return summary["seconds"] / summary["steps"] if summary["steps"] else None
        return summary["best_step"] if rest == "best_step" else model.run.scores.get(rest)
    path = model.results(evaluation)
    if not path.is_file():
        return None
    result, score = _task(_tasks(path), "average of 7 STS" if name == "sts.average" else rest)
    if result is None:
        return None
    return result["scores"].get(score) if score else result["value"]


def _tasks(path: Path) -> dict[str, Any]:
    """Return the tasks of a file of figures, by name."""
    tasks = read_json_file(path, "remove it, and give --eval-data to evaluate anew").get("tasks")
    if tasks is None:
        raise UserError(f"{path} is of an earlier version: remove it, and give --eval-data to evaluate anew")
    return tasks


def _task(tasks: dict[str, Any], name: str) -> tuple[dict[str, Any] | None, str]:
    """Return the task in TASK[.SCORE], and the score. Both may hold dots."""
    fitting = [task for task in tasks if name == task or name.startswith(f"{task}.")]
    if not fitting:
        return None, ""
    task = max(fitting, key=len)
    return tasks[task], name[len(task) + 1 :]
