"""Token augmentations equal plain Python references, and have the properties that the papers state."""

import dataclasses
from itertools import pairwise

import augment_reference as reference
import numpy as np
import pytest
from augment_reference import CLS, DEL, SEP

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.selection import choose, draw_spans
from augment.tokens import rules

VOCABULARY = reference.vocabulary()
CASES = [
    (rules.del_word, reference.del_word, {}, {}),
    (rules.del_word, reference.del_word, {"rate": 0.3}, {"rate": 0.3}),
    (rules.del_word, reference.del_word, {"rate": 1.0}, {"rate": 1.0}),
    (rules.del_word, reference.del_word, {"rate": 0.0}, {"rate": 0.0}),
    (rules.del_span, reference.del_span, {}, {}),
    (rules.del_span, reference.del_span, {"spans": 1, "rate": 0.5}, {"count": 1, "rate": 0.5}),
    (rules.del_span, reference.del_span, {"spans": 30, "rate": 0.03}, {"count": 30, "rate": 0.03}),
    (rules.reorder, reference.reorder, {}, {}),
    (rules.reorder, reference.reorder, {"pairs": 1, "rate": 0.5}, {"pairs": 1, "rate": 0.5}),
    (rules.reorder, reference.reorder, {"pairs": 3, "rate": 0.16}, {"pairs": 3, "rate": 0.16}),
    (rules.repeat, reference.repeat, {}, {}),
    (rules.crop, reference.crop, {}, {}),
    (rules.crop, reference.crop, {"rate": 0.0}, {"rate": 0.0}),
    (rules.crop, reference.crop, *[{"rate": 1.0, "min_rate": 0.3}] * 2),
    (rules.crop, reference.crop, *[{"rate": 0.6, "min_rate": 0.0}] * 2),
    (rules.span, reference.span, {}, {}),
    (rules.span, reference.span, *[{"min_length": 1, "max_length": 20, "alpha": 2, "beta": 4}] * 2),
    (rules.span, reference.span, *[{"min_length": 20, "max_length": 20, "alpha": 1, "beta": 1}] * 2),
    (rules.delete, reference.delete, {}, {}),
    (rules.delete, reference.delete, {"rate": 0.5}, {"rate": 0.5}),
    (rules.delete, reference.delete, {"rate": 1.0}, {"rate": 1.0}),
    (rules.delete, reference.delete, {"rate": 0.0}, {"rate": 0.0}),
    (rules.mask, reference.mask, {}, {}),
    (rules.mask, reference.mask, {"rate": 1.0}, {"rate": 1.0}),
    (rules.mask, reference.mask, {"rate": 0.0}, {"rate": 0.0}),
    (rules.punctuation, reference.punctuation, {}, {}),
    (rules.punctuation, reference.punctuation, {"rate": 0.0}, {"rate": 0.0}),
]
ALL = [(rules.del_word, {}), (rules.del_span, {}), (rules.reorder, {}), (rules.repeat, {}), (rules.crop, {})]
ALL += [(rules.span, {"min_length": 1}), (rules.delete, {}), (rules.mask, {}), (rules.punctuation, {})]


def keys_for(batch: Ragged, seed: int = 0) -> np.ndarray:
    return sequence_keys(seed, 0, np.arange(len(batch), dtype=np.uint64), 0, "augment")


def content(batch: Ragged, index: int) -> list[int]:
    return batch[index][1:-1].tolist()


@pytest.mark.parametrize("specials", [0.0, 0.15])
@pytest.mark.parametrize(("function", "slow", "parameters", "slow_parameters"), CASES)
def test_equals_the_reference(function, slow, parameters, slow_parameters, specials):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        batch = reference.random_batch(rng, reference.random_lengths(rng, 60), specials)
        keys = keys_for(batch, seed)
        result = function(batch, keys, VOCABULARY, **parameters)
        assert len(result) == len(batch) and result.ids.dtype == np.int32
        for index in range(len(batch)):
            expected = slow(content(batch, index), int(keys[index]), **slow_parameters)
            assert result[index].tolist() == [CLS, *expected, SEP], (index, len(batch[index]))


@pytest.mark.parametrize(("function", "parameters"), ALL)
def test_a_sequence_does_not_know_its_batch(function, parameters):
    rng = np.random.default_rng(1)
    batch = reference.random_batch(rng, reference.random_lengths(rng, 100), 0.05)
    keys = keys_for(batch)
    whole = function(batch, keys, VOCABULARY, **parameters)
    order = rng.permutation(len(batch))
    assert function(batch.take(order), keys[order], VOCABULARY, **parameters) == whole.take(order)
    for start in range(0, len(batch), 7):
        part = function(batch.slice(start, start + 7), keys[start : start + 7], VOCABULARY, **parameters)
        assert part == whole.slice(start, start + 7)
    assert function(batch, keys, VOCABULARY, **parameters) == whole
    other = function(batch, keys_for(batch, seed=1), VOCABULARY, **parameters)
    assert not np.array_equal(other.ids, whole.ids)


@pytest.mark.parametrize(("function", "parameters"), ALL)
def test_input_is_not_written_and_edges_stand(function, parameters):
    rng = np.random.default_rng(2)
    batch = reference.random_batch(rng, [*range(13), 50], 0.1)
    before = batch.ids.copy()
    batch.ids.setflags(write=False)
    result = function(batch, keys_for(batch), VOCABULARY, **parameters)
    assert np.array_equal(batch.ids, before)
    for index in range(len(batch)):
        assert result[index][0] == CLS and result[index][-1] == SEP
        # Never empty, unless it was; nor ever all [DEL], unless there was nothing else.
        assert (len(result[index]) > 2) == (len(batch[index]) > 2)
        if function in (rules.crop, rules.span, rules.mask):
            continue  # may leave nothing but special tokens
        if any(token >= 6 for token in content(batch, index)):
            if function is rules.del_span and len(batch[index]) < 20:
                continue  # the one content token that stays may be a [DEL] that stood there before
            assert any(token >= 6 for token in content(result, index))
    assert len(function(Ragged.empty(), np.zeros(0, np.uint64), VOCABULARY, **parameters)) == 0


def test_del_word_deletes_exactly_the_share():
    rng = np.random.default_rng(3)
    lengths = reference.random_lengths(rng, 200)
    batch = reference.random_batch(rng, lengths)
    # Distinct tokens, so that what is gone can be counted although runs are collapsed.
    batch = Ragged.from_sequences([[CLS, *range(6, 6 + length), SEP] for length in lengths])
    result = rules.del_word(batch, keys_for(batch), VOCABULARY, rate=0.7)
    for index, length in enumerate(lengths):
        kept = [token for token in content(result, index) if token != DEL]
        assert length - len(kept) == min(round(0.7 * length), max(length - 1, 0))
        assert kept == sorted(kept)
        row = content(result, index)
        assert all(not (a == b == DEL) for a, b in pairwise(row))


def test_del_word_by_hand():
    batch = Ragged.from_sequences([[CLS, SEP], [CLS, 10, SEP], [CLS, DEL, SEP, SEP], [CLS, 10, SEP, 20, SEP]])
    result = rules.del_word(batch, keys_for(batch), VOCABULARY, rate=1.0)
    assert [result[i].tolist() for i in range(3)] == [[CLS, SEP], [CLS, 10, SEP], [CLS, DEL, SEP, SEP]]
    assert result[3].tolist() in ([CLS, DEL, SEP, 20, SEP], [CLS, 10, SEP, DEL, SEP])


@pytest.mark.parametrize("length", [1, 2, 3, 8, 19, 20, 27, 100, 510])
def test_del_span_deletes_a_quarter(length):
    """Check 5 spans of 5%: exactly a quarter of the tokens up to rounding, and at most five [DEL]."""
    batch = Ragged.from_sequences([[CLS, *range(6, 6 + length), SEP]] * 200)
    result = rules.del_span(batch, keys_for(batch), VOCABULARY)
    for index in range(len(batch)):
        row = content(result, index)
        gone = length - len([token for token in row if token != DEL])
        if length == 1:
            assert gone == 0
        elif length < 20:
            assert gone == min(max(round(length / 4), 1), length - 1)
        else:
            assert gone in (length // 4, -(-length // 4))
        assert row.count(DEL) <= min(5, gone)
        assert all(not (a == b == DEL) for a, b in pairwise(row))


@pytest.mark.parametrize("length", [*range(13), 19, 20, 21, 33, 64, 510])
def test_reorder_keeps_the_tokens_and_moves_about_half(length):
    batch = Ragged.from_sequences([[CLS, *range(6, 6 + length), SEP]] * 300)
    result = rules.reorder(batch, keys_for(batch), VOCABULARY)
    assert np.array_equal(result.offsets, batch.offsets)
    for index in range(len(batch)):
        assert sorted(content(result, index)) == content(batch, index)
        assert length < 2 or content(result, index) != content(batch, index)
    if length == 2:
        assert content(result, 0) == [7, 6]


def test_reorder_swaps_spans_of_unequal_length():
    """Swap spans of 2.6 of 13 tokens, 2 or 3 each: 'x A y B z' becomes 'x B y A z'."""
    batch = Ragged.from_sequences([[CLS, *range(6, 19), SEP]] * 400)
    keys = keys_for(batch)
    starts, lengths = draw_spans(keys, np.full(400, 13), 2, 0.2, np.full(400, 13), 2)
    result = rules.reorder(batch, keys, VOCABULARY, pairs=1, rate=0.2)
    unequal = np.flatnonzero(lengths[:, 0] != lengths[:, 1])
    assert len(unequal) > 100
    for index in unequal:
        row = content(batch, index)
        (a, b), (la, lb) = starts[index], lengths[index]
        assert (
            content(result, index)
            == row[:a] + row[b : b + lb] + row[a + la : b] + row[a : a + la] + row[b + lb :]
        )


def test_spans_do_not_overlap_and_fall_everywhere():
    sizes = np.full(20_000, 60)
    keys = sequence_keys(5, 0, np.arange(20_000, dtype=np.uint64), 0, "test")
    starts, lengths = draw_spans(keys, sizes, 10, 0.05, sizes, 2)
    assert (lengths == 3).all()
    assert (starts[:, 0] >= 0).all() and (starts[:, -1] + lengths[:, -1] <= sizes).all()
    assert (starts[:, 1:] >= starts[:, :-1] + lengths[:, :-1]).all()
    # By symmetry span j from the left is where span 9 - j is from the right.
    mirrored = 60 - (starts + lengths)[:, ::-1]
    assert np.allclose(starts.mean(0), mirrored.mean(0), atol=5 * starts.std(0).max() * np.sqrt(2 / 20_000))
    # One span alone is uniform over all places.
    alone, _ = draw_spans(keys, np.full(20_000, 20), 1, 0.05, np.full(20_000, 19))
    counts = np.bincount(alone[:, 0], minlength=20)
    assert ((counts - 1000) ** 2 / 1000).sum() < 19 + 5 * np.sqrt(2 * 19)


def test_choose_is_exact_and_even():
    lengths = np.full(30_000, 10)
    keys = sequence_keys(6, 0, np.arange(30_000, dtype=np.uint64), 0, "test")
    chosen = choose(keys, lengths, np.full(30_000, 4))
    assert np.array_equal(np.bincount(chosen // 10), np.full(30_000, 4))
    counts = np.bincount(chosen % 10)
    assert np.abs(counts - 12_000).max() < 5 * np.sqrt(30_000 * 0.4 * 0.6)
    pairs = np.zeros((10, 10))
    table = (chosen % 10).reshape(-1, 4)
    for a in range(4):
        for b in range(a + 1, 4):
            np.add.at(pairs, (table[:, a], table[:, b]), 1)
    expected = 30_000 * (4 * 3) / (10 * 9)
    upper = pairs[np.triu_indices(10, 1)]
    assert np.abs(upper - expected).max() < 5 * np.sqrt(expected)


def test_repeat_counts_and_keeps_order():
    batch = Ragged.from_sequences([[CLS, *range(6, 56), SEP]] * 2000)
    result = rules.repeat(batch, keys_for(batch), VOCABULARY)
    extra = result.lengths - batch.lengths
    assert set(extra.tolist()) == set(range(17))  # 0 .. int(0.32 * 50)
    counts = np.bincount(extra)
    assert np.abs(counts - 2000 / 17).max() < 6 * np.sqrt(2000 / 17)
    for index in range(20):
        row = content(result, index)
        assert list(dict.fromkeys(row)) == content(batch, index)
        assert max(row.count(token) for token in row) <= 2


def test_crop_keeps_a_run():
    batch = Ragged.from_sequences([[CLS, *range(6, 26), SEP]] * 300)
    result = rules.crop(batch, keys_for(batch), VOCABULARY, rate=0.75)
    starts = set()
    for index in range(300):
        row = content(result, index)
        assert row == list(range(row[0], row[0] + 15))
        starts.add(row[0] - 6)
    assert starts == set(range(6))


def test_crop_of_a_range_draws_lengths_evenly_and_apart_from_places():
    count, size = 20_000, 200
    batch = Ragged.from_sequences([[CLS, *range(6, 6 + size), SEP]] * count)
    one, other = (
        rules.crop(batch, keys_for(batch, seed), VOCABULARY, rate=0.9, min_rate=0.4) for seed in (0, 1)
    )
    kept = one.lengths - 2
    assert (kept.min(), kept.max()) == (80, 180)
    seen = np.bincount(kept)[81:180]  # the two ends have half
    assert np.abs(seen - count / 100).max() < 6 * np.sqrt(count / 100)
    assert abs(np.corrcoef(one.lengths, other.lengths)[0, 1]) < 0.03
    first = np.array([content(one, row)[0] - 6 for row in range(count)])
    place = first / (size - kept + 1)  # even in [0, 1), whatever the length
    assert abs(place.mean() - 0.5) < 0.02 and abs(np.corrcoef(place, kept)[0, 1]) < 0.03


def test_span_lengths_have_the_beta_distribution():
    """Compare lengths with Beta(4, 2) and Beta(2, 4), by moments and with scipy's distribution."""
    stats = pytest.importorskip("scipy.stats")
    count = 20_000
    batch = Ragged.from_sequences([[CLS, *range(6, 206), SEP]] * count)
    for alpha, beta in ((4, 2), (2, 4), (1, 1)):
        result = rules.span(
            batch, keys_for(batch), VOCABULARY, min_length=32, max_length=132, alpha=alpha, beta=beta
        )
        lengths = result.lengths - 2
        assert lengths.min() >= 32 and lengths.max() <= 132
        expected = count * np.diff(stats.beta.cdf(np.arange(101) / 100, alpha, beta))
        seen = np.bincount(lengths - 32, minlength=101)[:100]
        likely = expected > 20
        chi = ((seen - expected)[likely] ** 2 / expected[likely]).sum()
        assert chi < likely.sum() + 5 * np.sqrt(2 * likely.sum())
        mean, variance = alpha / (alpha + beta), alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
        assert (lengths + 0.5 - 32).mean() == pytest.approx(
            100 * mean, abs=5 * 100 * np.sqrt(variance / count)
        )
        starts = result.ids[result.offsets[:-1] + 1] - 6
        assert (result.ids[result.offsets[1:] - 2] - 6 == starts + lengths - 1).all()  # contiguous
        # The place is even over what the length leaves, whatever the length.
        share = starts / (200 - lengths)
        assert share.mean() == pytest.approx(0.5, abs=0.012) and abs(np.corrcoef(share, lengths)[0, 1]) < 0.03


def test_span_in_documents_of_any_length():
    rng = np.random.default_rng(0)
    lengths = [0, 1, 31, 32, 33, 100, 600]
    batch = reference.random_batch(rng, lengths * 50)
    result = rules.span(batch, keys_for(batch), VOCABULARY)
    for index, length in enumerate(lengths * 50):
        kept = len(content(result, index))
        assert kept == length if length <= 32 else 32 <= kept <= min(length, 512)


def test_delete_takes_whole_words():
    """Check the share, rounded up, and that whole words of the sentence stay, in order."""
    batch = Ragged.from_sequences([[CLS, 20, 27, 30, 40, 47, 57, 60, 10, SEP]] * 300)
    for rate, gone in ((0.05, 1), (0.2, 1), (0.21, 2), (1.0, 4)):
        result = rules.delete(batch, keys_for(batch), VOCABULARY, rate=rate)
        kept = set()
        for index in range(len(batch)):
            words = reference.words(content(result, index))
            assert len(words) == 5 - gone
            kept |= {tuple(word) for word in words}
        assert kept == {(20, 27), (30,), (40, 47, 57), (60,), (10,)}


def test_mask_and_punctuation_leave_the_rest():
    batch = Ragged.from_sequences([[CLS, *range(20, 60), SEP]] * 500)
    masked = rules.mask(batch, keys_for(batch), VOCABULARY)
    assert np.array_equal(masked.offsets, batch.offsets)
    hidden = masked.ids == reference.MASK
    assert np.array_equal(np.add.reduceat(hidden, batch.offsets[:-1]), np.full(500, 6))
    assert np.array_equal(masked.ids[~hidden], batch.ids[~hidden])
    strewn = rules.punctuation(batch, keys_for(batch), VOCABULARY)
    extra = strewn.lengths - batch.lengths
    words = len(reference.words(content(batch, 0)))
    assert set(extra.tolist()) == set(range(1, int(words * 0.3) + 1))
    marks = np.isin(strewn.ids, reference.MARKS)
    assert np.array_equal(strewn.ids[~marks], batch.ids) and set(strewn.ids[marks].tolist()) == set(
        reference.MARKS.tolist()
    )
    after = strewn.ids[np.flatnonzero(marks) + 1]
    assert (after % 10 != 7).all() and (after >= 6).all()  # in front of words, and only there


def test_punctuation_needs_marks():
    bare = dataclasses.replace(VOCABULARY, punctuation=np.zeros(0, np.int32))
    batch = Ragged.from_sequences([[CLS, 20, SEP]])
    with pytest.raises(AugmentationError, match="writes punctuation marks"):
        rules.punctuation(batch, keys_for(batch), bare)


@pytest.mark.parametrize("row", [[], [CLS], [10, 11, SEP], [CLS, 10, 11]])
def test_sequences_without_their_special_tokens_are_refused(row):
    batch = Ragged.from_sequences([[CLS, 10, SEP], row])
    with pytest.raises(AugmentationError, match=r"sequence 1 .*\[CLS\]"):
        rules.reorder(batch, keys_for(batch), VOCABULARY)
