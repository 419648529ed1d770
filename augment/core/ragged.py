"""Hold many token sequences of different lengths in one flat array, without padding.

`Ragged` is the only batch type between a shard and the encoder. Two arrays describe it completely, so array
operations slice, gather and rewrite whole batches; nothing loops over sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Hold N token sequences end to end.

    >>> batch = Ragged.from_sequences([[101, 7, 8, 102], [], [101, 9, 102]])
    >>> batch.ids
    array([101,   7,   8, 102, 101,   9, 102], dtype=int32)
    >>> batch.offsets
    array([0, 4, 4, 7])
    >>> batch[2]
    array([101,   9, 102], dtype=int32)
    >>> batch.take([2, 0]).lengths
    array([3, 4])

    ids: int32[T], the token ids of all sequences, special tokens included.
    offsets: int64[N + 1], from 0 to T, never falling; sequence i is `ids[offsets[i]:offsets[i + 1]]`. A
    sequence may be empty.

    Raises:
        ValueError: another dtype or number of dimensions, or offsets that do not run from 0 to T.
    """

    ids: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        if self.ids.dtype != np.int32 or self.ids.ndim != 1:
            raise ValueError(f"Ragged.ids must be int32[T], not {self.ids.dtype}{list(self.ids.shape)}")
        if self.offsets.dtype != np.int64 or self.offsets.ndim != 1 or len(self.offsets) == 0:
            raise ValueError(
                f"Ragged.offsets must be int64[N + 1], not {self.offsets.dtype}{self.offsets.shape}"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids):
            raise ValueError(f"Ragged.offsets must run from 0 to the number of tokens, {len(self.ids)}")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        """Return sequence `index` as a view of `ids`, int32[length]; a negative one counts from the end."""
        size = len(self)
        if not -size <= index < size:
            raise IndexError(f"sequence {index} of a batch of {size}")
        index %= size
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ragged):
            return NotImplemented
        return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.ids, other.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Return the number of tokens in each sequence, int64[N]."""
        return np.diff(self.offsets)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def rows(self) -> np.ndarray:
        """Return the sequence that each token belongs to, int64[T]."""
        return np.repeat(np.arange(len(self), dtype=np.int64), self.lengths)

    def positions(self) -> np.ndarray:
        """Return the position of each token inside its own sequence, from 0, int64[T]."""
        return segment_indices(np.zeros(len(self), dtype=np.int64), self.lengths)

    def take(self, order: np.ndarray) -> "Ragged":
        """Gather the sequences that `order` numbers (int64[K], repeats allowed), in that order."""
        order = np.asarray(order, dtype=np.int64)
        lengths = self.lengths[order]
        return Ragged(self.ids.take(segment_indices(self.offsets[order], lengths)), offsets_of(lengths))

    def slice(self, start: int, stop: int) -> "Ragged":
        """Return sequences start to stop - 1; the ids are a view. Bounds clip as they do in a list."""
        start, stop, _ = slice(start, stop).indices(len(self))
        offsets = self.offsets[start : max(start, stop) + 1]
        return Ragged(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    @staticmethod
    def from_sequences(sequences: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
        if not arrays:
            return Ragged.empty()
        return Ragged(np.concatenate(arrays), offsets_of(np.array([len(a) for a in arrays], dtype=np.int64)))

    @staticmethod
    def concatenate(batches: "Sequence[Ragged]") -> "Ragged":
        """Lay the sequences of all batches end to end, one batch after the other."""
        if not batches:
            return Ragged.empty()
        if len(batches) == 1:
            return batches[0]
        starts = np.cumsum([0] + [batch.num_tokens for batch in batches])
        offsets = [batch.offsets[1:] + start for batch, start in zip(batches, starts, strict=False)]
        return Ragged(
            np.concatenate([batch.ids for batch in batches]),
            np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
        )

    @staticmethod
    def empty() -> "Ragged":
        return Ragged(np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """Return the offsets, int64[N + 1], of sequences of the lengths int64[N]."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def segment_indices(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the indices that gather segments, int64[lengths.sum()].

    >>> segment_indices(np.array([5, 0]), np.array([3, 2]))
    array([5, 6, 7, 0, 1])

    starts, lengths: int64[S]. The cost is one repeat and one addition a token. Every rewriting of a batch
    (gathers, deletions, swaps) is a list of segments passed to this function. The result is int64 because
    numpy would convert a narrower index array to int64 once more.
    """
    ends = np.cumsum(lengths, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    shifts = starts - ends
    shifts += lengths
    indices = np.repeat(shifts, lengths)
    indices += np.arange(total, dtype=np.int64)
    return indices
