"""Hold documents out of a text before anything is trained on it, and make a test of retrieval of them.

A document is held out by a hash of its text, so that copies of it are, too. One that repeats much of the
held-out ones is neither trained on nor asked for. The folder gets the test as two sets in NanoBEIR's format,
`dev` and `test`, halves of the queries over the same passages (`clearly nanobeir MODEL --eval-data FOLDER`),
and the text to train on.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from augment.text.cleaning import clean
from finetune.judge.bm25 import words_of
from finetune.judge.reading import Piece, pieces_of
from finetune.judge.structure import KINDS, Document, Pair, pairs_of
from finetune.nanobeir import FOLDER
from pretrain.common.errors import UserError
from pretrain.common.files import (
    abandon,
    create,
    discard,
    make_folder,
    put_in_place,
    remove_tree,
    sync,
    write_durably,
)
from pretrain.config.data import Source

HALVES = ("dev", "test")
SHARE = 0.2
"""Of the documents, held out at most."""
MOST_DOCUMENTS, MOST_CHARACTERS = 10_000, 4_000_000
"""Held out at most."""
MOST_PASSAGES, MOST_PASSAGE_CHARACTERS = 10_000, 1_000_000
MOST_QUERIES = 2000
ENOUGH, FEWEST = 100, 20
"""Queries for which a kind of pairs is preferred; and without which nothing can be judged."""
SHINGLE, SHARED = 5, 0.5
"""Words in a row by which documents are compared; a larger share of them in the held-out text is too much."""
_ABOUT, _TRAIN = "about.json", "train-{}.jsonl"
_KEYS = 2**64
_FACTORS = np.array([pow(0x9E3779B97F4A7C15, n + 1, 2**64) for n in range(SHINGLE)], np.uint64)


@dataclass(frozen=True)
class RetrievalTest:
    """What was held out, and what is left to train on.

    settings: what it follows from. kind: of its pairs; found: how many queries each kind would have.
    counts: of documents, passages, queries. shown: three of its pairs.
    """

    settings: dict[str, Any]
    kind: str
    found: dict[str, int]
    counts: dict[str, int]
    shown: list[list[str]] = field(default_factory=list)


def make_test(sources: Sequence[Source], folder: Path, seed: int, records: bool) -> RetrievalTest:
    """Make the test of a text in `folder`, or return the one that is there.

    Args:
        sources: of the text.
        seed: decides which documents are held out.
        records: the text to train on is pairs of the same kind, else documents.

    Raises:
        UserError: there is too little text, or `folder` holds the test of another one.
    """
    settings = {
        "sources": [source.model_dump(mode="json") for source in sources],
        "seed": seed,
        "records": records,
    }
    if (folder / _ABOUT).is_file():
        made = RetrievalTest(**json.loads((folder / _ABOUT).read_text("utf-8")))
        if made.settings != settings:
            raise UserError(f"{folder} holds the test of another text or seed; choose another --out")
        return made
    pieces = pieces_of(sources)
    heldout, total = _hold_out(pieces, seed)
    by_kind = {kind: [pair for one in heldout for pair in one.get(kind, ())] for kind in KINDS}
    found = {
        kind: len(dict.fromkeys(first for first, _ in pairs)) for kind, pairs in by_kind.items() if pairs
    }
    kind = next(
        (kind for kind, count in found.items() if count >= ENOUGH),
        max(found, key=found.__getitem__, default=""),
    )
    if found.get(kind, 0) < FEWEST:
        raise UserError(
            f"a test needs {FEWEST} pairs of texts that belong together, and the held-out documents have "
            f"{found.get(kind, 0)} ({total:,} documents in all): add text, or give documents of several "
            "sentences or rows of two columns; single sentences have nothing that belongs to them"
        )
    passages, relevant = _choose(by_kind[kind], seed)
    hidden = folder.with_name(f".{folder.name}.tmp")
    remove_tree(hidden)
    try:
        make_folder(hidden)
        for number, half in enumerate(HALVES):
            some = dict(list(relevant.items())[number::2])
            _write_set(hidden / FOLDER / half, passages, some)
        own = {text for pair in by_kind[kind] for text in pair}
        counts = _write_training(pieces, hidden, heldout, own, kind if records else "", seed)
        if not any((hidden / _TRAIN.format(piece.number)).stat().st_size for piece in pieces):
            raise UserError(
                f"nothing is left to train on: of {total:,} documents {counts['heldout']:,} are held out "
                f"and {counts['copies']:,} repeat those: add text, or give it as several documents"
            )
        counts |= {"documents": total, "passages": len(passages), "queries": len(relevant)}
        shown = [[query, passages[rows[0]]] for query, rows in list(relevant.items())[:3]]
        made = RetrievalTest(settings, kind, found, counts, shown)
        write_durably(hidden / _ABOUT, json.dumps(asdict(made), ensure_ascii=False, indent=1).encode())
        put_in_place(hidden, folder)
    finally:
        discard(hidden)
    return made


def training_sources(sources: Sequence[Source], folder: Path) -> list[dict[str, Any]]:
    """Return the sources to train on in place of the user's, of which nothing is held out for the test."""
    return [
        {"source": str(folder / _TRAIN.format(number)), "weight": source.weight}
        for number, source in enumerate(sources)
        if (folder / _TRAIN.format(number)).stat().st_size
    ]


class _HeldOut(list[dict[str, list[Pair]]]):
    """The pairs of each held-out document by kind, and what tells copies of them: limit, shingles."""

    limit: float
    shingles: np.ndarray


def _key(document: Document, seed: int) -> int:
    return xxhash.xxh64_intdigest(clean(document.whole).encode("utf-8", "replace"), seed)


def _hold_out(pieces: Sequence[Piece], seed: int) -> tuple[_HeldOut, int]:
    """Return the held-out documents, those of the smallest keys, and the number of all documents."""
    kept: dict[int, Document] = {}
    total = characters = 0
    limit = SHARE * _KEYS
    for piece in pieces:
        for document in piece.documents():
            total, characters = total + 1, characters + len(document.text)
            limit = min(limit, MOST_DOCUMENTS / total * _KEYS, MOST_CHARACTERS / (characters + 1) * _KEYS)
            if (key := _key(document, seed)) < limit:
                kept[key] = document
        kept = {key: document for key, document in kept.items() if key < limit}
    chosen = [kept[key] for key in sorted(kept)]
    heldout = _HeldOut(pairs_of(document) for document in chosen)
    heldout.limit = limit
    heldout.shingles = np.unique(np.concatenate([shingles(one.whole) for one in chosen] or [_FACTORS[:0]]))
    return heldout, total


def shingles(text: str) -> np.ndarray:
    """Return hashes, uint64[S], of each `SHINGLE` words in a row; of a shorter text, of all of its words.

    They are the same in one process alone.
    """
    words = np.fromiter(map(hash, words_of(text)), np.int64).astype(np.uint64)
    width = max(1, min(SHINGLE, len(words)))
    rows = np.lib.stride_tricks.sliding_window_view(words, width) if len(words) else words[None]
    return rows @ _FACTORS[: rows.shape[1]]


def is_copy(document: Document, heldout: np.ndarray) -> bool:
    """Return whether more than `SHARED` of a document's shingles are held-out ones, uint64[H], sorted."""
    found = shingles(document.whole)
    places = np.minimum(np.searchsorted(heldout, found), len(heldout) - 1)
    return float(np.mean(heldout[places] == found)) > SHARED


def _choose(pairs: Sequence[Pair], seed: int) -> tuple[list[str], dict[str, list[int]]]:
    """Return the passages, each once, and query -> rows of those that belong to it, queries shuffled."""
    rows: dict[str, int] = {}
    relevant: dict[str, list[int]] = {}
    size = 0
    for query, passage in pairs:
        if passage not in rows:
            if len(rows) == MOST_PASSAGES or size + len(passage) > MOST_PASSAGE_CHARACTERS:
                break
            rows[passage], size = len(rows), size + len(passage)
        of_query = relevant.setdefault(query, [])
        if rows[passage] not in of_query:
            of_query.append(rows[passage])
    queries = list(relevant)
    random.Random(seed).shuffle(queries)
    return list(rows), {query: relevant[query] for query in queries[:MOST_QUERIES]}


def _write_set(folder: Path, passages: Sequence[str], relevant: dict[str, list[int]]) -> None:
    """Write a set as `finetune.nanobeir` reads it."""
    make_folder(folder)
    numbers = {query: f"q{number:05d}" for number, query in enumerate(relevant)}
    parts: dict[str, list[dict[str, Any]]] = {
        "corpus": [{"_id": f"p{row:05d}", "text": text} for row, text in enumerate(passages)],
        "queries": [{"_id": number, "text": query} for query, number in numbers.items()],
        "qrels": [
            {"query-id": numbers[query], "corpus-id": [f"p{row:05d}" for row in rows]}
            for query, rows in relevant.items()
        ],
    }
    for name, rows in parts.items():
        write_durably(folder / f"{name}.jsonl", b"".join(map(_line, rows)))


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _write_training(
    pieces: Sequence[Piece], folder: Path, heldout: _HeldOut, own: set[str], kind: str, seed: int
) -> dict[str, int]:
    """Write what is not held out, a file a source; return counts of documents.

    own: texts of the test. kind: of the pairs to train on; "": documents are.
    """
    counts: Counter[str] = Counter(heldout=0, copies=0, training=0)
    for number in dict.fromkeys(piece.number for piece in pieces):
        file = create(folder / _TRAIN.format(number))
        try:
            for piece in pieces:
                for document in piece.documents() if piece.number == number else ():
                    place = "training"
                    if _key(document, seed) < heldout.limit:
                        place = "heldout"
                    elif is_copy(document, heldout.shingles):
                        place = "copies"
                    counts[place] += 1
                    if place == "training":
                        file.writelines(map(_line, _rows(document, own, kind)))
            sync(file)
        finally:
            abandon(file)
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
