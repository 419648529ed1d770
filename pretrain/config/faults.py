"""Configuration of what a run does about steps whose numbers are not finite, or are much too large."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from pretrain.config.terms import Section

Steps = Annotated[str, Field(pattern=r"^[1-9]\d*(-[1-9]\d*)?$")]
"""Steps as metrics.jsonl numbers them, from 1: `812`, or `812-900` with both ends."""


class FaultsConfig(Section):
    """A fault is a step with a loss or gradient that is not finite; with `spikes: skip`, also a spike."""

    skip: int = Field(3, ge=0)
    """faults of which only the step's update is left out, in `within` steps; one more rolls the run back"""
    within: int = Field(1000, ge=1)
    """steps over which train.faults.skip counts"""
    rollbacks: int = Field(1, ge=0)
    """how often a run returns to its last good checkpoint and leaves out the steps since then, before it
    stops with a report"""
    spikes: Literal["warn", "skip", "rollback"] = "warn"
    """a gradient norm over `spike_factor` times the running median of 100 steps: warn; skip, a fault; or roll
    back at once"""
    spike_factor: float = Field(10.0, gt=1)
    """what makes a gradient norm a spike"""
    jump: tuple[Steps, ...] = ()
    """steps that are counted and not trained: 812-900,1207. Their data is not used"""

    @field_validator("jump", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(part for part in re.split(r"[,\s]+", value) if part) if isinstance(value, str) else value

    @field_validator("jump")
    @classmethod
    def _forward(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for steps in value:
            first, _, last = steps.partition("-")
            if last and int(last) < int(first):
                raise ValueError(f"train.faults.jump: {steps} ends before it begins")
        return value

    @property
    def jumps(self) -> list[tuple[int, int]]:
        """The steps left out, as (a, b) in order: where a steps are done, b count as done.

        >>> FaultsConfig(jump="8-9,812-900,901,850").jumps
        [(7, 9), (811, 901)]
        """
        merged: list[tuple[int, int]] = []
        for first, last in sorted((int(a), int(b or a)) for a, _, b in (s.partition("-") for s in self.jump)):
            if merged and first - 1 <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(last, merged[-1][1])
            else:
                merged.append((first - 1, last))
        return merged
