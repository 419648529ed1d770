"""Losses of similarities that a score or a teacher gives, of a whole batch, in memory that grows with N.

Vectors come as they are; similarity is the cosine. Sums are float64, also under autocast: they are of N
numbers, and cost nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from pretrain.losses.contrastive import complete, is_shared, my_rows, tile_rows
from pretrain.losses.vectors import inverse, unit_vectors
from pretrain.model.kernels.plain import Inputs, with_gradients


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

    first, second: [N, d], any floating dtype; a pair is a row of both. scores: float[N]. temperature: t; 0.05
    is the authors' scale of 20.
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


def similarity_divergence(student: Sequence[Tensor], teacher: Sequence[Tensor], temperature: float) -> Tensor:
    """Mean over anchors i of KL(p_i || q_i), p and q softmaxes over the batch's positives j of cosines / t.

    q is of the student, p of the teacher, a constant: anchors and positives, [N, d] each, and [N, g].
    """
    device = student[0].device
    with torch.autocast(device.type, enabled=False):
        units = [unit_vectors(vectors) for vectors in (*student, *(part.detach() for part in teacher))]
        return _tiled_divergence(units, inverse(temperature))


@with_gradients
def _tiled_divergence(units: Sequence[Tensor], scale: float) -> tuple[Tensor, Inputs, Inputs]:
    """Compute the divergence above with its gradient: that of the logits is q - p."""
    anchors, positives, first, second = units
    count, shared = len(anchors), is_shared(len(anchors), len(positives))
    gradients = torch.zeros_like(anchors), torch.zeros_like(positives)
    total = torch.zeros((), dtype=torch.float64, device=anchors.device)
    rows, tile = my_rows(count, shared), tile_rows(anchors.device, count)
    for start in range(rows.start, rows.stop, tile):
        part = slice(start, min(start + tile, rows.stop))
        block = anchors[part] * scale
        ours = torch.mm(block, positives.T).log_softmax(1)
        theirs = torch.mm(first[part] * scale, second.T).log_softmax(1)
        wanted = theirs.exp()
        total += theirs.sub_(ours).mul_(wanted).sum(dtype=torch.float64)
        wrong = ours.exp_().sub_(wanted)
        gradients[0][part] = torch.mm(wrong, positives).mul_(scale)
        gradients[1].addmm_(wrong.T, block)
    complete(shared, total, *gradients)
    means = [gradient.div_(count) for gradient in gradients]
    return (total / count).to(anchors.dtype), units[:2], means


def _log_cumulative_sums(values: Tensor) -> Tensor:
    """Return log of the cumulative sums of exp(values), [N], by doubling (Hillis and Steele 1986).

    Unlike a GPU's scan, it adds in the same order every time.
    """
    step = 1
    while step < len(values):
        values = torch.cat([values[:step], torch.logaddexp(values[step:], values[:-step])])
        step *= 2
    return values
