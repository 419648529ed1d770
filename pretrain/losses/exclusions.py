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
import torch.distributed as dist
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pretrain.common.transfer import send
from pretrain.losses.vectors import unit_vectors

Way = Literal["forth", "back", "both"]
"""Of a loss of N records: from anchors to positives, from positives to anchors, or of all 2N vectors, anchors
and then positives, against one another."""


class Adjustment(Protocol):
    """Changes the logits [stop - start, C] of anchors start to stop - 1 in place, by constants.

    own: int64[stop - start, 1], the anchors' positives. Their logits stay, whatever is done to them here.
    """

    def __call__(self, logits: Tensor, own: Tensor, start: int, stop: int) -> None: ...


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
class Guide:
    """A guide's vectors of a batch, any length but 0, without gradients.

    anchors, positives: float[N, g]. negatives: float[M, g] of the negatives that the data has, or None.
    margin, strategy: as above.
    tally: counts of the losses that were computed with it, float64[2] each: (negatives left out, negatives
        there were). They are counted only if `counting`.
    """

    anchors: Tensor
    positives: Tensor
    negatives: Tensor | None = None
    margin: float = 0.0
    strategy: Literal["absolute", "relative"] = "absolute"
    counting: bool = False
    tally: list[Tensor] = field(default_factory=list)

    def over(self, way: Way) -> Adjustment:
        """Return what excludes false negatives from a loss of this way; candidates without a guide stay.

        A loss that goes forth has the negatives behind its positives.
        """
        anchors, candidates = unit_vectors(self.anchors), unit_vectors(self.positives)
        if way == "both":
            anchors = candidates = torch.cat([anchors, candidates])
        elif way == "back":
            anchors, candidates = candidates, anchors
        elif self.negatives is not None:
            candidates = torch.cat([candidates, unit_vectors(self.negatives)])

        def exclude(logits: Tensor, own: Tensor, start: int, stop: int) -> None:
            similarity = anchors[start:stop] @ candidates.T
            threshold = similarity.gather(1, own)
            by = threshold.abs() if self.strategy == "relative" else 1.0
            false = (similarity > threshold - self.margin * by).scatter_(1, own, False)
            if self.counting:  # logits of what is no negative already are minus infinity
                before = logits > -torch.inf
                there = before.sum(dtype=torch.float64) - before.gather(1, own).sum()
                masked = (false & before[:, : false.shape[1]]).sum(dtype=torch.float64)
                self.tally.append(torch.stack([masked, there]))
            logits[:, : len(candidates)].masked_fill_(false, -torch.inf)

        return exclude

    def share(self) -> Tensor:
        """Return the share of the counted negatives that was left out, over all ranks: a float64 scalar.

        All ranks must call it. Where each has counted all of a loss, and not its part, the share is the same.
        """
        nothing = self.anchors.new_zeros(2, dtype=torch.float64)  # a rank may have no anchor of its own
        counts = torch.stack([nothing, *self.tally]).sum(0)
        if dist.is_initialized():
            dist.all_reduce(counts)
        return counts[0] / counts[1].clamp_min(1)


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

    def over(self, way: Way, device: torch.device, further: Tensor | None = None) -> list[Adjustment]:
        """Return what excludes candidates from a loss of this way.

        further: int64[M], hashes of the texts of candidates behind the N records, if these have such.
        """
        repeats = 2 if way == "both" else 1
        found: list[Adjustment] = []
        if self.groups is not None:
            members = self.groups.repeat(repeats).to(device)

            def other_groups(logits: Tensor, own: Tensor, start: int, stop: int) -> None:
                for block in logits.split(len(members), dim=1):
                    block.masked_fill_(members[start:stop, None] != members, -torch.inf)

            found.append(other_groups)
        if self.identities is not None:
            meanings = Meanings.of(self.identities, device)
            anchors = meanings.records.repeat(repeats)
            others = [] if further is None else [meanings.look_up(further)]
            candidates = torch.cat([anchors, *others])

            def same_meaning(logits: Tensor, own: Tensor, start: int, stop: int) -> None:
                logits.masked_fill_(candidates == anchors[start:stop, None], -torch.inf)

            found.append(same_meaning)
        return found if self.guide is None else [*found, self.guide.over(way)]


NO_EXCLUSIONS = Exclusions()
