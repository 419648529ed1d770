"""What is done about a step whose loss or gradient is not finite, or whose gradient is far too large.

Its update is left out on all ranks (`pretrain.step.update`), which costs the run a batch. It counts: a step
is written down, with the sequences of its batch, and against a budget (`train.faults.skip`). A run over its
budget is ill, not unlucky: `OverBudget` ends the loop, with what could be found out, and
`pretrain.start.resume` returns to an earlier checkpoint or ends the run.

The numbers of a step are read a step late (`pretrain.step.log`), so that one more step may have been made
when its fault is known. That does no harm: the step with the fault has left nothing behind.
"""

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from pretrain.common.ranks import gathered
from pretrain.config.run import Config, FaultsConfig
from pretrain.data.batch import RankBatch
from pretrain.step.precision import SMALLEST_SCALE
from pretrain.step.progress import Progress
from pretrain.step.update import Update
from pretrain.step.whole_batch import WholeBatch
from pretrain.telemetry.run import Telemetry

NORMS = 100
"""Steps whose median of gradient norms is the running one."""
LEAST_NORMS = 10
"""With fewer, a median says nothing, and no norm is a spike."""
TOGETHER = 10
"""Faults with fewer steps between them are of one series: what led to the first led to all."""

WITHIN = 1000
"""Steps over which `train.faults.skip` counts."""

SHOWN = 3
"""Texts in a report, of each rank."""

Decode = Callable[[Sequence[int]], str]
"""Gives the text of token ids."""


@dataclass
class Finding:
    """What is known of a batch whose loss or gradient was not finite.

    sequences: numbers in their split, of the global batch, lane by lane. broken: those of them whose vectors
    were not finite, if not all were. texts: (sequence, text) of some, of broken ones first.
    forward, backward: `rank 1: MODULE`, where it began in the forward pass, and `rank 1: PARAMETER` whose
    gradient was the first; empty if there was none. again: whether it was computed again.
    """

    sequences: list[int]
    broken: list[int] = field(default_factory=list)
    texts: list[tuple[int, str]] = field(default_factory=list)
    forward: list[str] = field(default_factory=list)
    backward: list[str] = field(default_factory=list)
    again: bool = True

    def lines(self) -> list[str]:
        """Return it as lines of a report."""
        lines = []
        if self.again and not self.forward and not self.backward:
            lines.append("computed again, its numbers were finite: suspect a device")
        lines += [f"forward: first not finite on {where}" for where in self.forward]
        lines += [f"backward: first gradient that is not finite on {where}" for where in self.backward]
        if self.broken:
            lines.append(f"sequences whose vectors are not finite: {', '.join(map(str, self.broken))}")
        lines += [f"sequence {number}: {text}" for number, text in self.texts]
        return lines


class OverBudget(Exception):
    """The run cannot go on with the parameters that it has. Raised on all ranks.

    step: the step that was one too many, from 1. since: the first of its series.
    what: a sentence. finding: what the step's batch did when it was computed again.
    """

    def __init__(self, step: int, since: int, what: str, finding: Finding) -> None:
        super().__init__(what)
        self.step, self.since, self.what, self.finding = step, since, what, finding


@dataclass(frozen=True)
class StepNumbers:
    """A step's numbers, on the host: the same on all ranks.

    number: of the step, from 1. losses: of the global batch, with "total". norm: of the gradient, NaN or
    inf if it is not finite. applied: whether the parameters were updated. scale: of float16.
    """

    number: int
    batch: RankBatch
    losses: Mapping[str, float]
    norm: float
    applied: bool
    scale: float | None = None


@dataclass(eq=False)
class Faults:
    """Judge every step of a run by `train.faults`; what it has to remember is in `progress`."""

    settings: FaultsConfig
    whole: WholeBatch
    update: Update
    telemetry: Telemetry
    progress: Progress
    decode: Decode

    def limit(self, step: int) -> float:
        """Return the largest gradient norm with which step `step` (from 1) is no spike.

        It is known when the step begins, for which the step before may not have been read: that one does not
        count, so that a resumed run decides as an unbroken one.
        """
        norms = [norm for number, norm in self.progress.norms if number < step - 1][-NORMS:]
        if self.settings.spikes == "warn" or len(norms) < LEAST_NORMS:
            return math.inf
        return self.settings.spike_factor * statistics.median(norms)

    def largest_applied(self, step: int) -> float:
        """Return the largest gradient norm with which the update of a step is made, if all is finite."""
        return self.limit(step) if self.settings.spikes == "skip" else math.inf

    def jump_to(self, step: int) -> None:
        """Count the steps before `step` as done, without having read them (`train.faults.jump`)."""
        progress = self.progress
        progress.jumped.append([progress.step, step])
        progress.step = step
        first, last = progress.jumped[-1][0] + 1, step
        self.telemetry.say(f"steps {first} to {last} are left out (train.faults.jump)")
        self.telemetry.log(step, {"jumped": {"first": first, "last": last}})

    def judge(self, step: StepNumbers) -> bool:
        """Count a step; return whether its numbers are sound.

        Raises:
            OverBudget: one fault too many.
        """
        settings, progress, number = self.settings, self.progress, step.number
        limit = self.limit(number)
        if settings.spikes != "warn" and math.isfinite(step.norm):
            progress.norms = [*progress.norms, [number, step.norm]][-NORMS - 1 :]
        what = _not_finite(step)
        if what is None and math.isfinite(step.norm) and step.norm > limit:
            what = f"the gradient norm {step.norm:.3g} is above {limit:.3g}"
        if what is None:
            return True
        progress.faults = [earlier for earlier in progress.faults if earlier > number - WITHIN]
        progress.faults.append(number)
        ids = [int(one) for part in gathered(step.batch.sequence_ids.tolist()) for one in part]
        at_once = _at_the_floor(step) or (settings.spikes == "rollback" and step.norm > limit)
        over = at_once or len(progress.faults) > settings.skip
        row = {
            "why": what,
            "losses": dict(step.losses),
            "gradient_norm": step.norm,
            "sequences": ids,
            "faults": len(progress.faults),
        }
        self.telemetry.log(number, {"left_out": row})
        self.telemetry.warn(
            f"{what} at step {number}: its update was {'made' if step.applied else 'left out, on all ranks'} "
            f"(fault {len(progress.faults)} of {settings.skip} in {WITHIN:,} steps; train.faults)"
        )
        if over:
            again = not math.isfinite(sum(step.losses.values()) + step.norm)
            finding = diagnose(self.whole, self.update, step.batch, ids, self.decode, again)
            parts = ", ".join(f"{name} {value:.4g}" for name, value in step.losses.items())
            said = f"{what} at step {number} (losses {parts}; gradient norm {step.norm:.4g})"
            if len(progress.faults) > settings.skip:
                said += (
                    f"; of the last {WITHIN:,} steps {len(progress.faults)} had a fault "
                    f"({', '.join(map(str, progress.faults))}), and train.faults.skip is {settings.skip}"
                )
            raise OverBudget(number, first_fault_of_series(progress.faults), said, finding)
        return False


def _not_finite(step: StepNumbers) -> str | None:
    broken = [name for name, value in step.losses.items() if not math.isfinite(value)]
    if broken:
        return f"the loss is not finite ({', '.join(broken)})"
    if _at_the_floor(step):
        return "gradients overflow float16 at every loss scale"
    if step.scale is None and not math.isfinite(step.norm):
        return f"a gradient is not finite (norm {step.norm})"
    return None


def _at_the_floor(step: StepNumbers) -> bool:
    return step.scale is not None and step.scale < SMALLEST_SCALE


def first_fault_of_series(faults: Sequence[int]) -> int:
    """Return the first fault of the last series.

    >>> first_fault_of_series([2, 689, 700, 710])
    700
    """
    first = faults[-1]
    for earlier in reversed(faults):
        if first - earlier > TOGETHER:
            break
        first = earlier
    return first


def steadier_settings(config: Config) -> str:
    """Name what to change if a loss or gradient is not finite: settings that a resume may change."""
    train = config.train
    ways = [
        f"lower train.lr (now {train.lr:g})",
        f"lengthen train.warmup_steps (now {train.warmup_steps})",
        f"lower train.clip (now {train.clip:g})" if train.clip else "set train.clip, as --train.clip 1",
    ]
    for key, way in config.objective.steadier.items():
        section, name = key.split(".")[1:]
        ways.append(f"{way} {key} (now {getattr(config.objective, section).effective(name):g})")
    if train.precision != "fp32":
        ways.append("--train.precision fp32")
    return ", ".join(ways[:-1]) + f" or {ways[-1]}"


# -- where a number first was not finite: the batch is computed once more -------------


def diagnose(
    whole: WholeBatch, update: Update, batch: RankBatch, ids: list[int], decode: Decode, again: bool = True
) -> Finding:
    """Compute a step once more and say where it went wrong. Collective; the model is not to be used after.

    Args:
        batch: this rank's share. ids: the sequences of the global batch, lane by lane.
        decode: token ids -> text.
        again: False: nothing was not finite; only the batch is described.
    """
    first: dict[str, tuple[int, str]] = {}
    broken: list[int] = []
    described = list(range(len(batch)))
    if again:
        whole.graphs.on = whole.adds = False  # graphs run no module, and what is added together meets no hook
        with _watched(whole.engine.module) as first:
            result = whole.compute(batch)
        if result.views is not None:
            broken = (~result.views.isfinite().all(-1).all(0)).nonzero().flatten().tolist()
        update.apply(result.losses["total"])  # clears the gradients
        start = sum(gathered(len(batch))[: whole.rank])  # ranks may differ in their number of lanes
        described = [place - start for place in broken if 0 <= place - start < len(batch)] or described
    texts = [(int(batch.sequence_ids[i]), decode(batch.original[i].tolist())) for i in described[:SHOWN]]
    ranks = gathered((first, texts))
    of_broken = [] if len(broken) == len(ids) else [ids[place] for place in broken]
    of_ranks = [text for _, of_rank in ranks for text in of_rank if not of_broken or text[0] in of_broken]
    return Finding(ids, of_broken, of_ranks, _first_of(ranks, "forward"), _first_of(ranks, "backward"), again)


@contextmanager
def _watched(model: nn.Module) -> Iterator[dict[str, tuple[int, str]]]:
    """Look at every output and every gradient inside; each look waits for the device.

    Yields what gets the first module ("forward") and the first parameter ("backward") of this rank if
    something was not finite, each with a number: 1 if what was not finite was given to it, so that another
    rank has made it.
    """
    first: dict[str, tuple[int, str]] = {}

    def look(name: str, module: nn.Module, inputs: tuple, output: Any) -> None:
        if "forward" not in first and not _finite(output):
            given, what = inputs, f"{name} ({type(module).__name__})"
            if not name:
                given, what = inputs[0].arguments, f"the losses ({inputs[0].method.__name__})"
            first["forward"] = int(not _finite(given)), what

    def look_at_gradient(name: str, gradient: Tensor) -> None:
        if "backward" not in first and not _finite(gradient):
            first["backward"] = 0, name

    hooks = [module.register_forward_hook(functools.partial(look, n)) for n, module in model.named_modules()]
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            hooks.append(parameter.register_hook(functools.partial(look_at_gradient, name)))
    try:
        yield first
    finally:
        for hook in hooks:
            hook.remove()


def _finite(values: Any) -> bool:
    return all(
        bool(torch.isfinite(value.detach()).all())
        for value in tree_leaves(values)
        if isinstance(value, Tensor) and value.is_floating_point()
    )


def _first_of(ranks: list[tuple], kind: str) -> list[str]:
    """Return what ranks have seen: of those to whom nothing broken was given, if there are such."""
    seen = [(rank, first[kind]) for rank, (first, _) in enumerate(ranks) if kind in first]
    least = min((given for _, (given, _) in seen), default=0)
    return [f"rank {rank}: {what}" for rank, (given, what) in seen if given == least]
