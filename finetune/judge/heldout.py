"""Hold documents out of a text before anything is trained on it, and make a test of retrieval of them.

A document is held out by a hash of its text, so that copies of it are, too. One that repeats much of the
held-out ones is neither trained on nor asked for. A text of few documents is split into parts, which count as
documents (`finetune.judge.parts`). The folder gets the test as two sets in NanoBEIR's format, `dev` and
`test`, of different documents over the same passages (`clearly nanobeir MODEL --eval-data FOLDER`), and the
text to train on.
"""

import json
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import chain, groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from pydantic import ValidationError

from augment.text.cleaning import clean
from finetune.judge.bm25 import words_of
from finetune.judge.parts import groups, joined, part_size, without_neighbours
from finetune.nanobeir import FOLDER
from pretrain.benchmarks.files import json_objects
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.run_folder import read_json_file
from pretrain.config.data import Source
from pretrain.prepare.sources.markup import Pair
from pretrain.prepare.sources.planning import files_at, kind_of, plan_tasks
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import KINDS, Document, pairs_of
from pretrain.prepare.sources.structured import note_tags

HALVES = ("dev", "test")
SHARE = 0.2
"""Of the documents, held out at most."""
MOST_DOCUMENTS, MOST_CHARACTERS = 10_000, 4_000_000
"""Held out at most."""
MOST_PASSAGES, MOST_PASSAGE_CHARACTERS = 10_000, 1_000_000
MOST_QUERIES = 2000
ENOUGH, FEWEST, FEWEST_DOCUMENTS = 100, 20, 4
"""Queries for which a kind of pairs is preferred; queries, and their documents, without which nothing can be
judged."""
SHINGLE, SHARED = 5, 0.5
"""Words in a row by which documents are compared; a larger share of them in the held-out text is too much."""
_SHORT = 4 * SHINGLE  # words: a text of fewer, but of `SHINGLE`, is a copy, too, if it differs by one word
_ABOUT, TRAIN = "about.json", "train-{}.jsonl"
_KEYS = 2**64
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, n + 1, 2**64) for n in range(SHINGLE)], np.uint64)


@dataclass(frozen=True)
class RetrievalTest:
    """What was held out, and what is left to train on.

    settings: what it follows from. kind: of its pairs; found: how many queries each kind would have.
    counts: of documents, passages, queries. shown: three of its pairs. part: characters of the parts of which
    the documents are; 0: they are as they were read.
    """

    settings: dict[str, Any]
    kind: str
    found: dict[str, int]
    counts: dict[str, int]
    shown: list[list[str]] = field(default_factory=list)
    part: int = 0


def make_test(sources: Sequence[Source], folder: Path, seed: int, records: bool) -> RetrievalTest:
    """Make the test of a text in `folder`, or return the one that is there.

    Args:
        sources: of the text.
        seed: decides which documents are held out.
        records: the text to train on is pairs of the same kind, else documents.

    Raises:
        UserError: there is too little text, or `folder` holds the test of another one, or of these files with
            other contents.
    """
    settings = {
        "sources": [source.model_dump(mode="json") for source in sources],
        "seed": seed,
        "records": records,
        "contents": contents_of(sources, folder.parent),
    }
    if (folder / _ABOUT).is_file():
        how = f"remove {folder}; the same command makes the same test again"
        made = RetrievalTest(**read_json_file(folder / _ABOUT, how))
        _require_same(made.settings, settings, folder)
        return made
    tasks = plan_tasks(list(sources), structure=True)
    note_tags(tasks, sources)
    for first, second in dict.fromkeys(task.columns for task in tasks if task.columns):
        print(f"  columns    {first} -> {second}", file=sys.stderr, flush=True)
    size = part_size(tasks, sources)
    heldout, total = _hold_out(tasks, sources, size, seed)
    by_kind = {kind: _pairs_of(heldout, kind) for kind in KINDS}
    found = {kind: len({first for _, (first, _) in pairs}) for kind, pairs in by_kind.items() if pairs}
    chosen = {kind: _choose(by_kind[kind], seed) for kind in found}
    spread = {kind: len(set(of_documents.values())) for kind, (*_, of_documents) in chosen.items()}
    kind = next(
        (kind for kind, count in found.items() if count >= ENOUGH and spread[kind] >= FEWEST_DOCUMENTS),
        max(found, key=lambda kind: (spread[kind] >= FEWEST_DOCUMENTS, found[kind]), default=""),
    )
    if found.get(kind, 0) < FEWEST or spread[kind] < FEWEST_DOCUMENTS:
        raise UserError(
            f"a test needs {FEWEST} pairs of texts that belong together, of {FEWEST_DOCUMENTS} documents; "
            f"the held-out ones have {found.get(kind, 0)} of {spread.get(kind, 0)} ({total:,} documents "
            "in all): add text, or give documents of several sentences or rows of two columns; single "
            "sentences have nothing that belongs to them"
        )
    passages, relevant, of_documents = chosen[kind]
    with files.filled_folder(folder) as hidden:
        for half, queries in zip(HALVES, _halves(of_documents)):
            some = {query: relevant[query] for query in queries}
            _write_set(hidden / FOLDER / half, passages, some, of_documents)
        own = {text for _, pair in by_kind[kind] for text in pair}
        counts = _write_training(tasks, sources, size, hidden, heldout, own, kind if records else "", seed)
        if not any((hidden / TRAIN.format(task.source)).stat().st_size for task in tasks):
            raise UserError(
                f"nothing is left to train on: of {total:,} documents {counts['heldout']:,} are held out "
                f"and {counts['copies']:,} repeat those: add text, or give it as several documents"
            )
        counts |= {"documents": total, "passages": len(passages), "queries": len(relevant)}
        shown = [[query, passages[rows[0]]] for query, rows in list(relevant.items())[:3]]
        made = RetrievalTest(settings, kind, found, counts, shown, size)
        files.write_durably(hidden / _ABOUT, json.dumps(asdict(made), ensure_ascii=False, indent=1).encode())
    return made


def make_sets(text: Path, folder: Path, kinds: Sequence[str], seed: int = 0) -> None:
    """Write a set of each kind of pairs in a text that nothing is trained on, unless `folder` is there.

    Raises:
        UserError: a kind has fewer than `FEWEST` queries.
    """
    if folder.is_dir():
        return
    sources = [Source(source=str(text))]
    documents, _ = _hold_out(plan_tasks(sources, structure=True), sources, 0, seed)
    with files.filled_folder(folder) as hidden:
        for kind in kinds:
            passages, relevant, of_documents = _choose(_pairs_of(documents, kind), seed)
            if len(relevant) < FEWEST:
                raise UserError(f"{text} gives {len(relevant)} queries of kind {kind}; a set needs {FEWEST}")
            _write_set(hidden / FOLDER / kind, passages, relevant, of_documents)


def contents_of(sources: Sequence[Source], outside: Path) -> dict[str, str]:
    """Return file -> sha256 of the files on this machine that the sources name, but of those in `outside`."""
    found = {}
    for path in (Path(source.source).expanduser() for source in sources):
        for file in files_at(path):
            is_text = not path.is_dir() or kind_of(file.name, True) or file.suffix == ".arrow"
            if is_text and not file.resolve().is_relative_to(outside.resolve()):
                found[str(file)] = files.sha256_of(file)
    return found


def _require_same(old_settings: dict[str, Any], new_settings: dict[str, Any], folder: Path) -> None:
    """Raise UserError if a test follows from other settings, or from files with other contents."""
    with suppress(ValidationError):  # a key that was not there yet has its default
        old_sources = [Source(**one).model_dump(mode="json") for one in old_settings.get("sources", ())]
        old_settings = old_settings | {"sources": old_sources}
    old, new = old_settings.get("contents", {}), new_settings["contents"]
    if old_settings | {"contents": new} != new_settings or (new and not old):
        raise UserError(f"{folder} holds the test of another text or seed; choose another --out")
    changed = [file for file in old | new if old.get(file) != new.get(file)]
    if changed:
        first = changed[0]
        what = "is gone" if first not in new else "has changed" if first in old else "is new"
        more = f" (and {len(changed) - 1:,} other files differ)" if len(changed) > 1 else ""
        raise UserError(
            f"{folder} holds a test that was made of other contents: {first} {what} since{more}. Bring back "
            "what it was made of, or choose another --out for the text as it is now"
        )


def training_sources(sources: Sequence[Source], folder: Path) -> list[dict[str, Any]]:
    """Return the sources to train on in place of the user's, of which nothing is held out for the test."""
    return [
        # tags in it were named as the user's
        {"source": str(folder / TRAIN.format(number)), "weight": source.weight, "markup": "none"}
        for number, source in enumerate(sources)
        if (folder / TRAIN.format(number)).stat().st_size
    ]


class _HeldOut(list[dict[str, list[Pair]]]):
    """The pairs of each held-out document by kind, and what tells copies of them: limit, shingles."""

    limit: float
    shingles: np.ndarray


def _key(document: Document, seed: int) -> int:
    return xxhash.xxh64_intdigest(clean(document.whole).encode("utf-8", "replace"), seed)


def _hold_out(
    tasks: Sequence[ReadTask], sources: Sequence[Source], size: int, seed: int
) -> tuple[_HeldOut, int]:
    """Return the held-out documents, those of the smallest keys, and the number of all documents."""
    kept: dict[int, Document] = {}
    total = characters = 0
    limit = SHARE * _KEYS
    faults = RowFaults()
    for document in (joined(part) for _, parts in groups(tasks, sources, size, faults) for part in parts):
        total, characters = total + 1, characters + len(document.text)
        limit = min(limit, MOST_DOCUMENTS / total * _KEYS, MOST_CHARACTERS / (characters + 1) * _KEYS)
        if (key := _key(document, seed)) < limit:
            kept[key] = document
            if len(kept) > 2 * MOST_DOCUMENTS:
                kept = {key: document for key, document in kept.items() if key < limit}
    faults.print()
    chosen = [kept[key] for key in sorted(kept) if key < limit]
    heldout = _HeldOut(pairs_of(document) for document in chosen)
    heldout.limit = limit
    of_texts = [hashes for one in chosen for hashes in (shingles(one.whole), _but_one(one.whole))]
    heldout.shingles = np.unique(np.concatenate(of_texts or [_FACTORS[:0]]))
    return heldout, total


def shingles(text: str) -> np.ndarray:
    """Return hashes, uint64[S], of each `SHINGLE` words in a row; of a shorter text, of all of its words.

    They are the same in one process alone.
    """
    words = _hashes(text)
    width = max(1, min(SHINGLE, len(words)))
    rows = np.lib.stride_tricks.sliding_window_view(words, width) if len(words) else words[None]
    return rows @ _FACTORS[: rows.shape[1]]


def _hashes(text: str) -> np.ndarray:
    return np.fromiter(map(hash, words_of(text)), np.int64).astype(np.uint64)


def _but_one(text: str) -> np.ndarray:
    """Return hashes of a short text's words in any order, of all, and of all but each; of others none."""
    words = _hashes(text)
    total = words.sum(dtype=np.uint64)
    return np.append(total - words, total) if SHINGLE <= len(words) < _SHORT else words[:0]


def is_copy(document: Document, heldout: np.ndarray) -> bool:
    """Return whether a document repeats held-out ones, by their shingles and `_but_one`, uint64[H], sorted.

    It does if more than `SHARED` of its shingles are theirs, or if it is short and differs by a word.
    """
    found, but_one = shingles(document.whole), _but_one(document.whole)
    hashes = np.concatenate([found, but_one])
    places = np.minimum(np.searchsorted(heldout, hashes), len(heldout) - 1)
    hits = heldout[places] == hashes
    return float(np.mean(hits[: len(found)])) > SHARED or bool(hits[len(found) :].any())


def _pairs_of(documents: _HeldOut, kind: str) -> list[tuple[int, Pair]]:
    """Return the pairs of a kind, each with the number of its document."""
    return [(number, pair) for number, one in enumerate(documents) for pair in one.get(kind, ())]


def _choose(
    pairs: Sequence[tuple[int, Pair]], seed: int
) -> tuple[list[str], dict[str, list[int]], dict[str, int]]:
    """Choose passages and queries of pairs, each with the number of its document; documents in turn.

    Returns:
        The passages, each once; query -> rows of those that belong to it, queries shuffled; query -> number
        of its document, the first one that has it.
    """
    rows: dict[str, int] = {}
    relevant: dict[str, list[int]] = {}
    of_documents: dict[str, int] = {}
    size = 0
    by_document = [list(of_document) for _, of_document in groupby(pairs, itemgetter(0))]
    in_turn = chain.from_iterable(zip_longest(*by_document))
    for number, (query, passage) in filter(None, in_turn):
        if passage not in rows:
            if len(rows) == MOST_PASSAGES or size + len(passage) > MOST_PASSAGE_CHARACTERS:
                break
            rows[passage], size = len(rows), size + len(passage)
        of_documents.setdefault(query, number)
        of_query = relevant.setdefault(query, [])
        if rows[passage] not in of_query:
            of_query.append(rows[passage])
    queries = list(relevant)
    random.Random(seed).shuffle(queries)
    queries = queries[:MOST_QUERIES]
    return list(rows), {one: relevant[one] for one in queries}, {one: of_documents[one] for one in queries}


def _halves(of_documents: dict[str, int]) -> tuple[list[str], list[str]]:
    """Divide queries by their documents: each document goes to the half that has fewer queries so far.

    The second half is of as many documents as the first, or more.
    """
    by_document: dict[int, list[str]] = {}
    for query, number in of_documents.items():
        by_document.setdefault(number, []).append(query)
    first: list[list[str]] = []
    second: list[list[str]] = []
    for queries in by_document.values():
        min(first, second, key=lambda half: sum(map(len, half))).append(queries)
    first, second = sorted((first, second), key=len)
    return list(chain.from_iterable(first)), list(chain.from_iterable(second))


def _write_set(
    folder: Path, passages: Sequence[str], relevant: dict[str, list[int]], of_documents: dict[str, int]
) -> None:
    """Write a set as `finetune.nanobeir` reads it, with the document of each query."""
    files.make_folder(folder)
    numbers = {query: f"q{number:05d}" for number, query in enumerate(relevant)}
    parts: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"_id": f"p{row:05d}", "text": text} for row, text in enumerate(passages)],
        "queries": [
            {"_id": number, "text": query, "document": of_documents[query]}
            for query, number in numbers.items()
        ],
        "qrels": [
            {"query-id": numbers[query], "corpus-id": [f"p{row:05d}" for row in rows]}
            for query, rows in relevant.items()
        ],
    }
    for name, rows in parts.items():
        files.write_durably(folder / f"{name}.jsonl", b"".join(map(_line, rows)))


def documents_of(folder: Path) -> np.ndarray:
    """Return the document of each query of a set that `make_test` wrote, int64[Q], numbered from 0."""
    numbers = [row["document"] for _, row in json_objects(folder / "queries.jsonl")]
    return np.unique(numbers, return_inverse=True)[1]


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _write_training(
    tasks: Sequence[ReadTask],
    sources: Sequence[Source],
    size: int,
    folder: Path,
    heldout: _HeldOut,
    own: set[str],
    kind: str,
    seed: int,
) -> dict[str, int]:
    """Write what is not held out, a file a source; return counts of documents.

    own: texts of the test. kind: of the pairs to train on; "": documents are.
    """
    counts: Counter[str] = Counter(heldout=0, copies=0, neighbours=0, training=0)
    for number in dict.fromkeys(task.source for task in tasks):
        file = files.create(folder / TRAIN.format(number))
        try:
            of_source = [task for task in tasks if task.source == number]
            for _, parts in groups(of_source, sources, size, RowFaults()):
                held = [_key(joined(part), seed) < heldout.limit for part in parts]
                for part, is_held in zip(without_neighbours(parts, held), held, strict=True):
                    place = "training"
                    if is_held:
                        place = "heldout"
                    elif not part:
                        place = "neighbours"
                    elif is_copy(joined(part), heldout.shingles):
                        place = "copies"
                    counts[place] += 1
                    if place == "training":
                        file.writelines(map(_line, _rows(joined(part), own, kind)))
            files.sync(file)
        finally:
            files.abandon(file)
    return dict(counts)


def _rows(document: Document, own: set[str], kind: str) -> Iterator[dict[str, str]]:
    """Yield a document's rows for training: itself, or its pairs that share no text with the test."""
    if not kind:
        yield {"text": document.whole}
        return
    pairs = pairs_of(document, [kind]) or pairs_of(document, ["neighbour"])
    for first, second in (pair for of_kind in pairs.values() for pair in of_kind):
        if first not in own and second not in own:
            yield {"text": first, "positive": second}
