"""Ragged batches equal lists of lists."""

import numpy as np
import pytest

from augment.core.ragged import Ragged, offsets_of, segment_indices

SEQUENCES = [[1, 2, 3], [], [4], [5, 6], []]


def lists(batch: Ragged) -> list[list[int]]:
    return [batch[index].tolist() for index in range(len(batch))]


def test_round_trip_and_properties():
    batch = Ragged.from_sequences(SEQUENCES)
    assert lists(batch) == SEQUENCES
    assert (len(batch), batch.num_tokens) == (5, 6)
    assert batch.ids.dtype == np.int32 and batch.offsets.dtype == np.int64
    assert batch.lengths.tolist() == [3, 0, 1, 2, 0]
    assert batch.rows().tolist() == [0, 0, 0, 2, 3, 3]
    assert batch.positions().tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.rows().dtype == batch.positions().dtype == np.int64
    assert batch[-2].tolist() == [5, 6]
    with pytest.raises(IndexError):
        batch[5]


def test_take_slice_concatenate_match_lists():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sequences = [rng.integers(0, 100, rng.integers(0, 9)).tolist() for _ in range(rng.integers(0, 12))]
        batch = Ragged.from_sequences(sequences)
        order = rng.integers(0, max(len(sequences), 1), 7) if sequences else np.zeros(0, dtype=np.int64)
        assert lists(batch.take(order)) == [sequences[i] for i in order]
        start, stop = sorted(rng.integers(0, 14, 2).tolist())
        assert lists(batch.slice(start, stop)) == sequences[start:stop]
        assert lists(Ragged.concatenate([batch.slice(0, start), batch.slice(start, len(batch))])) == sequences
    assert lists(Ragged.concatenate([])) == lists(Ragged.empty()) == lists(Ragged.from_sequences([])) == []


def test_slice_shares_memory():
    batch = Ragged.from_sequences(SEQUENCES)
    assert np.shares_memory(batch.slice(2, 4).ids, batch.ids)


def test_segment_indices():
    starts, lengths = np.array([7, 3, 0, 5]), np.array([2, 0, 3, 1])
    assert segment_indices(starts, lengths).tolist() == [7, 8, 0, 1, 2, 5]
    assert offsets_of(lengths).tolist() == [0, 2, 2, 5, 6]
    assert segment_indices(starts[:0], lengths[:0]).tolist() == []


@pytest.mark.parametrize(
    ("ids", "offsets"),
    [
        (np.zeros(2, np.int64), np.array([0, 2])),
        (np.zeros(2, np.int32), np.array([0, 2], np.int32)),
        (np.zeros(2, np.int32), np.array([0, 3])),
        (np.zeros(2, np.int32), np.array([1, 2])),
        (np.zeros(2, np.int32), np.zeros(0, np.int64)),
    ],
)
def test_refuses_what_is_not_a_batch(ids, offsets):
    with pytest.raises(ValueError, match=r"Ragged\."):
        Ragged(ids, offsets)
