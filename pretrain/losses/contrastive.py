"""Contrastive losses over a whole batch of sentence vectors, in tiles: memory grows with N, not N squared.

Every loss here is a softmax over candidates, anchor by anchor:

    loss = mean over anchors i of  -log( exp(s_i,p(i)) / sum over candidates j of exp(s_ij) )
    s_ij = a_i . c_j / temperature

`softmax_over_candidates` computes it and its exact gradient in one pass over tiles of anchors. A loss says
who the anchors, candidates and positives are, and may change the logits of a tile (`Adjustment`), which
excludes candidates that are no negatives (`Exclusions`), or give each anchor candidates of its own
(`own_logits`).

A loss of N anchors against N candidates costs N squared, and every rank has the gathered vectors. Under
`shared_over`, each rank computes the rows of its own share of the anchors, and sums over ranks complete loss
and gradients: N squared / W each, and two vectors of N x d on the wire.

Vectors come as they are; similarity is the cosine. Losses are float32 (float64 from float64), also under
autocast.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.losses.exclusions import NO_EXCLUSIONS, Adjustment, Exclusions
from pretrain.losses.vectors import inverse, unit_vectors
from pretrain.model.kernels.plain import Inputs, with_gradients

TILE_LOGITS = {"cpu": 2**22, "cuda": 2**28}
"""Logits of a tile of anchors, all candidates: 16 MiB on CPU, where they stay in the last cache, 1 GiB on
CUDA, where the product of 4,096 rows with 65,536 candidates then has a block for each multiprocessor."""
SMALLEST_SHARED = 2**20
"""Logits (anchors times candidates) from which sharing is worth the wait for the other ranks."""
SMALLEST_SYMMETRIC = 0.025
"""Temperature from which exp((cosine - 1) / temperature) is no denormal number in float32."""

_shared: ContextVar[bool] = ContextVar("shared", default=False)


@contextmanager
def shared_over(ranks: int) -> Iterator[None]:
    """Share losses over the ranks, which must compute the same ones of the same vectors, in one order."""
    token = _shared.set(ranks > 1)
    try:
        yield
    finally:
        _shared.reset(token)


def tile_rows(device: torch.device, candidates: int) -> int:
    """Return how many anchors a tile has, of that many candidates."""
    return max(1, TILE_LOGITS.get(device.type, TILE_LOGITS["cuda"]) // max(candidates, 1))


def is_shared(anchors: int, candidates: int) -> bool:
    """Return whether a loss of that many anchors and candidates is shared out."""
    return _shared.get() and anchors * candidates >= SMALLEST_SHARED


def my_rows(count: int, shared: bool) -> range:
    """Return which of `count` anchors this rank computes: a consecutive part, all where nothing is shared."""
    if not shared:
        return range(count)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return range(count * rank // ranks, count * (rank + 1) // ranks)


def complete(shared: bool, *parts: Tensor | None) -> None:
    """Sum each tensor over ranks, in place: what a rank did not compute is zero in its own."""
    if shared:
        for part in parts:
            if part is not None:
                dist.all_reduce(part)


@dataclass(frozen=True)
class Negatives:
    """Candidates of all anchors besides the N positives.

    vectors: [M, d]: SimCSE's hard negatives (M = K N, K for each anchor: rows i, N + i ... are anchor i's
        own), or ESimCSE's momentum queue (any M, without gradient). With groups, M = K N.
    present: bool[M]; if False a row (finite) is nobody's candidate; None: all are there.
    identities: int64[M], hashes of the texts, if anchors and positives have them: those that some anchor
        or positive of a meaning equals have that meaning.
    own_bias: added to the logits of an anchor's own hard negatives; SimCSE's `hard_negative_weight`, which is
        a logit (0 is weight 1).
    """

    vectors: Tensor
    present: Tensor | None = None
    identities: Tensor | None = None
    own_bias: float = 0.0


def nt_xent(views: Tensor, temperature: float, exclusions: Exclusions = NO_EXCLUSIONS) -> Tensor:
    """NT-Xent (Chen et al. 2020, "SimCLR", equation 1; CLEAR, Wu et al. 2020, equations 1 and 2).

    Each of the 2N vectors is an anchor; its positive is the other view of its sequence; the other 2N - 2
    vectors are negatives. Returns the mean over the 2N anchors, a scalar.

    Args:
        views: [2, N, d], any floating dtype.
        temperature: divides the cosine.
    """
    assert views.ndim == 3 and len(views) == 2
    count, device = views.shape[1], views.device
    with torch.autocast(device.type, enabled=False):
        vectors = unit_vectors(views.flatten(0, 1))
        positives = _in_order(vectors).roll(count)

        def itself(logits: Tensor, own: Tensor, start: int, stop: int) -> None:
            logits[:, start:stop].fill_diagonal_(-torch.inf)

        adjustments = [itself, *exclusions.over("both", device)]
        if exclusions.guide is None and temperature >= SMALLEST_SYMMETRIC:
            return _nt_xent(vectors, positives[:, None], inverse(temperature), adjustments)
        return softmax_over_candidates(vectors, vectors, positives, temperature, adjustments)


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    temperature: float,
    exclusions: Exclusions = NO_EXCLUSIONS,
    negatives: Negatives | None = None,
    *,
    anchor_identities: Tensor | None = None,
    positive_identities: Tensor | None = None,
    present: Tensor | None = None,
    in_batch: bool = True,
) -> Tensor:
    """Compute InfoNCE in one direction (SimCSE, Gao et al. 2021, equations 1 and 5).

    Every positive, and every vector of `negatives` that is present, is a candidate of every anchor. An anchor
    with several positives has the mean of their losses, in each of which the others are no candidates
    (SupCon, Khosla et al. 2020, equation 2, whose sum in the denominator has them):

        mean over p of  -log( exp(s_ip) / (exp(s_ip) + sum over negatives j of exp(s_ij)) )

    Returns the mean over the N anchors, a scalar.

    Args:
        anchors, positives: [N, d]; row i of `positives` is the positive of row i of `anchors`. Of several
            positives [P, N, d]: then `exclusions.identities` is int64[1 + P, N].
        temperature: divides the cosine.
        anchor_identities, positive_identities: int64[N], the two rows of `Exclusions.identities`.
        present: bool[P, N], which of several positives are there; the first of each anchor is.
        in_batch: whether an anchor has other records' texts as negatives, beside its own hard negatives.
    """
    several = positives if positives.ndim == 3 else positives[None]
    assert anchors.shape == several.shape[1:] and (present is None) == (len(several) == 1)
    assert (anchor_identities is None) == (positive_identities is None)
    if anchor_identities is not None and positive_identities is not None:
        exclusions = replace(exclusions, identities=torch.stack([anchor_identities, positive_identities]))
    count, device = len(anchors), anchors.device
    with torch.autocast(device.type, enabled=False):
        ours, own_positives = unit_vectors(anchors), _in_order(anchors)
        assert negatives is None or (negatives.identities is None) == (exclusions.identities is None)
        hard = negatives or Negatives(anchors[:0])
        parts = [unit_vectors(part) for part in (several.flatten(0, 1), hard.vectors) if len(part)]
        behind, there = several.shape[0] * count, anchors.new_ones(len(hard.vectors), dtype=torch.bool)
        absent = None
        if present is not None or hard.present is not None:
            of_positives = there.new_ones(several.shape[:2]) if present is None else present.to(device)
            of_negatives = there if hard.present is None else hard.present.to(device)
            absent = ~torch.cat([of_positives[1:].flatten(), of_negatives])

        def given(logits: Tensor, own: Tensor, start: int, stop: int) -> None:
            if hard.own_bias:
                for block in logits[:, behind:].split(count, dim=1):
                    block[:, start:stop].diagonal().add_(hard.own_bias)
            if absent is not None:
                logits[:, count:].masked_fill_(absent, -torch.inf)
            for block in () if in_batch else logits.split(count, dim=1):
                kept = block[:, start:stop].diagonal().clone()
                block.fill_(-torch.inf)[:, start:stop].diagonal().copy_(kept)

        further = None
        if exclusions.identities is not None and len(parts) + len(several) > 2:
            texts = send([exclusions.identities[2:].flatten()], device) if len(several) > 1 else []
            further = torch.cat(texts if hard.identities is None else [*texts, hard.identities])
        adjustments, candidates = [given, *exclusions.over("forth", device, further)], torch.cat(parts)
        if present is None:
            return softmax_over_candidates(ours, candidates, own_positives, temperature, adjustments)
        share = present.to(device).double()
        share = share / share.sum(0)
        return sum(
            softmax_over_candidates(
                ours, candidates, own_positives + k * count, temperature, adjustments, None, of_column
            )
            for k, of_column in enumerate(share)
        )


def symmetric_info_nce(
    anchors: Tensor,
    positives: Tensor,
    temperature: float,
    exclusions: Exclusions = NO_EXCLUSIONS,
) -> Tensor:
    """Compute the mean of InfoNCE from anchors to positives and from positives to anchors.

    It is CLIP's loss (Radford et al. 2021, figure 3), and the "ranking" loss of AugCSE's code (Tang et al.
    2022). Arguments and result as `info_nce`.
    """
    assert anchors.shape == positives.shape
    device = anchors.device
    with torch.autocast(device.type, enabled=False):
        ours, theirs, index = unit_vectors(anchors), unit_vectors(positives), _in_order(anchors)
        forth, back = exclusions.over("forth", device), exclusions.over("back", device)
        first = softmax_over_candidates(ours, theirs, index, temperature, forth)
        second = softmax_over_candidates(theirs, ours, index, temperature, back)
        return 0.5 * (first + second)


def relaxed_negative_info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    present: Tensor,
    temperature: float,
    margin: float,
    exclusions: Exclusions = NO_EXCLUSIONS,
) -> Tensor:
    """InfoNCE with each anchor's own negation as a relaxed negative (SDA, equation 4):

        -log( exp(cos(h_i, h_i+) / t) / ( sum_j exp(cos(h_i, h_j+) / t) + exp((cos(h_i, h_i-) - margin) / t) )
        )

    (The printed formula lacks the -log.) A negation is no negative of other anchors, unlike SimCSE's hard
    negatives, and no guide excludes it. Returns the mean over the N anchors, a scalar.

    anchors, positives, negatives: [N, d]. present: bool[N]; if False the sentence has no negation, and its
    row of `negatives` (finite) counts for nothing.
    """
    assert anchors.shape == positives.shape == negatives.shape
    device = anchors.device
    with torch.autocast(device.type, enabled=False):
        ours, theirs, index = unit_vectors(anchors), unit_vectors(positives), _in_order(anchors)
        own_negative = ((ours * unit_vectors(negatives)).sum(1) - margin) * inverse(temperature)
        own_logits = own_negative.masked_fill(~present.to(device), -torch.inf)[:, None]
        adjustments = exclusions.over("forth", device)
        return softmax_over_candidates(ours, theirs, index, temperature, adjustments, own_logits)


def _in_order(anchors: Tensor) -> Tensor:
    """Return the positives of anchors [N, d] whose candidate of the same number is it: int64[N]."""
    return torch.arange(len(anchors), device=anchors.device)


@with_gradients
def softmax_over_candidates(
    anchors: Tensor,
    candidates: Tensor,
    positives: Tensor,
    temperature: float,
    adjustments: Sequence[Adjustment] = (),
    own_logits: Tensor | None = None,
    weights: Tensor | None = None,
) -> tuple[Tensor, Inputs, Inputs]:
    """Mean over anchors [A, d] of -log softmax over candidates [C, d], at `positives` int64[A].

    With q = softmax - onehot(positive), a tile adds q @ candidates to the anchors' gradient and q^T @ anchors
    to the candidates', while its logits are at hand.

    adjustments: done to the logits of each tile, in order. own_logits: [A, E], logits of further candidates
    that only their own anchor has; minus infinity for none. weights: float[A], factors on the anchors' terms.
    """
    scale, tile = inverse(temperature), tile_rows(anchors.device, len(candidates))
    alike = candidates is anchors  # one array takes both gradients
    inputs = (anchors, None if alike else candidates, own_logits)
    made = [torch.zeros_like(x) if x is not None and x.requires_grad else None for x in inputs]
    of_anchors, of_candidates, of_own = made[0], made[0 if alike else 1], made[2]
    # thousands of nearly equal terms would lose digits in float32
    total = torch.zeros((), dtype=torch.float64, device=anchors.device)
    shared = is_shared(len(anchors), len(candidates))
    rows = my_rows(len(anchors), shared)
    room = anchors.new_empty(min(tile, len(rows)), len(candidates))  # one for all tiles
    for start in range(rows.start, rows.stop, tile):
        stop = min(start + tile, rows.stop)
        block = anchors[start:stop] * scale
        own = positives[start:stop, None]
        logits = torch.mm(block, candidates.T, out=room[: stop - start])
        own_logit = logits.gather(1, own)
        for adjust in adjustments:
            adjust(logits, own, start, stop)
        logits.scatter_(1, own, own_logit)
        further = None if own_logits is None else own_logits[start:stop]
        largest = logits.amax(1, keepdim=True)
        if further is not None:
            largest = largest.maximum(further.amax(1, keepdim=True))
        likely = logits.sub_(largest).exp_()
        # The weight of all others is summed without the positive's: if that is nearly 1, their digits would
        # drown in it.
        likely.scatter_(1, own, 0.0)
        others = likely.sum(1, keepdim=True)
        if further is not None:
            further = (further - largest).exp_()
            others += further.sum(1, keepdim=True)
        below = largest - own_logit
        denominator = others + torch.exp(-below)
        terms = torch.where(below == 0, others.log1p(), denominator.log() + below)
        if weights is not None:
            factors = weights[start:stop, None].to(denominator)
            terms, denominator = terms * factors, denominator / factors
        total += terms.sum(dtype=torch.float64)
        likely.scatter_(1, own, -others)
        if of_candidates is not None:
            of_candidates.addmm_(likely.T, block / denominator)
        if of_anchors is not None:
            of_anchors[start:stop] += torch.mm(likely, candidates).mul_(scale / denominator)
        if of_own is not None:
            of_own[start:stop] = further / denominator
    complete(shared, total, *made)
    count = max(len(anchors), 1)
    return (total / count).to(anchors.dtype), inputs, [None if x is None else x.div_(count) for x in made]


@with_gradients
def _nt_xent(
    vectors: Tensor, partners: Tensor, scale: float, adjustments: Sequence[Adjustment]
) -> tuple[Tensor, Inputs, Inputs]:
    """Compute NT-Xent of unit vectors [2N, d] from tiles on and right of the diagonal, as s_ij = s_ji.

    With E_ij = exp(s_ij - scale), 0 for itself and the positive p, D_i its sum over j and P_i that of the
    positive, the gradient of the terms' sum along vector j adds to that of vector i

        E_ij (1 / (D_i + P_i) + 1 / (D_j + P_j)),    of the positive  -D_i / (D_i + P_i) - D_p / (D_p + P_p)

    Several tiles are made twice, for D and for the gradient: products are two thirds of those above.

    partners: int64[2N, 1]. adjustments: which exclude j for i where they exclude i for j.
    """
    count, device, shared = len(vectors), vectors.device, is_shared(len(vectors), len(vectors))
    # a rank takes long tiles and short ones
    rank, parts = (dist.get_rank(), 2 * dist.get_world_size()) if shared else (0, 1)
    tile = max(1, min(tile_rows(device, count), -(-count // parts)))
    begins = [b for n, b in enumerate(range(0, count, tile)) if n % parts in (rank, parts - 1 - rank)]
    room = vectors.new_empty(tile, count)

    def likely(begin: int) -> Tensor:
        block = vectors[begin : begin + tile] * scale
        logits, own = room[: len(block)], partners[begin : begin + tile]
        torch.mm(block, vectors[begin:].T, out=logits[:, begin:])
        for adjust in adjustments:
            adjust(logits, own, begin, begin + len(block))
        return logits.scatter_(1, own, -torch.inf)[:, begin:].sub_(scale).exp_()

    cosines = (vectors * vectors[partners[:, 0]]).sum(1, dtype=torch.float64)
    positive = torch.exp(scale * (cosines - 1))
    others = torch.zeros_like(positive)
    for begin in begins:
        weights = likely(begin)
        others[begin : begin + tile] += weights.sum(1)
        others[begin + tile :] += weights[:, tile:].sum(0)
    complete(shared, others)
    loss = (torch.log1p(others / positive).sum() / max(count, 1)).to(vectors)
    if not vectors.requires_grad:
        return loss, [vectors], [None]
    gradient, factors = torch.zeros_like(vectors), torch.empty_like(room)
    inverses = (others + positive).reciprocal().to(vectors)
    for begin in begins:
        if len(begins) > 1:
            weights = likely(begin)
        rows = slice(begin, begin + tile)
        weights *= torch.add(inverses[rows, None], inverses[begin:], out=factors[: len(weights), begin:])
        gradient[rows].addmm_(weights, vectors[begin:])
        gradient[begin + tile :].addmm_(weights[:, tile:].T, vectors[rows])
    complete(shared, gradient)
    shares = others / (others + positive)
    gradient -= (shares[:, None] + shares[partners]).to(vectors) * vectors[partners[:, 0]]
    return loss, [vectors], [gradient.mul_(scale / max(count, 1))]
