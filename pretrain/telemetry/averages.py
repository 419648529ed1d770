"""Means over the steps since the last row of metrics.jsonl: a row is of all its steps, not of its last."""

import math
from typing import Any

MLM = "mlm"  # the loss that is a mean over masked tokens
GROUPS = ("loss", "measures", "norm", "counts")
Sums = dict[str, dict[str, list[float]]]
"""Group -> name -> [weighted sum, sum of weights]."""


class Window:
    """Sum the numbers of the steps since the last row; the loop has them on the host anyway.

    A loss is averaged over what it is a mean of: `mlm` over masked tokens, all others over steps, whose
    batches are of equal size. A loss or measure that some steps do not have is averaged over those that have
    it. The gradient norm is the mean and the maximum over steps that have a finite one: an overflow (fp16)
    has none.
    """

    def __init__(self, state: Sums | None = None) -> None:
        """state: what `state` returned at the checkpoint that the run resumes from; None: a new run."""
        self._sums: Sums = {group: {} for group in GROUPS}
        for group, sums in (state or {}).items():
            self._sums[group] = {name: list(pair) for name, pair in sums.items()}

    def state(self) -> Sums:
        """Return the sums as JSON, for a checkpoint: the row after a resume is that of an unbroken run."""
        return self._sums

    def add(
        self,
        losses: dict[str, float],
        norm: float,
        measures: dict[str, float],
        masked_tokens: int,
        micro_batches: tuple[int, int],
    ) -> None:
        """Count a step."""
        for name, value in losses.items():
            self._add("loss", name, value, masked_tokens if name == MLM else 1)
        views, masked = micro_batches
        counts = {"masked_tokens": masked_tokens, "views": views, "masked": masked}
        for group, values in (("measures", measures), ("counts", counts)):
            for name, value in values.items():
                self._add(group, name, value, 1)
        if math.isfinite(norm):
            self._add("norm", "mean", norm, 1)
            largest = self._sums["norm"].get("largest", [norm])
            self._sums["norm"]["largest"] = [max(norm, largest[0]), 1]

    def _add(self, group: str, name: str, value: float, weight: float) -> None:
        total = self._sums[group].setdefault(name, [0.0, 0])
        total[0] += value * weight
        total[1] += weight

    @property
    def steps(self) -> int:
        """How many steps were counted since the last row."""
        return int(self._sums["counts"].get("views", (0, 0))[1])

    def close(self) -> dict[str, Any]:
        """Return the row's means, and start the next row.

        Returns:
            loss: name -> mean. gradient_norm, gradient_norm_max: nan if no step was applied.
            masked_tokens, micro_batches (of views and of masked originals, per rank): means per step. steps:
            how many the row has. And every measure.
        """
        means = {
            group: {name: total / max(weight, 1) for name, (total, weight) in sums.items()}
            for group, sums in self._sums.items()
        }
        counts, steps = means["counts"], self.steps
        self._sums = {group: {} for group in GROUPS}
        return {
            "loss": means["loss"],
            "gradient_norm": means["norm"].get("mean", math.nan),
            "gradient_norm_max": means["norm"].get("largest", math.nan),
            "masked_tokens": counts["masked_tokens"],
            "micro_batches": [counts["views"], counts["masked"]],
            "steps": steps,
        } | means["measures"]
