"""Find the sentences of a text that mean most nearly what a query means.

    clearly search runs/demo --text corpus.txt "a storm at sea"
    clearly search runs/demo --text 'my/*.jsonl' --split "a storm at sea"          # documents, by sentences
    clearly search runs/demo --text corpus.txt --queries queries.txt --out found.jsonl
    clearly search runs/demo --text corpus.txt --beside MODEL "a storm at sea"     # two encoders side by side

A text is sentences, one a line (.gz, .zst, .bz2, .xz too); with --split it is what `clearly prepare` reads,
split into sentences as there. Its vectors are kept in RUN/search (or results/MODEL/search), so
that a second search by the same weights encodes the query and new sentences alone.
"""

import json
import sys
from pathlib import Path

from finetune.encoders.models import EmbeddingModel, open_model, with_kept_vectors
from finetune.encoders.source import names_function, resolve
from finetune.flags import Model, Pooling, VectorPrecision
from finetune.search.index import Hit, SentenceIndex
from finetune.search.texts import read_lines, read_split
from pretrain.benchmarks.files import read_queries
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably


def search(
    model: Model,
    query: str = "",
    *,
    text: str,
    split: bool = False,
    top: cli.Count = 5,
    queries: Path | None = None,
    beside: str = "",
    pooling: Pooling = "",
    precision: VectorPrecision = "fp32",
    out: cli.OutFile | None = None,
) -> None:
    """Find the sentences of a text that are nearest to a query, by the cosine of their vectors.

    Args:
        query: what to look for.
        text: sentences, one a line; with --split any text, jsonl, csv or parquet files, between commas, a
            folder or a glob, or a list of mappings in YAML.
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
        opened, index = _open(name, pooling, precision, sentences, split)
        found[opened.name] = index.nearest(opened.encode_query(asked_queries), top)
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
) -> tuple[EmbeddingModel, SentenceIndex]:
    """Open a model, and read or encode the vectors of the sentences."""
    source = name if names_function(name) else resolve(name)
    identity = source if isinstance(source, str) else source.identity
    model = open_model(source, pooling, precision=precision)
    kept = model
    if model.source is not None and model.kept is None:  # nothing says when a function has changed
        place = model.run if model.run is not None else Path("results") / Path(model.name).name
        kept = with_kept_vectors(model, place / "search", identity)
    index = SentenceIndex(kept.encode_document(sentences), sentences)
    if cut := model.count_cut(sentences):
        what, remedy = ("sentences", "") if split else ("lines", "; --split splits lines into sentences")
        counts = f"{cut:,} of {len(sentences):,} {what} are longer than {model.longest} tokens"
        said = f"note: {counts}, at which {model.name} cuts them: their ends are not searched{remedy}"
        print(said, file=sys.stderr)
    return model, index


if __name__ == "__main__":
    cli.run(search)
