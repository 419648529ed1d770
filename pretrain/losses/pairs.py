"""Losses of pairs with scores, of a whole batch: N numbers in memory, never N squared.

Vectors come as they are; similarity is the cosine. Sums are float64, also under autocast: they are of N
numbers, and cost nothing.
"""

import torch
from torch import Tensor

from pretrain.losses.vectors import inverse, unit_vectors


def cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of each row of `first` [N, d] with the same row of `second` [N, d]: float64[N]."""
    assert first.shape == second.shape
    with torch.autocast(first.device.type, enabled=False):
        return (unit_vectors(first) * unit_vectors(second)).sum(1, dtype=torch.float64)


def cosent(first: Tensor, second: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """CoSENT (Su 2022, "CoSENT: a more effective sentence vector scheme than Sentence-BERT", equation 7).

        log( 1 + sum over pairs i, j of the batch with score_i < score_j of exp((c_i - c_j) / t) )

    c_i is the cosine of pair i: one that is less alike must not be nearer than one that is more alike. Only
    the scores' order counts. It is sentence-transformers' `CoSENTLoss` with scale 1 / t. Sorted by score, the
    inner sum is a cumulative one: O(N log N) time where the formula has N squared terms.

    Args:
        first, second: [N, d], any floating dtype; a pair is a row of both.
        scores: float[N].
        temperature: t; 0.05 is the authors' scale of 20.
    """
    ordered, order = scores.to(first.device).sort()
    logits = cosines(first, second)[order] * inverse(temperature)
    lower = torch.searchsorted(ordered, ordered)  # pairs of a lower score
    below = _log_cumulative_sums(logits)[(lower - 1).clamp_min(0)].where(lower > 0, -torch.inf)
    terms = below - logits
    return torch.cat([terms.new_zeros(1), terms]).logsumexp(0).to(first.dtype)


def cosine_regression(first: Tensor, second: Tensor, scores: Tensor) -> Tensor:
    """Mean over pairs of (cos - score)^2 (Reimers and Gurevych 2019, section 3, regression objective).

    It is sentence-transformers' `CosineSimilarityLoss`. Arguments as `cosent`; scores are cosines.
    """
    return (cosines(first, second) - scores.to(first.device)).square().mean().to(first.dtype)


def _log_cumulative_sums(values: Tensor) -> Tensor:
    """Return log of the cumulative sums of exp(values), [N], by doubling (Hillis and Steele 1986).

    Unlike a GPU's scan, it adds in the same order every time.
    """
    step = 1
    while step < len(values):
        values = torch.cat([values[:step], torch.logaddexp(values[step:], values[:-step])])
        step *= 2
    return values
