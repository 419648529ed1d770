"""The number of sequences of each step: the same at all, or growing at first."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class BatchSizes:
    """The size of the global batch, a function of the step alone.

    It grows from `start` to `full` over `growth_steps` steps, evenly, and is a multiple of `lanes` at each of
    them: with k = (full - start) / lanes, step s < growth_steps has start + floor(k s / growth_steps) lanes.

    >>> sizes = BatchSizes(full=16, lanes=4, start=4, growth_steps=6)
    >>> sizes.at(np.arange(8)).tolist(), sizes.before(8)
    ([4, 4, 8, 8, 12, 12, 16, 16], 80)
    """

    full: int
    lanes: int
    start: int
    growth_steps: int = 0

    def at(self, steps: np.ndarray) -> np.ndarray:
        """Return the sequences of each of the steps (int64[n], from 0): int64[n]."""
        if not self.growth_steps:
            return np.full_like(steps, self.full)
        more = (self.full - self.start) // self.lanes
        return self.start + more * np.minimum(steps, self.growth_steps) // self.growth_steps * self.lanes

    def at_step(self, step: int) -> int:
        """Return the sequences of a step."""
        return int(self.at(np.array([step]))[0])

    def before(self, step: int) -> int:
        """Return the sequences of all steps before a step."""
        early = min(step, self.growth_steps)
        return int(self._sums[early]) + (step - early) * self.full

    def full_steps(self, steps: int) -> float:
        """Return how many steps of the full batch have as many sequences as the first `steps`."""
        return self.before(steps) / self.full

    def changes(self, first: int, stop: int) -> list[int]:
        """Return the steps in (first, stop) whose batch is larger than that of the step before."""
        steps = np.arange(min(first, self.growth_steps), min(stop, self.growth_steps + 1))
        larger = steps[1:][np.diff(self.at(steps)) > 0]
        return larger[(larger > first) & (larger < stop)].tolist()

    @cached_property
    def _sums(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.at(np.arange(self.growth_steps)))])
