"""Micro-batches: every sequence once, within the budget, about equal."""

import numpy as np
import pytest

from pretrain.common.errors import UserError
from pretrain.data.microbatches import count_micro_batches, cut


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [64, 200, 1000, 10**6])
def test_parts_hold_every_sequence_once_within_the_budget(seed, budget):
    lengths = np.random.default_rng(seed).integers(1, 64, 300)
    count = count_micro_batches(lengths, budget)
    parts = cut(lengths, count)
    assert len(parts) == count
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    sums = [int(lengths[part].sum()) for part in parts]
    assert max(sums) <= budget
    # a budget of a few sequences wastes some
    assert count <= 2 * -(-int(lengths.sum()) // budget) or budget < 128
    assert all(np.all(np.diff(lengths[part]) >= 0) for part in parts)


def test_a_budget_may_be_filled_to_the_last_token():
    assert [count_micro_batches(np.full(6, 4), budget) for budget in (7, 8, 24)] == [6, 3, 1]


def test_more_parts_than_sequences_leaves_some_empty():
    parts = cut(np.array([5, 3]), 4)
    assert len(parts) == 4 and sorted(np.concatenate(parts).tolist()) == [0, 1]


def test_no_sequences():
    assert count_micro_batches(np.zeros(0, np.int64), 10) == 0
    assert cut(np.zeros(0, np.int64), 0) == []
    assert [len(p) for p in cut(np.zeros(0, np.int64), 2)] == [0, 0]


def test_a_sequence_longer_than_the_budget_is_refused():
    with pytest.raises(UserError, match=r"a sequence has 65 tokens, train.micro_batch_tokens is 64"):
        count_micro_batches(np.array([3, 65]), 64)
