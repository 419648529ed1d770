"""Retrieval on queries whose answer is known: held-out paragraphs, by their first sentence."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from finetune.encoders.distinct import unit
from finetune.encoders.models import EmbeddingModel
from pretrain.data.manifest import PAIRS
from pretrain.data.shards import ShardReader
from pretrain.prepare.sentences import split_sentences

FEWEST, MOST = 10, 1000  # pairs: with fewer, a share says little


@dataclass(frozen=True)
class Retrieval:
    """How well queries find their answers among those of all queries.

    recall: share of the answers among the five nearest. ndcg: mean nDCG at 10. cosine: mean of a query with
    the answers of others.
    """

    recall: float
    ndcg: float
    cosine: float


def read_pairs(folder: Path, tokenizer: Any) -> list[tuple[str, str]]:
    """Return (first sentence, the others) of held-out paragraphs; none where the data has too few.

    Left out are pairs with a sentence that is not in the held-out split, as training text has it too, and
    those that repeat a query or an answer.
    """
    if not (folder / PAIRS).is_file():
        return []
    reader = ShardReader(folder, "heldout")
    heldout = set()
    for index in range(reader.num_chunks):
        sequences = reader.read(index).sequences
        heldout |= {sequences[row].tobytes() for row in range(len(sequences))}

    def is_heldout(sentence: str) -> bool:
        return np.array(tokenizer(sentence)["input_ids"], np.int32).tobytes() in heldout

    pairs, seen = [], set[str]()
    for first, others in json.loads((folder / PAIRS).read_text("utf-8")):
        if {first, others} & seen or not all(map(is_heldout, [first, *split_sentences(others)])):
            continue
        seen |= {first, others}
        pairs.append((first, others))
    return pairs[:MOST] if len(pairs) >= FEWEST else []


def retrieval(model: EmbeddingModel, pairs: list[tuple[str, str]]) -> Retrieval:
    """Return how well a model finds the answer of each query among all answers, by cosine."""
    queries, answers = map(list, zip(*pairs))
    vectors = model.encode_query(queries), model.encode_document(answers)
    return measure(*(np.asarray(one, np.float64) for one in vectors))


def measure(queries: np.ndarray, answers: np.ndarray) -> Retrieval:
    """Return the measures of queries float[N, d] whose answers are the rows of float[N, d].

    A tie counts as a miss: equal vectors find nothing.
    """
    cosines = unit(queries) @ unit(answers).T
    own = np.diagonal(cosines)
    ranks = (cosines >= own[:, None]).sum(1)  # from 1
    gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)
    others = (cosines.sum() - own.sum()) / max(1, len(own) * (len(own) - 1))
    return Retrieval(float((ranks <= 5).mean()), float(gains.mean()), float(others))
