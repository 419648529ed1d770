"""Working copies of parameters: what passes read, cast together once for as long as the parameters stay.

A pass reads a copy by a node of its graph, which takes the gradient back to the parameters, where autograd
adds it; or as a leaf, so that the gradients of all copies are added together behind the pass.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Masters = tuple[Tensor, ...]
Read = tuple[Masters, torch.dtype, int]
"""Parameters one under the other, a type, and a multiple of rows: filled up with zeros to it."""


class WorkingCopies:
    """Copies of parameters that do not change."""

    def __init__(self, known: dict[Read, None]):
        """known: the reads of earlier passes, which are made together; new ones are noted in it."""
        self._known = known
        self._copies: dict[Read, Tensor] = {}

    def read(self, masters: Masters, dtype: torch.dtype, leaf: bool = False, multiple: int = 1) -> Tensor:
        """Return a copy, as a leaf or by a node; without either a parameter that needs no copy."""
        if not leaf and len(masters) == multiple == 1 and masters[0].dtype == dtype:
            return masters[0]
        read = masters, dtype, multiple
        if read not in self._copies:
            self._known[read] = None
            self._make([r for r in self._known if r[1] == dtype and r not in self._copies])
        copy = self._copies[read]
        return copy if leaf else _WorkingCopy.apply(copy.detach(), *masters)  # no gradient for the leaf

    @torch.no_grad()
    def _make(self, reads: list[Read]) -> None:
        pairs: list[tuple[Tensor, Tensor]] = []
        for masters, dtype, multiple in reads:
            copy, rows = masters[0].detach(), [len(part) for part in masters]
            filler = -sum(rows) % multiple
            if len(rows) > 1 or filler or copy.dtype != dtype:
                make = copy.new_zeros if filler else copy.new_empty
                copy = make((sum(rows) + filler, *copy.shape[1:]), dtype=dtype)
                pairs += zip(copy[: sum(rows)].split(rows), masters)
            trained = any(part.requires_grad for part in masters)
            self._copies[masters, dtype, multiple] = copy.requires_grad_(trained)
        if len(reads) == 1:  # in a CUDA graph: a short list fills no GPU
            for part, master in pairs:
                part.copy_(master)
        elif pairs:
            torch._foreach_copy_(*zip(*pairs))

    @torch.no_grad()
    def add_gradients(self, factor: Tensor | None) -> None:
        """Add the gradients of leaves to the parameters' own, divided by a factor where there is one."""
        found: list[tuple[Tensor, Tensor]] = []
        for (masters, *_), copy in self._copies.items():
            if copy.grad is not None:
                parts = zip(masters, copy.grad.split([len(part) for part in masters]))
                found += [(part, gradient) for part, gradient in parts if part.requires_grad]
                copy.grad = None
        wide = [g if g.dtype == part.dtype else torch.empty_like(part) for part, g in found]
        if narrow := [(own, g) for own, (_, g) in zip(wide, found) if own is not g]:
            torch._foreach_copy_(*zip(*narrow))
        if found and factor is not None:
            torch._foreach_div_(wide, factor)  # nobody else has them
        pairs = [(part, gradient) for (part, _), gradient in zip(found, wide)]
        assert len({id(part) for part, _ in pairs}) == len(pairs)  # each is read in one way
        if known := [(part.grad, gradient) for part, gradient in pairs if part.grad is not None]:
            torch._foreach_add_(*zip(*known))
        for part, gradient in pairs:
            part.grad = gradient.detach() if part.grad is None else part.grad


class _WorkingCopy(torch.autograd.Function):
    """A copy as a node of a graph; gradients come back in the parameters' own types."""

    @staticmethod
    def forward(ctx: Any, copy: Tensor, *masters: Tensor) -> Tensor:
        ctx.rows, ctx.dtypes = [len(part) for part in masters], [part.dtype for part in masters]
        return copy.detach()  # what is returned becomes a node of this graph

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # The first one's type for all, so that one launch converts them.
        wide = gradient[: sum(ctx.rows)].to(ctx.dtypes[0])
        return None, *(part.to(kind) for part, kind in zip(wide.split(ctx.rows), ctx.dtypes))
