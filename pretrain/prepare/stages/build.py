"""Stage `build`: the texts of a bucket to tokens, sequences and shards."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from augment.core.ragged import Ragged, segment_indices
from pretrain.data.annotate import Annotator
from pretrain.prepare import buckets as bk
from pretrain.prepare.packing import Packed, fit_sentences, full_sentences, one_per_document, one_per_sequence
from pretrain.prepare.progress import Heartbeat
from pretrain.prepare.stages.choose import choose
from pretrain.prepare.stages.encode import TextEncoder
from pretrain.prepare.stages.step import PlannedStep
from pretrain.prepare.stages.write import Annotate, Shards
from pretrain.prepare.work_folder import BuiltShards, read_dropped


class Pack(PlannedStep):
    """Choose, encode and pack the texts of one bucket. Subclasses say what becomes of the sequences."""

    stage = "build"

    def packed(self, bucket: int, heartbeat: Heartbeat, counts: Counter[str]) -> Iterator[tuple[str, Packed]]:
        """Yield the sequences of a bucket, split by split, in as many parts as the bound on memory asks."""
        encoder = TextEncoder(self.work, heartbeat)
        runs = bk.open_runs(self.work / "texts", self.buckets, bk.TEXT_RECORD)
        parts = self.parts_of(runs, bucket)
        for part in range(parts):
            yield from self._pack(bk.load_texts(runs, bucket, part, parts), bucket, encoder, counts)
        counts["special_tokens_read_as_text"] += encoder.spelled

    def _pack(
        self, texts: bk.Texts, bucket: int, encoder: TextEncoder, counts: Counter[str]
    ) -> Iterator[tuple[str, Packed]]:
        config = self.config
        chosen = choose(texts.records, config, counts)
        if not len(chosen.rows):
            return
        if config.keeps_documents:
            encoded = self._encode_documents(texts, chosen.rows, bucket, encoder)
        else:
            encoded = _encode_sentences(texts, chosen.rows, encoder)
        sentences, texts_of_sentences, row_of_text = encoded
        sentences, running, first = fit_sentences(
            sentences, texts_of_sentences, config.max_length - 2, config.long_policy, counts
        )
        owner = row_of_text[running]
        bounds = np.searchsorted(owner, np.arange(len(chosen.rows) + 1))  # sentences of each chosen text
        for split, shown in chosen.shuffled():
            sizes = np.diff(bounds)[shown]
            if not sizes.sum():
                continue
            index = segment_indices(bounds[shown], sizes)
            part = sentences.take(index)
            if not config.keeps_documents:
                packed = one_per_sequence(part, encoder.cls_id, encoder.sep_id)
                packed.texts = partial(_texts_of, texts, chosen.rows[owner[index]])
                yield split, packed
                continue
            copy = np.repeat(np.arange(len(shown)), sizes)  # of a document: each is one of its own
            opens = np.ones(len(copy), bool)
            opens[1:] = (np.diff(copy) != 0) | (np.diff(running[index]) != 0)
            documents = np.cumsum(opens)
            arguments = (part, documents, first[index], config.max_length, encoder.cls_id, encoder.sep_id)
            if config.unit == "sequence":
                yield split, full_sentences(*arguments)
            else:
                yield split, one_per_document(*arguments, counts)

    def _encode_documents(
        self, texts: bk.Texts, rows: np.ndarray, bucket: int, encoder: TextEncoder
    ) -> tuple[Ragged, np.ndarray, np.ndarray]:
        """Encode the S sentences of documents as T running texts, without those that `Resolve` listed.

        A running text is a document, or the part of it between two sentences that were taken out.

        Returns: (tokens of the sentences; int64[S], running text of each; int64[T], place in `rows` of each
        running text).
        """
        dropped = read_dropped(self.work, *(bk.first_key(b, self.buckets) for b in (bucket, bucket + 1)))
        parts: list[Ragged] = []
        running: list[int] = []
        row_of_text: list[int] = []
        for start in range(0, len(rows), 4096):
            strings: list[str] = []
            chosen = rows[start : start + 4096]
            keys = texts.records["key"][chosen].tolist()
            for number, (key, text) in enumerate(zip(keys, texts.decode(chosen)), start):
                gone = dropped.get(key, ())
                before = None  # the sentence that was kept last
                for index, sentence in enumerate(text.split("\n")):
                    if index in gone:
                        continue
                    if before is None or index != before + 1:
                        row_of_text.append(number)
                    before = index
                    running.append(len(row_of_text) - 1)
                    strings.append(sentence)
            parts.append(encoder(strings))
        return Ragged.concatenate(parts), np.array(running, np.int64), np.array(row_of_text, np.int64)


class Build(Pack):
    """Write one bucket into its shard of each split."""

    name = "write shards"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        counts: Counter[str] = Counter()
        with self.heartbeat(rank) as heartbeat, Shards(self, rank) as shards:
            annotate = self._annotate(heartbeat, counts)
            for split, packed in self.packed(rank, heartbeat, counts):
                shards.write(split, packed, annotate)
        BuiltShards(counts=counts, shards=shards.records()).write(self.work, rank)

    def _annotate(self, heartbeat: Heartbeat, counts: Counter[str]) -> Annotate | None:
        if self.config.annotate is None:
            return None
        annotator = Annotator(self.annotation, self.config.max_length, self.work / "parses")

        def annotate(texts: list[str], sequences: Ragged) -> dict[str, bytes]:
            members = annotator.members(texts, sequences, counts)
            heartbeat.advance(sum(map(len, texts)))
            return members

        return annotate


def _encode_sentences(
    texts: bk.Texts, rows: np.ndarray, encoder: TextEncoder
) -> tuple[Ragged, np.ndarray, np.ndarray]:
    """Encode texts that are a sentence each; returns as `Pack._encode_documents`."""
    # decoded in slices: a Python string costs 50 bytes over its text
    parts = [encoder(texts.decode(rows[start : start + 65536])) for start in range(0, len(rows), 65536)]
    return Ragged.concatenate(parts), np.arange(len(rows)), np.arange(len(rows))


def _texts_of(texts: bk.Texts, rows: np.ndarray, start: int, stop: int) -> list[str]:
    return texts.decode(rows[start:stop])
