"""A module that follows another: m <- gamma m + (1 - gamma) p (He et al. 2020, "MoCo", equation 2)."""

import copy

import torch
from torch import Tensor, nn


class MomentumEncoder(nn.Module):
    """A copy of `source` that is never trained and has no dropout; `follow` moves it towards the source.

    Its parameters are saved with the model's. With ZeRO 3 both are cut in the same way, and each rank moves
    its part.
    """

    def __init__(self, source: nn.Module, momentum: float):
        super().__init__()
        self.copy = copy.deepcopy(source).requires_grad_(False).eval()
        self.momentum = momentum
        self._source = [source]  # in a list: not a submodule of this one

    def train(self, mode: bool = True) -> "MomentumEncoder":
        return super().train(False)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.copy(*inputs)

    @torch.no_grad()
    def follow(self) -> None:
        """One step of the average, in place."""
        for mine, theirs in zip(self.copy.parameters(), self._source[0].parameters(), strict=True):
            part, towards = (getattr(p, "ds_tensor", p.data) for p in (mine, theirs))
            part.lerp_(towards.to(part.dtype), 1 - self.momentum)
        for mine, theirs in zip(self.copy.buffers(), self._source[0].buffers(), strict=True):
            mine.copy_(theirs)
