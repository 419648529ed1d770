"""Stages of the units `sequence` and `document`, whose sentences stay together as running text.

Running text has no holes. So what is left out of training is whole documents: those with too little prose
(`stages.read.Scatter`) and duplicates of others (`stages.choose`). A sentence of training text is
never held out too: it is taken out of the held-out documents, which part there.

The sequences of a document follow each other as they are packed, and copies of it (a source's weight) lie in
one bucket. So all sequences are shuffled over the whole corpus by a second external sort, by a hash of where
they came to lie in the first.
"""

from collections import Counter
from typing import Any

import numpy as np

from augment.core.ragged import Ragged, offsets_of, segment_indices
from pretrain.data.manifest import SPLITS
from pretrain.prepare import buckets as bk
from pretrain.prepare import work_folder as files
from pretrain.prepare.packing import Packed
from pretrain.prepare.stages.build import Pack, Shards
from pretrain.prepare.work_folder import PlannedStep

_SENTENCE, _DOCUMENT = 1 << 29, 1 << 30  # marks of a token that opens one, above its id
_IDS = _SENTENCE - 1


class Resolve(PlannedStep):
    """Find the sentences of held-out documents that training documents have too, and list them."""

    # "resolve" before its files changed: an unfinished preparation does it again, so PREPARATION stayed
    stage = "drop"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        runs = bk.open_runs(self.work / "signatures", self.plan.buckets, bk.SIGNATURE)
        signatures = np.concatenate([run.records(rank) for run in runs] or [np.empty(0, bk.SIGNATURE)])
        held = signatures["heldout"] == 1
        shared = signatures[held][np.isin(signatures["key"][held], signatures["key"][~held])]
        dropped = bk.RunWriter(self.work / "dropped", f"{rank:05d}", self.plan.buckets, bk.DROPPED)
        sentences = np.unique(shared[["document", "index"]]).tolist()
        for sentence in sentences:
            dropped.add(sentence)
        dropped.flush()
        files.ResolveCounts({"heldout_sentences_in_train": len(sentences)}).write(self.work, rank)


class ScatterSequences(Pack):
    """Pack the documents of one bucket, and scatter the sequences into run files by hash."""

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        counts: Counter[str] = Counter()
        sequences = bk.RunWriter(self.work / "sequences", f"{rank:05d}", self.plan.buckets, bk.TEXT_RECORD)
        number = 0
        seed = bk.mixed(np.array([self.config.seed], np.uint64), rank)
        for split, packed in self.packed(rank, counts):
            offsets = packed.sequences.offsets.tolist()
            tokens = _marked(packed)
            count = len(packed.sequences)
            # Of the place, not of the tokens: copies of a sequence are no neighbours either.
            keys = bk.mixed(np.arange(number, number + count, dtype=np.uint64) + seed, bk.SEQUENCE_SALT)
            for key, low, high in zip(keys.tolist(), offsets, offsets[1:]):
                sequences.add((key, 4 * (high - low), 0, SPLITS.index(split)), tokens[low:high].tobytes())
            number += count
        sequences.flush()
        files.BuiltShards(counts=counts).write(self.work, rank)


class ShuffleSequences(PlannedStep):
    """Sort one bucket of sequences by hash, and write its shard of each split."""

    stage = "shuffle"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with Shards(self, rank) as shards:
            for stored in self.texts_of("sequences", rank):
                order = np.argsort(stored.records["key"], kind="stable")
                for number, split in enumerate(SPLITS):
                    rows = order[stored.records["heldout"][order] == number]
                    if len(rows):
                        shards.write(split, _unmarked(stored, rows))
        files.ShuffledShards(shards=shards.records()).write(self.work, rank)


def _marked(packed: Packed) -> np.ndarray:
    """Return the tokens, int32[T], with marks on those that open a sentence or a document."""
    tokens = packed.sequences.ids.astype("<i4")
    tokens[packed.sentence_starts] |= _SENTENCE
    tokens[packed.document_starts] |= _DOCUMENT
    return tokens


def _unmarked(stored: bk.Texts, rows: np.ndarray) -> Packed:
    """Return the sequences of some rows, in this order."""
    lengths = stored.records["bytes"][rows].astype(np.int64) // 4
    tokens = stored.blob.view("<i4").take(segment_indices(stored.starts[rows] // 4, lengths))
    sentence_starts, document_starts = (np.flatnonzero(tokens & mark) for mark in (_SENTENCE, _DOCUMENT))
    sequences = Ragged((tokens & _IDS).astype(np.int32), offsets_of(lengths))
    return Packed(sequences, sentence_starts, document_starts)
