"""Find the sentences of a text that mean most nearly what a query means.

    clearly search runs/demo --text corpus.txt "a storm at sea"
    clearly search runs/demo --text 'my/*.jsonl' --split "a storm at sea"          # documents, by sentences
    clearly search runs/demo --text corpus.txt --queries queries.txt --out found.jsonl
    clearly search runs/demo --text corpus.txt --beside MODEL "a storm at sea"     # two encoders side by side
    clearly search runs/demo --text corpus.txt --quantize int8 "a storm at sea"    # a quarter of the memory
    clearly search runs/demo --text corpus.txt --serve                              # a page at localhost:8421

A text is sentences, one a line (.gz, .zst, .bz2, .xz too); with --split it is what `clearly prepare` reads,
split into sentences as there. Its vectors are kept in RUN/search (or results/MODEL/search), so
that a second search of the same text by the same weights encodes the query alone.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.files import read_queries
from finetune.flags import Model, Pooling, VectorPrecision
from finetune.search.index import Hit, SentenceIndex, open_index
from finetune.search.server import Searcher, listen, serve_until_interrupted
from finetune.search.stored import Storage
from finetune.search.texts import read_lines, read_split
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably

PORT = 8421


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
    quantize: Storage = "none",
    out: cli.OutFile | None = None,
    serve: bool = False,
    port: cli.Natural = PORT,
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
        quantize: store vectors as int8, a byte a channel; or binary, a bit: what bits find is compared again
            with the query's own vector.
        out: write what was found here as JSON, a query a line.
        serve: answer queries on a page, until Ctrl-C.
        port: of the page, on this machine only; 0: a free one.
    """
    asked = _asked(query, queries, serve)
    if serve:
        listen(port).server_close()  # a port that is taken is said before anything is encoded
    sentences = read_split(text, _say) if split else read_lines(text)
    opened = [open_model(name, pooling, precision=precision) for name in filter(None, [model, beside])]
    searchers = [
        Searcher(one.name, one.encode_query, _index(one, sentences, quantize, split)) for one in opened
    ]
    if serve:
        serve_until_interrupted(
            searchers, os.path.basename(text) or text, top, port, partial(print, flush=True)
        )
        return
    found = {one.name: one.index.nearest(one.encode(asked), top) for one in searchers}
    for number, line in enumerate(asked):
        print(f"{'' if number == 0 else chr(10)}{line}")
        for name, hits in found.items():
            if len(found) > 1:
                print(f"  {name}")
            _show(hits[number])
    if out is not None:
        rows = [
            {
                "query": line,
                "found": {name: [vars(hit) for hit in hits[number]] for name, hits in found.items()},
            }
            for number, line in enumerate(asked)
        ]
        make_folder(out.parent)
        replace_durably(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def _asked(query: str, queries: Path | None, serve: bool) -> list[str]:
    if sum((bool(query), queries is not None, serve)) != 1:
        raise UserError('give a query ("a storm at sea"), a file of them with --queries, or --serve')
    return [query] if queries is None else read_queries(queries)


def _index(model: EmbeddingModel, sentences: list[str], quantize: Storage, split: bool) -> SentenceIndex:
    place = model.run if model.run is not None else Path("results") / Path(model.name).name
    index = open_index(model, sentences, place / "search", _say, quantize)
    if index.cut:
        remedy = "" if split else "; --split splits lines into sentences"
        _say(
            f"note: {index.cut:,} of {len(sentences):,} {'sentences' if split else 'lines'} are longer than "
            f"{model.longest} tokens, at which {model.name} cuts them: their ends are not searched{remedy}"
        )
    return index


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _show(hits: list[Hit]) -> None:
    for hit in hits:
        print(f"  {hit.cosine:6.3f}  {hit.sentence}")


if __name__ == "__main__":
    cli.run(search)
