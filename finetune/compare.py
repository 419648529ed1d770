"""Compare runs or models on one page: what differs in their recipes, their curves, and their scores.

    clearly eval runs/one; clearly eval runs/other
    clearly compare runs/one runs/other --out compare

Differences are to the first model, with intervals over the test examples of evaluations that keep their
answers (`finetune.answers`). For several seeds of a recipe there is `clearly sweep`.
"""

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.answers import resampled_effects
from finetune.flags import Pooling
from finetune.nanobeir import THIRTEEN
from finetune.report.page import write_page
from finetune.report.sources import Subject, System, collect
from finetune.report.tables import Block, Cell, Table, TableRow
from finetune.results import Evaluation, figure_text
from finetune.senteval.tasks import TRANSFER
from finetune.tuning.tasks import TABLE_1
from pretrain.benchmarks.sts_tasks import SEVEN_TASKS
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import require_writable
from pretrain.telemetry.intervals import LEVEL, RESAMPLES, Interval, interval

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
        return f"no interval: {self.reason}" if self.difference is None else str(self.difference)

    def plain(self) -> dict[str, Any]:
        content: dict[str, Any] = {"metric": self.metric, "value": self.value}
        if (apart := self.difference) is not None:
            content |= {"difference": apart.mean, "low": apart.low, "high": apart.high}
        return content | ({"reason": self.reason} if self.reason else {})


OfTask = dict[str, Compared]
"""Model -> its figure, for the models that have one; the first model is one of them."""


def example_differences(evaluations: Mapping[str, Mapping[str, Evaluation]]) -> dict[str, dict[str, OfTask]]:
    """Return evaluation -> task -> model -> figure and difference to the first, if both keep answers."""
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
        best_first = sorted(
            subject.evaluations.values(),
            key=lambda one: (one.pooling != pooling, one.pooling != (one.trained_pooling or "mean")),
        )
        by_name = {one.evaluation: one for one in best_first[::-1]}
        chosen[label] = {name: by_name[name] for name, _ in subject.evaluations}
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
            of_tasks = [drawn.get(one, {}) for one in AVERAGES[task]]
            whole = [model for model in of_tasks[0] if all(model in one for one in of_tasks)]
            drawn[task] = {model: np.mean([one[model] for one in of_tasks], axis=0) for model in whole}
            reasons = dict.fromkeys(of_models, "not all of its tasks have an interval")
        else:
            answers = {model: one.answers for model, one in of_models.items()}
            names = (f"{name} {task}/{part}" for part in itertools.count())
            drawn[task], reasons = resampled_effects(names, answers, first)
        found[task] = {first: Compared(result.metric, result.value)}
        for model in [model for model in of_models if model != first]:
            one, difference, reason = of_models[model], None, reasons.get(model, "")
            if one.value is None or result.value is None:  # as files have what is not a number
                reason = "a figure is not a number"
            elif one.metric != result.metric:
                reason = f"{one.metric} here, {result.metric} of the first"
            elif {model, first} <= drawn[task].keys():
                noise = drawn[task][model] - drawn[task][first]
                difference, reason = interval(one.value - result.value, None, noise), ""
            found[task][model] = Compared(one.metric, one.value, difference, reason)
    return found


def _table(
    name: str, of_tasks: Mapping[str, OfTask], evaluations: Mapping[str, Mapping[str, Evaluation]]
) -> Table:
    """Return the table of an evaluation: a row a task, a column a model and one its difference."""
    protocols = {model: one[name].protocol for model, one in evaluations.items() if name in one}
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


def example_lines(evaluations: Mapping[str, Mapping[str, OfTask]]) -> list[str]:
    """Return the lines for the terminal: for each evaluation and model one line per task."""
    lines = []
    for name, of_tasks in evaluations.items():
        models = dict.fromkeys(model for of_models in of_tasks.values() for model in of_models)
        first, *others = models
        for model in others:
            lines.append(f"{name}: {model}, less {first} [95% interval]")
            rows = {task: of_models[model] for task, of_models in of_tasks.items() if model in of_models}
            width = max(map(len, rows))
            lines += [
                f"  {task.ljust(width)}  {figure_text(one.value):>6}  {one.text}"
                for task, one in rows.items()
            ]
    return lines


def compare(*models: str, out: Path = Path("compare"), pooling: Pooling = "") -> None:
    """Write one page on what differs between runs or models: recipes, curves, scores with intervals.

    Args:
        models: two or more; differences are to the first.
        out: folder for compare.html and compare.json.
        pooling: which figures are compared, of models that were evaluated with several; default: those of
            the pooling that the model was trained with.
    """
    places = {os.path.realpath(model) if os.path.exists(model) else model for model in models}
    if len(places) < 2 or len(places) < len(models):
        raise UserError("name two or more different runs or models: clearly compare runs/one runs/other")
    require_writable(out)
    subjects = _subjects(models)
    systems = [System(name, [subject]) for name, subject in subjects.items()]
    evaluations = choose_poolings(subjects, pooling)
    examples = example_differences(evaluations)
    plain = {
        name: {
            task: {model: one.plain() for model, one in of_task.items()} for task, of_task in tasks.items()
        }
        for name, tasks in examples.items()
    }
    introduction = [
        ", ".join(system.label for system in systems) + ".",
        "Intervals are over the benchmarks' sentence pairs and test examples. Two runs of one recipe differ "
        "by their seeds too: clearly sweep measures that.",
    ]
    differences = [_table(name, of_tasks, evaluations) for name, of_tasks in examples.items()]
    content = {"models": list(models), "examples": plain}
    write_page(out / "compare", "Comparison", introduction, systems, content, differences)
    for line in example_lines(examples):
        print(line)
    print(f"page: {(out / 'compare.html').resolve()}")


def _subjects(models: tuple[str, ...]) -> dict[str, Subject]:
    """Return label -> what is known of each model: of a run its recipe, curves and results."""
    subjects = []
    for model in models:
        several = collect([model])
        if len(several) > 1:
            raise UserError(f"{model} holds {len(several)} runs or models; name those to compare")
        subjects += several
    names = [subject.name for subject in subjects]
    return {
        subject.name if names.count(subject.name) == 1 else model: subject
        for model, subject in zip(models, subjects)
    }


if __name__ == "__main__":
    cli.run(compare)
