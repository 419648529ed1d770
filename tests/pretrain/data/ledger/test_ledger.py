"""The hashes of a batch: a plain reference, independence of who makes it, and what each of them notices."""

import hashlib

import loader_helpers as helpers
import numpy as np
import pytest
import torch
from loader_helpers import write_folder

from augment.core.keys import derive
from augment.core.ragged import Ragged
from pretrain.data.batch import RankBatch, View
from pretrain.data.ledger import (
    KINDS,
    begin_ledger,
    extend_ledger,
    label_words,
    masking_words,
    sequence_words,
    sum_words,
    sums_in_hexadecimal,
    view_words,
)
from pretrain.data.masking import Masked
from pretrain.step.plan import StepPlan

WRAP = 1 << 64


@pytest.fixture
def folder(tmp_path):
    sequences = helpers.some_sequences(500)
    write_folder(tmp_path, {"train": sequences}, helpers.SIZE, 40, chunk_tokens=400, chunks_per_shard=6)
    return tmp_path


def mixed(value: int) -> int:
    """SplitMix64's finaliser in plain integers."""
    value ^= value >> 30
    value = value * 0xBF58476D1CE4E5B9 % WRAP
    value ^= value >> 27
    value = value * 0x94D049BB133111EB % WRAP
    return value ^ value >> 31


def derived(key: int, *path: int | str) -> int:
    for part in path:
        if isinstance(part, str):
            part = int.from_bytes(hashlib.blake2b(part.encode(), digest_size=8).digest(), "little")
        key = mixed(((key ^ part) + 0x9E3779B97F4A7C15) % WRAP)
    return key


def identity(tokens: list[int]) -> int:
    def word(number, name):
        return derived(number, "identity", name)

    return sum(word(token, "token") * word(place, "position") for place, token in enumerate(tokens)) % WRAP


def words_of(key: int) -> list[int]:
    base = derived(key, 0)
    return [mixed((base + count * 0x9E3779B97F4A7C15) % WRAP) for count in (1, 2)]


def sums_in_plain_python(batch: RankBatch) -> tuple[int, ...]:
    sums = [0, 0, 0, 0]
    for row, number in enumerate(batch.sequence_ids.tolist()):
        keys = [derived(identity(batch.original[row].tolist()), "sequence", number)]
        for copy, masked in enumerate(batch.masked):
            one = masked.slice(row, row + 1)
            places = identity(one.positions.tolist())
            keys.append(derived(identity(one.batch[0].tolist()), f"masking {copy}", number, places))
        for role, view in batch.views.items():
            of_source, there = int(view.identities[row]) % WRAP, int(view.present[row])
            keys.append(
                derived(identity(view.tokens[row].tolist()), f"view {role}", number, of_source, there)
            )
        if batch.labels is not None:
            keys.append(derived(int(batch.labels[row]), "label", number))
        for column, pair in enumerate(map(words_of, keys)):
            for half in (0, 1):
                place = half if column == 0 else 2 + half
                sums[place] = (sums[place] + pair[half]) % WRAP
    return tuple(value - WRAP if value >= WRAP >> 1 else value for value in sums)


def test_the_sums_are_those_of_a_plain_reference(folder):
    for batch in helpers.batches(folder, stop_step=3, copies=2):
        assert sum_words(batch.words) == sums_in_plain_python(batch)


@pytest.mark.parametrize("world,workers", [(1, 0), (2, 0), (3, 0), (4, 1), (1, 2), (2, 2)])
def test_the_chain_is_the_same_for_any_ranks_workers_and_starts(folder, world, workers):
    """Sums of ranks are added as `StepPlan.merge` does it."""
    whole = [sum_words(batch.words) for batch in helpers.batches(folder)]
    ranks = [
        helpers.batches(folder, rank=rank, world_size=world, workers=workers, start_step=5)
        for rank in range(world)
    ]
    links, expected = begin_ledger(0), begin_ledger(0)
    for step, sums in enumerate(whole):
        expected = extend_ledger(expected, sums)
        if step >= 5:
            mine = [one[step - 5] for one in ranks]
            plans = [
                StepPlan(
                    {}, {}, [], 0, 0, [len(one)], {"length": torch.arange(len(one))}, sum_words(one.words)
                )
                for one in mine
            ]
            most = max(map(len, mine))
            merged = plans[0].merge(torch.stack([plan.to_tensor(most) for plan in plans]))
            assert merged.sums == sums
            sums = merged.sums
        links = extend_ledger(links, sums)
    assert links == expected
    assert links["last"] == sums_in_hexadecimal(whole[-1])


def test_another_order_of_steps_is_another_chain():
    links = extend_ledger(extend_ledger(begin_ledger(0), (1, 2, 3, 4)), (5, 6, 7, 8))
    turned = extend_ledger(extend_ledger(begin_ledger(0), (5, 6, 7, 8)), (1, 2, 3, 4))
    assert all(links[kind] != turned[kind] for kind in KINDS)


def test_each_part_of_a_view_counts():
    ids, tokens = np.arange(2, dtype=np.uint64), Ragged.from_sequences([[1, 7, 9, 2], [1, 8, 2]])
    there = np.ones(2, bool)
    view = View(tokens, np.array([70, 89]), there)
    before = [view_words(ids, "anchor", view.tokens, view.identities, view.present)]
    other = Ragged.from_sequences([[1, 9, 7, 2], [1, 8, 2]])  # two tokens in another order
    changed = [
        view_words(ids, "anchor", other, view.identities, there),
        view_words(ids, "positive", tokens, view.identities, there),
        view_words(ids, "anchor", tokens, np.array([71, 89]), there),
        view_words(ids, "anchor", tokens, view.identities, np.array([False, True])),
        view_words(ids[::-1].copy(), "anchor", tokens, view.identities, there),
    ]
    masked = Masked(tokens, np.array([1, 5]), np.array([7, 8], np.int32))
    changed += [
        masking_words(ids, 0, tokens, masked.positions),
        masking_words(ids, 1, tokens, masked.positions),
        masking_words(ids, 0, tokens, np.array([2, 5])),  # the same tokens, another to predict
        masking_words(ids, 0, tokens, np.array([5])),
        masking_words(ids, 0, tokens, np.empty(0, np.int64)),
        label_words(ids, np.array([0, 1])),
        label_words(ids, np.array([1, 0])),
        sequence_words(ids, derive(ids, "text").view(np.int64)),
    ]
    sums = [sum_words(words) for words in before + changed]
    assert len(set(sums)) == len(sums)
    # what did not change has the words that it had
    assert np.array_equal(before[0][1], changed[0][1]) and not np.array_equal(before[0][0], changed[0][0])
