"""Which units are done within a budget, decided again whenever one has ended."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from finetune.evaluate.costs import Costs
from finetune.evaluate.running import Running
from finetune.evaluate.suites import Unit
from pretrain.telemetry.formats import format_seconds


@dataclass(frozen=True)
class Choice:
    """Units to do, and those left out with the reason."""

    chosen: list[Unit]
    left_out: dict[Unit, str]
    """Units that do not fit, and may once others have ended."""
    refused: dict[Unit, str] = field(default_factory=dict)
    """Units that cannot be done."""


def choose(units: Sequence[Unit], costs: Costs, seconds: float, busy: Sequence[float]) -> Choice:
    """Return those of `units` that processes finish within so many seconds, the first ones first.

    Each goes to the process that is free first; what would end too late is left out, and cheaper ones behind
    it may still fit.

    Args:
        busy: for each process the seconds until it is free.
    """
    ends = list(busy)
    choice = Choice([], {})
    for unit in units:
        cost = costs.estimate(unit)
        first = min(range(len(ends)), key=ends.__getitem__)
        if ends[first] + cost <= seconds:
            ends[first] += cost
            choice.chosen.append(unit)
        else:
            alone = cost > seconds
            choice.left_out[unit] = "longer than the budget" if alone else "no time left beside the others"
    return choice


class Plan:
    """The units of a suite that are still to be done, in order.

    What was chosen first goes first. What was left out takes the time that the others have left over.

    Args:
        chosen: units to do.
        left_out: units that did not fit, in the order in which they are taken.
        deadline: as `time.monotonic` has it; infinity: nothing is ever left out.
        jobs: units at a time.
        say: takes a line for each unit of which the decision has changed.
    """

    def __init__(
        self,
        chosen: Sequence[Unit],
        left_out: Sequence[Unit],
        costs: Costs,
        deadline: float,
        jobs: int,
        say: Callable[[str], None],
    ):
        self.waiting, self.left_out = list(chosen), list(left_out)
        self.costs, self.deadline, self.jobs, self.say = costs, deadline, jobs, say
        self.started: list[Unit] = []
        self._one_has_ended = False

    def take(self, running: Sequence[Running]) -> Unit | None:
        """Return the next unit to start beside those that run; None: there is none."""
        if self._one_has_ended and self.deadline < float("inf"):
            self._decide_again(running)
        self._one_has_ended = False
        if not self.waiting:
            return None
        self.started.append(self.waiting.pop(0))
        return self.started[-1]

    def one_has_ended(self) -> None:
        """Note that a unit has ended, so that it is known how long it took."""
        self._one_has_ended = True

    @property
    def count(self) -> int:
        """How many units are started by now, or will be."""
        return len(self.started) + len(self.waiting)

    def _decide_again(self, running: Sequence[Running]) -> None:
        now = time.monotonic()
        busy = [max(0.0, self.costs.estimate(one.unit) - (now - one.started)) for one in running]
        busy += [0.0] * (self.jobs - len(busy))
        before = self.waiting
        choice = choose([*before, *self.left_out], self.costs, self.deadline - now, busy)
        for unit in choice.chosen:
            if unit not in before:
                about = format_seconds(self.costs.estimate(unit))
                self.say(f"+ {unit.name}: about {about}, fits in the time that is left over")
        for unit in choice.left_out:
            if unit in before:
                self.say(f"- {unit.name}: left out, it no longer fits in the time that is left")
        self.waiting, self.left_out = choice.chosen, list(choice.left_out)
