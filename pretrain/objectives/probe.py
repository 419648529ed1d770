"""Sums over a step's sequences for checks of a mechanism, left by losses of one sequence at a time."""

import torch
import torch.distributed as dist
from torch import Tensor


class Probe:
    """Add up numbers over micro-batches and ranks, on the device: the host waits for none of them.

    >>> probe = Probe()
    >>> vectors = torch.ones(2, 3, requires_grad=True)
    >>> probe.watch(vectors)
    >>> probe.add(tokens=torch.tensor(5))
    >>> (2 * vectors).sum().backward()
    >>> {name: float(value) for name, value in probe.sums.items()}
    {'tokens': 5.0, 'squared_gradient': 24.0}
    """

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}

    def add(self, **values: Tensor) -> None:
        """Add scalars to the sums of their names, in float64. All ranks must use the same names."""
        for name, value in values.items():
            value = value.detach().double()
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def watch(self, vectors: Tensor) -> None:
        """Add the squares of the gradient on `vectors`, when it comes, to the sum "squared_gradient"."""
        if vectors.requires_grad:
            vectors.register_hook(
                lambda gradient: self.add(squared_gradient=gradient.double().square().sum())
            )

    def gather(self) -> dict[str, Tensor]:
        """Return the sums over all ranks, which must all call it: name -> float64 scalar."""
        names = sorted(self.sums)
        if not names:
            return {}
        values = torch.stack([self.sums[name] for name in names])
        dist.all_reduce(values)
        return dict(zip(names, values))
