"""The steps of preparation that records need of their own (`pretrain.prepare.stages.texts` has the rest, and
the promises).

read      T tasks   records -> run files by the hash of the whole record; held out by the hash of its text alone, so that
                    no text of training is held out with another partner
columns   1 task    which columns and labels there are; whether all sources agree
tokenizer 1 task    on a sample of all columns
build     K tasks   one bucket: sort, drop duplicates, weigh, tokenise, write shards
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from datatrove.data import Document

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.prepare import buckets as bk
from pretrain.prepare.packing import Packed, fit_records, one_per_sequence
from pretrain.prepare.progress import Heartbeat
from pretrain.prepare.sources.readers import where
from pretrain.prepare.sources.records import COLUMNS, records, split_joined
from pretrain.prepare.stages.texts import Build, MakeTokenizer, Scatter, Step
from pretrain.prepare.tasks import Task


class ReadRecords(Step):
    """Reader: the records of one task, as datatrove Documents with `record` in their metadata."""

    name = "read records"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Document]:
        task = Task(**self.plan["tasks"][rank])
        with Heartbeat(self.work, "read", rank) as heartbeat:
            for record in records(task, self.config.sources[task.source]):
                heartbeat.advance(sum(map(len, record.texts)))
                yield Document(record.texts[0], str(rank), metadata={"source": task.source, "record": record})


class ScatterRecords(Scatter):
    """Writer: scatter records into run files by hash, and keep what `AgreeOnColumns` wants to know."""

    name = "scatter records"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        seed = self.config.seed
        counts: Counter[str] = Counter()
        hashes: list[tuple[int, int]] = []
        decision = self._decision()
        texts = bk.RunWriter(self.work / "texts", f"{rank:05d}", self.buckets, bk.TEXT_RECORD)
        first, labels = None, 0
        for document in data:
            record = document.metadata["record"]
            key = bk.text_key(document.text.encode("utf-8", "replace"), seed)
            number, _, heldout = self._fate(key, decision)
            hashes = [min([*hashes[:1], (number, key)]), max([*hashes[1:], (number, key)])]
            joined = record.joined()
            texts.add((bk.text_key(joined, seed), len(joined), document.metadata["source"], heldout), joined)
            first = first or record
            labels = max(labels, 0 if record.label is None else record.label + 1)
            counts["records"] += 1
            counts["records_heldout"] += heldout
            counts["characters"] += sum(map(len, record.texts))
            for column, text in zip(COLUMNS[1:], record.texts[1:]):
                counts[f"records_with_{column}"] += bool(text)
        texts.flush()
        self.save_counts("hashes", rank, dict(zip(("smallest", "largest"), hashes)))
        self.save_counts("read", rank, dict(counts))
        if first is not None:
            columns = [COLUMNS[0], *(column for column in COLUMNS[1:] if counts[f"records_with_{column}"])]
            found = {"columns": columns, "labels": labels, "position": first.position}
            self.save_counts("found", rank, found)


class AgreeOnColumns(Step):
    """Which columns any record has, and how many labels; or the error that some records have labels and
    others none."""

    name = "columns and labels"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with Heartbeat(self.work, "columns", 0):
            paths = sorted((self.work / "counts" / "found").glob("*.json"))
            found = {int(path.stem): json.loads(path.read_text()) for path in paths}
            with_labels, without = (
                [n for n, task in found.items() if bool(task["labels"]) is has] for has in (True, False)
            )
            if with_labels and without:
                places = [
                    where(Task(**self.plan["tasks"][n]), found[n]["position"])
                    for n in (with_labels[0], without[0])
                ]
                raise UserError(
                    f"The record in {places[0]} has a label, that in {places[1]} has none: give all records "
                    "labels, or none."
                )
            filled = {COLUMNS[0]}.union(*(task["columns"] for task in found.values()))
            columns: dict[str, Any] = {"columns": [name for name in COLUMNS if name in filled]}
            if with_labels:
                columns["labels"] = max(task["labels"] for task in found.values())
            self.save_counts("columns", 0, columns)


class MakeRecordTokenizer(MakeTokenizer):
    """Train a tokenizer on a sample of all texts of training records, or adopt an existing one."""

    def sample(self) -> Iterator[str]:
        """As `MakeTokenizer.sample`, chosen record by record."""
        for joined in super().sample():
            yield from filter(None, split_joined(joined)[0])


class BuildRecords(Build):
    """One bucket: order, de-duplicate, weigh, tokenise, write its shard of each split."""

    def _pack(self, texts: bk.Texts, bucket: int, counts: Counter[str]) -> Iterator[tuple[str, Packed]]:
        rows, copies, place = self._choose(texts.records, counts)
        if not len(rows):
            return
        columns = len(self.columns["columns"])
        tokens, labels = self._encode_records(texts, rows)
        tokens, stay = fit_records(
            tokens, columns, self.config.max_length - 2, self.config.long_policy, counts
        )
        for split, chosen in self._shuffled(texts.records[rows], copies, place):
            chosen = chosen[stay[chosen]]
            if not len(chosen):
                continue
            packed = one_per_sequence(
                tokens.take((chosen[:, None] * columns + np.arange(columns)).ravel()), self._cls, self._sep
            )
            packed.columns, packed.labels = columns, None if labels is None else labels[chosen]
            packed.texts = partial(self._texts_of_columns, texts, rows[chosen])
            yield split, packed

    def _texts_of_columns(self, texts: bk.Texts, rows: np.ndarray, start: int, stop: int) -> list[str]:
        chosen = [COLUMNS.index(name) for name in self.columns["columns"]]
        return [
            split_joined(joined)[0][column] for joined in texts.decode(rows[start:stop]) for column in chosen
        ]

    def _encode_records(self, texts: bk.Texts, rows: np.ndarray) -> tuple[Ragged, np.ndarray | None]:
        """(texts of the records' columns without special tokens, C a record; int64[rows] labels or None)."""
        chosen = [COLUMNS.index(name) for name in self.columns["columns"]]
        parts, labels = [], []
        # decoded in slices: a Python string costs 50 bytes over its text
        for start in range(0, len(rows), 16384):
            strings = []
            for joined in texts.decode(rows[start : start + 16384]):
                found, label = split_joined(joined)
                strings += [found[column] for column in chosen]
                labels.append(label)
            parts.append(self._encode(strings))
        return Ragged.concatenate(parts), np.array(labels, np.int64) if "labels" in self.columns else None
