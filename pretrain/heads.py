"""Heads on sentence vectors: trained beside the encoder in float32, dropped when it is exported."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from pretrain.errors import UserError

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


class ProjectionHead(nn.Module):
    """The projection g between sentence vectors and the contrastive loss (Chen et al. 2020, "SimCLR", section 2.1).

    `layers` linear maps with an activation between each two: in -> hidden -> ... -> out. With `batch_norm`,
    hidden layers are batch-normalised before their activation. It sees the vectors of the whole global batch,
    so batch statistics need no exchange between ranks.

    It computes in its parameters' dtype (float32 unless converted), also under autocast: similarities divided
    by a temperature of 0.1 or less do not survive bfloat16's three digits.
    """

    def __init__(self, in_features: int, hidden_features: int, out_features: int, layers: int = 2,
                 activation: str = "relu", batch_norm: bool = False):
        super().__init__()
        if layers < 1:
            raise UserError(f"a projection head has at least one layer, not {layers}.")
        if activation not in ACTIVATIONS:
            raise UserError(f"unknown activation '{activation}'; choose one of {', '.join(ACTIVATIONS)}.")
        widths = [in_features] + [hidden_features] * (layers - 1) + [out_features]
        modules: list[nn.Module] = []
        for index, (width, following) in enumerate(pairwise(widths)):
            modules.append(nn.Linear(width, following))
            if index < layers - 1:
                if batch_norm:
                    modules.append(nn.BatchNorm1d(following))
                modules.append(ACTIVATIONS[activation]())
        self.layers = nn.Sequential(*modules)

    def forward(self, vectors: Tensor) -> Tensor:
        """[N, in] of any floating dtype -> [N, out] in the head's dtype."""
        with torch.autocast(vectors.device.type, enabled=False):
            return self.layers(vectors.to(self.layers[0].weight.dtype))
