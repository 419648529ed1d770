"""Which texts of a batch mean the same, so that none is pushed away from what it means.

A record says that its anchor and its positive mean the same. Two records that share one of these texts
therefore mean the same, and so do two that others link: a question's other right answers are no negatives of
it. (With records (q, a), (q, b), (r, b) none is a negative of another.)
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from pretrain.common.transfer import send


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
        device: where the results shall be.
        """
        arrays = _components(identities.cpu().numpy().tobytes(), len(identities))
        found = [torch.from_numpy(array) for array in arrays]
        return Meanings(*(found if device is None else send(found, device)))

    def look_up(self, identities: Tensor) -> Tensor:
        """Return the meanings of any texts, int64[K] on the same device; -1 for one that no record has."""
        places = torch.searchsorted(self.texts, identities).clamp_(max=len(self.texts) - 1)
        return self.of_texts[places].masked_fill_(self.texts[places] != identities, -1)


@lru_cache(maxsize=4)  # the terms and widths of a step ask for the same
def _components(identities: bytes, texts_of_record: int) -> tuple[np.ndarray, ...]:
    texts, places = np.unique(np.frombuffer(identities, np.int64), return_inverse=True)
    first, *others = places.reshape(texts_of_record, -1)
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
        kept = logits.gather(1, own)
        same = self.candidates == self.anchors[start:stop, None]
        logits.masked_fill_(same, -torch.inf).scatter_(1, own, kept)
