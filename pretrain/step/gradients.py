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
    def _places(self) -> dict[int, Tensor]:
        if self._zero is None:
            return {id(parameter): torch.zeros_like(parameter) for parameter in self.parameters}
        places = {}
        for parameters, group in zip(self._zero.bit16_groups, self.groups, strict=True):
            for parameter in parameters:
                start = parameter.storage_offset()  # the weights of a group fill a storage
                places[id(parameter)] = group[start : start + parameter.numel()].view_as(parameter)
        return places

    def of(self, parameter: Parameter) -> Tensor:
        """Return where the gradient of a parameter lies."""
        return self._places[id(parameter)]

    def forget(self) -> None:
        """Let go of the memory, unless updates read it."""
        if self._zero is None:
            self.__dict__.pop("_places", None)

    def keep(self, parameters: Sequence[Parameter] | None = None) -> None:
        """Put gradients of parameters (None: of all) where they belong, and zeros where there is none."""
        places = self._places
        pairs = [(parameter, places[id(parameter)]) for parameter in parameters or self.parameters]
        others = [pair for pair in pairs if pair[0].grad is not pair[1]]
        if first := [own for parameter, own in others if parameter.grad is None]:
            torch._foreach_zero_(first)
        if rest := [(own, p.grad) for p, own in others if p.grad is not None]:
            torch._foreach_copy_(*zip(*rest))
        for parameter, own in others:
            parameter.grad = own
