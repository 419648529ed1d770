"""Counter-based randomness equals scalar references, does not depend on the batch, and is uniform."""

import augment_reference as reference
import numpy as np
import pytest

from augment.core.keys import (
    bits_per_sequence,
    derive,
    sequence_keys,
    token_bits,
    uniform,
    uniform_per_sequence,
)

IDS = np.array([0, 1, 2, 10**12, 2**64 - 1], dtype=np.uint64)


def test_sequence_keys_equal_the_scalar_definition():
    keys = sequence_keys(7, 3, IDS, 1, "augment")
    expected = [reference.derive(0, 7, "augment", 1, int(i), 3) for i in IDS]
    assert keys.dtype == np.uint64 and keys.tolist() == expected


def test_every_part_of_a_key_matters_and_epochs_may_differ_by_sequence():
    base = sequence_keys(7, 3, IDS, 1, "augment")
    others = [
        sequence_keys(8, 3, IDS, 1, "augment"),
        sequence_keys(7, 4, IDS, 1, "augment"),
        sequence_keys(7, 3, IDS, 0, "augment"),
        sequence_keys(7, 3, IDS, 1, "mask"),
    ]
    assert len({key for keys in [base, *others] for key in keys.tolist()}) == 5 * len(IDS)
    mixed = sequence_keys(7, np.array([3, 4, 3, 4, 3]), IDS, 1, "augment")
    assert mixed.tolist() == np.where(np.arange(5) % 2 == 0, base, others[1]).tolist()


def test_token_draws_equal_the_scalar_definition_across_blocks():
    keys = sequence_keys(0, 0, np.arange(4, dtype=np.uint64), 0, "mask")
    lengths = np.array([3, 0, 70_000, 5])  # longer than the block that is hashed at a time
    bits = token_bits(keys, lengths, stream=2)
    ends = np.cumsum(lengths)
    for row, position in [(0, 0), (0, 2), (2, 0), (2, 32_767), (2, 32_768), (2, 69_999), (3, 4)]:
        token = ends[row] - lengths[row] + position
        assert bits[token] == reference.token_bits(int(keys[row]), position, 2)
    assert np.array_equal(uniform(keys, lengths, 2), (bits >> 8).astype(np.float32) * np.float32(2**-24))
    assert uniform(keys, lengths).dtype == np.float32


def test_draws_depend_on_the_key_only():
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**63, 20).astype(np.uint64)
    lengths = rng.integers(0, 30, 20)
    whole = np.split(uniform(keys, lengths), np.cumsum(lengths)[:-1])
    order = rng.permutation(20)
    shuffled = np.split(uniform(keys[order], lengths[order]), np.cumsum(lengths[order])[:-1])
    assert all(np.array_equal(whole[i], part) for i, part in zip(order, shuffled, strict=True))
    # A longer sequence has the shorter one's draws and more.
    assert all(
        np.array_equal(uniform(keys[i : i + 1], np.array([40]))[: lengths[i]], whole[i]) for i in range(20)
    )
    assert np.array_equal(uniform_per_sequence(keys, 5)[:, :3], uniform_per_sequence(keys, 3))
    assert bits_per_sequence(keys[:1], 4, 1)[0].tolist() == reference.sequence_bits(int(keys[0]), 4, 1)


def test_draws_are_uniform_and_uncorrelated():
    keys = sequence_keys(1, 0, np.arange(2000, dtype=np.uint64), 0, "augment")
    lengths = np.full(2000, 100)
    draws = uniform(keys, lengths).astype(np.float64)
    assert draws.min() >= 0 and draws.max() < 1
    counts = np.histogram(draws, 50, (0, 1))[0]
    assert ((counts - 4000) ** 2 / 4000).sum() < 49 + 5 * np.sqrt(2 * 49)  # chi-square, 5 sigma
    table = draws.reshape(2000, 100)
    for other in (np.roll(table, 1, 0), np.roll(table, 1, 1), uniform(keys, lengths, 1).reshape(2000, 100)):
        assert abs(np.corrcoef(table.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(table.size)
    assert abs(uniform_per_sequence(keys, 100).mean() - 0.5) < 5 / np.sqrt(12 * 200_000)


def test_derive_takes_arrays_and_rejects_wrong_counts():
    keys = np.arange(3, dtype=np.uint64)
    assert derive(keys, 4, "x", keys).tolist() == [reference.derive(i, 4, "x", i) for i in range(3)]
    with pytest.raises(ValueError, match="one key per sequence"):
        uniform(keys, np.array([1, 2]))
