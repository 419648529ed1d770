"""Which rank encodes which sequences: equal loads, few moves, the same on every rank."""

import time

import numpy as np
import pytest

from pretrain.data.lanes import lanes_of_rank
from pretrain.step import placement
from pretrain.step.placement import ABOVE, balance, imbalance
from pretrain.step.plan import initial_owners


def sentence_lengths(count: int, seed: int = 0) -> np.ndarray:
    """Lengths like those of single Wikipedia sentences: log-normal, 27 tokens on average, 512 at most."""
    draws = np.random.default_rng(seed).normal(3.1, 0.6, count)
    return np.clip(np.exp(draws).astype(np.int64) + 2, 3, 512)


def best_possible(lengths: np.ndarray, ranks: int) -> float:
    """The least max/mean that the longest sequence allows."""
    return max(1.0, lengths.max() * ranks / lengths.sum())


@pytest.mark.parametrize("ranks", [2, 3, 8, 64, 256, 1024])
@pytest.mark.parametrize("each", [8, 32, 128])
@pytest.mark.parametrize("roles", [1, 2])
def test_no_rank_has_over_5_percent_more_than_the_mean(ranks, each, roles):
    lengths = sentence_lengths(roles * ranks * each, ranks + each)
    drawn = initial_owners([each] * ranks, roles)
    owners = balance(lengths, drawn, ranks)
    assert owners.shape == drawn.shape and owners.min() >= 0 and owners.max() < ranks
    assert imbalance(lengths, owners, ranks) <= max(1.05, 1.002 * best_possible(lengths, ranks))
    assert (owners is drawn) == (imbalance(lengths, drawn, ranks) <= ABOVE)


@pytest.mark.parametrize("case", ["one long rank", "rising", "one long sequence", "two lengths"])
def test_lengths_that_differ_systematically(case):
    ranks, each = 16, 64
    lengths = {
        "one long rank": np.where(np.arange(ranks * each) < each, 500, 20),
        "rising": np.repeat(np.arange(1, ranks + 1) * 10, each),
        "one long sequence": np.where(np.arange(ranks * each) == 7, 500, 20),
        "two lengths": np.where(np.arange(ranks * each) % (each + 1) < 9, 100, 10),
    }[case]
    owners = balance(lengths, initial_owners([each] * ranks), ranks)
    assert imbalance(lengths, owners, ranks) <= 1.05


def test_each_rank_keeps_its_number_of_sequences_where_that_can_be_balanced():
    lengths = sentence_lengths(8192)
    owners = balance(lengths, initial_owners([32] * 256), 256)
    assert np.array_equal(np.bincount(owners), np.full(256, 32))


def test_few_sequences_move():
    lengths, drawn = sentence_lengths(8192), initial_owners([32] * 256)
    assert imbalance(lengths, drawn, 256) > 1.3
    assert np.mean(balance(lengths, drawn, 256) != drawn) < 0.1


def test_ranks_may_end_with_unequal_numbers_of_sequences():
    lengths = np.array([90, 4, 4, 4, 20, 20, 20, 20])
    owners = balance(lengths, initial_owners([4] * 2), 2)
    assert np.bincount(owners, lengths).tolist() == [90, 92]


@pytest.mark.parametrize("lanes,ranks", [(16, 3), (16, 12), (7, 5), (256, 96)])
@pytest.mark.parametrize("roles", [1, 2])
def test_ranks_that_draw_unequal_numbers_encode_equally_many_tokens(lanes, ranks, roles):
    counts = [16 * (stop - start) for start, stop in (lanes_of_rank(lanes, r, ranks) for r in range(ranks))]
    lengths, drawn = sentence_lengths(roles * sum(counts)), initial_owners(counts, roles)
    assert [np.count_nonzero(drawn == rank) for rank in range(ranks)] == [roles * n for n in counts]
    owners = balance(lengths, drawn, ranks)
    assert imbalance(lengths, drawn, ranks) > 1.05 >= imbalance(lengths, owners, ranks)
    assert np.mean(owners != drawn) < 0.35


def test_what_cannot_be_balanced_stays():
    for lengths in ([500, 3], [7, 7], [0, 0]):
        assert balance(np.array(lengths), initial_owners([1] * 2), 2).tolist() == [0, 1]


def test_the_answer_is_a_function_of_the_lengths():
    lengths, drawn = sentence_lengths(2048), initial_owners([16] * 64, 2)
    assert np.array_equal(balance(lengths, drawn, 64), balance(lengths.copy(), drawn.copy(), 64))


@pytest.mark.slow
def test_it_takes_less_than_50_milliseconds_for_131072_sequences_on_1024_ranks():
    lengths, drawn, times = sentence_lengths(131072), initial_owners([128] * 1024), []
    for _ in range(10):
        began = time.process_time()
        balance(lengths, drawn, 1024)
        times.append(time.process_time() - began)
    assert min(times) < 0.05


@pytest.mark.parametrize("seed", range(12))
def test_one_exchange_is_of_the_pair_that_makes_loads_most_alike(seed):
    """By trying all pairs, of several pairs of ranks at once, whose longest sequences differ."""
    draw = np.random.default_rng(seed)
    pairs, size = int(draw.integers(1, 5)), int(draw.integers(1, 7))
    lengths = draw.integers(1, [4, 9, 30][seed % 3], (2, pairs, size))
    sums = lengths.sum(2)
    heavier = (sums[0] >= sums[1])[:, None]
    lengths = np.where(heavier, lengths, lengths[::-1])
    keys = np.sort((lengths << 32) + np.arange(2 * pairs * size).reshape(2, pairs, size), axis=2)
    found = placement._exchange_one(*keys)
    for pair in range(pairs):
        heavy, light = keys[0, pair] >> 32, keys[1, pair] >> 32
        excess = heavy.sum() - light.sum()
        left = min(abs(excess - 2 * (long - short)) for long in heavy for short in light)
        after = (found[0][pair] >> 32).sum() - (found[1][pair] >> 32).sum()
        assert abs(after) == min(left, excess)
        both = np.concatenate([found[0][pair], found[1][pair]])
        assert sorted(both) == sorted(np.concatenate([keys[0, pair], keys[1, pair]]))
        assert all(np.array_equal(np.sort(part[pair]), part[pair]) for part in found)
