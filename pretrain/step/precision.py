"""Arithmetic of the encoder: float32, bfloat16, or float16 with a dynamic loss scale."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""`train.precision` -> type of the encoder's products."""

SMALLEST_SCALE, LARGEST_SCALE = 2.0**-14, 2.0**24


def factor_of(module: nn.Module) -> Tensor | None:
    """Return what the hooks of `LossScale` divide gradients of a module's parameters by; None: nothing."""
    divisors = module.__dict__.get("gradient_divisors")
    return divisors[-1] if divisors else None


class LossScale:
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018), for float32 parameters under autocast.

    Losses that pass through float16 are multiplied by `value` before they go backward, within `applied()`.
    Meanwhile a hook on every parameter divides its float32 gradient by the same value as soon as it exists.
    So accumulation, reduction, clipping and the optimizer see true gradients at every ZeRO stage, and only a
    gradient that overflowed float16 shows, as inf or NaN, in the norm. Losses that are float32 throughout go
    backward outside `applied()`, as they are.

    The hooks are on all parameters, not on the encoder's alone: a loss through float16 may reach others
    (DiffCSE's discriminator). A module has them once, whatever scales are made for it.

    The scale lies on the parameters' device and is never read in a step: a host that waited for it would
    leave the device idle.
    """

    def __init__(self, module: nn.Module, value: float = 2.0**16, growth_interval: int = 1000):
        device = next(module.parameters()).device
        self.value = torch.full((), value, device=device)
        self.growth_interval = growth_interval
        self._good_steps = torch.zeros((), dtype=torch.long, device=device)
        divisors: list[Tensor] = module.__dict__.get("gradient_divisors", [])
        self._divisors = divisors
        if "gradient_divisors" not in module.__dict__:
            module.__dict__["gradient_divisors"] = divisors
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(
                        lambda gradient: gradient / divisors[-1] if divisors else gradient
                    )

    @contextmanager
    def applied(self, weight: float = 1.0) -> Iterator[Tensor]:
        """Yield the factor for a loss that goes backward here; parameters' gradients are divided by it.

        weight: of the loss, which their gradients are multiplied by.
        """
        self._divisors.append(self.value / weight)
        try:
            yield self.value
        finally:
            self._divisors.pop()

    def update(self, finite: Tensor) -> None:
        """Halve the scale after an overflow (a skipped step), double it after `growth_interval` good steps.

        finite: bool, on the scale's device; it is not read. Below `SMALLEST_SCALE` the loss itself cannot be
        finite, and the caller should give up.
        """
        self._good_steps = torch.where(finite, self._good_steps + 1, 0)
        grows = finite & (self._good_steps % self.growth_interval == 0)
        grown = torch.where(grows, (self.value * 2).clamp(max=LARGEST_SCALE), self.value)
        self.value = torch.where(finite, grown, self.value / 2)

    def state(self) -> dict[str, float]:
        """Return the scale and its good steps in a row, for a checkpoint; waits for the device."""
        return {"value": float(self.value), "good_steps": int(self._good_steps)}

    def restore(self, state: dict[str, float]) -> None:
        self.value = torch.full_like(self.value, float(state["value"]))
        self._good_steps = torch.full_like(self._good_steps, int(state["good_steps"]))
