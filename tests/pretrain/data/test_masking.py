"""Masking: shares, special tokens, independence from batch mates, and that the original stays as it was."""

import numpy as np
import pytest

from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.config.objectives import ObjectiveConfig
from pretrain.data.masking import Masked, Masking, mask_tokens

SIZE = 200
PAD, CLS, SEP, MASK, DEL = range(5)
special = np.zeros(SIZE, dtype=bool)
special[[0, 1, 2, 3, 4, 77]] = True  # one of them amid the ordinary ones
VOCABULARY = Vocabulary(SIZE, PAD, CLS, SEP, MASK, DEL, special, np.ones(SIZE, bool), np.ones(SIZE, np.uint8))
ORDINARY = np.flatnonzero(~special)


def sequences_of(lengths, seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    return Ragged.from_sequences([[CLS, *random.choice(ORDINARY, n), SEP] for n in lengths])


def keys_for(count: int, seed: int = 0) -> np.ndarray:
    return sequence_keys(seed, 0, np.arange(count, dtype=np.uint64), 0, "mask")


def random_batch(count: int = 3000) -> Ragged:
    return sequences_of(np.random.default_rng(1).integers(1, 60, count))


@pytest.mark.parametrize("rate", [0.15, 0.3, 0.5, 1.0])
def test_number_is_the_rate_rounded_up_or_down_and_at_least_one(rate):
    batch = random_batch()
    masked = mask_tokens(batch, keys_for(len(batch)), VOCABULARY, rate=rate)
    counts = np.bincount(batch.rows()[masked.positions], minlength=len(batch))
    exact = (batch.lengths - 2) * rate
    assert (counts >= np.maximum(np.floor(exact - 1e-9), 1)).all()
    assert (counts <= np.maximum(np.ceil(exact + 1e-9), 1)).all()


def test_the_rate_at_a_step_is_the_last_one_begun_or_on_the_line_to_the_next():
    mlm = {"rate": 0.3, "later_rates": {"90": 0.05, "50": 0.15}}
    steps = np.array([0, 1, 25, 49, 50, 70, 89, 90, 1000])
    found = Masking.of(ObjectiveConfig(mlm=mlm)).rate_at(steps)
    assert found.tolist() == [0.3, 0.3, 0.3, 0.3, 0.15, 0.15, 0.15, 0.05, 0.05]
    found = Masking.of(ObjectiveConfig(mlm=mlm | {"rate_change": "linear"})).rate_at(steps)
    by_hand = [0.3, 0.297, 0.225, 0.153, 0.15, 0.1, 0.0525, 0.05, 0.05]
    assert np.allclose(found, by_hand, rtol=0, atol=1e-12)
    assert Masking.of(ObjectiveConfig(mlm={"rate": 0.2})).rate_at(steps).tolist() == [0.2] * len(steps)


def test_sequences_with_rates_of_their_own_are_masked_as_they_would_be_alone():
    """Of a rate of 0 nothing is hidden."""
    batch, keys = random_batch(450), keys_for(450)
    rates = np.array([0.3, 0.05, 0.0] * 150)
    both = mask_tokens(batch, keys, VOCABULARY, rate=rates)
    assert len(both.positions) and not len(both.take(np.flatnonzero(rates == 0)).positions)
    for rate in (0.3, 0.05, 0.0):
        rows = np.flatnonzero(rates == rate)
        alone = mask_tokens(batch.take(rows), keys[rows], VOCABULARY, rate=rate)
        assert both.take(rows).batch == alone.batch
        assert np.array_equal(both.take(rows).positions, alone.positions)


def test_share_is_exact_on_average_at_every_length():
    for length in (8, 10, 27):
        batch = sequences_of([length] * 4000)
        masked = mask_tokens(batch, keys_for(4000), VOCABULARY)
        counts = np.bincount(batch.rows()[masked.positions], minlength=4000)
        assert abs(counts.mean() - 0.15 * length) < 5 * 0.5 / np.sqrt(4000)


def test_every_position_is_chosen_equally_often():
    batch = sequences_of([20] * 20000)
    masked = mask_tokens(batch, keys_for(20000), VOCABULARY)
    counts = np.bincount(batch.positions()[masked.positions], minlength=22)
    assert counts[0] == counts[21] == 0
    expected = 3 * 20000 / 20
    assert ((counts[1:21] - expected) ** 2 / expected).sum() < 45  # chi-square, 19 degrees: 1 in 1,500


def test_80_10_10():
    batch = sequences_of([50] * 20000)
    masked = mask_tokens(batch, keys_for(20000), VOCABULARY)
    seen, count = masked.batch.ids[masked.positions], len(masked.positions)
    error = 5 * 0.5 / np.sqrt(count)
    assert abs((seen == MASK).mean() - 0.8) < error
    # One in 194 random replacements is the token itself.
    assert abs((seen == masked.labels).mean() - (0.1 + 0.1 / len(ORDINARY))) < error
    swapped = seen[(seen != MASK) & (seen != masked.labels)]
    assert not special[swapped].any()
    counts = np.bincount(swapped, minlength=SIZE)[ORDINARY]
    expected = len(swapped) / len(ORDINARY)
    assert ((counts - expected) ** 2 / expected).sum() < len(ORDINARY) + 5 * np.sqrt(2 * len(ORDINARY))


@pytest.mark.parametrize("mask,random", [(1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5)])
def test_shares_at_their_ends(mask, random):
    batch = random_batch()
    masked = mask_tokens(batch, keys_for(len(batch)), VOCABULARY, mask=mask, random=random)
    seen = masked.batch.ids[masked.positions]
    assert (seen == MASK).all() if mask == 1 else True
    assert not (seen == MASK).any() if mask == 0 else True
    assert (seen == masked.labels).all() if mask == random == 0 else True


def test_special_tokens_are_neither_chosen_nor_counted():
    text = [CLS, 10, DEL, 11, 77, 12, MASK, 13, SEP]
    batch = Ragged.from_sequences([text] * 500)
    masked = mask_tokens(batch, keys_for(500), VOCABULARY, rate=1.0, mask=0.0, random=1.0)
    assert np.array_equal(batch.positions()[masked.positions], np.tile([1, 3, 5, 7], 500))
    assert np.array_equal(masked.labels, np.tile([10, 11, 12, 13], 500))
    untouched = np.setdiff1d(np.arange(batch.num_tokens), masked.positions)
    assert np.array_equal(masked.batch.ids[untouched], batch.ids[untouched])


def test_original_is_never_modified():
    batch = random_batch()
    ids, offsets = batch.ids.copy(), batch.offsets.copy()
    batch.ids.setflags(write=False)
    masked = mask_tokens(batch, keys_for(len(batch)), VOCABULARY)
    assert np.array_equal(batch.ids, ids) and np.array_equal(batch.offsets, offsets)
    assert not np.shares_memory(masked.batch.ids, batch.ids)
    assert not np.shares_memory(masked.labels, batch.ids)
    assert np.array_equal(masked.labels, ids[masked.positions])
    assert masked.batch.ids.dtype == masked.labels.dtype == np.int32 and masked.positions.dtype == np.int64


def test_batch_mates_do_not_matter():
    batch, keys = random_batch(), keys_for(3000)
    whole = mask_tokens(batch, keys, VOCABULARY)
    order = np.random.default_rng(2).permutation(3000)[:700]
    part = mask_tokens(batch.take(order), keys[order], VOCABULARY)
    for place, row in enumerate(order.tolist()):
        one, other = part.slice(place, place + 1), whole.slice(row, row + 1)
        assert one.batch == other.batch
        assert np.array_equal(one.positions, other.positions) and np.array_equal(one.labels, other.labels)


def test_other_keys_other_masks():
    batch = sequences_of([30] * 100)
    first, again, other = (mask_tokens(batch, keys_for(100, seed), VOCABULARY) for seed in (0, 0, 1))
    assert first.batch == again.batch and first.batch != other.batch


def test_slices_put_together_are_the_whole():
    batch = random_batch(50)
    whole = mask_tokens(batch, keys_for(50), VOCABULARY)
    joined = Masked.concatenate([whole.slice(0, 13), whole.slice(13, 13), whole.slice(13, 50)])
    assert joined.batch == whole.batch
    assert np.array_equal(joined.positions, whole.positions) and np.array_equal(joined.labels, whole.labels)


def test_nothing_to_mask():
    for batch in (Ragged.empty(), sequences_of([0, 0, 0])):
        masked = mask_tokens(batch, keys_for(len(batch)), VOCABULARY)
        assert len(masked.positions) == 0 and masked.batch == batch


@pytest.mark.parametrize("shares", [{"rate": 1.5}, {"mask": 0.95, "random": 0.1}, {"random": -0.1}])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(AssertionError):
        mask_tokens(random_batch(3), keys_for(3), VOCABULARY, **shares)
