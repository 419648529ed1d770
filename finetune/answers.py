"""What a model answered, example by example, kept beside the figures that follow from it.

With answers, `clearly compare` can say how far the difference of two models depends on which examples a test
set happens to hold. FIGURES.answers.npz holds "TASK/given" and "TASK/gold"; the file of figures says of each
task by which metrics they give the figure, of which examples they are, and their digest.
"""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
    """Of `finetune.tuning.metrics.METRICS`, or MEAN; the task's figure is their mean."""
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
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        return f"{path} cannot be read ({error}); evaluate {task} again"
    if found.about() != about:
        return f"{path} is not of the figures beside it; evaluate {task} again"
    return found


def answers_file(figures: Path) -> Path:
    """Return the path of the answers beside a file of figures."""
    return figures.with_suffix(".answers.npz")


def answers_to_npz(answers: Mapping[str, Answers]) -> bytes:
    """Return task -> answers as an npz file."""
    arrays: dict[str, np.ndarray] = {}
    for task, one in answers.items():
        arrays |= {f"{task}/given": one.predicted, f"{task}/gold": one.gold}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


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
