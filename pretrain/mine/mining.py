"""Mine hard negatives with sentence-transformers' `mine_hard_negatives`, on vectors of `open_model`.

The library chooses: it excludes a text's own positives, applies margins and limits, and samples. This module
gives it vectors (packed, and kept, so that a second mining with other limits encodes nothing), and makes
sure that no text becomes its own negative, which the library allows where a text is a candidate, too.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from finetune.encoders.distinct import unit
from pretrain.common.errors import UserError
from pretrain.mine.pairs import Pairs


class MiningOptions(BaseModel):
    """Which candidates become negatives; the names and meanings are sentence-transformers' own."""

    model_config = ConfigDict(extra="forbid")

    num_negatives: int = Field(1, ge=1, description="negatives of a pair, each in a record of its own")
    range_min: int = Field(0, ge=0, description="leave out so many of the nearest candidates")
    range_max: int | None = Field(
        None,
        ge=1,
        description="look at so many of the nearest; without it, as many as are needed, or ten times the "
        "negatives where a limit below may refuse some",
    )
    max_score: float | None = Field(None, description="highest cosine of a text with its negative")
    min_score: float | None = Field(None, description="lowest cosine of a text with its negative")
    absolute_margin: float | None = Field(
        None, description="a negative's cosine is at least so much below the positive's"
    )
    relative_margin: float | None = Field(
        None, description="the same as a share of the positive's cosine: 0.05 means at most 95% of it"
    )
    sampling_strategy: Literal["top", "random"] = Field(
        "top", description="top: the nearest that are left; random: any of those in the range"
    )
    seed: int = Field(0, ge=0, description="of the random sampling")


@dataclass(frozen=True)
class Triple:
    """A pair and one of its negatives, with their cosines."""

    text: str
    positive: str
    negative: str
    positive_cosine: float
    negative_cosine: float


class Vectors:
    """What `mine_hard_negatives` asks of a SentenceTransformer, by any function that encodes.

    Args:
        encode: N texts -> float32[N, d].
        query_prompt: stands before every text that negatives are sought for.
        document_prompt: stands before every candidate.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], np.ndarray],
        query_prompt: str = "",
        document_prompt: str = "",
    ):
        import torch
        from sentence_transformers.util import cos_sim, pairwise_cos_sim

        self.device = torch.device("cpu")
        self.similarity, self.similarity_pairwise = cos_sim, pairwise_cos_sim
        self._encode, self._query_prompt, self._document_prompt = encode, query_prompt, document_prompt
        self._width = 0

    def encode_query(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """Return vectors of length 1, float32[N, d]."""
        return self._unit([self._query_prompt + text for text in texts])

    def encode_document(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """Return vectors of length 1, float32[N, d]."""
        return self._unit([self._document_prompt + text for text in texts])

    def get_embedding_dimension(self) -> int:
        """Return d, once something was encoded."""
        return self._width

    def _unit(self, texts: list[str]) -> np.ndarray:
        vectors = self._encode(texts)
        self._width = vectors.shape[1]
        return np.ascontiguousarray(unit(vectors), np.float32)


def mine(pairs: Pairs, candidates: Sequence[str], vectors: Vectors, options: MiningOptions) -> list[Triple]:
    """Return the triples of the pairs, in the order of the pairs, each pair's nearest negative first.

    A pair may get fewer than `num_negatives`, or none, where the limits refuse the rest.

    Args:
        candidates: texts that negatives may be, beside the positives and negatives of the pairs.

    Raises:
        UserError: fewer candidates than are asked for, options that contradict each other, or faiss missing.
    """
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    corpus = list(dict.fromkeys([*pairs.positives, *pairs.negatives, *candidates]))
    if len(corpus) <= options.range_min + options.num_negatives:
        raise UserError(
            f"there are {len(corpus):,} different candidates: too few for {options.num_negatives} negatives "
            f"beside a pair's own positive and the first {options.range_min}; give more pairs, or texts with "
            "--corpus"
        )
    given = list(zip(pairs.texts, pairs.positives, strict=True))
    # A text is a positive of itself, so that the library excludes it; a cosine of 1 moves no margin, which
    # is that of a text's farthest positive.
    own = sorted(set(pairs.texts) & set(corpus))
    asked = Dataset.from_dict({"text": [*pairs.texts, *own], "positive": [*pairs.positives, *own]})
    state = random.getstate()
    random.seed(options.seed)
    try:
        found = mine_hard_negatives(
            asked,
            vectors,
            anchor_column_name="text",
            positive_column_name="positive",
            corpus=corpus,
            output_scores=True,
            use_faiss=True,
            verbose=False,
            **options.model_dump(exclude={"seed"}),
        )
    except ImportError:
        raise UserError("mining needs faiss: pip install faiss-cpu") from None
    except ValueError as error:
        raise UserError(f"nothing can be mined with these options: {error}") from None
    finally:
        random.setstate(state)
    of_pair: dict[tuple[str, str], list[Triple]] = {pair: [] for pair in given}
    for row in found:
        pair = (row["text"], row["positive"])
        if pair in of_pair:
            of_pair[pair].append(Triple(*pair, row["negative"], *row["scores"]))
    return [triple for triples in of_pair.values() for triple in triples]
