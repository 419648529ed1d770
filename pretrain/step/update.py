"""The end of a step: gradients are clipped and applied, unless one, or a loss, is not finite.

At ZeRO 0 with torch's AdamW the host reads nothing: norm, clip and the check stay on the device, where the
optimizer itself leaves out an update (`found_inf`). Other optimizers cannot, so the host waits for the check;
at ZeRO 1 to 3 DeepSpeed does, which also clips there. It leaves out what has a norm that is not finite: a
gradient is made so where the loss is not finite, or the norm is above the limit.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from pretrain.model.precision import LossScale


class Update:
    """Clip, step and clear an engine's gradients."""

    def __init__(self, engine, clip: float, scale: LossScale | None = None):
        """
        Args:
            clip: largest gradient norm; 0: any. (ZeRO 1 to 3 take it from the engine's configuration.)
            scale: of float16, which follows what is finite.
        """
        self.engine, self.clip, self.scale = engine, clip, scale
        self.partitioned = int(engine.zero_optimization_stage()) > 0
        self.skips = isinstance(engine.optimizer, torch.optim.AdamW)
        self._parameters = list(engine.module.parameters())
        if not self.partitioned:
            engine.zero_grad = engine.optimizer.zero_grad  # DeepSpeed's looks for parameters in all modules
        self._true = torch.ones((), dtype=torch.bool, device=engine.device)
        self._statistics = list(_statistics(engine.module))
        self._before = [value.clone() for value in self._statistics]

    def apply(self, loss: Tensor, limit: float = math.inf) -> tuple[Tensor | float, Tensor]:
        """Step, if `loss` (a scalar) and all gradients are finite, and their norm is at most `limit`.

        A step that is left out leaves nothing behind in parameters, in the optimizer, and in statistics of
        batch norm.

        Returns:
            The global gradient norm, NaN where there is none, and whether the step was applied: bool, on the
            device. All ranks find the same, since both are of the global batch.
        """
        with torch.no_grad():
            norm, finite, applied = (
                self._by_deepspeed(loss, limit) if self.partitioned else self._whole(loss, limit)
            )
            if self.scale is not None:
                self.scale.update(finite)
            for now, before in zip(self._statistics, self._before):
                now.copy_(before.copy_(torch.where(applied, now, before)))
        return norm, applied

    def _whole(self, loss: Tensor, limit: float) -> tuple[Tensor | float, Tensor, Tensor]:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients:
            self.engine.zero_grad()
            return math.nan, ~self._true, ~self._true
        # torch's `get_total_norm`, but for what it does to tensors of several devices
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        finite = norm.isfinite() & loss.isfinite()
        sound = finite & (norm <= limit)
        if not self.skips and not sound:
            self.engine.zero_grad()
            return norm, finite, sound
        if self.clip:
            torch._foreach_mul_(gradients, (self.clip / (norm + 1e-6)).clamp(max=1.0))
        self.engine.optimizer.found_inf = (~sound).float()
        self.engine.step()
        return norm, finite, sound

    def _by_deepspeed(self, loss: Tensor, limit: float) -> tuple[Tensor | float, Tensor, Tensor]:
        optimizer = self.engine.optimizer
        sound, before = loss.isfinite(), None
        if limit < math.inf:
            before = _partitioned_norm(optimizer)
            sound = sound & (before <= limit)
        _an_element(optimizer).masked_fill_(~sound, math.nan)
        self.engine.step()
        overflow = bool(getattr(optimizer, "overflow", False))
        applied = torch.full_like(self._true, not overflow)
        if before is not None:
            return before, loss.isfinite() & before.isfinite(), applied
        norm = self.engine.get_global_grad_norm()
        if norm is None or overflow:
            return math.nan, applied, applied
        on_device = isinstance(norm, Tensor) and norm.device == self._true.device
        return norm if on_device else float(norm), applied, applied


def _statistics(module: nn.Module) -> Iterator[Tensor]:
    """Yield the running statistics of all batch norms: one batch that is not finite would spoil them."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._NormBase):
            yield from part.buffers(recurse=False)


def _an_element(optimizer) -> Tensor:
    """Return an element, float[1], of this rank's share of the gradients that a ZeRO optimizer holds.

    It is the first of the largest part, which is no padding: that would not be overwritten by the next step.
    """
    parts = [part for parts in optimizer.averaged_gradients.values() for part in parts or ()]
    return max(parts, key=Tensor.numel).view(-1)[:1]


def _partitioned_norm(optimizer) -> Tensor:
    """Return the norm of all gradients of a ZeRO optimizer, before it steps; inf where one is not finite."""
    if hasattr(optimizer, "scaled_global_norm"):
        return optimizer.scaled_global_norm()
    from deepspeed.runtime.utils import combine_grad_norm_groups

    return combine_grad_norm_groups(optimizer._get_norm_groups())  # ZeRO 3
