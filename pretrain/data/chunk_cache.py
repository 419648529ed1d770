"""Keep the chunks that some lanes are reading side by side in one array, so that a batch is one gather."""

from collections import OrderedDict

import numpy as np

from augment.core.ragged import Ragged, offsets_of, segment_indices
from pretrain.common.errors import UserError
from pretrain.data.annotation import Annotation, Sentences
from pretrain.data.shards import ShardReader


class ChunkCache:
    """Least-recently-used chunks in slots of equal size of one flat array.

    A step takes a few sequences from each of hundreds of chunks: with the chunks side by side that is one
    array operation over all of them, where a gather from each chunk by itself costs some 30 microseconds a
    chunk. A lane stays in a chunk for many steps, so a slot for every lane means that each chunk is read once
    an epoch.

    Memory: 4 bytes per token of the largest chunk, 16 bytes per sequence and 12 bytes per record, for each
    slot; with text, the annotation of the chunk besides, some 12 bytes per token.

    slots: chunks to keep; grows when one batch needs more. vocabulary_size: ids must be below it. keep_text:
    keep text and parse too, for `sentences`; the data must be annotated.
    """

    def __init__(
        self, reader: ShardReader, slots: int, vocabulary_size: int, keep_text: bool = False
    ) -> None:
        self.reader, self.vocabulary_size, self.keep_text = reader, vocabulary_size, keep_text
        self._annotations: dict[int, Annotation] = {}  # of the chunks in the slots, by slot
        self._tokens = int(reader.chunk_tokens.max(initial=1))
        self._records = int(reader.chunk_sizes.max(initial=1))
        self._columns = len(reader.columns)
        self._slot_of: OrderedDict[int, int] = OrderedDict()  # chunk -> slot, least recently used first
        self._lookup = np.full(reader.num_chunks, -1, dtype=np.int64)  # the same as an array
        self._free: list[int] = []
        self._ids = np.empty(0, dtype=np.int32)
        # of every sequence, into _ids; a record's columns side by side
        self._starts = np.empty(0, dtype=np.int64)
        self._lengths = np.empty(0, dtype=np.int64)
        self._numbers = np.empty(0, dtype=np.uint64)  # of every record
        self._labels = np.empty(0, dtype=np.int32)
        self._grow(max(1, min(slots, reader.num_chunks)))

    @property
    def slots(self) -> int:
        return len(self._numbers) // self._records

    def __contains__(self, chunk: int) -> bool:
        return chunk in self._slot_of

    def load(self, chunk: int, needed: set[int]) -> None:
        """Have `chunk` in the cache without losing any of `needed`; if it is damaged the cache stays."""
        if chunk in self._slot_of:
            self._slot_of.move_to_end(chunk)
            return
        content = self.reader.read(chunk)
        sequences = content.stored
        top = int(sequences.ids.max(initial=0))
        if top >= self.vocabulary_size:
            raise UserError(f"{self.reader.folder} holds token {top}: use the tokenizer in that folder")
        slot = self._take_slot(needed)
        first = slot * self._tokens
        self._ids[first : first + sequences.num_tokens] = sequences.ids
        row = slot * self._records * self._columns
        rows = slice(row, row + len(sequences))
        np.add(sequences.offsets[:-1], first, out=self._starts[rows])
        np.subtract(sequences.offsets[1:], sequences.offsets[:-1], out=self._lengths[rows])
        records = slice(slot * self._records, slot * self._records + len(content.sequence_ids))
        self._numbers[records] = content.sequence_ids
        if content.labels is not None:
            self._labels[records] = content.labels.view("<i4")
        if self.keep_text:
            assert content.annotation is not None  # text is kept of annotated data only
            self._annotations[slot] = content.annotation
        self._slot_of[chunk] = slot
        self._lookup[chunk] = slot

    def places(self, chunk: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return where record index[i] of chunk[i] lies, until the next `load`: int64[n].

        chunk, index: int64[n]; the chunks are loaded.
        """
        return self._lookup.take(chunk) * self._records + index

    def gather(self, places: np.ndarray, column: int = 0) -> Ragged:
        """One column of the records at `places`, Ragged of n."""
        rows = places * self._columns + column
        lengths = self._lengths.take(rows)
        return Ragged(self._ids.take(segment_indices(self._starts.take(rows), lengths)), offsets_of(lengths))

    def sentences(self, places: np.ndarray, column: int | np.ndarray = 0) -> Sentences:
        """Return text and parse of the records at `places` until the next `load`; column: one or int64[n]."""
        slot, row = np.divmod(places, self._records)
        return Sentences(self._annotations, slot, row * self._columns + column)

    def numbers(self, places: np.ndarray) -> np.ndarray:
        """Return the records' numbers in their split: uint64[n]."""
        return self._numbers.take(places)

    def labels(self, places: np.ndarray) -> np.ndarray:
        """Return the records' labels, or the bits of their float32 scores, of data with either: int64[n]."""
        return self._labels.take(places).astype(np.int64)

    def _take_slot(self, needed: set[int]) -> int:
        if not self._free:
            oldest = next((chunk for chunk in self._slot_of if chunk not in needed), None)
            if oldest is None:
                self._grow(self.slots + max(1, self.slots // 4))
            else:
                self._lookup[oldest] = -1
                return self._slot_of.pop(oldest)
        return self._free.pop()

    def _grow(self, slots: int) -> None:
        before = self.slots

        def longer(array: np.ndarray, size: int) -> np.ndarray:
            grown = np.empty(size, dtype=array.dtype)
            grown[: len(array)] = array
            return grown

        self._ids = longer(self._ids, slots * self._tokens)
        self._starts = longer(self._starts, slots * self._records * self._columns)
        self._lengths = longer(self._lengths, slots * self._records * self._columns)
        self._numbers = longer(self._numbers, slots * self._records)
        self._labels = longer(self._labels, slots * self._records)
        self._free += range(slots - 1, before - 1, -1)
