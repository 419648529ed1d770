"""Gradients in memory that stays: where CUDA graphs add them, and where ZeRO 1's updates read them."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import Parameter


class Gradients:
    """The gradients of a model's trained parameters, each of which lies where it lay in the step before."""

    def __init__(self, engine):
        """At ZeRO 1 they lie one after another, as DeepSpeed lays the weights, group by group."""
        self.parameters = [p for p in engine.module.parameters() if p.requires_grad]
        self._zero = engine.optimizer if int(engine.zero_optimization_stage()) == 1 else None

    @cached_property
    def groups(self) -> list[Tensor]:
        """The gradients of each of ZeRO 1's groups of parameters, as one vector."""
        assert self._zero is not None
        return [torch.zeros_like(weights) for weights in self._zero.bit16_groups_flat]

    @cached_property
    def pairs(self) -> list[tuple[Parameter, Tensor]]:
        """Every trained parameter, and where its gradient lies."""
        if self._zero is None:
            return [(parameter, torch.zeros_like(parameter)) for parameter in self.parameters]
        return [
            # the weights of a group fill a storage
            (p, group[p.storage_offset() : p.storage_offset() + p.numel()].view_as(p))
            for parameters, group in zip(self._zero.bit16_groups, self.groups, strict=True)
            for p in parameters
        ]

    def forget(self) -> None:
        """Let go of the memory, unless updates read it."""
        if self._zero is None:
            self.__dict__.pop("pairs", None)

    def keep(self, pairs: Sequence[tuple[Parameter, Tensor]] | None = None) -> None:
        """Put gradients where they belong, and zeros where a parameter has none; pairs: None for all."""
        others = [pair for pair in pairs or self.pairs if pair[0].grad is not pair[1]]
        if first := [own for parameter, own in others if parameter.grad is None]:
            torch._foreach_zero_(first)
        if rest := [(own, p.grad) for p, own in others if p.grad is not None]:
            torch._foreach_copy_(*zip(*rest))
        for parameter, own in others:
            parameter.grad = own
