"""Find the sentences of a text that mean most nearly what a query means.

    clearly search runs/demo --text corpus.txt "a storm at sea"
    clearly search runs/demo --text 'my/*.md' --split "a storm at sea"             # documents, by sentences
    clearly search runs/demo --text corpus.txt --queries queries.txt --out found.jsonl
    clearly search runs/demo --text corpus.txt --beside MODEL "a storm at sea"     # two encoders side by side

A text is sentences, one per line (.gz, .zst, .bz2, .xz too); with --split it is what `clearly prepare` reads,
or markdown and reStructuredText, split into sentences as there. Its vectors are kept in RUN/search (or
results/MODEL/search), so that a second search by the same weights encodes the query and new sentences alone.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model, with_kept_vectors
from finetune.encoders.source import names_function, resolve
from finetune.flags import EncodingFlags, Model
from finetune.texts import read_lines, read_split
from pretrain.benchmarks.distinct import unit
from pretrain.benchmarks.files import read_queries
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably

_COSINES_AT_ONCE = 1 << 26  # 256 MB


@dataclass(frozen=True)
class Hit:
    """A sentence that was found. cosine: with the query. place: number of its line among the sentences."""

    sentence: str
    cosine: float
    place: int


def nearest(
    vectors: np.ndarray, sentences: Sequence[str], queries: np.ndarray, count: int
) -> list[list[Hit]]:
    """Return for each query, float32[Q, d], the sentences of the nearest of `vectors`, float32[N, d]."""
    vectors, queries, count = unit(vectors), unit(queries), min(count, len(sentences))
    at_once = max(1, _COSINES_AT_ONCE // len(sentences))
    found = []
    for start in range(0, len(queries), at_once):
        for cosines in queries[start : start + at_once] @ vectors.T:
            best = np.argpartition(-cosines, count - 1)[:count]
            best = best[np.lexsort((best, -cosines[best]))]
            found.append([Hit(sentences[n], float(cosines[n]), n) for n in best.tolist()])
    return found


def search(
    model: Model,
    query: str = "",
    *,
    text: str,
    split: bool = False,
    top: cli.Count = 5,
    queries: Path | None = None,
    beside: Model = "",
    out: cli.OutFile | None = None,
    flags: EncodingFlags,
) -> None:
    """Find the sentences of a text that are nearest to a query, by the cosine of their vectors.

    Args:
        query: what to look for.
        text: sentences, one per line; with --split text, markdown, rst, jsonl, csv or parquet files, between
            commas, a folder or a glob, or a list of mappings in YAML.
        split: split the texts into sentences, as `clearly prepare` does.
        top: how many sentences to show.
        queries: a file with a query a line, in place of one.
        beside: another model, whose sentences are shown too.
        out: write what was found here as JSON, a query a line.
    """
    if bool(query) == (queries is not None):
        raise UserError('give a query ("a storm at sea"), or a file of them with --queries')
    asked_queries = [query] if queries is None else read_queries(queries)
    sentences = read_split(text) if split else read_lines(text)
    found: dict[str, list[list[Hit]]] = {}
    for name in filter(None, [model, beside]):
        opened, vectors = _open(name, flags.pooling, flags.precision, sentences, split)
        found[opened.name] = nearest(vectors, sentences, opened.encode_query(asked_queries), top)
    for number, line in enumerate(asked_queries):
        print(f"{'' if number == 0 else chr(10)}{line}")
        for name, hits in found.items():
            if len(found) > 1:
                print(f"  {name}")
            for hit in hits[number]:
                print(f"  {hit.cosine:6.3f}  {hit.sentence}")
    if out is not None:
        lines = []
        for number, line in enumerate(asked_queries):
            by_model = {name: [vars(hit) for hit in hits[number]] for name, hits in found.items()}
            lines.append(json.dumps({"query": line, "found": by_model}, ensure_ascii=False) + "\n")
        make_folder(out.parent)
        replace_durably(out, "".join(lines).encode())


def _open(
    name: str, pooling: str, precision: str, sentences: list[str], split: bool
) -> tuple[EmbeddingModel, np.ndarray]:
    """Open a model, and read or encode the vectors of the sentences."""
    source = name if names_function(name) else resolve(name)
    identity = source if isinstance(source, str) else source.identity
    model = open_model(source, pooling, precision=precision)
    kept = model
    if model.source is not None and model.kept_vectors is None:  # nothing says when a function has changed
        place = model.run if model.run is not None else Path("results") / Path(model.name).name
        kept = with_kept_vectors(model, place / "search", identity)
    vectors = kept.encode_document(sentences)
    if cut := model.count_cut(sentences):
        what, remedy = ("sentences", "") if split else ("lines", "; --split splits lines into sentences")
        counts = f"{cut:,} of {len(sentences):,} {what} are longer than {model.longest} tokens"
        said = f"note: {counts}, at which {model.name} cuts them: their ends are not searched{remedy}"
        print(said, file=sys.stderr)
    return model, vectors


if __name__ == "__main__":
    cli.run(search)
