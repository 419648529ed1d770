"""Stands for what records CUDA graphs, on a CPU; on a GPU it counts what is recorded."""

from collections import Counter
from collections.abc import Callable

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Recorder:
    """Record functions by keeping them: `bodies`; `repeats` counts how often each was repeated.

    record: what records them in truth; None: they are called again.
    """

    def __init__(self, record=None):
        self.record = record
        self.repeats: list[int] = []
        self.bodies: list = []

    def __call__(self, function):
        if self.record is None:
            function()
        again = function if self.record is None else self.record(function)
        number = len(self.repeats)
        self.repeats.append(0)
        self.bodies.append(function)

        def repeat():
            self.repeats[number] += 1
            again()

        return repeat


class Calls(TorchDispatchMode):
    """Operators as they are called, with their tensors."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        result = function(*arguments, **(keywords or {}))
        self.made.append((function, arguments, keywords or {}, result))
        return result


def same_memory(function):
    """Record the operators of a function as a CUDA graph does: none of its Python runs again.

    They are repeated on the tensors that they had, wherever those lie. (Memory is not shared as in a pool.)
    """
    with Calls() as calls:
        function()

    @torch.no_grad()
    def repeat():
        with torch.autocast("cpu", enabled=False):
            for operator, arguments, keywords, result in calls.made:
                again = tree_leaves(operator(*arguments, **keywords))
                for place, value in zip(tree_leaves(result), again, strict=True):
                    if isinstance(place, torch.Tensor) and place.data_ptr() != value.data_ptr():
                        place.copy_(value)

    return repeat


def count_repeats(graphs) -> Counter:
    """Count from now on how often the forward and the backward of rows that are recorded are repeated."""
    counts = Counter()

    def counted(name: str, repeat: Callable[[], None]) -> Callable[[], None]:
        def again() -> None:
            counts[name] += 1
            repeat()

        return again

    for graph in graphs.graphs.values():
        for name in ("forward", "backward"):
            setattr(graph, name, counted(name, getattr(graph, name)))
    return counts
