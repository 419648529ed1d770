"""Rank documents by the cosine of their vectors with the query's, and score the rankings.

The figures are those of sentence-transformers' InformationRetrievalEvaluator. A relevance above 1 is the gain
of a document in nDCG, as in trec_eval.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pretrain.benchmarks.distinct import unit

DEPTH = 100
"""Documents of a ranking that are looked at."""
HEADLINE = "ndcg@10"
_ROWS = 256  # queries that are compared with the corpus at a time


@dataclass(frozen=True)
class RetrievalSet:
    """D documents, Q queries, their relevant rows with gains; rows from D on: not in the corpus."""

    documents: list[str]
    queries: list[str]
    relevant: list[dict[int, float]]
    missing: str = ""


def rank(queries: np.ndarray, documents: np.ndarray, depth: int = DEPTH) -> np.ndarray:
    """Return the rows of the nearest documents (of equal cosines the first), int64[Q, min(depth, D)]."""
    directions, first = unit(documents), dict[bytes, int]()
    # a product may round the columns of equal vectors differently: one stands for all
    column = [first.setdefault(vector.tobytes(), row) for row, vector in enumerate(documents)]
    found = []
    for start in range(0, len(queries), _ROWS):
        cosines = (unit(queries[start : start + _ROWS]) @ directions.T)[:, column]
        found.append(np.argsort(-cosines, axis=1, kind="stable")[:, :depth])
    return np.concatenate(found)


def score(ranking: Sequence[int], relevant: Mapping[int, float]) -> dict[str, float]:
    """Return the figures of one query, 0 to 1, from documents, best first, and document -> gain."""
    gains = [relevant.get(row, 0.0) for row in ranking]
    hits = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    best = sorted(relevant.values(), reverse=True)
    return {
        "ndcg@10": _discounted(gains[:10]) / _discounted(best[:10]),
        "mrr@10": 1 / hits[0] if hits and hits[0] <= 10 else 0.0,
        "map@100": sum(number / rank for number, rank in enumerate(hits, 1) if rank <= 100)
        / min(len(relevant), 100),
        "accuracy@1": float(bool(hits) and hits[0] == 1),
        "precision@10": sum(rank <= 10 for rank in hits) / 10,
        "recall@10": sum(rank <= 10 for rank in hits) / len(relevant),
        "recall@100": sum(rank <= 100 for rank in hits) / len(relevant),
    }


def _discounted(gains: Sequence[float]) -> float:
    return float(sum(gain / np.log2(rank + 1) for rank, gain in enumerate(gains, 1)))
