"""The order of the data: against its definition, spelled out slowly, and what the other parts rely on."""

import hashlib
import itertools

import numpy as np
import pytest

from pretrain.common.errors import UserError
from pretrain.data.lanes import DistinctLanes, Lanes, hash_words, permute, require_lanes

SIZES = np.array([37, 41, 1, 58, 29, 44, 40, 3, 52, 33])  # 338 sequences


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 100, 1000, 4097])
def test_permute_is_a_permutation(size):
    seen = set()
    for key in hash_words(5, np.arange(20, dtype=np.uint64)):
        image = permute(np.arange(size), np.full(size, size), np.full(size, key))
        assert image.dtype == np.int64
        assert np.array_equal(np.sort(image), np.arange(size))
        seen.add(image.tobytes())
    assert len(seen) > 10 or size < 5


@pytest.mark.parametrize("size", [5, 12, 100])
def test_permute_is_uniform(size):
    """Every element lands everywhere equally often, and so does the distance between two neighbours."""
    draws = 20000
    keys = np.repeat(hash_words(7, np.arange(draws, dtype=np.uint64)), size)
    index = np.tile(np.arange(size), draws)
    image = permute(index, np.full(len(index), size), keys).reshape(draws, size)
    expected = draws / size
    for place in (0, size // 2, size - 1):
        counts = np.bincount(image[:, place], minlength=size)
        assert ((counts - expected) ** 2 / expected).sum() < 2.5 * size
    gaps = np.bincount((image[:, 1] - image[:, 0]) % size, minlength=size)[1:]
    expected = draws / (size - 1)
    assert ((gaps - expected) ** 2 / expected).sum() < 3 * size


def test_permute_mixes_sizes_and_keys():
    """Elements of many permutations in one call are what each permutation gives by itself."""
    sizes = np.repeat(SIZES, SIZES)
    index = np.concatenate([np.arange(size) for size in SIZES])
    keys = np.repeat(hash_words(np.arange(len(SIZES), dtype=np.uint64)), SIZES)
    together = permute(index, sizes, keys)
    alone = [permute(np.arange(s), np.full(s, s), hash_words(np.full(s, i))) for i, s in enumerate(SIZES)]
    assert np.array_equal(together, np.concatenate(alone))


def slow_epoch(lanes: Lanes, epoch: int) -> list[list[tuple[int, int]]]:
    """The definition: chunks in order, each in its own order, laid end to end, cut into L slices."""
    sequence = []
    for chunk in lanes._epoch_order(epoch)[0].tolist():
        size = int(lanes.chunk_sizes[chunk])
        key = np.repeat(hash_words(lanes.seed, 2, epoch, np.array([chunk])), size)
        sequence += [(chunk, i) for i in permute(np.arange(size), np.full(size, size), key).tolist()]
    total = len(sequence)
    starts = [lane * total // lanes.lanes for lane in range(lanes.lanes + 1)]
    return [sequence[a:b] for a, b in itertools.pairwise(starts)]


def pairs(drawn: tuple[np.ndarray, np.ndarray]) -> list[tuple[int, int]]:
    return list(zip(drawn[0].tolist(), drawn[1].tolist()))


@pytest.mark.parametrize("global_batch,count", [(24, 8), (30, 5), (338, 2), (7, 1), (13, 13)])
def test_draw_is_what_the_definition_says(global_batch, count):
    lanes = Lanes(SIZES, seed=11, global_batch=global_batch, lanes=count)
    assert lanes.steps_per_epoch == 338 // global_batch
    share = global_batch // count
    for step in range(2 * lanes.steps_per_epoch + 1):
        epoch, number = divmod(step, lanes.steps_per_epoch)
        expected = [pair for lane in slow_epoch(lanes, epoch) for pair in lane[number * share :][:share]]
        assert pairs(lanes.draw_steps(step, step + 1, 0, count)) == expected
        assert lanes.epoch_of(step) == epoch


def test_epoch_gives_each_sequence_at_most_once_and_the_rest_changes():
    lanes = Lanes(SIZES, seed=3, global_batch=24, lanes=8)
    left_over = []
    for epoch in range(4):
        first = epoch * lanes.steps_per_epoch
        drawn = pairs(lanes.draw_steps(first, first + lanes.steps_per_epoch, 0, 8))
        assert len(drawn) == len(set(drawn)) == 338 // 24 * 24
        everything = {(c, i) for c, size in enumerate(SIZES) for i in range(size)}
        assert set(drawn) <= everything
        left_over.append(frozenset(everything - set(drawn)))
    assert len(set(left_over)) == 4


@pytest.mark.parametrize("world", range(1, 9))
def test_ranks_put_together_are_the_global_batch(world):
    lanes = Lanes(SIZES, seed=3, global_batch=24, lanes=8)
    for step in (0, 5, 13, 14, 99):
        parts = [
            pairs(lanes.draw_steps(step, step + 1, *lanes.slice_of(rank, world))) for rank in range(world)
        ]
        assert list(itertools.chain(*parts)) == pairs(lanes.draw_steps(step, step + 1, 0, 8))
        assert {len(part) // 3 for part in parts} <= {8 // world, -(-8 // world)}


def test_many_steps_at_once_also_over_epochs():
    lanes = Lanes(SIZES, seed=3, global_batch=24, lanes=8)
    singly = list(itertools.chain(*(pairs(lanes.draw_steps(step, step + 1, 2, 5)) for step in range(10, 50))))
    assert pairs(lanes.draw_steps(10, 50, 2, 5)) == singly
    assert pairs(lanes.draw_steps(7, 7, 2, 5)) == []


def test_seed_and_epoch_change_the_order():
    orders = {
        tuple(pairs(Lanes(SIZES, seed, 24, 8).draw_steps(step, step + 1, 0, 8)))
        for seed in (0, 1, -1)
        for step in (0, 14, 28)
    }
    assert len(orders) == 9


def test_order_is_frozen():
    """A change of the order would silently change what a resumed run reads: it must be on purpose."""
    chunk, index = Lanes(SIZES, seed=42, global_batch=24, lanes=8).draw_steps(0, 30, 0, 8)
    digest = hashlib.sha256(np.stack([chunk, index]).astype("<i8").tobytes()).hexdigest()
    assert digest[:16] == "7e980f488a36c57f"


def test_replacements_depend_on_epoch_and_chunk_only():
    lanes = Lanes(SIZES, seed=3, global_batch=24, lanes=8)
    ten = lanes.replacements(1, 4, 10)
    assert np.array_equal(Lanes(SIZES, 3, 24, 2).replacements(1, 4, 20)[:10], ten)
    assert not np.array_equal(lanes.replacements(2, 4, 10), ten)
    assert ten.min() >= 0 and ten.max() < len(SIZES)


def test_batches_that_do_not_fit_are_refused():
    with pytest.raises(AssertionError):
        Lanes(SIZES, 0, 25, 8)
    with pytest.raises(UserError, match=r"lower train\.global_batch: there are only 338 sequences"):
        Lanes(SIZES, 0, 400, 8)


def test_every_rank_must_have_a_lane():
    with pytest.raises(UserError, match=r"data\.lanes=8: start at most 8 ranks"):
        Lanes(SIZES, 0, 24, 8).slice_of(0, 9)


def test_negatives_of_a_rank_need_equally_many_lanes_on_each():
    require_lanes(8, 4, equal=True)
    with pytest.raises(UserError, match=r"data\.lanes=8 is no multiple of 3 ranks"):
        require_lanes(8, 3, equal=True)


def grown(start: int, full: int, lanes: int, steps: int, last: int) -> list[int]:
    """The sizes of the steps before `last`, written out."""
    return [
        full if step >= steps else start + lanes * ((full - start) // lanes * step // steps)
        for step in range(last)
    ]


@pytest.mark.parametrize(
    "start,full,count,steps", [(8, 32, 8, 9), (2, 30, 2, 40), (5, 15, 5, 3), (24, 24, 8, 5)]
)
def test_a_batch_that_grows_walks_through_the_same_slices(start, full, count, steps):
    """Each lane goes on in its slice, and to the next epoch's where a step's share does not fit."""
    lanes = Lanes(SIZES, 7, full, count, start, steps)
    sizes = grown(start, full, count, steps, steps + 3 * lanes.steps_per_epoch)
    assert lanes.sizes.at(np.arange(len(sizes))).tolist() == sizes
    assert [lanes.sizes.total_before(step) for step in (0, 1, steps, len(sizes))] == [
        sum(sizes[:step]) for step in (0, 1, steps, len(sizes))
    ]
    epoch, offset, slices = 0, 0, slow_epoch(lanes, 0)
    expected = []
    for step, size in enumerate(sizes):
        share = size // count
        if offset + share > SIZES.sum() // count:
            epoch, offset = epoch + 1, 0
            slices = slow_epoch(lanes, epoch)
        expected.append([pair for part in slices for pair in part[offset : offset + share]])
        offset += share
        assert (
            lanes.epoch_of(step) == epoch
            and pairs(lanes.draw_steps(step, step + 1, 0, count)) == expected[step]
        )
    everything = pairs(lanes.draw_steps(0, len(sizes), 0, count))
    assert everything == [pair for step in expected for pair in step]
    assert lanes.epochs_of(np.arange(3)).tolist() == [lanes.epoch_of(step) for step in range(3)]
    cuts = [step for step in range(1, len(sizes)) if sizes[step] > sizes[step - 1]]
    assert lanes.sizes.changes(0, len(sizes)) == cuts
    assert lanes.sizes.changes(3, 7) == [step for step in cuts if 3 < step < 7]


# ---- batches without repeated texts


def repeated_texts(share: float, seed: int = 0) -> np.ndarray:
    """Identities of anchors and positives of 338 records; a share of the anchors and answers is one of 20."""
    rng = np.random.default_rng(seed)
    texts = np.stack([np.arange(338), 1000 + np.arange(338)])
    common = rng.random((2, 338)) < share
    texts[common] = 5000 + rng.integers(0, 20, common.sum())
    texts[1, 7] = texts[0, 7]  # a record whose positive is its anchor repeats nothing
    return texts


def distinct(texts: np.ndarray, batch: int = 24, lanes: int = 8, *growth: int) -> DistinctLanes:
    return DistinctLanes(texts, SIZES, 11, batch, lanes, *growth)


def numbers(lanes: Lanes, step: int, first: int = 0, stop: int | None = None) -> np.ndarray:
    chunk, index = lanes.draw_steps(step, step + 1, first, lanes.lanes if stop is None else stop)
    return np.cumsum([0, *SIZES])[chunk] + index


def repeats(texts: np.ndarray, records: np.ndarray) -> int:
    """How many texts of a batch another of its records has."""
    own = [text for record in records for text in set(texts[:, record].tolist())]
    return len(own) - len(set(own))


def test_batches_without_repeats_are_the_plain_ones_where_nothing_repeats():
    texts = repeated_texts(0)
    for lanes, plain in ((distinct(texts), Lanes(SIZES, 11, 24, 8)),):
        for step in range(40):
            assert np.array_equal(numbers(lanes, step), numbers(plain, step))


@pytest.mark.parametrize("growth", [(), (8, 9)])
@pytest.mark.parametrize("share", [0.05, 0.2])
def test_no_text_comes_twice_in_a_batch_and_every_record_in_its_epoch_and_lane(share, growth):
    texts = repeated_texts(share)
    lanes, plain = distinct(texts, 24, 8, *growth), Lanes(SIZES, 11, 24, 8, *growth)
    steps = np.arange(60)
    before, after, drawn = 0, [], {}
    for step, epoch in zip(steps, plain.epochs_of(steps).tolist()):
        assert lanes.epoch_of(step) == epoch
        before += repeats(texts, numbers(plain, step))
        after.append(repeats(texts, numbers(lanes, step)))
        for lane in range(8):
            own = numbers(lanes, step, lane, lane + 1)
            assert len(own) == len(numbers(plain, step, lane, lane + 1))
            drawn.setdefault((epoch, lane), []).extend(own.tolist())
    of_slices = {
        (epoch, lane): {int(np.cumsum([0, *SIZES])[chunk] + index) for chunk, index in part}
        for epoch in range(max(epoch for epoch, _ in drawn) + 1)
        for lane, part in enumerate(slow_epoch(plain, epoch))
    }
    for key, records in drawn.items():
        assert len(set(records)) == len(records) and set(records) <= of_slices[key], key
    # what is left at the end of a slice is given where nothing else is there
    assert before > (4 if share < 0.1 else 60) and sum(after) <= before // 5
    assert all(lanes.epoch_of(step) != lanes.epoch_of(step + 3) for step in np.flatnonzero(after))


def test_texts_that_fill_the_data_are_given_all_the_same():
    texts = np.zeros((1, 338), dtype=np.int64)
    lanes = distinct(texts)
    drawn = [record for step in range(lanes.steps_per_epoch) for record in numbers(lanes, step)]
    assert len(set(drawn)) == len(drawn) == 14 * 24


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_batches_without_repeats_depend_on_neither_ranks_nor_the_way_there(world):
    texts = repeated_texts(0.1)
    whole = distinct(texts)
    for step in (30, 0, 17, 5):  # a fresh object at any step, as a resumed run has
        parts = [numbers(distinct(texts), step, *whole.slice_of(rank, world)) for rank in range(world)]
        assert np.array_equal(np.concatenate(parts), numbers(whole, step))
    at_once = whole.draw_steps(10, 40, 0, 8)
    one_by_one = [whole.draw_steps(step, step + 1, 0, 8) for step in range(10, 40)]
    for whole_part, parts in zip(at_once, zip(*one_by_one)):
        assert np.array_equal(whole_part, np.concatenate(parts))
