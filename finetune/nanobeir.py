"""Evaluate retrieval on sets in NanoBEIR's format: which documents of a corpus answer a query.

    clearly nanobeir MODEL --eval-data DIR

Every folder below DIR/NanoBEIR is a set, as it lies on the hub (zeta-alpha-ai/NanoMSMARCO ...): `corpus` and
`queries` with the columns _id and text (and title, as in BEIR's own files), `qrels` with query-id, corpus-id
(one or a list) and perhaps score; each a folder of parquet files, a parquet file or a jsonl file, or BEIR's
qrels/test.tsv. Or DIR/NanoBEIR itself holds all sets' parts, as sentence-transformers/NanoBEIR-en does.

Documents are ranked by the cosine of their vectors with the query's, exactly, and of equal cosines by id.
Empty texts, and queries without a relevant document, are left out; a relevant document that is not in the
corpus is never found. So has it sentence-transformers' InformationRetrievalEvaluator, whose figures these
are. A score above 1 is the gain of a document in nDCG, as in trec_eval; NanoBEIR has none.
"""

import math
import os
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from glob import escape
from pathlib import Path

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.flags import Model
from finetune.frozen import Frozen, FrozenFlags
from finetune.own_sets import add_figures
from finetune.results import Evaluation, run_and_write
from pretrain.benchmarks.files import find, json_objects, known_name, lines
from pretrain.benchmarks.own_sets import OwnSet
from pretrain.benchmarks.retrieval import HEADLINE, RetrievalSet
from pretrain.common import cli
from pretrain.common.errors import UserError

FOLDER = "NanoBEIR"
PARTS = ("corpus", "queries", "qrels")
PLACES = (
    "{name}/{part}/test*",  # of BEIR's splits of qrels, test alone
    "{name}/{part}/*.parquet",
    "{name}/{part}.parquet",
    "{name}/{part}.jsonl",
    "{part}/{name}-*-of-*.parquet",
)
"""Where a part of a set lies below the folder of all sets: the first pattern with files."""
_THIRTEEN = "ArguAna ClimateFEVER DBPedia FEVER FiQA2018 HotpotQA MSMARCO NFCorpus NQ QuoraRetrieval SCIDOCS"
THIRTEEN = tuple(f"Nano{name}" for name in f"{_THIRTEEN} SciFact Touche2020".split())
"""NanoBEIR's sets, whose mean is printed."""
LEFT_OUT = " is left out: "
"""In a note, between a set's name and why it could not be read."""


def read(folder: Path) -> RetrievalSet:
    """Read a set; queries keep the order of the files."""
    if fault := lacking(folder):
        raise UserError(fault)
    documents = dict(sorted(_texts(folder, "corpus").items()))
    queries = _texts(folder, "queries")
    rows = {name: row for row, name in enumerate(documents)}
    relevant: dict[str, dict[int, float]] = {}
    scores: dict[tuple[str, str], float] = {}
    for place, row in _rows(folder, "qrels"):
        query, named = str(_cell(place, row, "query-id")), _cell(place, row, "corpus-id")
        try:
            gain = float(row.get("score", 1))
        except (TypeError, ValueError):
            gain = math.nan
        if not math.isfinite(gain):
            raise UserError(f"{place}: the score {row['score']!r} is no number")
        for document in map(str, named if isinstance(named, list) else [named]):
            if (before := scores.setdefault((query, document), gain)) != gain:
                what = f"{query!r} and {document!r} have the score {before:g} in a row before"
                raise UserError(f"{place}: {what}; remove one of them")
            if gain > 0:
                relevant.setdefault(query, {})[rows.setdefault(document, len(rows))] = gain
    judged_queries = [name for name in queries if name in relevant]
    if not judged_queries:
        raise UserError(f"{folder}: no query has a relevant document; fetch the set again")
    absent, unasked = len(rows) - len(documents), len(relevant) - len(judged_queries)
    missing = [f"relevant documents missing in corpus, or without text: {absent:,}"] * bool(absent)
    missing += [f"queries of qrels missing in queries, or without text: {unasked:,}"] * bool(unasked)
    return RetrievalSet(
        list(documents.values()),
        [queries[name] for name in judged_queries],
        [relevant[name] for name in judged_queries],
        "; ".join(missing),
    )


def available(data: str | Path | None) -> list[str]:
    """Return the names of the sets that are there, NanoBEIR's own first."""
    folder = find(data, FOLDER)
    folders = {path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    there = folders - set(PARTS)  # what is hidden is the hub's own record of a download
    there |= {path.name.rsplit("-", 3)[0] for path in (folder / "corpus").glob("*-*-of-*.parquet")}
    return [name for name in THIRTEEN if name in there] + sorted(there - set(THIRTEEN))


def files(name: str, root: Path) -> list[Path]:
    """Return the files of a set, or the folders that it lacks."""
    folder = root / FOLDER / name
    return [file for part in PARTS for file in part_files(folder, part) or [folder / part]]


def part_files(folder: Path, part: str) -> list[Path]:
    """Return the files of a part ("corpus", "queries", "qrels") of the set in `folder`; none if it lacks."""
    patterns = (pattern.format(name=escape(folder.name), part=part) for pattern in PLACES)
    return next((found for pattern in patterns if (found := sorted(folder.parent.glob(pattern)))), [])


def lacking(folder: Path) -> str:
    """Return which part a set lacks, and how it is written; "" if all are there."""
    for part in PARTS:
        if not part_files(folder, part):
            return (
                f"{folder} has no {part}: expected {part}/*.parquet, {part}.parquet or {part}.jsonl, as in "
                "zeta-alpha-ai's sets on the hub, or BEIR's qrels/test.tsv"
            )
    return ""


def _texts(folder: Path, part: str) -> dict[str, str]:
    """Return id -> text of a part, without empty texts; a title stands before the text.

    Raises:
        UserError: two rows have one id and different texts, of which other programs take the last.
    """
    texts: dict[str, str] = {}
    places: dict[str, str] = {}
    for place, row in _rows(folder, part):
        title, text = row.get("title") or "", _cell(place, row, "text")
        if not isinstance(text, str) or not isinstance(title, str):
            raise UserError(f"{place}: a text that is none: {text!r}; fetch the set again")
        name, joined = str(_cell(place, row, "_id")), f"{title} {text}".strip() if title else text
        if not joined:
            continue
        first = places.setdefault(name, place)
        if texts.setdefault(name, joined) != joined:
            what = f"different texts have the _id {name!r}; remove one of them"
            raise UserError(f"{first}, and {place}: {what}")
    return texts


def _rows(folder: Path, part: str) -> Iterator[tuple[str, dict]]:
    """Yield where each row of a part stands, and the row."""
    for path in part_files(folder, part):
        for number, row in enumerate(_read_rows(path), 1):
            yield f"{path}, row {number}", row


def _read_rows(path: Path) -> list[dict]:
    if path.suffix == ".tsv":
        header, *table = [line.split("\t") for line in lines(path) if line] or [[]]
        if wrong := next((row for row in table if len(row) != len(header)), None):
            raise UserError(f"{path}: {len(header)} columns in the first line, but {wrong!r}; fetch it again")
        return [dict(zip(header, row)) for row in table]
    if path.suffix == ".jsonl":
        return [row for _, row in json_objects(path)]
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read as parquet: {error}; fetch the set again") from error


def _cell(place: str, row: Mapping, key: str) -> object:
    if row.get(key) is None:
        raise UserError(f"{place}: a row without {key!r}; it has {', '.join(map(str, row))}")
    return row[key]


def evaluate(
    model: EmbeddingModel,
    loaded: Mapping[str, RetrievalSet],
    query_prompt: str = "",
    document_prompt: str = "",
) -> Evaluation:
    """Evaluate retrieval on sets, by name as `read` read them; prompts stand before every text."""
    chosen = query_prompt or model.query_prompt, document_prompt or model.document_prompt
    prompts = dict(zip(("queries", "documents"), chosen))
    protocol = "cosine, exact search, figures of the first 10 and 100 documents"
    protocol += "".join(f"; {what} begin with {prompt!r}" for what, prompt in prompts.items() if prompt)

    def add(model: EmbeddingModel, name: str, data: RetrievalSet, evaluation: Evaluation) -> str:
        own = OwnSet(name, "retrieval", data.queries, data.documents, relevant=data.relevant)
        encode_as = {what: partial(model.encode, prompt=prompt) for what, prompt in prompts.items()}
        vectors = own.embed(model.encode, encode_as["queries"], encode_as["documents"])
        sizes = {"documents": len(data.documents), "queries": len(data.queries)}
        if data.missing:
            evaluation.incomplete(f"{name}: {data.missing}")
        return add_figures(own, vectors, evaluation, **sizes)

    declared = Frozen("nanobeir", protocol, (), lambda name, data: read(find(data, FOLDER) / name), add)
    return declared.evaluate(model, loaded)


def finish(result: Evaluation) -> None:
    """Add the mean over NanoBEIR's thirteen sets, if all of them are there; forget what was once left out."""
    scored = tuple(f"{name}{LEFT_OUT}" for name in result.tasks)
    result.notes = [note for note in result.notes if not note.startswith(scored)]
    if all(name in result.tasks for name in THIRTEEN):
        keys = result.tasks[THIRTEEN[0]].scores
        means = {key: float(np.mean([result.tasks[name].scores[key] for name in THIRTEEN])) for key in keys}
        result.add("average of 13", HEADLINE, means)


def main(model: Model, *, query_prompt: str = "", document_prompt: str = "", flags: FrozenFlags) -> int:
    """Rank documents by cosine on sets in NanoBEIR's format; nDCG@10, and more in the file of results.

    Tasks are the folders below DIR/NanoBEIR; by default all that can be read.

    Args:
        query_prompt: text that stands before every query, for models that were trained with one; without
            it, the model's own.
        document_prompt: the same for documents.
    """
    root, there = find(flags.eval_data, FOLDER), available(flags.eval_data)
    names = [known_name(name, there, "set") for name in flags.tasks] or there
    loaded, left_out = dict[str, RetrievalSet](), list[str]()
    for name in names:  # before the model: a damaged file should not cost the loading
        try:
            loaded[name] = read(root / name)
        except UserError as error:
            if flags.tasks:
                raise
            if not lacking(root / name):  # a set that is damaged, and not another folder
                reason = str(error).replace(f"{root}{os.sep}", "")  # notes go to the hub, a path stays here
                left_out.append(f"{name}{LEFT_OUT}{reason}")
            print(f"left out: {error}", file=sys.stderr)
    if not loaded:
        raise UserError(f"{root} holds no set that can be read: a folder such as NanoMSMARCO")
    opened = open_model(model, flags.pooling, precision=flags.precision)

    def evaluate_loaded(opened: EmbeddingModel) -> Evaluation:
        evaluation = evaluate(opened, loaded, query_prompt, document_prompt)
        evaluation.notes += left_out
        return evaluation

    run_and_write(opened, flags.out, evaluate_loaded, finish)
    return int(bool(left_out))


if __name__ == "__main__":
    cli.run(main)
