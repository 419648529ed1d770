"""Identities are equal for equal sequences, in any batch, and differ for all others."""

import augment_reference as reference
import numpy as np
import pytest

from augment.core.identity import equal_sequences, sequence_identities
from augment.core.ragged import Ragged

MASK64 = (1 << 64) - 1


def by_hand(tokens: list[int]) -> int:
    """Return the sum of a(token) * b(position), with the words drawn one by one."""
    total = 0
    for position, token in enumerate(tokens):
        total += reference.derive(token, "identity", "token") * reference.derive(
            position, "identity", "position"
        )
    total &= MASK64
    return total - (1 << 64) if total >> 63 else total


def short_sequences(seed: int, count: int, vocabulary: int = 4, longest: int = 6) -> Ragged:
    """Return short sequences of few tokens: full of duplicates, permutations, prefixes and empty ones."""
    random = np.random.default_rng(seed)
    return Ragged.from_sequences(
        [random.integers(0, vocabulary, random.integers(0, longest + 1)) for _ in range(count)]
    )


def test_equals_the_reference():
    batch = short_sequences(0, 50, vocabulary=70_000, longest=40)
    expected = [by_hand(batch[i].tolist()) for i in range(len(batch))]
    assert sequence_identities(batch).tolist() == expected
    assert sequence_identities(batch).dtype == np.int64


def test_equal_exactly_where_the_tokens_are():
    batch = short_sequences(1, 20_000)
    numbers = sequence_identities(batch)
    tokens = [tuple(batch[i].tolist()) for i in range(len(batch))]
    number_of = dict(zip(tokens, numbers.tolist()))
    assert numbers.tolist() == [number_of[row] for row in tokens]
    assert len(set(number_of.values())) == len(number_of) > 3000


def test_a_sequence_does_not_know_its_batch():
    batch = short_sequences(2, 300, vocabulary=3000, longest=2000)
    whole = sequence_identities(batch)
    assert np.array_equal(
        np.concatenate([sequence_identities(batch.slice(i, i + 7)) for i in range(0, 300, 7)]), whole
    )
    assert len(sequence_identities(Ragged.empty())) == 0


@pytest.mark.parametrize("seed", range(20))
def test_equal_rows(seed):
    first, second = short_sequences(seed, 200, 2, 4), short_sequences(seed + 100, 200, 2, 4)
    expected = [first[i].tolist() == second[i].tolist() for i in range(200)]
    assert equal_sequences(first, second).tolist() == expected and 0 < sum(expected) < 200
    assert equal_sequences(first, first).all()
    assert len(equal_sequences(Ragged.empty(), Ragged.empty())) == 0
