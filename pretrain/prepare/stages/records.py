"""The steps that unit `record` needs of its own (`pretrain.prepare.run` lists all).

Records go into run files by the hash of the whole record, and are held out by the hash of their text alone,
so that no text of training is held out with another partner.
"""

from collections import Counter
from collections.abc import Iterator
from functools import cached_property, partial
from typing import Any

import numpy as np

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.prepare import buckets as bk
from pretrain.prepare import work_folder as files
from pretrain.prepare.packing import Packed, fit_records, one_per_sequence
from pretrain.prepare.sources.markup import Pair
from pretrain.prepare.sources.readers import ReadTask, where
from pretrain.prepare.sources.records import (
    MOST_NEGATIVES,
    MOST_POSITIVES,
    TextRecord,
    by_column,
    column_names,
    records,
    split_joined,
)
from pretrain.prepare.sources.rows import RowFaults
from pretrain.prepare.sources.structure import KINDS, pairs_of, unwanted
from pretrain.prepare.sources.structured import structured
from pretrain.prepare.stages.build import Build, CorpusTokenizer, choose
from pretrain.prepare.stages.read import Scatter
from pretrain.prepare.stages.tokenizer import MakeTokenizer
from pretrain.prepare.work_folder import PlannedStep

_COLUMNS = column_names(MOST_NEGATIVES + 3)
_COLUMNS += [f"positive{number}" for number in range(2, MOST_POSITIVES + 1)]


class ScatterRecords(Scatter):
    """Read the records of one task, scatter them into run files by hash; note what `AgreeOnColumns` needs."""

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        seed, task = self.config.seed, self.plan.tasks[rank]
        counts: Counter[str] = Counter()
        hashes = files.HashRange()
        decision = self.decision()
        texts = bk.RunWriter(self.work / "texts", f"{rank:05d}", self.plan.buckets, bk.TEXT_RECORD)
        first: TextRecord | None = None
        labels = 0
        scores: tuple[float, float] | None = None
        for record in self._records(task, rank, counts):
            key = bk.text_key(record.texts[0].encode("utf-8", "replace"), seed)
            heldout = self.is_heldout(key, decision, hashes)
            joined = record.joined()
            texts.add((bk.text_key(joined, seed), len(joined), task.source, heldout), joined)
            first = first or record
            if isinstance(record.label, float):
                bounds = (*(scores or ()), record.label)
                scores = min(bounds), max(bounds)
            elif record.label is not None:
                labels = max(labels, record.label + 1)
            counts["records"] += 1
            counts["records_heldout"] += heldout
            counts["characters"] += sum(map(len, record.texts))
            for column, text in list(by_column(record.texts).items())[1:]:
                counts[f"records_with_{column}"] += bool(text)
        texts.flush()
        hashes.write(self.work, rank)
        files.SentenceCounts(counts).write(self.work, rank)
        if first is not None:
            columns = ["text", *(name for name in _COLUMNS[1:] if counts[f"records_with_{name}"])]
            found = files.TaskColumns(columns=columns, labels=labels, position=first.position, scores=scores)
            found.write(self.work, rank)

    def _records(self, task: ReadTask, rank: int, counts: Counter[str]) -> Iterator[TextRecord]:
        """Yield the records of a task, or those of its documents' structure, and note a few of each kind."""
        source, wanted = self.config.sources[task.source], self.config.pairs
        if wanted == "none":
            yield from records(task, source, self.config.positives == "together")
            return
        kinds = list(KINDS) if wanted == "structure" else [wanted]
        faults, shown = RowFaults(counts), dict[str, list[Pair]]()
        for number, document in enumerate(structured(task, source, faults)):
            counts["documents"] += 1
            for kind, pairs in pairs_of(document, kinds, counts).items():
                why_not = [unwanted(pair, document.text, self.config.language) for pair in pairs]
                kept = [pair for pair, why in zip(pairs, why_not) if not why]
                dropped = [pair for pair, why in zip(pairs, why_not) if why]
                counts[f"pairs_of_{kind}"] += len(kept)
                counts.update(f"pairs_dropped_{why}" for why in why_not if why)
                for name, some in ((kind, kept), ("dropped", dropped)):
                    shown[name] = files.sample_of([*shown.get(name, ()), *some], files.MOST_SHOWN)
                yield from (TextRecord((*pair, "", ""), None, number) for pair in kept)
        files.ShownPairs({name: some for name, some in shown.items() if some}).write(self.work, rank)
        if faults.named:
            files.UnreadRows(named=faults.named).write(self.work, rank)


class AgreeOnColumns(PlannedStep):
    """Find which columns any record has, how many labels, and how large scores are."""

    stage = "columns"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        tasks, wanted = files.TaskColumns.read_all(self.work), self.config.pairs
        if not tasks and wanted != "none":
            kind = "structure" if wanted == "structure" else f"kind {wanted}"
            counts = files.SentenceCounts.total(self.work)
            dropped = [f", {name.replace('_', ' ')}: {n}" for name, n in counts.items() if "dropped" in name]
            kind += "".join(dropped)
            other = "give other text, or other pairs" + (", or another --language" if dropped else "")
            raise UserError(f"{self.plan.described} has no pairs of {kind}: {other}")
        for kind in ("label", "score"):
            having, without = (
                [n for n, task in tasks.items() if bool(getattr(task, f"{kind}s")) is has]
                for has in (True, False)
            )
            if having and without:
                places = [where(self.plan.tasks[n], tasks[n].position) for n in (having[0], without[0])]
                raise UserError(f"{places[0]} has a {kind}, {places[1]} has none: give all, or none")
        filled = {"text"}.union(*(task.columns for task in tasks.values()))
        labels = max((task.labels for task in tasks.values()), default=0) or None
        bounds = [score for task in tasks.values() for score in task.scores or ()]
        scores = (min(bounds), max(bounds)) if bounds else None
        columns = [name for name in _COLUMNS if name in filled]
        files.Columns(columns=columns, labels=labels, scores=scores).write(self.work)


class MakeRecordTokenizer(MakeTokenizer):
    """Train a tokenizer on a sample of all texts of training records, or adopt an existing one."""

    def sample(self) -> Iterator[str]:
        """Yield the texts of a sample of records, chosen as `MakeTokenizer.sample` does."""
        for joined in super().sample():
            yield from filter(None, by_column(split_joined(joined)[0]).values())


class BuildRecords(Build):
    """Write the records of one bucket into its shard of each split."""

    @cached_property
    def _columns(self) -> files.Columns:
        return files.Columns.read(self.work)

    def _split(self, joined: str) -> tuple[list[str], int | float | None]:
        """Return the texts of all columns of a record, and its label or score."""
        texts, label = split_joined(joined)
        columns = by_column(texts)
        return [columns.get(name, "") for name in self._columns.columns], label

    def _pack(
        self, texts: bk.Texts, bucket: int, encoder: CorpusTokenizer, counts: Counter[str]
    ) -> Iterator[tuple[str, Packed]]:
        chosen = choose(texts.records, self.config, counts)
        if not len(chosen.rows):
            return
        columns = len(self._columns.columns)
        tokens, labels = self._encode_records(texts, chosen.rows, encoder)
        longest, policy = self.config.max_length - 2, self.config.long_policy
        tokens, stay = fit_records(tokens, columns, longest, policy, counts)
        for split, shown in chosen.shuffled():
            shown = shown[stay[shown]]
            if not len(shown):
                continue
            stored = tokens.take((shown[:, None] * columns + np.arange(columns)).ravel())
            packed = one_per_sequence(stored, encoder.cls_id, encoder.sep_id)
            packed.columns, packed.labels = columns, None if labels is None else labels[shown]
            packed.texts = partial(self._texts_of_columns, texts, chosen.rows[shown])
            yield split, packed

    def _texts_of_columns(self, texts: bk.Texts, rows: np.ndarray, start: int, stop: int) -> list[str]:
        return [text for record in texts.decode(rows[start:stop]) for text in self._split(record)[0]]

    def _encode_records(
        self, texts: bk.Texts, rows: np.ndarray, encoder: CorpusTokenizer
    ) -> tuple[Ragged, np.ndarray | None]:
        """Return the tokens of the records' columns, C rows a record, and labels or scores [R], or None.

        Labels are int64, scores float32.
        """
        parts, labels = [], []
        # decoded in slices: a Python string costs 50 bytes over its text
        for start in range(0, len(rows), 16384):
            strings = []
            for joined in texts.decode(rows[start : start + 16384]):
                fields, label = self._split(joined)
                strings += fields
                labels.append(label)
            parts.append(encoder(strings))
        if self._columns.labels is None and self._columns.scores is None:
            return Ragged.concatenate(parts), None
        return Ragged.concatenate(parts), np.array(labels, np.float32 if self._columns.scores else np.int64)
