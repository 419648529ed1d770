"""Differences of models on the sentence pairs of STS, with intervals over the pairs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from finetune.encoders.models import EmbeddingModel
from finetune.report.cells import Block, Cell, Row, Table
from finetune.sts.scores import PairScores, StsEvaluator
from finetune.sts.tasks import SEVEN_TASKS
from pretrain.telemetry.intervals import LEVEL, RESAMPLES, Interval, Resampled, interval, interval_text

AVERAGE = "7 tasks"


@dataclass(frozen=True)
class Scored:
    """A model's Spearman correlation x 100, and its difference to the first's; None: it is the first."""

    value: float
    difference: Interval | None


def model_pairs(model: EmbeddingModel, evaluator: StsEvaluator, tasks: Sequence[str] = ()) -> PairScores:
    """Return every pair's gold score and cosine by a model, of tasks; none: of all that are available."""
    pairs = PairScores()

    def encode(texts: list[str]) -> dict[str, np.ndarray]:
        return {model.pooling: model.encode(texts)}

    evaluator.evaluate_poolings(encode, evaluator.choose(tasks or None), pairs)
    return pairs


def sts_differences(pairs: Mapping[str, PairScores]) -> dict[str, dict[str, Scored]]:
    """Return model -> task -> figure and difference; `AVERAGE` too, where all seven tasks are there.

    Every draw of a task's pairs is the same for all models, so that a difference is paired; tasks are drawn
    independently of each other.

    Args:
        pairs: model -> every pair's gold score and cosine, of one pooling.
    """
    names = list(pairs)
    tasks = [key.removesuffix("/gold") for key in pairs[names[0]] if key.endswith("/gold")]
    drawn: dict[str, np.ndarray] = {}  # task -> [models, draws + 1], the last of the pairs as they are
    for task in tasks:
        resampled = Resampled(task, pairs[names[0]][f"{task}/gold"])
        drawn[task] = resampled.spearman([_cosines(pairs[name], task) for name in names])
    if all(task in drawn for task in SEVEN_TASKS):
        drawn[AVERAGE] = np.mean([drawn[task] for task in SEVEN_TASKS], axis=0)
    return {
        name: {task: _scored(of_task, number) for task, of_task in drawn.items()}
        for number, name in enumerate(names)
    }


def _cosines(pairs: PairScores, task: str) -> np.ndarray:
    (key,) = (key for key in pairs if key.startswith(f"{task}/") and key != f"{task}/gold")
    return pairs[key]


def _scored(of_task: np.ndarray, number: int) -> Scored:
    value = float(of_task[number, -1])
    if number == 0:
        return Scored(value, None)
    apart = of_task[number] - of_task[0]
    return Scored(value, interval(float(apart[-1]), None, apart[:-1] - apart[-1]))


def difference_table(found: Mapping[str, Mapping[str, Scored]]) -> Table:
    """Return the table for the page: a model's figures, and below them its differences to the first's."""
    names = list(found)
    tasks = list(found[names[0]])
    table = Table(
        "sts-differences",
        f"STS, and what is left when {names[0]}'s figures are taken away",
        f"Spearman x 100 of cosines. In brackets the {100 * LEVEL:.0f}% interval over the sentence pairs "
        f"({RESAMPLES:,} draws, the same for all models); ~: it holds 0. Other training seeds are not in it.",
        tasks,
        [],
    )
    rows: list[Row] = []
    for name in names:
        rows.append(Row(name, [Cell(found[name][task].value) for task in tasks]))
        if name != names[0]:
            rows.append(
                Row(f"less {names[0]}", [Cell(text=_text(found[name][task].difference)) for task in tasks])
            )
    table.blocks.append(Block("", rows))
    return table


def _text(difference: Interval | None) -> str:
    return "" if difference is None else interval_text(difference.mean, difference.low, difference.high)


def summary_lines(found: Mapping[str, Mapping[str, Scored]], tasks: Sequence[str]) -> list[str]:
    """Return a line a model, for the terminal."""
    first, *others = found
    lines = [f"{first}: " + ", ".join(f"{task} {found[first][task].value:.2f}" for task in tasks)]
    for name in others:
        of_model = found[name]
        shown = [f"{task} {of_model[task].value:.2f}, {_text(of_model[task].difference)}" for task in tasks]
        lines.append(f"{name}: " + "; ".join(shown))
    return lines
