"""False negatives, found by a guide: candidates that are nearer to an anchor than its own positive.

GISTEmbed (Solatorio 2024, section 3): with g the similarity by a guide, a candidate j is left out of the
denominator of anchor i where g(i, j) > g(i, p(i)). The margin is that of the `GISTEmbedLoss` of
sentence-transformers:

    absolute:  g(i, j) > g(i, p(i)) - margin
    relative:  g(i, j) > g(i, p(i)) - margin |g(i, p(i))|

An anchor's own positive always stays. The guide is a constant: no gradient goes through what it decides.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from pretrain.objectives.losses.vectors import unit_vectors


@dataclass(frozen=True)
class Guide:
    """A guide's vectors of a batch, any length but 0, without gradients.

    anchors, positives: float[N, g]. negatives: float[M, g] of the negatives that the data has, or None.
    margin, strategy: as above.
    tally: counts of the losses that were computed with it, float64[2] each: (negatives left out, negatives
        there were). They are counted only where `counting`.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor | None = None
    margin: float = 0.0
    strategy: Literal["absolute", "relative"] = "absolute"
    counting: bool = False
    tally: list[Tensor] = field(default_factory=list)

    def forth(self) -> "FalseNegatives":
        """Guide anchors against positives and then negatives."""
        candidates = unit_vectors(self.positives)
        if self.negatives is not None:
            candidates = torch.cat([candidates, unit_vectors(self.negatives)])
        return FalseNegatives(unit_vectors(self.anchors), candidates, self)

    def back(self) -> "FalseNegatives":
        """Guide positives against anchors."""
        return FalseNegatives(unit_vectors(self.positives), unit_vectors(self.anchors), self)

    def both(self) -> "FalseNegatives":
        """Guide all vectors, anchors and then positives, against one another."""
        every = unit_vectors(torch.cat([self.anchors, self.positives]))
        return FalseNegatives(every, every, self)

    def share(self) -> Tensor:
        """Return the share of the counted negatives that was left out: a float64 scalar."""
        masked, negatives = torch.stack(self.tally).sum(0)
        return masked / negatives.clamp_min(1)


@dataclass(frozen=True)
class FalseNegatives:
    """The guide's unit vectors in the order of a loss's anchors [A, g] and of its first candidates [C', g].

    Candidates after the first C' (a queue of earlier batches) are unknown to the guide, and stay.
    """

    anchors: Tensor
    candidates: Tensor
    guide: Guide

    def exclude(self, logits: Tensor, own: Tensor, start: int, stop: int) -> Tensor | None:
        """Set the logits [stop - start, C] of false negatives to minus infinity; return counts for the tally.

        own: int64[stop - start, 1], of each anchor's positive. Logits of what is no negative already are
        minus infinity.
        """
        similarity = self.anchors[start:stop] @ self.candidates.T
        threshold = similarity.gather(1, own)
        by = threshold.abs() if self.guide.strategy == "relative" else 1.0
        false = (similarity > threshold - self.guide.margin * by).scatter_(1, own, False)
        known, counts = logits[:, : len(self.candidates)], None
        if self.guide.counting:
            before = logits > -torch.inf
            there = before.sum(dtype=torch.float64) - before.gather(1, own).sum()
            counts = torch.stack([(false & before[:, : false.shape[1]]).sum(dtype=torch.float64), there])
        known.masked_fill_(false, -torch.inf)
        return counts
