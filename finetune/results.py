"""Write what an evaluation found as a JSON file, which the report reads, and as a table for the terminal.

    {"evaluation": "clustering", "model": "runs/clear_micro", "pooling": "mean", "trained_pooling": "mean",
     "protocol": "k-means, 10 restarts x 10 seeds", "complete": true, "notes": [], "seconds": 41.2, "date":
     "...", "machine": "...", "versions": {...},
     "tasks": {"agnews": {"metric": "accuracy", "value": 71.3, "std": 0.4, "scores": {"accuracy": 71.3, "nmi":
     44.0}}}}

`value` is the headline: the number that papers print, named by `metric`; `scores` holds all numbers of the
task. Figures are x 100 where the field prints them so. Answers to examples, from which a figure follows, lie
beside the file (`finetune.answers`). `complete` is false, and `notes` says why, whenever a figure is not
comparable with published ones (a data set with rows missing, another training set).
"""

import datetime
import hashlib
import json
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

from finetune.answers import Answers, answers_file, read_answers
from finetune.encoders.models import EmbeddingModel
from finetune.encoders.source import ModelSource
from pretrain.benchmarks.sts_tasks import UNDEFINED, PairScores
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, require_writable, to_json
from pretrain.common.folder_lock import folder_lock
from pretrain.telemetry.metrics_file import without_nan

ROUNDED = "vectors computed in "
"""What the note of a precision other than fp32 begins with."""


@dataclass
class TaskResult:
    """One task's figures."""

    metric: str
    """Name of the headline among `scores`."""
    value: float
    scores: dict[str, float]
    std: float | None = None
    """Standard deviation of the headline over seeds or splits, if there are several."""
    details: dict[str, Any] = field(default_factory=dict)
    """Anything else worth keeping (subsets, chosen hyper-parameters)."""
    answers: Answers | str | None = None
    """To the examples, if the figure follows from them; words: why they cannot be had."""


@dataclass
class Evaluation:
    """All tasks of one evaluation of one model."""

    evaluation: str
    """senteval, glue, clustering, intents, anli, nli_distance, zh_sts, geometry ..."""
    model: str
    pooling: str
    trained_pooling: str | None
    protocol: str
    tasks: dict[str, TaskResult] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    complete: bool = True
    seconds: float = 0.0
    source: str = ""
    """`EmbeddingModel.identity` of what was evaluated."""

    @classmethod
    def of(cls, evaluation: str, model: EmbeddingModel, protocol: str) -> Self:
        """Return an empty evaluation of `model`; a mismatch of pooling is its first note."""
        notes = [model.remark] if model.remark else []
        if model.precision != "fp32":
            notes.append(ROUNDED + model.precision)
        about = model.name, model.pooling, model.trained_pooling, protocol
        return cls(evaluation, *about, notes=notes, source=model.identity)

    @property
    def file_name(self) -> str:
        """The name of its file and of what lies beside it, without an ending; hyphens replace blanks."""
        return file_name(self.evaluation, self.pooling)

    def add(
        self,
        task: str,
        metric: str,
        scores: dict[str, float],
        std: float | None = None,
        answers: Answers | None = None,
        **details: Any,
    ) -> None:
        """Add a task's figures, whose headline is the score `metric`."""
        self.add_result(task, TaskResult(metric, scores[metric], scores, std, details, answers))

    def add_result(self, task: str, result: TaskResult) -> None:
        """Add a task's figures, and a note if the headline is a correlation that is not defined."""
        self.tasks[task] = result
        if math.isnan(result.value) and re.search("spearman|pearson", result.metric):
            self.notes.append(f"{task} has no {result.metric}: {UNDEFINED}")

    def expect_size(self, what: str, rows: str, count: int, published: int) -> None:
        """Mark the result as incomplete if a set has not as many rows as published."""
        if count != published:
            self.incomplete(f"{what} has {count:,} {rows} here, {published:,} as published")

    def incomplete(self, note: str) -> None:
        """Mark the result as not comparable with published figures, and say why."""
        self.complete = False
        self.notes.append(note)


def file_name(evaluation: str, pooling: str) -> str:
    """Return `Evaluation.file_name` of an evaluation's name and a pooling."""
    return f"{evaluation}-{pooling.replace(' ', '-')}"


def sample_std(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample, with n - 1 below the fraction; None for a single value."""
    return statistics.stdev(values) if len(values) > 1 else None


def folder_for(model: EmbeddingModel | ModelSource, out: str | Path = "") -> Path:
    """Return the folder for results, made writable: `out`, else the run's report/, else results/NAME."""
    if out:
        require_writable(out)
        return Path(out)
    folder = model.run / "report" if model.run is not None else Path("results") / folder_name(model.name)
    require_writable(folder, "without --out, results go to")
    return folder


def folder_name(model: str) -> str:
    """Return a model's name as a folder's: hyphens replace what is no letter, digit, dot or hyphen."""
    return re.sub(r"[^\w.-]+", "-", model.rstrip("/")).strip("-.") or "model"


def write(
    evaluation: Evaluation, folder: Path, finish: Callable[[Evaluation], None] = lambda evaluation: None
) -> Path:
    """Write FOLDER/EVALUATION-POOLING.json, whole or not at all; return its path.

    Earlier tasks stay if of the same weights and protocol; another protocol or model gets a file of its own,
    newer weights replace it. Commands side by side wait for each other. finish: adds averages over tasks.
    """
    try:
        make_folder(folder)
        with folder_lock(folder, wait=60.0, part=evaluation.evaluation):
            path, merged = _merged(evaluation, folder)
            finish(merged)
            kept = {name: task.answers for name, task in merged.tasks.items()}
            answers = {name: one for name, one in kept.items() if isinstance(one, Answers)}
            if answers:  # first: figures say which answers they are of, and take no others
                given = {f"{name}/given": one.predicted for name, one in answers.items()}
                gold = {f"{name}/gold": one.gold for name, one in answers.items()}
                PairScores(given | gold).write(answers_file(path))
            bare = {name: replace(task, answers=None) for name, task in merged.tasks.items()}
            content = asdict(replace(merged, tasks=bare))
            for name, one in answers.items():
                content["tasks"][name]["answers"] = one.about()
            content |= {
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "machine": f"{platform.machine()}, {os.cpu_count()} cores",
                "versions": {
                    name: version(name) for name in ("torch", "transformers", "scikit-learn", "numpy")
                },
            }
            replace_durably(path, to_json(without_nan(content)))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; name another folder with --out") from error
    return path


def _merged(evaluation: Evaluation, folder: Path) -> tuple[Path, Evaluation]:
    """Return the file of an evaluation, and what it will say beside what it says already."""
    path = folder / f"{evaluation.file_name}.json"
    before = read_if_there(path)
    if before is not None and (before.protocol, before.model) != (evaluation.protocol, evaluation.model):
        digest = hashlib.sha256(f"{evaluation.protocol}\n{evaluation.model}".encode()).hexdigest()[:8]
        path = path.with_name(f"{path.stem}-{digest}.json")
        before = read_if_there(path)
    if before is None or not before.source or before.source != evaluation.source:
        return path, evaluation
    return path, replace(
        evaluation,
        tasks={**before.tasks, **evaluation.tasks},
        notes=list(dict.fromkeys([*before.notes, *evaluation.notes])),
        complete=before.complete and evaluation.complete,
        seconds=before.seconds + evaluation.seconds,
    )


def read_if_there(path: Path) -> Evaluation | None:
    """Read what is there, if it is a result; else None."""
    try:
        return read(path) if path.is_file() else None
    except UserError:
        return None


def read(path: Path) -> Evaluation:
    """Read the evaluation in a file that `write` made; a UserError says that it is none."""
    try:
        content = json.loads(path.read_text())
        tasks = {name: TaskResult(**task) for name, task in content["tasks"].items()}
        for name, task in tasks.items():
            if (about := content["tasks"][name].get("answers")) is not None:
                task.answers = read_answers(answers_file(path), name, about)
        known = {key: content[key] for key in Evaluation.__dataclass_fields__ if key != "tasks"}
        return Evaluation(**known, tasks=tasks)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a result of this project: {error}") from error


def table(evaluation: Evaluation) -> str:
    """Return the headline figures, a line a task, then notes."""
    width = max([4, *map(len, evaluation.tasks)])
    lines = [
        f"{evaluation.evaluation}: {evaluation.model} ({evaluation.pooling} pooling; {evaluation.protocol})"
    ]
    for name, task in evaluation.tasks.items():
        spread = f" ± {task.std:.2f}" if task.std is not None else ""
        others = "  ".join(
            f"{key} {figure_text(one)}" for key, one in task.scores.items() if key != task.metric
        )
        lines.append(
            f"  {name.ljust(width)}  {task.metric} {figure_text(task.value):>6}{spread}  {others}".rstrip()
        )
    lines += [f"  note: {note}" for note in evaluation.notes]
    if not evaluation.complete:
        lines.append("  INCOMPLETE: not comparable with published figures")
    return "\n".join(lines)


def figure_text(value: float | None) -> str:
    """Return a figure with two decimals; "nan" if it is not a number, which files hold as null."""
    return "nan" if value is None else f"{value:.2f}"


def run_and_write(
    model: EmbeddingModel,
    out: str,
    evaluate: Callable[[EmbeddingModel], Evaluation],
    finish: Callable[[Evaluation], None] = lambda evaluation: None,
) -> int:
    """Evaluate a model, print the table, `write` the file, say where it is; return the exit status."""
    folder = folder_for(model, out)
    started = time.perf_counter()
    evaluation = evaluate(model)
    evaluation.seconds = time.perf_counter() - started
    print(table(evaluation))
    print(f"  {evaluation.seconds:.0f} s; all figures: {write(evaluation, folder, finish)}")
    return 0
