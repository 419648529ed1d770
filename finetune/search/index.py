"""Find the sentences of a text whose vectors are nearest to a query's, by comparing all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pretrain.benchmarks.distinct import unit

_COSINES_AT_ONCE = 1 << 24  # 64 MB


@dataclass(frozen=True)
class Hit:
    """A sentence that was found. cosine: with the query. place: number of its line among the sentences."""

    sentence: str
    cosine: float
    place: int


class SentenceIndex:
    """N sentences of a text, and their vectors, float32[N, d]."""

    def __init__(self, vectors: np.ndarray, sentences: Sequence[str]):
        self._vectors, self._sentences = unit(vectors), sentences

    def nearest(self, queries: np.ndarray, count: int) -> list[list[Hit]]:
        """Return for each query, float32[Q, d], the nearest sentences, the nearest first."""
        queries, total = unit(queries), len(self._sentences)
        count = min(count, total)
        cosines: np.ndarray = np.empty((len(queries), 0), np.float32)
        places: np.ndarray = np.empty((len(queries), 0), np.int64)
        block = max(count, _COSINES_AT_ONCE // max(1, len(queries)))
        for first in range(0, total, block):
            found = queries @ self._vectors[first : first + block].T
            numbers = np.broadcast_to(np.arange(first, first + found.shape[1]), found.shape)
            cosines, places = np.hstack([cosines, found]), np.hstack([places, numbers])
            best = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
            cosines, places = (np.take_along_axis(side, best, axis=1) for side in (cosines, places))
        order = np.lexsort((places, -cosines), axis=1)
        cosines, places = (np.take_along_axis(side, order, axis=1) for side in (cosines, places))
        return [
            [Hit(self._sentences[place], cosine, place) for cosine, place in zip(row, found, strict=True)]
            for row, found in zip(cosines.tolist(), places.tolist(), strict=True)
        ]
