"""Add hard negatives to labelled pairs: texts that an encoder finds near, and that mean something else.

    clearly mine runs/mine --pairs pairs.jsonl --out data/mined --relative-margin 0.05
    clearly prepare --source data/mined/triples.jsonl --unit record --out data/triples
    clearly train --config simcse_supervised_micro --init runs/mine --data data/triples --run runs/supervised

Pairs are records with a text and a positive, as `clearly prepare --unit record` reads them. OUT gets
triples.jsonl and mined.yaml (settings, counts, cosines). CLEAR_VECTORS=DIR keeps the vectors, so that another
mining with other limits encodes nothing again.

sentence-transformers' `mine_hard_negatives` chooses: it excludes a text's own positives, applies margins and
limits, and samples. This module gives it vectors of packed rows, and makes sure that no text becomes its own
negative, which the library allows if a text is a candidate, too; nor a positive of a text that shares another
positive with it.
"""

import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, Field

from finetune.flags import EncodingFlags, Model
from pretrain.benchmarks.distinct import unit
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import Source
from pretrain.prepare.sources import readers
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.records import COLUMNS, records

TRIPLES, SUMMARY = "triples.jsonl", "mined.yaml"
_TEXT, _POSITIVE, _NEGATIVE = (COLUMNS.index(name) for name in ("text", "positive", "negative"))
_FURTHER = len(COLUMNS)  # from here on negatives

MOST_TEXTS = 3
"""A positive of more texts is a generic one, as "Yes.", which says nothing of what they mean."""

Pair = tuple[str, str]
"""A text, and one that means the same."""


class MiningOptions(BaseModel, extra="forbid", use_attribute_docstrings=True):
    """Which candidates become negatives; the names and meanings are sentence-transformers' own."""

    num_negatives: int = Field(1, ge=1, description="negatives of a pair, each in a record of its own")
    range_min: int = Field(0, ge=0, description="leave out the N nearest candidates")
    range_max: int | None = Field(None, ge=1)
    """consider only the N nearest; without it, as many as are needed, or ten times the negatives if a limit
    below may refuse some"""
    max_score: float | None = Field(None, description="highest cosine of a text with its negative")
    min_score: float | None = Field(None, description="lowest cosine of a text with its negative")
    absolute_margin: float | None = None
    """a negative's cosine is at least this much below the positive's"""
    relative_margin: float | None = None
    """the same as a share of the positive's cosine: 0.05 means at most 95% of it"""
    sampling_strategy: Literal["top", "random"] = "top"
    """top: the nearest that are left; random: any of those in the range"""
    seed: int = Field(0, ge=0, description="of the random sampling")


class PairColumns(BaseModel):
    """Where a record of the pairs has what is read; as in `Source`."""

    text_key: str = Field("text", description="column of texts to find negatives for (also: anchor, sent0)")
    positive_key: str = Field("positive", description="column of the texts that mean the same (also: sent1)")
    other_fields: Literal["refuse", "ignore"] = Field("refuse", description="what to do about other columns")


class Encoding(EncodingFlags, use_attribute_docstrings=True):
    """How texts become vectors."""

    query_prompt: str = ""
    """stands before every text when it is encoded; without it, the model's own"""
    document_prompt: str = Field("", description="the same for candidates")


def main(
    model: Model,
    *,
    pairs: cli.Names,
    out: Path,
    options: MiningOptions,
    columns: PairColumns,
    encoding: Encoding,
    corpus: str = "",
    unmatched: Literal["keep", "drop"] = "keep",
) -> None:
    """Find hard negatives for labelled pairs, and write triples to train on.

    Args:
        pairs: files or data sets of pairs, by commas: jsonl, csv, tsv, parquet, a saved data set, hub:NAME.
        out: folder to write.
        corpus: further candidates, beside the pairs' own positives and negatives: a text file, one per line,
            or another source.
        unmatched: a pair for which no negative was found: keep it as a pair, or drop it.
    """
    if out.is_file() or (out.is_dir() and {path.name for path in out.glob("[!.]*")} - {TRIPLES, SUMMARY}):
        raise UserError(f"--out {out} holds something else; name another folder")
    # before the model: a damaged file should not cost its loading
    labelled_pairs, candidates = read_pairs(
        [Source.model_validate({"source": name, **columns.model_dump()}) for name in pairs]
    )
    if corpus:
        source = Source.model_validate(corpus)
        tasks = plan_tasks([source], records=True)
        candidates += [record.texts[_TEXT] for task in tasks for record in records(task, source)]
    from finetune.encoders.models import open_model

    opened = open_model(model, encoding.pooling, precision=encoding.precision)
    own = opened.query_prompt, opened.document_prompt
    prompts = encoding.query_prompt or own[0], encoding.document_prompt or own[1]
    for prompt in prompts:
        opened.require_own(prompt)
    triples = mine(labelled_pairs, candidates, Vectors(opened.encode, *prompts), options)
    if not triples:
        raise UserError(f"none of {len(labelled_pairs):,} pairs got a negative; loosen the limits")
    negatives: dict[Pair, list[str]] = {pair: [] for pair in labelled_pairs}
    for row in triples:
        negatives[row["text"], row["positive"]].append(row["negative"])
    rows: list[dict[str, str]] = []
    for (text, positive), found in negatives.items():
        pair = {"text": text, "positive": positive}
        rows += [pair | {"negative": negative} for negative in found]
        rows += [pair] if not found and unmatched == "keep" else []
    about = {
        "model": model,
        "pairs": list(pairs),
        "corpus": corpus or None,
        "options": options.model_dump(),
        "counts": {
            "pairs": len(labelled_pairs),
            "triples": len(triples),
            "pairs_with_fewer": sum(0 < len(found) < options.num_negatives for found in negatives.values()),
            "pairs_without": sum(not found for found in negatives.values()),
        },
        "cosines": {
            name: {f"{share}%": round(float(np.percentile(scores, share)), 4) for share in (25, 50, 75)}
            for name, scores in zip(("positive", "negative"), zip(*(row["scores"] for row in triples)))
        },
    }
    make_folder(out)
    with folder_lock(out):
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        replace_durably(out / TRIPLES, content.encode())
        replace_durably(out / SUMMARY, yaml.safe_dump(about, sort_keys=False, allow_unicode=True).encode())
    print(f"{len(triples):,} triples of {len(labelled_pairs):,} pairs: {out / TRIPLES}")
    print(yaml.safe_dump({key: about[key] for key in ("counts", "cosines")}, sort_keys=False), end="")
    print(f"train on them: --data.prepare.sources {out / TRIPLES} --data.prepare.unit record")


def read_pairs(sources: list[Source]) -> tuple[list[Pair], list[str]]:
    """Read the different pairs and negatives of files or data sets, cleaned as a preparation cleans them."""
    pairs: dict[Pair, None] = {}
    negatives: dict[str, None] = {}
    for task in plan_tasks(sources, records=True):
        for record in records(task, sources[task.source]):
            positive = record.texts[_POSITIVE]
            if not positive or record.label is not None:
                fault = "has a label or score" if positive else "has no positive (--positive-key)"
                raise UserError(f"{readers.where(task, record.position)}: the record {fault}")
            pairs[record.texts[_TEXT], record.texts[_POSITIVE]] = None
            negatives |= dict.fromkeys(filter(None, (record.texts[_NEGATIVE], *record.texts[_FURTHER:])))
    if not pairs:
        raise UserError(f"there is no pair in {', '.join(map(str, sources))}")
    return list(pairs), list(negatives)


class Vectors:
    """What `mine_hard_negatives` asks of a SentenceTransformer, by any function that encodes.

    encode: N texts and the prompt that stands before each -> float32[N, d].
    query_prompt, document_prompt: stand before every text that negatives are sought for, and every candidate.
    """

    def __init__(
        self, encode: Callable[[Sequence[str], str], np.ndarray], query_prompt: str, document_prompt: str
    ):
        import torch
        from sentence_transformers.util import cos_sim, pairwise_cos_sim

        self.device = torch.device("cpu")
        self.similarity, self.similarity_pairwise = cos_sim, pairwise_cos_sim
        self.encode_query = partial(self._unit, query_prompt)
        self.encode_document = partial(self._unit, document_prompt)
        self._encode, self._width = encode, 0

    def get_embedding_dimension(self) -> int:
        """Return d, once something was encoded."""
        return self._width

    def _unit(self, own_prompt: str, texts: Sequence[str], **_: Any) -> np.ndarray:
        """Return vectors of length 1, float32[N, d]."""
        vectors = self._encode(texts, own_prompt)
        self._width = vectors.shape[1]
        return np.ascontiguousarray(unit(vectors), np.float32)


def _answers_of_neighbours(pairs: Sequence[Pair]) -> list[Pair]:
    """Return what else may be a positive of a text: those of texts with which it shares one.

    (q, a), (q, b), (r, b): a may answer r, too. It goes no further, and not by a positive of more than
    `MOST_TEXTS` texts: from "Yes." to "Yes." all would be linked to all.
    """
    positives, texts = defaultdict[str, dict[str, None]](dict), defaultdict[str, dict[str, None]](dict)
    for text, positive in pairs:
        positives[text][positive] = texts[positive][text] = None
    found = {
        (text, other): None
        for text, positive in pairs
        if len(texts[positive]) <= MOST_TEXTS
        for neighbour in texts[positive]
        if neighbour != text
        for other in positives[neighbour]
    }
    return [pair for pair in found if pair[1] not in positives[pair[0]]]


def mine(
    pairs: Sequence[Pair], candidates: Sequence[str], vectors: Vectors, options: MiningOptions
) -> list[dict[str, Any]]:
    """Return the triples of the pairs, in the order of the pairs, each pair's nearest negative first.

    A triple has a text, a positive, a negative, and its scores: the text's cosine with both. A pair may get
    fewer than `num_negatives`, or none, if the limits refuse the rest.

    candidates: texts that negatives may be, beside the positives of the pairs.
    """
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    texts, positives = zip(*pairs, strict=True)
    corpus = list(dict.fromkeys([*positives, *candidates]))
    if len(corpus) <= options.range_min + options.num_negatives:
        raise UserError(f"{len(corpus):,} candidates are too few: add --corpus, or lower --range-min")
    # What the library is told to be a positive it excludes. A text is one of itself: a cosine of 1 moves no
    # margin, which is that of a text's farthest positive; an answer that only may be one would.
    own = [(text, text) for text in sorted(set(texts) & set(corpus))]
    margin = options.absolute_margin is not None or options.relative_margin is not None
    excluded = dict.fromkeys([*own, *([] if margin else _answers_of_neighbours(pairs))])
    all_texts, all_positives = map(list, zip(*pairs, *excluded, strict=True))
    queries = Dataset.from_dict({"text": all_texts, "positive": all_positives})
    state = random.getstate()
    random.seed(options.seed)
    try:
        rows = mine_hard_negatives(
            queries,
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
    order = {pair: number for number, pair in enumerate(pairs)}
    triples = [row for row in rows if (row["text"], row["positive"]) in order]
    return sorted(triples, key=lambda row: order[row["text"], row["positive"]])


if __name__ == "__main__":
    cli.run(main)
