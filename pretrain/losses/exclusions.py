"""Which candidates are no negatives of an anchor: of other groups, of its meaning, or false by a guide.

Texts of one meaning: a record says that its anchor and its positive mean the same. Two records that share one
of these texts therefore mean the same, and so do two that others link: a question's other right answers are
no negatives of it. (With records (q, a), (q, b), (r, b) none is a negative of another.)

False negatives by a guide (GISTEmbed, Solatorio 2024, section 3): with g the similarity by a guide, a
candidate j is left out of the denominator of anchor i where g(i, j) > g(i, p(i)). The margin is that of the
`GISTEmbedLoss` of sentence-transformers:

    absolute:  g(i, j) > g(i, p(i)) - margin
    relative:  g(i, j) > g(i, p(i)) - margin |g(i, p(i))|

An anchor's own positive always stays. The guide is a constant: no gradient goes through what it decides.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.losses.vectors import unit_vectors


class Adjustment(Protocol):
    """Changes the logits [stop - start, C] of anchors start to stop - 1 in place, by constants."""

    def __call__(self, logits: Tensor, start: int, stop: int) -> None: ...


@dataclass(frozen=True)
class Meanings:
    """The meanings of a batch's texts, numbered from 0: the connected components of its records.

    records: int64[N], the meaning of each record. texts: int64[M], the identities of its texts, in order;
    of_texts: int64[M], their meanings.

    >>> meanings = Meanings.of(torch.tensor([[11, 11, 13, 14], [21, 22, 22, 14]]))
    >>> meanings.records.tolist(), meanings.look_up(torch.tensor([22, 14, 30])).tolist()
    ([0, 0, 0, 1], [0, 1, -1])
    """

    records: Tensor
    texts: Tensor
    of_texts: Tensor

    @staticmethod
    def of(identities: Tensor, device: torch.device | None = None) -> "Meanings":
        """Find the meanings of N records of R texts each: O(R N log N) time, the same on every rank.

        identities: int64[R, N], hashes of the texts, best on the CPU: the host waits for those of a device.
        device: of the results.
        """
        arrays = _components(identities.cpu().numpy().tobytes(), len(identities))
        tensors = [torch.from_numpy(array) for array in arrays]
        return Meanings(*(tensors if device is None else send(tensors, device)))

    def look_up(self, identities: Tensor) -> Tensor:
        """Return the meanings of any texts, int64[K] on the same device; -1 for one that no record has."""
        places = torch.searchsorted(self.texts, identities).clamp_(max=len(self.texts) - 1)
        return self.of_texts[places].masked_fill_(self.texts[places] != identities, -1)


@lru_cache(maxsize=4)  # the terms and widths of a step ask for the same
def _components(identities: bytes, texts_of_record: int) -> tuple[np.ndarray, ...]:
    texts, places = np.unique(np.frombuffer(identities, np.int64), return_inverse=True)
    first, *others = places.reshape(texts_of_record, -1)
    if all(np.array_equal(first, other) for other in others):  # a text of each record, as SimCSE has them
        return first, texts, np.arange(len(texts))
    edges = np.tile(first, len(others)), np.concatenate([first[:0], *others])
    linked = coo_array((np.ones(len(edges[0]), bool), edges), shape=(len(texts), len(texts)))
    meanings = connected_components(linked, directed=False)[1].astype(np.int64)
    return meanings[first], texts, meanings


@dataclass(frozen=True)
class Identities:
    """The meanings of anchors, int64[A], and of candidates, int64[C], on the device of the vectors.

    A candidate with an anchor's meaning is no negative of it. An anchor's own positive always stays.
    """

    anchors: Tensor
    candidates: Tensor

    def exclude(self, logits: Tensor, own: Tensor, start: int, stop: int) -> None:
        """Set the logits [stop - start, C] of false negatives to minus infinity.

        own: int64[stop - start, 1].
        """
        own_logits = logits.gather(1, own)
        same = self.candidates == self.anchors[start:stop, None]
        logits.masked_fill_(same, -torch.inf).scatter_(1, own, own_logits)


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
        guided, counts = logits[:, : len(self.candidates)], None
        if self.guide.counting:
            before = logits > -torch.inf
            there = before.sum(dtype=torch.float64) - before.gather(1, own).sum()
            counts = torch.stack([(false & before[:, : false.shape[1]]).sum(dtype=torch.float64), there])
        guided.masked_fill_(false, -torch.inf)
        return counts


@dataclass(frozen=True)
class Exclusions:
    """Which candidates are no negatives of an anchor, for a loss of N anchors and N positives.

    groups: int64[N]; if given, an anchor's candidates are those of its own group only.
    identities: int64[2, N], hashes of the texts of anchors and positives; if given, texts of one meaning are
        no negatives.
    guide: if given, what it holds for false negatives is left out.
    """

    groups: Tensor | None = None
    identities: Tensor | None = None
    guide: Guide | None = None

    def within_group(self, device: torch.device, repeats: int = 1) -> Adjustment | None:
        """Exclude candidates of other groups; anchors and candidates have `groups`, `repeats` times."""
        if self.groups is None:
            return None
        membership = self.groups.repeat(repeats).to(device)

        def exclude(logits: Tensor, start: int, stop: int) -> None:
            logits.masked_fill_(membership[start:stop, None] != membership, -torch.inf)

        return exclude

    def same_meaning(self, device: torch.device, further: Tensor | None = None) -> Identities | None:
        """Exclude positives and `further` candidates (identities int64[M]) of an anchor's meaning."""
        if self.identities is None:
            return None
        meanings = Meanings.of(self.identities, device)
        others = [] if further is None else [meanings.look_up(further)]
        return Identities(meanings.records, torch.cat([meanings.records, *others]))


NO_EXCLUSIONS = Exclusions()
