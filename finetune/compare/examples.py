"""Differences of models on the examples of evaluations that keep their answers, with intervals over them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from finetune.answers import MEAN, Answers
from finetune.encoders.models import EmbeddingModel
from finetune.nanobeir import THIRTEEN
from finetune.report.sources import Subject
from finetune.report.tables import Block, Cell, Table, TableRow
from finetune.results import Evaluation, TaskResult, figure_text
from finetune.senteval.tasks import TRANSFER
from finetune.tuning.tasks import TABLE_1
from pretrain.benchmarks.sts_scores import PairScores, StsEvaluator
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.telemetry.intervals import (
    LEVEL,
    RESAMPLES,
    Interval,
    centred_ranks,
    correlation,
    draws,
    interval,
    interval_text,
)

AVERAGES = {
    "average of 7 STS": SEVEN_TASKS,
    "average of 7 transfer": TRANSFER,
    "average of 8": TABLE_1,
    "average of 13": THIRTEEN,
}
"""Figures that are means of other tasks', each of whose examples are drawn by themselves."""


@dataclass(frozen=True)
class Compared:
    """A model's figure, and its difference to the first model's, or the `reason` why there is none."""

    metric: str
    value: float | None
    difference: Interval | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """The difference as tables print it, or why there is none."""
        if self.difference is None:
            return f"no interval: {self.reason}"
        return interval_text(self.difference.mean, self.difference.low, self.difference.high)

    def plain(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        content: dict[str, Any] = {"metric": self.metric, "value": self.value}
        if (apart := self.difference) is not None:
            content |= {"difference": apart.mean, "low": apart.low, "high": apart.high}
        return content | ({"reason": self.reason} if self.reason else {})


def sts_evaluation(model: EmbeddingModel, evaluator: StsEvaluator, tasks: Sequence[str]) -> Evaluation:
    """Return a model's figures of STS tasks, with every pair's cosine."""
    pairs = PairScores()
    (scores,) = evaluator.evaluate_poolings(
        lambda texts: {model.pooling: model.encode(texts)}, evaluator.choose(tasks), pairs
    ).values()
    found = Evaluation.of("sts", model, "cosine, Spearman, all pairs")
    for task, one in scores.items():
        answers = Answers.of(pairs[f"{task}/{model.pooling}"], pairs[f"{task}/gold"], "spearman", task)
        found.add(task, "spearman", {"spearman": one["spearman_all"]}, answers=answers)
    return found


OfTask = dict[str, Compared]
"""Model -> its figure, for the models that have one; the first model is one of them."""


def example_differences(
    evaluations: Mapping[str, Mapping[str, Evaluation]],
) -> dict[str, dict[str, OfTask]]:
    """Return evaluation -> task -> model -> figure and difference to the first, where both keep answers."""
    first, *others = evaluations
    found = {}
    for name, of_first in evaluations[first].items():
        by_model = {first: of_first} | {
            model: evaluations[model][name] for model in others if name in evaluations[model]
        }
        tasks = (task for one in by_model.values() for task in one.tasks.values())
        if len(by_model) > 1 and any(task.answers is not None for task in tasks):
            found[name] = _of_evaluation(name, by_model)
    return found


def choose_poolings(subjects: Mapping[str, Subject], pooling: str) -> dict[str, dict[str, Evaluation]]:
    """Return model -> evaluation -> figures: of `pooling`, else of the model's own, else of one there is."""
    chosen: dict[str, dict[str, Evaluation]] = {}
    for label, subject in subjects.items():
        by_name: dict[str, list[Evaluation]] = {}
        for (name, _), evaluation in subject.evaluations.items():
            by_name.setdefault(name, []).append(evaluation)
        chosen[label] = {
            name: min(
                several,
                key=lambda one: (one.pooling != pooling, one.pooling != (one.trained_pooling or "mean")),
            )
            for name, several in by_name.items()
        }
    return chosen


def _of_evaluation(name: str, by_model: Mapping[str, Evaluation]) -> dict[str, OfTask]:
    first = next(iter(by_model))
    drawn: dict[str, dict[str, np.ndarray]] = {}  # task -> model -> what each draw adds to its figure
    found: dict[str, OfTask] = {}
    for task, result in by_model[first].tasks.items():
        of_models = {model: one.tasks[task] for model, one in by_model.items() if task in one.tasks}
        if len(of_models) < 2:
            continue
        if task in AVERAGES:
            drawn[task] = _average(AVERAGES[task], drawn)
            reasons = dict.fromkeys(of_models, "not all of its tasks have an interval")
        else:
            drawn[task], reasons = _resampled_effects(f"{name} {task}", of_models)
        found[task] = {
            model: _compared(
                one, result, drawn[task].get(model), drawn[task].get(first), reasons.get(model, "")
            )
            for model, one in of_models.items()
        }
        found[task][first] = Compared(result.metric, result.value)
    return found


def _compared(
    one: TaskResult, first: TaskResult, noise: np.ndarray | None, of_first: np.ndarray | None, reason: str
) -> Compared:
    if one.value is None or first.value is None:  # as files have what is not a number
        return Compared(one.metric, one.value, reason="a figure is not a number")
    if one.metric != first.metric:
        return Compared(one.metric, one.value, reason=f"{one.metric} here, {first.metric} of the first")
    if noise is None or of_first is None:
        return Compared(one.metric, one.value, reason=reason)
    return Compared(one.metric, one.value, interval(one.value - first.value, None, noise - of_first))


def _resampled_effects(
    name: str, of_models: Mapping[str, TaskResult]
) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return model -> what each draw adds to its figure, float64[B], and model -> why there is none."""
    first, *others = of_models
    answers: dict[str, Answers] = {}
    reasons: dict[str, str] = {}
    for model, result in of_models.items():
        if isinstance(result.answers, Answers):
            answers[model] = result.answers
        else:
            reasons[model] = result.answers or "its answers were not kept; evaluate it again"
    if first not in answers:
        return {}, {model: reasons.get(model, f"of {first}: {reasons[first]}") for model in others}
    for model in others:
        if model in answers and (why := _why_not_paired(answers[first], answers[model])):
            reasons[model] = why
            del answers[model]
    figures = resampled_figures(name, list(answers.values()))
    return {model: draws[:-1] - draws[-1] for model, draws in zip(answers, figures, strict=True)}, reasons


def _why_not_paired(first: Answers, other: Answers) -> str:
    """Return why answers cannot be paired; "" where they can."""
    if (first.data, len(first.gold)) != (other.data, len(other.gold)):
        sizes = f": {len(other.gold):,}, not {len(first.gold):,}" * (len(first.gold) != len(other.gold))
        return f"not the same examples in the same order as the first model's{sizes}"
    if (first.metrics, first.parts) != (other.metrics, other.parts):
        return f"scored by {', '.join(other.metrics)}, not by {', '.join(first.metrics)}"
    return ""


def _average(tasks: Sequence[str], drawn: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what draws of all tasks add to their mean, for the models that have all of them."""
    of_tasks = [drawn.get(task, {}) for task in tasks]
    by_model = [model for model in of_tasks[0] if all(model in one for one in of_tasks)]
    return {model: np.mean([one[model] for one in of_tasks], axis=0) for model in by_model}


def example_tables(
    found: Mapping[str, Mapping[str, OfTask]], evaluations: Mapping[str, Mapping[str, Evaluation]]
) -> list[Table]:
    """Return a table for each evaluation: a row a task, a column a model and one its difference."""
    protocols = {
        name: {model: of_model[name].protocol for model, of_model in evaluations.items() if name in of_model}
        for name in found
    }
    return [_table(name, of_tasks, protocols[name]) for name, of_tasks in found.items()]


def _table(name: str, of_tasks: Mapping[str, OfTask], protocols: Mapping[str, str]) -> Table:
    first, *others = protocols
    caption = (
        f"In brackets the {100 * LEVEL:.0f}% interval over the examples ({RESAMPLES:,} draws, the same for "
        "all models); ~: it holds 0. Other training seeds are not in it."
    )
    columns = [first, *(column for model in others for column in (model, f"{model} less {first}"))]
    table = Table(f"examples-{name}", f"{name}: differences to {first}", caption, columns, [])
    rows = []
    for task, of_models in of_tasks.items():
        cells = [Cell(of_models[first].value)]
        for model in others:
            one = of_models.get(model)
            cells.append(Cell(one.value if one else None))
            if one is None or one.difference is not None:
                cells.append(Cell(text=one.text if one else ""))
            else:
                cells.append(Cell(text="–", notes=[table.note(f"{model}: {one.reason}")]))
        rows.append(TableRow(f"{task} ({of_models[first].metric})", cells))
    table.blocks.append(Block("", rows))
    for model in others:
        if protocols[model] != protocols[first]:
            table.note(f"{model} was evaluated differently: {protocols[model]}; {first}: {protocols[first]}")
    return table


def example_lines(found: Mapping[str, Mapping[str, OfTask]]) -> list[str]:
    """Return the lines for the terminal: for each evaluation and model a line a task."""
    lines = []
    for name, of_tasks in found.items():
        models = dict.fromkeys(model for of_models in of_tasks.values() for model in of_models)
        for model in list(models)[1:]:
            lines.append(f"{name}, {model}:")
            rows = {task: of_models[model] for task, of_models in of_tasks.items() if model in of_models}
            width = max(map(len, rows))
            lines += [
                f"  {task.ljust(width)}  {figure_text(one.value):>6}  {one.text}"
                for task, one in rows.items()
            ]
    return lines


# -- a task's figure on draws of its examples: a draw is a count for each example, so that a metric is a few
# products of matrices for all draws at once; definitions as in `finetune.tuning.metrics`


Metric = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""From counts float64[B, N], answers [N] and gold [N] to the figure of each draw, float64[B]."""


def resampled_figures(name: str, models: Sequence[Answers], resamples: int = RESAMPLES) -> np.ndarray:
    """Return the figure x 100 of a task for M models on each draw and, last, as is: float64[M, B + 1]."""
    first = models[0]
    sizes = first.parts or (len(first.gold),)
    ends = np.cumsum(sizes)
    figures = [np.zeros((len(one.predicted), resamples + 1)) for one in models]
    for number, (size, end) in enumerate(zip(sizes, ends, strict=True)):
        part = slice(end - size, end)
        start = 0
        for counts in draws(f"{name}/{number}", size, resamples):
            rows = slice(start, start + len(counts))
            for one, found in zip(models, figures, strict=True):
                for run, answers in enumerate(one.predicted):
                    of_metrics = [METRICS[key](counts, answers[part], one.gold[part]) for key in one.metrics]
                    found[run, rows] += np.mean(of_metrics, axis=0) / len(sizes)
            start += len(counts)
    return 100 * np.stack(
        [_OVER[one.over](found, axis=0) for one, found in zip(models, figures, strict=True)]
    )


def _f1(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Of class 1; 0 where neither side has it."""
    both, either = counts @ ((predicted == 1) & (gold == 1)), counts @ ((predicted == 1) * 1.0 + (gold == 1))
    return 2 * both / np.where(either == 0, 1, either)


def _matthews(counts: np.ndarray, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
    """Gorodkin 2004, R_K, for any number of classes; 0 where one side is constant."""
    classes = np.unique(np.concatenate([predicted, gold]))
    total, right = counts.sum(1), counts @ (predicted == gold)
    answered, true = (counts @ (side[:, None] == classes) for side in (predicted, gold))
    spread = (total**2 - (answered**2).sum(1)) * (total**2 - (true**2).sum(1))
    return (right * total - (answered * true).sum(1)) / np.sqrt(np.where(spread <= 0, np.inf, spread))


METRICS: Mapping[str, Metric] = {
    "accuracy": lambda counts, predicted, gold: counts @ (predicted == gold) / counts.sum(1),
    "f1": _f1,
    "matthews": _matthews,
    "pearson": lambda counts, *sides: correlation(
        counts, *(np.broadcast_to(one, counts.shape) for one in sides)
    ),
    "spearman": lambda counts, *sides: correlation(counts, *(centred_ranks(one, counts) for one in sides)),
    MEAN: lambda counts, predicted, gold: counts @ predicted / counts.sum(1),
}
_OVER: Mapping[str, Callable[..., np.ndarray]] = {"mean": np.mean, "median": np.median}
