"""Heads on sentence vectors, trained beside the encoder in float32; an export keeps at most one."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm as normalise

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}

Statistics = tuple[tuple[Tensor, Tensor], ...]
"""Mean and biased variance, each [width], of every batch norm of a head, in order."""


class ProjectionHead(nn.Module):
    """The projection g before the contrastive loss (Chen et al. 2020, "SimCLR", section 2.1).

    `layers` linear maps with ReLU between each two: in -> hidden -> ... -> out. With `batch_norm`,
    hidden layers are batch-normalised before their activation. It sees the vectors of the whole global batch,
    so batch statistics need no exchange between ranks.

    It computes in its parameters' dtype (float32 unless converted), also under autocast: similarities divided
    by a temperature of 0.1 or less do not survive bfloat16's three digits.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int,
        layers: int = 2,
        batch_norm: bool = False,
        *,
        bias: bool = True,
        output_activation: str | None = None,
        output_batch_norm: bool = False,
        initializer_range: float | None = None,
    ):
        """
        Args:
            bias: whether linear maps have one.
            output_activation: activation after the last map, of `ACTIVATIONS`; None for none.
            output_batch_norm: batch norm without weight and bias after the last map.
            initializer_range: standard deviation of the weights, normal with mean 0, biases 0, as in BERT
                (0.02 there); None for torch's own: uniform within 1 / sqrt(in).
        """
        super().__init__()
        widths = [in_features] + [hidden_features] * (layers - 1) + [out_features]
        modules: list[nn.Module] = []
        for index, (width, following) in enumerate(pairwise(widths)):
            modules.append(nn.Linear(width, following, bias=bias))
            if index < layers - 1:
                if batch_norm:
                    modules.append(WholeBatchNorm(following))
                modules.append(nn.ReLU())
        if output_batch_norm:
            modules.append(WholeBatchNorm(out_features, affine=False))
        if output_activation is not None:
            modules.append(ACTIVATIONS[output_activation]())
        self.layers = nn.Sequential(*modules)
        if initializer_range is not None:
            initialize(self, initializer_range)

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


def simcse_head(size: int, initializer_range: float | None = 0.02) -> ProjectionHead:
    """Build Linear(d, d), tanh: SimCSE's "MLP pooler" (Gao et al. 2021), new, with BERT's initialisation."""
    return ProjectionHead(
        size, size, size, layers=1, output_activation="tanh", initializer_range=initializer_range
    )


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
    return ProjectionHead(size, size, out_features, bias=False, initializer_range=initializer_range)


def batch_norm_head(size: int, initializer_range: float | None = 0.02) -> ProjectionHead:
    """Build Linear(d, 2d), batch norm, ReLU, Linear(2d, d), batch norm without weight and bias.

    Maps have no bias. It is the head of DiffCSE's code (Chuang et al. 2022); AugCSE's is the same with
    torch's own initialisation (`initializer_range=None`).
    """
    return ProjectionHead(
        size,
        2 * size,
        size,
        batch_norm=True,
        bias=False,
        output_batch_norm=True,
        initializer_range=initializer_range,
    )


@torch.no_grad()
def initialize(module: nn.Module, initializer_range: float) -> None:
    """Draw the weights of all linear maps from normal(0, initializer_range), biases 0, as BERT's are made."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            part.weight.normal_(0.0, initializer_range)
            if part.bias is not None:
                part.bias.zero_()
