"""Rank passages by BM25: words alone, which an encoder that is worth its cost must beat."""

import re
from collections.abc import Sequence
from importlib.util import find_spec

import numpy as np

from pretrain.benchmarks.retrieval import DEPTH

HOW = "pip install 'sentence-clear[bm25]'"
_ALONE = r"\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"  # Thai and Lao, kana, ideographs
_WORD = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+")
K1, B = 1.2, 0.75
"""Lucene's."""


def available() -> bool:
    """Return whether the library that computes it is installed."""
    return find_spec("bm25s") is not None


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; in Chinese, Japanese and Thai every character is one.

    >>> words_of("Re-run `make_all` 东京 tarで")
    ['re', 'run', 'make', 'all', '东', '京', 'tar', 'で']
    """
    return _WORD.findall(text.lower())


def rank(queries: Sequence[str], passages: Sequence[str], depth: int = DEPTH) -> np.ndarray:
    """Return the rows of the best passages of each query, int64[Q, min(depth, D)], the best first.

    score(q, d) = sum over words w of q of idf(w) f / (f + k1 (1 - b + b |d| / mean |d|)), f the count of w
    in d, idf(w) = ln(1 + (D - n + 0.5) / (n + 0.5)), n the passages with w (Robertson and Zaragoza 2009, in
    Lucene's form). Of equal scores the first row comes first.
    """
    import bm25s

    index = bm25s.BM25(method="lucene", k1=K1, b=B, dtype="float64")
    index.index([words_of(passage) or [""] for passage in passages], show_progress=False)
    found = []
    for query in queries:
        words = [word for word in words_of(query) if word in index.vocab_dict]
        scores = index.get_scores(words) if words else np.zeros(len(passages))
        found.append(np.argsort(-scores, kind="stable")[:depth])
    return np.stack(found)
