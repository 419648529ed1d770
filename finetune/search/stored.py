"""Indices of faiss over vectors that are stored as float32, in a byte a channel, or in a bit a channel."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from pretrain.common.errors import UserError

Storage = Literal["none", "int8", "binary"]
EXACT = 200_000
"""Vectors up to which every one is compared; beyond, a graph of neighbours is walked (HNSW). Bits are always
compared one by one, which is fast enough for millions."""
CANDIDATES = 10
"""Sentences for each asked one that bits find, to be compared again with the query as it is."""
_NEIGHBOURS, _EXPLORED = 32, 128  # links of a vector in the graph; candidates kept on the walk
_MARGIN = 0.1  # of each channel's range in the vectors that set it: later ones may lie beyond
_QUERIES = 256  # compared again at once


class Floats:
    """Vectors of length 1, compared by inner product: float32, or int8 with a range for each channel.

    An int8 vector is decoded and compared with the query in float32. The first vectors that are added set the
    ranges.
    """

    def __init__(self, index: Any):
        self._index = index

    @classmethod
    def empty(cls, width: int, count: int, quantize: Storage) -> Floats:
        """Return an index for `count` vectors of `width` channels."""
        faiss = load_faiss()
        inner, byte = faiss.METRIC_INNER_PRODUCT, faiss.ScalarQuantizer.QT_8bit
        exact = count <= EXACT
        if quantize == "none":
            index = faiss.IndexFlatIP(width) if exact else faiss.IndexHNSWFlat(width, _NEIGHBOURS, inner)
            scalar = None
        elif exact:
            scalar = index = faiss.IndexScalarQuantizer(width, byte, inner)
        else:
            index = faiss.IndexHNSWSQ(width, byte, _NEIGHBOURS, inner)
            scalar = faiss.downcast_index(index.storage)
        if scalar is not None:
            scalar.sq.rangestat_arg = _MARGIN
        if not exact:
            index.hnsw.efSearch = _EXPLORED
        return cls(index)

    @classmethod
    def read(cls, path: str) -> Floats:
        return cls(load_faiss().read_index(path))

    def serialized(self) -> bytes:
        return load_faiss().serialize_index(self._index).tobytes()

    def add(self, vectors: np.ndarray) -> None:
        """Add vectors float32[N, d] of length 1."""
        if not self._index.is_trained:
            self._index.train(vectors)
        self._index.add(vectors)

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for queries float32[Q, d] of length 1 the cosines and places [Q, count], the nearest first.

        A place of -1: a walk through the graph has found fewer.
        """
        return self._index.search(queries, count)


class Signs:
    """The sign of each channel, a bit: found by Hamming distance, then compared with the query as it is.

    That is sentence-transformers' `semantic_search_faiss` with `corpus_precision="ubinary"` and rescoring
    (Shakir, Aarsen and Lee 2024, "Binary and Scalar Embedding Quantization").
    """

    def __init__(self, index: Any):
        self._index = index

    @classmethod
    def empty(cls, width: int) -> Signs:
        return cls(load_faiss().IndexBinaryFlat(-(-width // 8) * 8))

    @classmethod
    def read(cls, path: str) -> Signs:
        return cls(load_faiss().read_index_binary(path))

    def serialized(self) -> bytes:
        return load_faiss().serialize_index_binary(self._index).tobytes()

    def add(self, vectors: np.ndarray) -> None:
        """Add the signs of vectors float32[N, d]."""
        self._index.add(np.packbits(vectors > 0, axis=1))

    def search(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return for queries float32[Q, d] of length 1 the cosines and places [Q, count], the nearest first.

        A cosine is that of the query and a vector of 1 and -1.
        """
        codes = load_faiss().vector_to_array(self._index.xb).reshape(self._index.ntotal, -1)
        found = [
            self._search(codes, queries[first : first + _QUERIES], count)
            for first in range(0, len(queries), _QUERIES)
        ]
        return np.concatenate([cosines for cosines, _ in found]), np.concatenate(
            [places for _, places in found]
        )

    def _search(self, codes: np.ndarray, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        width = queries.shape[1]
        asked = min(count * CANDIDATES, len(codes))
        _, places = self._index.search(np.packbits(queries > 0, axis=1), asked)
        signs = np.unpackbits(codes[places], axis=-1)[..., :width].astype(np.float32) * 2 - 1
        cosines = np.einsum("qd,qkd->qk", queries, signs) / np.sqrt(np.float32(width))
        order = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        return np.take_along_axis(cosines, order, axis=1), np.take_along_axis(places, order, axis=1)


def load_faiss() -> Any:
    """Return the module faiss.

    Raises:
        UserError: it is not installed.
    """
    try:
        import faiss
    except ImportError:
        raise UserError("searching needs faiss: pip install faiss-cpu") from None
    return faiss
