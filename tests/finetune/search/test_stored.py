"""Vectors of a byte or a bit a channel: what is found is what sentence-transformers and plain numpy find."""

import numpy as np
import pytest
from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_faiss

from finetune.search import stored
from finetune.search.stored import Floats, Signs

COUNT, ASKED, TOP = 3000, 40, 10


def vectors_of(width: int, count: int = COUNT, seed: int = 0) -> np.ndarray:
    """Vectors of length 1 in clusters, as sentences' are: some are much nearer than others."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(150, width))
    vectors = centres[generator.integers(150, size=count)] + 0.7 * generator.normal(size=(count, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def filled(index: Floats | Signs, vectors: np.ndarray) -> Floats | Signs:
    for first in range(0, len(vectors), 1000):
        index.add(vectors[first : first + 1000])
    return index


def recall(found: np.ndarray, right: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, right)]))


@pytest.mark.parametrize("width", [64, 60])
def test_signs_find_what_sentence_transformers_finds(width, monkeypatch):
    monkeypatch.setattr(stored, "_QUERIES", 7)
    vectors, queries = vectors_of(width), vectors_of(width, ASKED, 1)
    cosines, places = filled(Signs.empty(width), vectors).search(queries, TOP)
    bits = quantize_embeddings(vectors, "ubinary")
    theirs, _ = semantic_search_faiss(
        queries, bits, corpus_precision="ubinary", top_k=TOP, rescore_multiplier=stored.CANDIDATES
    )
    assert places.tolist() == [[hit["corpus_id"] for hit in hits] for hits in theirs]
    signs = np.where(vectors > 0, 1, -1)
    by_hand = np.einsum("qd,qkd->qk", queries, signs[places]) / np.linalg.norm(signs[0])
    np.testing.assert_allclose(cosines, by_hand, atol=1e-6)


@pytest.mark.parametrize("exact", [stored.EXACT, 5])
def test_bytes_find_nearly_what_floats_find(exact, monkeypatch):
    monkeypatch.setattr(stored, "EXACT", exact)
    vectors, queries = vectors_of(64), vectors_of(64, ASKED, 1)
    index = filled(Floats.empty(64, COUNT, "int8"), vectors)
    cosines, places = index.search(queries, TOP)
    own = queries @ vectors.T
    assert recall(places, np.argsort(-own)[:, :TOP]) > 0.95
    # a 255th of each channel's range is a step; half of one the most that a channel is off
    step = 1.2 * np.ptp(vectors, axis=0) / 255
    most = np.abs(queries) @ step
    assert (np.abs(cosines - np.take_along_axis(own, places, axis=1)) <= most[:, None]).all()


def test_an_index_takes_the_bytes_that_it_says(monkeypatch):
    """A vector of 64 channels: 256, 64 and 8 bytes; beside them what does not grow with the vectors."""
    vectors = vectors_of(64)
    kinds = [Floats.empty(64, COUNT, "none"), Floats.empty(64, COUNT, "int8"), Signs.empty(64)]
    sizes = [len(filled(index, vectors).serialized()) / COUNT for index in kinds]
    assert sizes == pytest.approx([256, 64, 8], abs=1)
