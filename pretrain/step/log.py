"""Turn each step's numbers into rows of metrics and alarms, a step late."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor

from pretrain.common.ranks import gathered, host_group, is_alone
from pretrain.common.transfer import Numbers
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch
from pretrain.data.damage import describe_substitution
from pretrain.objectives import WholeObjective
from pretrain.step.faults import Faults, StepNumbers, steadier_settings
from pretrain.step.precision import LossScale
from pretrain.step.progress import Progress
from pretrain.step.whole_batch import StepResult
from pretrain.telemetry.monitors import Monitor
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch

_LOSS, _MEASURE = "loss ", "measure "  # what the names of these numbers of a step begin with

MLM = "mlm"  # the loss that is a mean over masked tokens
GROUPS = ("loss", "measures", "norm", "counts")
OWN_PARTS = ("data", "encode", "backward")
"""Parts of a step in which no rank waits for another; but at ZeRO 3 ranks gather parameters within them."""
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

        loss: name -> mean. gradient_norm, gradient_norm_max: nan if no step was applied. masked_tokens,
        micro_batches (of views and of masked originals, per rank): means per step. And every measure.
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


def slowest_rank(seconds: Sequence[float]) -> dict[str, Any]:
    """Return what a row of metrics says of the rank that the others wait for at every step.

    seconds: of each rank, in `OWN_PARTS` of the row's steps.
    """
    median = statistics.median_low(seconds)
    if not median:
        return {}
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    return {"slowest_rank": {"rank": slowest, "over_median": round(seconds[slowest] / median, 3)}}


def is_due(step: int, every: int) -> bool:
    """Return whether something done every `every` steps (0: never) is due."""
    return bool(every) and step % every == 0


@dataclass
class _QueuedStep:
    """A step whose numbers have not come yet. row: what a row of metrics that it ends says besides them."""

    number: int
    batch: RankBatch
    result: StepResult
    rate: float
    coming: Numbers
    ends_row: bool
    row: dict[str, Any]


@dataclass(eq=False)
class StepLog:
    """Queue the numbers of a step, and log them when they have come.

    Reading a step's numbers waits until a GPU has made them. So `add` queues them for the way to the host,
    and `write` reads them, when the next step has been queued, or when somebody wants to know them.

    extra_metrics: number of steps done -> what a row of metrics holds besides.
    """

    config: Config
    progress: Progress
    telemetry: Telemetry
    faults: Faults
    clock: Stopwatch
    scale: LossScale | None
    objective: WholeObjective
    extra_metrics: Callable[[int], Mapping[str, Any]]

    def __post_init__(self) -> None:
        config, self.sizes = self.config, self.config.batch_sizes
        self.window = Window(self.progress.window)
        self.monitor = Monitor(
            explosion=config.train.faults.spike_factor,
            advice=steadier_settings(config),
            terms=config.objective.sections,
            quiet=config.train.log_every,
            state=self.progress.monitor,
        )
        self._queued: _QueuedStep | None = None

    def add(
        self,
        batch: RankBatch,
        result: StepResult,
        rate: float,
        norm: Tensor | float,
        applied: Tensor,
        ends_row: bool,
    ) -> None:
        """Take a step that `progress` has counted already; the one before must have been written.

        rate: the learning rate. norm, applied: as `Update.apply` gives them.
        """
        progress = self.progress
        measures = dict(result.measures)
        # rank 0 alone writes rows, checkpoints (with the window), and alarms
        if result.views is not None and dist.get_rank() == 0:
            views = result.views[:2]
            measures |= self.monitor.measure(views, result.lengths, result.negatives, spectrum=ends_row)
        numbers: dict[str, Tensor | float] = {"norm": norm, "applied": applied}
        numbers |= {f"{_LOSS}{name}": value for name, value in result.losses.items()}
        numbers |= {f"{_MEASURE}{name}": value for name, value in measures.items()}
        if self.scale is not None:
            numbers["scale"] = self.scale.value
        result.views = None  # the next step needs the memory
        row: dict[str, Any] = {"lr": rate, "tokens": progress.tokens}
        if ends_row:
            parts = self.clock.seconds()
            whole = sum(parts.values())
            row["seconds"] = progress.seconds
            row["time"] = {part: seconds / whole for part, seconds in parts.items() if whole}
            row |= self.extra_metrics(progress.step)
            row["ledger"] = {name: part for name, part in progress.ledger.items() if name != "last"}
            if not is_alone():
                row |= slowest_rank(gathered(sum(parts.get(part, 0.0) for part in OWN_PARTS), host_group()))
            if self.sizes.growth_steps:
                row["global_batch"] = self.sizes.at_step(progress.step - 1)
        self._queued = _QueuedStep(progress.step, batch, result, rate, Numbers(numbers), ends_row, row)

    def write(self) -> None:
        """Log the step that was added last, unless that has been done. Raises OverBudget.

        A step with a fault is no part of a row's means, and has a record of its own.
        """
        if self._queued is None:
            return
        step, self._queued = self._queued, None
        result, numbers = step.result, step.coming.read()
        losses, measures = _of(numbers, _LOSS), _of(numbers, _MEASURE)
        norm, applied = numbers["norm"], bool(numbers["applied"])
        self.progress.skipped_steps += not applied
        read = StepNumbers(step.number, step.batch, losses, norm, applied, numbers.get("scale"))
        sound = self.faults.judge(read)
        sequences = self.sizes.at_step(step.number - 1)
        self.telemetry.advance(step.number, result.tokens, sequences, step.coming.came)
        for row in result.substitutions:
            self.telemetry.warn(describe_substitution(row))
        if sound:
            self.window.add(losses, norm, measures, result.masked_tokens, result.micro_batches)
        alarms = [self.monitor.alarm_of_step(step.number, norm) if applied else None]
        if step.ends_row and self.window.steps:
            metrics = self.window.close() | step.row
            metrics["skipped_steps"] = self.progress.skipped_steps
            weights, steps = self.objective.weights, self.config.train.steps
            risen = weights(step.number - 1) == weights(steps - 1)  # all losses have their full weight
            alarms += self.monitor.alarms_of_row(step.number, metrics["loss"], metrics, risen)
            self.telemetry.log(step.number, metrics)
        for alarm in filter(None, alarms):
            self.telemetry.warn(alarm)


def _of(numbers: dict[str, float], prefix: str) -> dict[str, float]:
    """Return the numbers whose name begins with `prefix`, by the rest of their name."""
    return {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
