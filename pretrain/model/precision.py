"""Arithmetic of the encoder: float32, bfloat16, or float16 with a dynamic loss scale."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""`train.precision` -> type of the encoder's products."""


class LossScale:
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018), for float32 parameters under autocast.

    Losses that pass through float16 are multiplied by `value` before they go backward, within `applied()`.
    Meanwhile a hook on every parameter divides its float32 gradient by the same value as soon as it exists.
    So accumulation, reduction, clipping and the optimizer see true gradients at every ZeRO stage, and only a
    gradient that overflowed float16 shows, as inf or NaN, in the norm. Losses that are float32 throughout go
    backward outside `applied()`, as they are.

    The hooks are on all parameters, not on the encoder's alone: a loss through float16 may reach others
    (DiffCSE's discriminator).
    """

    def __init__(self, module: nn.Module, value: float = 2.0**16, growth_interval: int = 1000):
        self.value = value
        self.growth_interval = growth_interval
        self.good_steps = 0
        self._divisor = 1.0
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_hook(lambda gradient: gradient / self._divisor)

    @contextmanager
    def applied(self) -> Iterator[float]:
        """Yield the factor for a loss that goes backward here; parameters' gradients are divided by it."""
        self._divisor = self.value
        try:
            yield self.value
        finally:
            self._divisor = 1.0

    def update(self, finite: bool) -> None:
        """Halve the scale after an overflow (a skipped step), double it after `growth_interval` good steps.

        Raises:
            FloatingPointError: the scale fell below 2**-14; the loss itself is not finite.
        """
        if not finite:
            self.value, self.good_steps = self.value / 2, 0
            if self.value < 2.0**-14:
                raise FloatingPointError("gradients overflow float16 at every loss scale")
        else:
            self.good_steps += 1
            if self.good_steps % self.growth_interval == 0:
                self.value = min(self.value * 2, 2.0**24)

    def state(self) -> dict[str, float]:
        return {"value": self.value, "good_steps": self.good_steps}

    def restore(self, state: dict[str, float]) -> None:
        self.value, self.good_steps = float(state["value"]), int(state["good_steps"])


def gradient_norm(parameters) -> float:
    """L2 norm over all gradients, for parameters held whole (ZeRO 0); inf or NaN where one is not finite."""
    norms = [torch.linalg.vector_norm(p.grad) for p in parameters if p.grad is not None]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else math.nan
