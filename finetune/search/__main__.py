"""Find the sentences of a text that mean most nearly what a query means.

    clearly search runs/demo --text corpus.txt "a storm at sea"
    clearly search runs/demo --text 'my/*.jsonl' --split "a storm at sea"          # documents, by sentences
    clearly search runs/demo --text corpus.txt --queries queries.txt --out found.jsonl
    clearly search runs/demo --text corpus.txt --beside MODEL "a storm at sea"     # two encoders side by side
    clearly search runs/demo --text corpus.txt --serve                              # a page at localhost:8421

A text is sentences, one a line (.gz, .zst, .bz2, .xz too); with --split it is what `clearly prepare` reads,
split into sentences as there. Its vectors are kept in RUN/search (or results/MODEL/search), so
that a second search by the same weights encodes the query and new sentences alone.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from finetune.encoders.models import EmbeddingModel, keeping, open_model
from finetune.encoders.source import names_function, resolve
from finetune.flags import Model, Pooling, VectorPrecision
from finetune.search.index import Hit, SentenceIndex
from finetune.search.server import Searcher, listen, serve_until_interrupted
from pretrain.benchmarks.files import is_file_of_lines, read_queries, read_sentences
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.typed_values import typed
from pretrain.config.data import Source, data_config
from pretrain.data.manifest import MANIFEST
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.documents import Faults, documents
from pretrain.prepare.sources.planning import plan_tasks

PORT = 8421
_MOST_NAMED = 20  # of what cannot be read


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
        out: write what was found here as JSON, a query a line.
        serve: answer queries on a page, until Ctrl-C.
        port: of the page, on this machine only; 0: a free one.
    """
    asked = _asked(query, queries, serve)
    if serve:
        listen(port).server_close()  # a port that is taken is said before anything is encoded
    sentences = read_split(text) if split else read_lines(text)
    searchers = [
        _searcher(name, pooling, precision, sentences, split) for name in filter(None, [model, beside])
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


def _searcher(name: str, pooling: str, precision: str, sentences: list[str], split: bool) -> Searcher:
    """Open a model, and read or encode the vectors of the sentences."""
    source = name if names_function(name) else resolve(name)
    identity = source if isinstance(source, str) else source.identity
    model = open_model(source, pooling, precision=precision)
    kept = model
    if model.source is not None and model.kept is None:  # nothing says when a function has changed
        place = model.run if model.run is not None else Path("results") / Path(model.name).name
        kept = keeping(model, place / "search", identity)
    index = SentenceIndex(kept.encode_document(sentences), sentences)
    _note_cut(model, sentences, split)
    return Searcher(model.name, model.encode_query, index)


def _note_cut(model: EmbeddingModel, sentences: list[str], split: bool) -> None:
    if cut := model.count_cut(sentences):
        remedy = "" if split else "; --split splits lines into sentences"
        _say(
            f"note: {cut:,} of {len(sentences):,} {'sentences' if split else 'lines'} are longer than "
            f"{model.longest} tokens, at which {model.name} cuts them: their ends are not searched{remedy}"
        )


def _say(line: str) -> None:
    print(line, file=sys.stderr)


def _show(hits: list[Hit]) -> None:
    for hit in hits:
        print(f"  {hit.cosine:6.3f}  {hit.sentence}")


def read_lines(text: str) -> list[str]:
    """Return the different sentences of a file with one a line.

    Raises:
        UserError: a folder, a file of another form, or as `read_sentences`.
    """
    _refuse_prepared(text)
    path, is_folder = Path(text), os.path.isdir(text)
    if is_folder or (os.path.isfile(text) and not is_file_of_lines(path) and path.suffix != ".zip"):
        what = "a folder" if is_folder else "no file of sentences, one a line"
        raise UserError(
            f"--text {text} is {what}: add --split, which reads text, jsonl, csv and parquet files and "
            "splits their texts into sentences"
        )
    if not os.path.isfile(text):
        raise UserError(
            f"--text {text}: there is no such file; several, globs, and data sets of the hub are read with "
            "--split"
        )
    return read_sentences(path, "text")


def read_split(text: str) -> list[str]:
    """Return the different sentences of texts, in order, cleaned and split as a preparation does it.

    What cannot be read is printed to standard error.

    Args:
        text: sources of `clearly prepare`, as typed there: files, folders, globs and data sets of the hub, by
            commas, or a list of mappings in YAML.

    Raises:
        UserError: a source that is not there, or cannot be read; no sentence.
    """
    _refuse_prepared(text)
    faults, found = Faults(), dict[str, None]()
    given = typed(text, list[Source], "--text")
    try:
        sources = data_config({"sources": given}).sources
        for task in plan_tasks(sources):
            of_task = Faults(faults.counts)  # each names a few of its own
            for document in documents(task, sources[task.source], of_task):
                found |= dict.fromkeys(sentences_of(document))
            faults.named += of_task.named
    except UserError as error:
        # a preparation's flag for the same
        raise UserError(f"--text {text}: {error}".replace("--source ", "--text ")) from error
    for name, count in sorted(faults.counts.items()):
        _say(f"note: {count:,} {name.replace('_', ' ')}")
    for fault in faults.named[:_MOST_NAMED]:
        _say(f"  {fault}")
    if not found:
        raise UserError(f"--text {text}: there is no sentence in it")
    return list(found)


def _refuse_prepared(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        raise UserError(
            f"--text {folder} is prepared data, which holds tokens and no text: name the files that it was "
            "prepared from, with --split"
        )


if __name__ == "__main__":
    cli.run(search)
