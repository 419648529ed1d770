"""Heads on sentence vectors, trained beside the encoder in float32; an export keeps at most one."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm as normalise

Statistics = tuple[tuple[Tensor, Tensor], ...]
"""Mean and biased variance, each [width], of every batch norm of a head, in order."""


class ProjectionHead(nn.Module):
    """A head g before a loss, of layers one after the other; batch norms are `WholeBatchNorm`.

    It sees the vectors of the whole global batch, so batch statistics need no exchange between ranks. It
    computes in its parameters' dtype (float32 unless converted), also under autocast: similarities divided by
    a temperature of 0.1 or less do not survive bfloat16's three digits.

    initializer_range: standard deviation of the weights of linear maps, normal with mean 0, biases 0, as in
        BERT (0.02 there); None for torch's own: uniform within 1 / sqrt(in).
    """

    def __init__(self, *layers: nn.Module, initializer_range: float | None = None):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        for part in layers if initializer_range is not None else ():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, 0.0, initializer_range)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)

    def forward(self, vectors: Tensor, statistics: Statistics | None = None) -> Tensor:
        """Map vectors [N, in] of any floating dtype to [N, out] in the head's dtype.

        statistics: constants that the batch norms use instead of the batch's; running ones stay. A part of a
        batch then comes out as in the whole of it, and no vector's gradient passes through the others'.
        """
        given = iter(statistics or ())
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.to(self.layers[0].weight.dtype)
            for layer in self.layers:
                fixed = statistics is not None and isinstance(layer, WholeBatchNorm)
                vectors = layer(vectors, next(given)) if fixed else layer(vectors)
            return vectors

    @torch.no_grad()
    def statistics(self, vectors: Tensor) -> Statistics:
        """Return the statistics of `vectors` [N, in] in each batch norm, as constants; running ones stay."""
        found: list[tuple[Tensor, Tensor]] = []
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.to(self.layers[0].weight.dtype)
            for layer in self.layers:
                if isinstance(layer, WholeBatchNorm):
                    variance, mean = torch.var_mean(vectors, dim=0, correction=0)
                    found.append((mean, variance))
                    vectors = layer(vectors, found[-1])
                else:
                    vectors = layer(vectors)
        return tuple(found)


class WholeBatchNorm(nn.BatchNorm1d):
    """Batch norm over the global batch, or by statistics that are given."""

    def forward(self, vectors: Tensor, statistics: tuple[Tensor, Tensor] | None = None) -> Tensor:
        if statistics is None:
            return super().forward(vectors)
        return normalise(vectors, *statistics, self.weight, self.bias, training=False, eps=self.eps)


def simclr_head(widths: Sequence[int], batch_norm: bool = False) -> ProjectionHead:
    """Build linear maps between neighbouring widths with ReLU between each two (SimCLR, section 2.1).

    batch_norm: whether hidden layers are batch-normalised before their activation (Chen et al. 2020).
    """
    first, *maps = pairwise(widths)
    layers: list[nn.Module] = [nn.Linear(*first)]
    for width, following in maps:
        layers += [*([WholeBatchNorm(width)] if batch_norm else []), nn.ReLU(), nn.Linear(width, following)]
    return ProjectionHead(*layers)


def simcse_head(size: int, initializer_range: float | None = 0.02) -> ProjectionHead:
    """Build Linear(d, d), tanh: SimCSE's "MLP pooler" (Gao et al. 2021), new, with BERT's initialisation."""
    return ProjectionHead(nn.Linear(size, size), nn.Tanh(), initializer_range=initializer_range)


def is_simcse_head(head: nn.Module) -> bool:
    """Return whether it is a `simcse_head` of some size, whatever its weights."""
    if not isinstance(head, ProjectionHead) or [type(part) for part in head.layers] != [nn.Linear, nn.Tanh]:
        return False
    linear = head.layers[0]
    return linear.in_features == linear.out_features and linear.bias is not None


def vascl_head(size: int, out_features: int = 128, initializer_range: float | None = 0.02) -> ProjectionHead:
    """Return Linear(d, d), ReLU, Linear(d, 128), both without bias (VaSCL's code; Zhang et al. 2022).

    The code leaves initialisation to transformers, which draws weights missing from a checkpoint as in BERT.
    """
    maps = nn.Linear(size, size, bias=False), nn.Linear(size, out_features, bias=False)
    return ProjectionHead(maps[0], nn.ReLU(), maps[1], initializer_range=initializer_range)


def batch_norm_head(size: int, initializer_range: float | None = 0.02) -> ProjectionHead:
    """Build Linear(d, 2d), batch norm, ReLU, Linear(2d, d), batch norm without weight and bias.

    Maps have no bias. It is the head of DiffCSE's code (Chuang et al. 2022); AugCSE's is the same with
    torch's own initialisation (`initializer_range=None`).
    """
    return ProjectionHead(
        nn.Linear(size, 2 * size, bias=False),
        WholeBatchNorm(2 * size),
        nn.ReLU(),
        nn.Linear(2 * size, size, bias=False),
        WholeBatchNorm(size, affine=False),
        initializer_range=initializer_range,
    )
