"""Share the work of a whole-batch loss out over ranks that all hold the whole batch.

A loss of N anchors against N candidates costs N squared, and every rank has the gathered vectors. Under
`shared_over`, each rank computes the rows of its own share of the anchors, and sums over ranks complete loss
and gradients: N squared / W each, and two vectors of N x d on the wire. A loss knows of this only that it has
`my_rows` to do and `complete` to call; the objectives above it know nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist
from torch import Tensor

SMALLEST = 2**20
"""Logits (anchors times candidates) from which sharing is worth the wait for the other ranks."""

_shared: ContextVar[bool] = ContextVar("shared", default=False)


@contextmanager
def shared_over(ranks: int) -> Iterator[None]:
    """Share the losses computed within over the ranks of the process group.

    All ranks must enter with the same vectors, and compute the same losses in the same order.
    """
    token = _shared.set(ranks > 1)
    try:
        yield
    finally:
        _shared.reset(token)


def is_shared(anchors: int, candidates: int) -> bool:
    """Return whether a loss of that many anchors and candidates is shared out."""
    return _shared.get() and anchors * candidates >= SMALLEST


def my_rows(count: int, shared: bool) -> range:
    """Return which of `count` anchors this rank computes: a consecutive part, all where nothing is shared."""
    if not shared:
        return range(count)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return range(count * rank // ranks, count * (rank + 1) // ranks)


def complete(shared: bool, *parts: Tensor | None) -> None:
    """Sum each tensor over ranks, in place: what a rank did not compute is zero in its own."""
    if shared:
        for part in parts:
            if part is not None:
                dist.all_reduce(part)
