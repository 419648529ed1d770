"""What the losses share: precision, temperature, unit vectors and directions of gradients."""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pretrain.model.kernels.plain import at_least_float32

SMALLEST_NORM = 1e-12
ROWS_AT_ONCE = 8192


def inverse(temperature: float) -> float:
    """Return 1 / temperature, by which cosines are multiplied."""
    assert temperature > 0
    return 1.0 / temperature


def unit_vectors(vectors: Tensor) -> Tensor:
    """Divide the rows of `vectors` [N, d] by their Euclidean norm, in float32 (float64 from float64).

    A row shorter than 1e-12 has no direction: it becomes 0 and gets no gradient. Kept for the backward pass:
    the input and N numbers, where autograd's own chain makes four more arrays of the input's size.
    """
    return _UnitVectors.apply(at_least_float32(vectors))


def directions(gradient: Tensor, otherwise: Tensor) -> Tensor:
    """Divide the rows of `gradient` [N, d] by their Euclidean norm; take rows of 0 from `otherwise` [N, d].

    Exact for gradients of any size: a saturated softmax has entries of 1e-25, whose squares float32 does not
    hold.
    """
    largest = gradient.abs().amax(1, keepdim=True)
    scaled = gradient / largest.where(largest > 0, 1.0)
    unit = scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp_min(0.5)
    return torch.where(largest > 0, unit, otherwise)


class _UnitVectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, vectors: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        factors = torch.where(norms > SMALLEST_NORM, norms.reciprocal(), 0.0)
        ctx.save_for_backward(vectors, factors)
        return vectors * factors

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> Tensor:
        """(g - u (u . g)) / norm, with u the unit vector."""
        vectors, factors = ctx.saved_tensors
        gradient = upstream * factors
        for rows in range(0, len(vectors), ROWS_AT_ONCE):
            part = slice(rows, rows + ROWS_AT_ONCE)
            along = (gradient[part] * vectors[part]).sum(1, keepdim=True).mul_(factors[part] ** 2)
            gradient[part].addcmul_(vectors[part], along, value=-1.0)
        return gradient
