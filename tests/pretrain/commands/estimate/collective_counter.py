"""Count bytes that go through torch's collectives; imported before DeepSpeed, which takes the functions."""

from collections import Counter
from collections.abc import Callable

import torch
import torch.distributed as dist

KINDS = {
    "all_reduce": "all-reduce",
    "all_gather_into_tensor": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter",
}
_sent: Counter = Counter()


def count_collectives() -> Counter:
    """Return the counter: kind -> bytes of the largest tensors of the calls (gathered, or scattered)."""
    return _sent


def _counted(real: Callable, kind: str) -> Callable:
    def call(*tensors, **more):
        given = [part for part in (*tensors, *more.values()) if torch.is_tensor(part)]
        _sent[kind] += max(part.numel() * part.element_size() for part in given)
        return real(*tensors, **more)

    return call


for _name, _kind in KINDS.items():
    setattr(dist, _name, _counted(getattr(dist, _name), _kind))
