"""The end of a step: gradients are clipped and applied, unless one, or a loss, is not finite.

At ZeRO 0 with torch's AdamW the host reads nothing: norm, clip and the check stay on the device, where the
optimizer itself leaves out an update (`found_inf`). Other optimizers cannot, so the host waits for the check;
at ZeRO 1 to 3 DeepSpeed does, which also clips there.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pretrain.model.precision import LossScale, gradient_norm


class Update:
    """Clip, step and clear an engine's gradients."""

    def __init__(self, engine, clip: float, scale: LossScale | None = None):
        """
        Args:
            clip: largest gradient norm; 0: any. (ZeRO 1 to 3 take it from the engine's configuration.)
            scale: of float16, which follows what is applied; None: after an update that was left out no
                other is made.
        """
        self.engine, self.clip, self.scale = engine, clip, scale
        self.partitioned = int(engine.zero_optimization_stage()) > 0
        self.skips = isinstance(engine.optimizer, torch.optim.AdamW)
        self._sound = torch.ones((), dtype=torch.bool, device=engine.device)

    def apply(self, loss: Tensor) -> tuple[Tensor | float, Tensor]:
        """Step, if `loss` (a scalar) and all gradients are finite.

        Returns:
            The global gradient norm, NaN where there is none, and whether the step was applied: bool, on the
            device.
        """
        with torch.no_grad():
            norm, applied = self._by_deepspeed() if self.partitioned else self._whole(loss)
            if self.scale is not None:
                self.scale.update(applied)
            else:
                self._sound = applied
        return norm, applied

    def _whole(self, loss: Tensor) -> tuple[Tensor | float, Tensor]:
        gradients = [p.grad for p in self.engine.module.parameters() if p.grad is not None]
        if not gradients:
            self.engine.zero_grad()
            return math.nan, torch.zeros_like(self._sound)
        norm = gradient_norm(gradients)
        finite = norm.isfinite() & loss.isfinite() & self._sound
        if not self.skips and not finite:
            self.engine.zero_grad()
            return norm, finite
        if self.clip:
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.engine.optimizer.found_inf = (~finite).float()
        self.engine.step()
        return norm, finite

    def _by_deepspeed(self) -> tuple[Tensor | float, Tensor]:
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        overflow = bool(getattr(self.engine.optimizer, "overflow", False))
        applied = torch.full_like(self._sound, not overflow)
        if norm is None or overflow:
            return math.nan, applied
        on_device = isinstance(norm, Tensor) and norm.device == self._sound.device
        return norm if on_device else float(norm), applied
