"""What a model answered, example by example, kept beside the figures that follow from it.

With answers, `clearly compare` can say how far the difference of two models depends on which examples a test
set happens to hold. FIGURES.answers.npz holds "TASK/given" and "TASK/gold"; the file of figures says of each
task by which metrics they give the figure, of which examples they are, and their digest.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pretrain.telemetry.intervals import RESAMPLES, centred_ranks, correlation, draws

Model = TypeVar("Model")

MEAN = "mean"
"""The metric of answers that are figures by themselves, such as a query's nDCG: their mean."""


@dataclass(frozen=True, eq=False)
class Answers:
    """What R runs (seeds, splits; mostly one) answered to the N examples of a task."""

    predicted: np.ndarray
    """[R, N]: int16 classes, or float32 numbers."""
    gold: np.ndarray
    """[N], of that kind."""
    metrics: tuple[str, ...]
    """Of `METRICS`; the task's figure is their mean."""
    data: str
    """`examples_digest` of the examples, in this order."""
    over: str = "mean"
    """How the figure follows from those of the runs: "mean" or "median"."""
    parts: tuple[int, ...] = ()
    """Sizes of the sets, end to end, whose figures are averaged; empty: one set."""

    @classmethod
    def of(
        cls,
        predicted: np.ndarray | Sequence[np.ndarray],
        gold: np.ndarray,
        metric: str | tuple[str, ...],
        data: str,
        **how: Any,
    ) -> "Answers":
        """Return answers [N] or [R, N] of any type, in the types that are kept; how: `over`, `parts`."""
        both = np.atleast_2d(np.asarray(predicted)), np.asarray(gold)
        kind = np.float32 if any(one.dtype.kind == "f" for one in both) else np.int16
        metrics = (metric,) if isinstance(metric, str) else metric
        return cls(both[0].astype(kind), both[1].astype(kind), metrics, data, **how)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answers) and self.about() == other.about()

    def about(self) -> dict[str, Any]:
        """Return what the file of figures says of them."""
        return {
            "metrics": list(self.metrics),
            "over": self.over,
            "parts": list(self.parts),
            "data": self.data,
            "digest": self._digest(),
        }

    def _digest(self) -> str:
        content = [self.metrics, self.over, self.parts, self.data, self.predicted.shape]
        digest = hashlib.sha256(json.dumps(content).encode())
        for array in (self.predicted, self.gold):
            digest.update(array.tobytes())
        return digest.hexdigest()


def read_answers(path: Path, task: str, about: Mapping[str, Any]) -> Answers | str:
    """Return a task's answers from their file, or why they cannot be had; about: as `Answers.about`."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            found = Answers(
                kept[f"{task}/given"],
                kept[f"{task}/gold"],
                tuple(about["metrics"]),
                about["data"],
                about["over"],
                tuple(about["parts"]),
            )
    except Exception as error:  # numpy, zipfile and zlib each raise their own
        return f"{path} cannot be read ({error}); evaluate {task} again"
    if found.about() != about:
        return f"{path} is not of the figures beside it; evaluate {task} again"
    return found


def answers_file(figures: Path) -> Path:
    """Return the path of the answers beside a file of figures."""
    return figures.with_suffix(".answers.npz")


def examples_digest(first: Sequence[str], second: Sequence[str] | None, gold: np.ndarray | None) -> str:
    """Return the sha256 of examples in their order: texts, those that they are paired with, gold answers."""
    content = [list(first), None if second is None else list(second), None if gold is None else gold.tolist()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def to_text(answers: np.ndarray) -> str:
    """Return answers [N] as text, which a run's result holds; float32 keeps all its bits.

    >>> to_text(np.array([0, 2, 1])), to_text(np.array([0.1, 2], np.float32))
    ('0 2 1', '0.100000001 2')
    """
    return " ".join(format(value, ".9g") for value in answers.tolist())


def from_text(text: str) -> np.ndarray:
    """Return the answers of `to_text`, float32[N]."""
    return np.array(text.split(), np.float32)


# -- a task's figure on draws of its examples: a draw is a count for each example, so that a metric is a few
# products of matrices for all draws at once


def resampled_effects(
    names: Iterable[str], of_models: Mapping[Model, Answers | str | None], first: Model
) -> tuple[dict[Model, np.ndarray], dict[Model, str]]:
    """Return model -> what each draw adds to its figure, float64[B], and model -> why there is none.

    Args:
        names: as of `resampled_figures`.
        first: the model whose examples those of all others have to be.
    """
    answers = {model: one for model, one in of_models.items() if isinstance(one, Answers)}
    reasons = {
        model: one or "its answers were not kept; evaluate it again (clearly eval --again)"
        for model, one in of_models.items()
        if not isinstance(one, Answers)
    }
    if first not in answers:
        return {}, {model: reasons.get(model, f"of {first}: {reasons[first]}") for model in of_models}
    reasons |= {model: why for model, one in answers.items() if (why := _why_not_paired(answers[first], one))}
    paired = {model: one for model, one in answers.items() if model not in reasons}
    figures = resampled_figures(names, list(paired.values()))
    return {model: of_draws[:-1] - of_draws[-1] for model, of_draws in zip(paired, figures)}, reasons


def _why_not_paired(first: Answers, other: Answers) -> str:
    """Return why answers cannot be paired; "" if they can."""
    if first.data != other.data or not np.array_equal(first.gold, other.gold):
        sizes = f": {len(other.gold):,}, not {len(first.gold):,}" * (len(first.gold) != len(other.gold))
        return f"not the same examples in the same order as the first model's{sizes}"
    if (first.metrics, first.parts) != (other.metrics, other.parts):
        return f"scored by {', '.join(other.metrics)}, not by {', '.join(first.metrics)}"
    return ""


def resampled_figures(
    names: Iterable[str], models: Sequence[Answers], resamples: int = RESAMPLES
) -> np.ndarray:
    """Return the figure x 100 of a task for M models on each draw and, last, as is: float64[M, B + 1].

    names: of the task's parts, or of the one set that it has; draws follow from them.
    """
    gold, sizes = models[0].gold, models[0].parts or (len(models[0].gold),)
    figures = [np.zeros((len(one.predicted), resamples + 1)) for one in models]
    for size, end, name in zip(sizes, np.cumsum(sizes), names):
        part = slice(end - size, end)
        start = 0
        for counts in draws(name, size, resamples):
            rows = slice(start, start + len(counts))
            metrics = [METRICS[key](counts, gold[part]) for key in models[0].metrics]
            for one, found in zip(models, figures, strict=True):
                for run, answers in enumerate(one.predicted):
                    of_metrics = [metric(answers[part]) for metric in metrics]
                    found[run, rows] += np.mean(of_metrics, axis=0) / len(sizes)
            start += len(counts)
    return 100 * np.stack(
        [_OVER[one.over](found, axis=0) for one, found in zip(models, figures, strict=True)]
    )


def scores_of(names: tuple[str, ...], predicted: np.ndarray, gold: np.ndarray) -> dict[str, float]:
    """Return the named metrics x 100 of classes or numbers [N]; of several also their mean, as "mean"."""
    once = np.ones((1, len(gold)))
    scores = {name: 100 * float(METRICS[name](once, gold)(predicted)[0]) for name in names}
    if len(names) > 1:
        scores["mean"] = sum(scores.values()) / len(names)
    return scores


Metric = Callable[[np.ndarray], np.ndarray]
"""From answers [N] to the figure of each draw, float64[B]; made from counts float64[B, N] and gold [N]."""


def _f1(counts: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Of class 1; 0 if neither side has it."""
    both = counts @ ((predicted == 1) & (gold == 1))
    either = counts @ ((predicted == 1) * 1.0 + (gold == 1))
    return 2 * both / np.where(either == 0, 1, either)


def _matthews(counts: np.ndarray, gold: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Gorodkin 2004, R_K, for any number of classes; 0 if one side is constant."""
    classes = np.unique(np.concatenate([predicted, gold]))
    total, right = counts.sum(1), counts @ (predicted == gold)
    answered, true = (counts @ (side[:, None] == classes) for side in (predicted, gold))
    spread = (total**2 - (answered**2).sum(1)) * (total**2 - (true**2).sum(1))
    return (right * total - (answered * true).sum(1)) / np.sqrt(np.where(spread <= 0, np.inf, spread))


def _spearman(counts: np.ndarray, gold: np.ndarray) -> Metric:
    ranks = centred_ranks(gold, counts)
    return lambda predicted: correlation(counts, centred_ranks(predicted, counts), ranks)


def _v_measure(counts: np.ndarray, gold: np.ndarray) -> Metric:
    from sklearn.metrics import v_measure_score

    drawn = [np.repeat(np.arange(len(gold)), each) for each in counts.astype(int)]
    return lambda predicted: np.array([v_measure_score(gold[rows], predicted[rows]) for rows in drawn])


METRICS: Mapping[str, Callable[[np.ndarray, np.ndarray], Metric]] = {
    "accuracy": lambda counts, gold: lambda predicted: counts @ (predicted == gold) / counts.sum(1),
    "f1": lambda *sides: partial(_f1, *sides),
    "matthews": lambda *sides: partial(_matthews, *sides),
    "pearson": lambda counts, gold: (
        lambda predicted: correlation(
            counts, *(np.broadcast_to(one, counts.shape) for one in (predicted, gold))
        )
    ),
    "spearman": _spearman,
    "v_measure": _v_measure,
    MEAN: lambda counts, gold: lambda predicted: counts @ predicted / counts.sum(1),
}
"""As fractions, not x 100: GLUE's (Wang et al. 2018, table 1), of which CLEAR's Table 1 prints means, and
`MEAN`. A correlation with a constant is 0, as scikit-learn has it for Matthews: a model that answers the same
to everything ranks nothing. None of GLUE's changes where predictions and gold change places."""
_OVER: Mapping[str, Callable[..., np.ndarray]] = {"mean": np.mean, "median": np.median}
