"""Contrastive losses over a whole batch of sentence vectors, in tiles: memory grows with N, never with N squared.

Every loss here is a softmax over candidates, anchor by anchor:

    loss = mean over anchors i of  -log( exp(s_i,p(i)) / sum over candidates j of exp(s_ij) )
    s_ij = a_i . c_j / temperature

`TiledSoftmax` computes it and its exact gradient in one pass over tiles of anchors. A loss says who the anchors,
candidates and positives are, and may change the logits of a tile (`Adjustment`: exclude a candidate, add a constant).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import normalize

from pretrain.errors import UserError

TILE_ANCHORS = 512


class Adjustment(Protocol):
    """Changes the logits [stop - start, C] of anchors start to stop - 1 in place, by constants."""

    def __call__(self, logits: Tensor, start: int, stop: int) -> None: ...


def nt_xent(
    views: Tensor, temperature: float, tile: int = TILE_ANCHORS, groups: Tensor | None = None
) -> Tensor:
    """NT-Xent (Chen et al. 2020, "SimCLR", equation 1; CLEAR, Wu et al. 2020, equations 1 and 2).

    Each of the 2N vectors is an anchor; its positive is the other view of its sequence; the other 2N - 2
    vectors are negatives. Similarity is the cosine.

    Args:
        views: [2, N, d], not normalised, any floating dtype.
        temperature: divides the cosine.
        tile: anchors at a time; memory is tile x 2N numbers.
        groups: int64[N]; if given, an anchor's candidates are the vectors of its own group only.

    Returns:
        The mean over the 2N anchors, a scalar: float64 from float64, else float32, also under autocast.
    """
    if views.ndim != 3 or views.shape[0] != 2:
        raise ValueError(f"nt_xent takes two views as [2, N, d], not {list(views.shape)}.")
    count = views.shape[1]
    with torch.autocast(views.device.type, enabled=False):
        vectors = normalize(_at_least_float32(views).flatten(0, 1), dim=1)
        index = torch.arange(2 * count, device=views.device)
        positives = (index + count) % (2 * count)
        membership = None if groups is None else groups.to(views.device).repeat(2)

        def exclude(logits: Tensor, start: int, stop: int) -> None:
            if membership is not None:
                logits.masked_fill_(membership[start:stop, None] != membership[None, :], -torch.inf)
            logits[torch.arange(stop - start, device=logits.device), index[start:stop]] = -torch.inf

        return softmax_over_candidates(vectors, vectors, positives, temperature, exclude, tile)


def softmax_over_candidates(
    anchors: Tensor, candidates: Tensor, positives: Tensor, temperature: float,
    adjust: Adjustment | None = None, tile: int = TILE_ANCHORS,
) -> Tensor:
    """Mean over anchors [A, d] of -log softmax over candidates [C, d], at `positives` int64[A]."""
    if not temperature > 0:
        raise UserError(f"the contrastive temperature must be above 0, not {temperature}.")
    if tile < 1:
        raise ValueError(f"tile must be at least 1, not {tile}.")
    return TiledSoftmax.apply(anchors, candidates, positives, 1.0 / temperature, adjust, tile)


class TiledSoftmax(torch.autograd.Function):
    """The loss above with its gradient, which is made in the same pass while a tile's logits are at hand.

    With q = softmax - onehot(positive), a tile adds q @ candidates to the anchors' gradient and q^T @ anchors
    to the candidates'. Kept for the backward pass: those two, of the size of the input.
    """

    @staticmethod
    def forward(
        ctx, anchors: Tensor, candidates: Tensor, positives: Tensor, scale: float, adjust: Adjustment | None,
        tile: int
    ) -> Tensor:
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        anchor_gradient = torch.empty_like(anchors) if wanted else None
        candidate_gradient = torch.zeros_like(candidates) if wanted else None
        # Summed in float64: thousands of nearly equal terms would lose digits in float32, and it costs nothing.
        total = torch.zeros((), dtype=torch.float64, device=anchors.device)
        for start in range(0, len(anchors), tile):
            stop = min(start + tile, len(anchors))
            block = anchors[start:stop]
            logits = (block @ candidates.T).mul_(scale)
            if adjust is not None:
                adjust(logits, start, stop)
            own = positives[start:stop, None]
            log_sum = logits.logsumexp(1, keepdim=True)
            total += (log_sum - logits.gather(1, own)).sum(dtype=torch.float64)
            if wanted:
                residual = logits.sub_(log_sum).exp_()
                residual.scatter_add_(1, own, residual.new_full(own.shape, -1.0))
                torch.mm(residual, candidates, out=anchor_gradient[start:stop])
                candidate_gradient.addmm_(residual.T, block)
        if wanted:
            factor = scale / max(len(anchors), 1)
            ctx.save_for_backward(anchor_gradient.mul_(factor), candidate_gradient.mul_(factor))
        return (total / max(len(anchors), 1)).to(anchors.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor) -> tuple[Tensor | None, ...]:
        anchor_gradient, candidate_gradient = ctx.saved_tensors
        return anchor_gradient * upstream, candidate_gradient * upstream, None, None, None, None


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()
