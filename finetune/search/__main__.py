"""Find the sentences of a text that mean most nearly what a query means.

    clearly search runs/demo --text corpus.txt "a storm at sea"
    clearly search runs/demo --text 'my/*.md' --split "a storm at sea"             # documents, by sentences
    clearly search runs/demo --text corpus.txt --queries queries.txt --out found.jsonl
    clearly search runs/demo --text corpus.txt --beside MODEL "a storm at sea"     # two encoders side by side

A text is sentences, one a line (.gz, .zst, .bz2, .xz too); with --split it is what `clearly prepare` reads,
or markdown and reStructuredText, split into sentences as there. Its vectors are kept in RUN/search (or
results/MODEL/search), so that a second search by the same weights encodes the query and new sentences alone.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from finetune.encoders.models import EmbeddingModel, open_model, with_kept_vectors
from finetune.encoders.source import names_function, resolve
from finetune.flags import Model, Pooling, VectorPrecision
from finetune.judge.reading import Piece, files_with_headings
from finetune.search.index import Hit, SentenceIndex
from pretrain.benchmarks.files import is_file_of_lines, read_queries, read_sentences
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.typed_values import parse_value
from pretrain.config.data import Source, data_config
from pretrain.data.manifest import MANIFEST
from pretrain.prepare.sentences import sentences_of
from pretrain.prepare.sources.planning import plan_tasks
from pretrain.prepare.sources.rows import Faults, documents

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
) -> None:
    """Find the sentences of a text that are nearest to a query, by the cosine of their vectors.

    Args:
        query: what to look for.
        text: sentences, one a line; with --split text, markdown, rst, jsonl, csv or parquet files, between
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


def read_lines(text: str) -> list[str]:
    """Return the different sentences of a file with one a line."""
    _refuse_prepared(text)
    if os.path.isdir(text) or not is_file_of_lines(Path(text)):
        kinds = "folders, text, markdown, jsonl, csv and parquet files, and data sets of the hub"
        raise UserError(
            f"--text {text} is no file of sentences, one a line: add --split, which reads {kinds}"
        )
    if not os.path.isfile(text):  # a list or a glob, perhaps, which may be longer than a path
        raise UserError(f"--text {text}: there is no such file; --split reads several, and globs")
    return read_sentences(Path(text), "text")


def read_split(text: str) -> list[str]:
    """Return the different sentences of texts, in order, cleaned and split as a preparation does it.

    What cannot be read is printed to standard error.

    Args:
        text: sources of `clearly adapt`, as typed there: files, folders, globs and data sets of the hub, by
            commas, or a list of mappings in YAML.
    """
    _refuse_prepared(text)
    faults, found = Faults(), dict[str, None]()
    given = parse_value(text, list[Source], "--text")
    try:
        for source in data_config({"sources": given}).sources:
            for document in _documents(source, faults):
                found |= dict.fromkeys(sentences_of(document))
    except UserError as error:
        # a preparation's flag for the same
        raise UserError(f"--text {text}: {error}".replace("--source ", "--text ")) from error
    for name, count in sorted(faults.counts.items()):
        print(f"note: {count:,} {name.replace('_', ' ')}", file=sys.stderr)
    for fault in faults.named[:_MOST_NAMED]:
        print(f"  {fault}", file=sys.stderr)
    if not found:
        raise UserError(f"--text {text}: there is no sentence in it")
    return list(found)


def _documents(source: Source, faults: Faults) -> Iterator[str]:
    """Yield the documents of a source; of markdown and reStructuredText without marks."""
    with_headings, note = files_with_headings(source)
    if note:
        print(note, file=sys.stderr)
    for file in with_headings:
        yield from (document.whole for document in Piece(0, source, file=file).documents())
    for task in () if with_headings else plan_tasks([source]):
        of_task = Faults(faults.counts)  # each names a few of its own
        yield from documents(task, source, of_task)
        faults.named += of_task.named


def _refuse_prepared(folder: str) -> None:
    if os.path.isfile(os.path.join(folder, MANIFEST)):
        raise UserError(
            f"--text {folder} is prepared data, which holds no text: name its sources, with --split"
        )


if __name__ == "__main__":
    cli.run(search)
