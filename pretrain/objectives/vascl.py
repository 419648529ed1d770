"""VaSCL (Zhang et al. 2022, "Virtual Augmentation Supported Contrastive Learning").

A virtual augmentation in the neighbourhood of a sentence vector: the nearest neighbours in the whole batch,
the perturbation that is hardest to tell from them, and the neighbourhood loss.

What the authors' code does where it departs from the paper is said at each function, and is what is done
here. Similarities are cosines (of the head's outputs), except where neighbours are chosen: there, dot
products. Losses are float32 (float64 from float64), also under autocast; memory grows with N, never with N
squared.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pretrain.common.transfer import send
from pretrain.config.run import Config
from pretrain.losses.contrastive import complete, is_shared, my_rows, nt_xent, tile_rows
from pretrain.losses.exclusions import NO_EXCLUSIONS, Exclusions
from pretrain.losses.vectors import directions, inverse, unit_vectors
from pretrain.model.encoder import SentenceEncoder
from pretrain.model.heads import vascl_head
from pretrain.model.kernels.plain import at_least_float32
from pretrain.objectives.base import BatchContext, Objective, Views

NONE = -1
"""In the place of a neighbour: there is none."""
NEVER = -1e9
"""A logit of probability 0 that stays finite, so that gradients through it are 0 and not NaN."""
GATHERED = {"cpu": 2**21, "cuda": 2**26}
"""Numbers of gathered candidates [anchors, candidates each, D] alive at once: 8 MiB on CPU, 256 MiB on
CUDA."""


class Vascl(Objective):
    """VaSCL: NT-Xent of two dropout views, and the neighbourhood-constrained loss of a virtual augmentation.

    Equations 1, and 2 to 5, through a head d -> d -> 128 without biases. Neighbours are those of the whole
    global batch.

    Reading `code`: the sentence vector under the virtual augmentation is detached, so that the neighbourhood
    loss shapes the head alone; neighbours are the nearest by dot product; the augmentation's start is uniform
    on a cube. `paper`: the loss trains the encoder too, as equation 5 reads; "similarity" is the cosine, as
    beside equation 1; the start is Gaussian.
    """

    rivals = 2

    def __init__(self, config: Config, encoder: SentenceEncoder):
        super().__init__()
        self.settings = settings = config.objective.vascl
        self.full_weights = {"vascl": settings.weight, "vascl_neighbourhood": settings.neighbourhood_weight}
        self.as_printed = settings.reading == "paper"
        self.smallest_batch = settings.neighbours + 1 if settings.neighbourhood_weight else 2
        self.head = vascl_head(encoder.hidden_size, settings.projection_size)

    def relate(self, views: Views, context: BatchContext) -> dict[str, Tensor]:
        settings, first = self.settings, views["anchor"]

        losses = self.contrast("vascl", self.head, views, context, self.of_views(nt_xent))
        if settings.neighbourhood_weight:
            still = first.detach()
            compared = unit_vectors(still) if self.as_printed else still
            neighbours = nearest_neighbours(compared, settings.neighbours, self.exclusions(context))
            # Of texts that fill most of a batch, few others are left: such rows have fewer neighbours, and
            # are counted.
            context.measures["vascl_rows_short_of_neighbours"] = (neighbours[:, -1] == NONE).sum()
            start = random_directions(still, context.generator(), gaussian=self.as_printed)
            delta = virtual_augmentation(
                self.head, still, neighbours, settings.temperature, radius=settings.radius, start=start
            )
            reached = first if self.as_printed else still
            clean = self.head(reached) if self.as_printed else self.head(reached).detach()
            if context.collects_diagnostics:  # the loss without a delta, and with the start's, as long
                with torch.no_grad():
                    moved = clean, self.head(still + settings.radius * start)
                    at_rest, at_random = (
                        neighbourhood_loss(clean, z, neighbours, settings.temperature) for z in moved
                    )
            losses["vascl_neighbourhood"] = neighbourhood_loss(
                clean, self.head(reached + delta), neighbours, settings.temperature
            )
            if context.collects_diagnostics:
                attacked = losses["vascl_neighbourhood"].detach()
                context.measures["vascl_neighbourhood_rise"] = attacked - at_rest
                context.measures["vascl_neighbourhood_rise_of_random"] = at_random - at_rest
        return losses


def nearest_neighbours(vectors: Tensor, k: int, exclusions: Exclusions = NO_EXCLUSIONS) -> Tensor:
    """Find the k nearest of every vector among the others, nearest first: int64[N, k] (N(i), section 3.2).

    By the dot product of the vectors as they are, not normalised, which is what the authors' code takes for
    the paper's "similarity". A vector is no neighbour of itself. A row with fewer than k others to choose
    from ends in `NONE`s: with k = 3 and texts a, a, b, both a's have [2, NONE, NONE] and b has [0, 1, NONE].

    vectors: [N, d], any floating dtype; compared in float32 (float64 from float64).
    k: K; 16 in the authors' code, not given in the paper.
    exclusions: which vectors, beside itself, are no neighbours of one: texts of its meaning, other groups.
    """
    count, tile = len(vectors), tile_rows(vectors.device, len(vectors))
    assert k >= 1
    with torch.no_grad(), torch.autocast(vectors.device.type, enabled=False):
        values = at_least_float32(vectors)
        adjustments = exclusions.over("forth", values.device)
        shared = is_shared(count, count)
        rows = my_rows(count, shared)
        neighbours = torch.zeros((count, k), dtype=torch.long, device=values.device)
        room = values.new_empty(min(tile, len(rows)), count)
        for start in range(rows.start, rows.stop, tile):
            stop = min(start + tile, rows.stop)
            products = torch.mm(values[start:stop], values.T, out=room[: stop - start])
            products[:, start:stop].fill_diagonal_(-torch.inf)
            for adjust in adjustments:
                adjust(products, products[:, :0], start, stop)  # no vector has a positive that has to stay
            best = products.topk(min(k, count), dim=1)
            neighbours[start:stop, :count] = best.indices.masked_fill_(best.values == -torch.inf, NONE)
            neighbours[start:stop, count:] = NONE
        complete(shared, neighbours)
    return neighbours


def virtual_augmentation(
    head: Callable[[Tensor], Tensor],
    vectors: Tensor,
    neighbours: Tensor,
    temperature: float,
    radius: float,
    start: Tensor,
) -> Tensor:
    """Find the perturbation that best hides each vector among its neighbours: delta* float[N, d], detached.

    Equations 2 and 3, with e the vectors without gradient, z = h(e) / ||h(e)|| and d0 a start of length 1:

        g = gradient by d0 of the sum over i of l_i, at h(e + radius d0)     (one evaluation; the code's xi is
            the radius)
        l_i = -log( exp(zd_i . z_i / t)
                    / ( exp(zd_i . z_i / t) + sum over k in N(i) of exp(zd_i . z_k / t) ) )
        delta* = radius g / ||g||, row by row; d0 is discarded

    A row whose gradient is exactly 0 has no direction to ascend: there delta* is radius d0, so its length is
    the radius too.

    head: h, [N, d] -> [N, D]; run on all N rows at once, once without and once with gradient; parameters get
    none. vectors: [N, d]. neighbours: int64[N, K]; a row of `NONE`s has no gradient. temperature: t.
    radius: Delta, the length of delta*; 15 for RoBERTa-base, 30 for RoBERTa-large in the paper.
    start: d0, [N, d], from `random_directions`.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        still = at_least_float32(vectors.detach())
        with torch.no_grad():
            clean = unit_vectors(head(still))
        with torch.enable_grad():
            noise = start.clone().requires_grad_()
            moved = unit_vectors(head(still + radius * noise))
            index = torch.arange(len(still), device=still.device)
            loss = softmax_over_listed(moved, clean, index, neighbours, temperature)
            # The mean's gradient times N: only its direction counts, and small numbers lose digits.
            (gradient,) = torch.autograd.grad(loss, noise, torch.full_like(loss, len(still)))
        return radius * directions(gradient, otherwise=start)


def random_directions(vectors: Tensor, generator: torch.Generator, gaussian: bool = False) -> Tensor:
    """Draw the start d0 of the virtual augmentation: float[N, d] of length 1, as many as `vectors`.

    Before it is brought to that length it is uniform on (-1/2, 1/2)^d (code), or isotropic Gaussian (paper).
    It is drawn on the CPU in float32, so that it depends on the generator alone.
    """
    if gaussian:
        start = torch.randn(vectors.shape, generator=generator, dtype=torch.float32)
    else:
        start = torch.rand(vectors.shape, generator=generator, dtype=torch.float32).sub_(0.5)
    with torch.autocast(vectors.device.type, enabled=False):
        return unit_vectors(send([start], vectors.device)[0].to(at_least_float32(vectors[:0]).dtype))


def neighbourhood_loss(clean: Tensor, augmented: Tensor, neighbours: Tensor, temperature: float) -> Tensor:
    """Return both directions of the neighbourhood loss (equation 4): the mean over the 2N anchors.

    Row i of `clean` and row i of `augmented` are each other's positive; the negatives of both are the K
    neighbours of i, clean and augmented: 2K each, fewer for rows with `NONE`s; a row without any neighbour
    adds 0. (The paper's equation 5 divides the sum over both directions by 2N, as here.) In the authors' code
    `clean` has no gradient; the caller decides.

    clean, augmented: [N, D], the head's outputs h(e) and h(e + delta*). neighbours: int64[N, K].
    """
    assert clean.shape == augmented.shape
    count = len(clean)
    with torch.autocast(clean.device.type, enabled=False):
        both = torch.cat([unit_vectors(clean), unit_vectors(augmented)])
        index = torch.arange(2 * count, device=clean.device)
        moved = torch.where(neighbours == NONE, NONE, neighbours + count)
        of_both = torch.cat([neighbours, moved], dim=1).repeat(2, 1)
        return softmax_over_listed(both, both, (index + count) % (2 * count), of_both, temperature)


def softmax_over_listed(
    anchors: Tensor,
    candidates: Tensor,
    positives: Tensor,
    negatives: Tensor,
    temperature: float,
) -> Tensor:
    """Compute the mean over anchors [A, D] of -log softmax at the positive candidate.

    The softmax is over candidates[positives], int64[A], and candidates[negatives]. A tile's candidates are
    gathered again in the backward pass.

    candidates: [C, D]. negatives: int64[A, E], `NONE` if there is none. As
    `contrastive.softmax_over_candidates`, for few candidates an anchor.
    """
    listed = torch.cat([positives[:, None], negatives], dim=1)
    most = GATHERED.get(anchors.device.type, GATHERED["cuda"]) // (listed.shape[1] * anchors.shape[1])
    tile = max(1, most)

    def sum_of(part: Tensor, rows: Tensor) -> Tensor:
        gathered = candidates[rows.clamp(min=0)]  # [t, 1 + E, D]
        products = torch.bmm(gathered, (part * inverse(temperature))[:, :, None]).squeeze(2)
        logits = products.masked_fill(rows == NONE, NEVER)
        # log(1 + exp(rest)), not a softmax at the positive: if its probability is nearly 1, that has no
        # digits left for the gradient.
        rest = logits[:, 1:].logsumexp(1) - logits[:, 0]
        return torch.logaddexp(rest, torch.zeros_like(rest)).sum(dtype=torch.float64)

    losses = [
        checkpoint(sum_of, part, rows, use_reentrant=False, preserve_rng_state=False)
        for part, rows in zip(anchors.split(tile), listed.split(tile), strict=True)
    ]
    return (torch.stack(losses).sum() / max(len(anchors), 1)).to(anchors.dtype)
