"""Score encoders on a held-out test of the user's own text, and say in words which is better.

The documents of the queries are drawn again to see how far their choice moves a figure, each with all of its
queries, which are alike (a cluster bootstrap). The draws are the same for every row, so that a difference
between two rows is paired.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from finetune.encoders.models import EmbeddingModel
from finetune.judge import bm25
from finetune.judge.heldout import HALVES, documents_of
from finetune.nanobeir import FOLDER, read
from pretrain.benchmarks.retrieval import RetrievalSet, rank, score
from pretrain.telemetry.formats import columns
from pretrain.telemetry.intervals import LEVEL, Interval, draws, interval

METRICS = {"ndcg@10": "nDCG@10", "mrr@10": "MRR@10", "recall@10": "recall@10"}
"""Name in `finetune.nanobeir.score` -> as tables print it; the first decides."""
BM25, START, ADAPTED, PASSAGES = "BM25", "start", "adapted", "passages"

Scores = dict[str, np.ndarray]
"""Half of the test -> float64[3, Q]: each metric x 100 of each query."""
Verdict = Literal["better", "worse", "not told apart"]


@dataclass(frozen=True)
class Halves:
    """The two halves of a test: the same passages, queries of other documents.

    documents: half -> the document of each query, int64[Q], numbered from 0.
    """

    sets: Mapping[str, RetrievalSet]
    documents: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, folder: Path) -> "Halves":
        """Read what `finetune.judge.heldout.make_test` has written."""
        places = {half: folder / FOLDER / half for half in HALVES}
        sets = {half: read(place) for half, place in places.items()}
        return cls(sets, {half: documents_of(place) for half, place in places.items()})

    def of_model(self, model: EmbeddingModel) -> Scores:
        """Score an encoder by cosine, with the prompts that it brings."""
        return self.of_vectors(self.vectors_of(model))

    def vectors_of(self, model: EmbeddingModel) -> dict[str, np.ndarray]:
        """Return half -> vectors of its queries, and `PASSAGES` -> those of the passages."""
        vectors = {half: model.encode_query(one.queries) for half, one in self.sets.items()}
        return vectors | {PASSAGES: model.encode_document(self.sets[HALVES[0]].documents)}

    def of_vectors(self, vectors: Mapping[str, np.ndarray]) -> Scores:
        """Score what `vectors_of` returned."""
        passages = vectors[PASSAGES]
        return {half: _scored(rank(vectors[half], passages), one) for half, one in self.sets.items()}

    def of_words(self) -> Scores:
        return {half: _scored(bm25.rank(one.queries, one.documents), one) for half, one in self.sets.items()}


def _scored(ranking: np.ndarray, test: RetrievalSet) -> np.ndarray:
    each = [score(rows, relevant) for rows, relevant in zip(ranking.tolist(), test.relevant, strict=True)]
    return 100 * np.array([[one[name] for one in each] for name in METRICS])


def mean_interval(values: np.ndarray, documents: np.ndarray) -> Interval:
    """Return the mean of Q queries' values, float64[Q], and its interval by a cluster bootstrap.

    The interval of percentiles of a mean of G documents is too narrow: by the variance's (G - 1) / G, and as
    the normal distribution beside Student's t of G - 1. It is widened by both (Hesterberg 2015, section 4).

    Args:
        documents: of each query, int64[Q], numbered from 0.
    """
    from scipy import stats

    sums, sizes = np.bincount(documents, values), np.bincount(documents)
    count = len(sizes)
    drawn = np.concatenate([(counts @ sums) / (counts @ sizes) for counts in draws("judge", count)])
    tail = (1 - LEVEL) / 2
    wider = (count / (count - 1)) ** 0.5 * stats.t.ppf(tail, count - 1) / stats.norm.ppf(tail)
    found = interval(float(drawn[-1]), None, wider * (drawn[:-1] - drawn[-1]))
    assert found is not None  # there is noise
    return found


def verdict(difference: Interval) -> Verdict:
    """Say whether what a difference is of is better, worse, or not told apart from what it is to."""
    if not difference.differs:
        return "not told apart"
    return "better" if difference.mean > 0 else "worse"


def rows_of(scores: Mapping[str, Scores], documents: np.ndarray) -> dict[str, dict[str, Any]]:
    """Return row -> metric -> {"value", "low", "high"}, and of its first metric the differences, as JSON.

    scores: row -> its scores, the start among them. documents: of each query of the half `test`.
    """
    rows: dict[str, dict[str, Any]] = {}
    for name, of_row in scores.items():
        figures = {
            metric: plain(mean_interval(of_row["test"][number], documents))
            for number, metric in enumerate(METRICS)
        }
        against = {
            other: plain(mean_interval(of_row["test"][0] - scores[other]["test"][0], documents))
            for other in (START, BM25)
            if other in scores and other != name
        }
        rows[name] = {"figures": figures, "less": against}
    return rows


def plain(one: Interval) -> dict[str, Any]:
    """Return an interval as JSON, with what it says in words."""
    return {"value": one.mean, "low": one.low, "high": one.high, "verdict": verdict(one)}


def table(rows: Mapping[str, Mapping[str, Any]], queries: int, documents: int, passages: int) -> list[str]:
    """Return the lines of the table: a row each, figures x 100 with 95% intervals."""
    lines = [
        (f"  {name}", *map(_cell, row["figures"].values()), _difference(row["less"].get(START)))
        for name, row in rows.items()
    ]
    return [
        *map(str.rstrip, columns(("", *METRICS.values(), "nDCG@10 less the start's"), lines).split("\n")),
        f"  {queries:,} queries of {documents:,} held-out documents among {passages:,} passages; "
        "in brackets: 95% intervals over the documents",
    ]


def _cell(figure: Mapping[str, Any]) -> str:
    return f"{figure['value']:.1f} [{max(figure['low'], 0):.1f}, {min(figure['high'], 100):.1f}]"


def _difference(figure: Mapping[str, Any] | None) -> str:
    return (
        ""
        if figure is None
        else f"{figure['value']:+.1f} [{figure['low']:+.1f}, {figure['high']:+.1f}] {figure['verdict']}"
    )


def in_words(rows: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """Return a sentence for each row that `name` is compared with."""
    return [f"{name} against {other}: {_difference(figure)}" for other, figure in rows[name]["less"].items()]
