"""The loader on real shards: the same batches whoever makes them, and what is refused."""

from dataclasses import replace
from itertools import pairwise

import loader_helpers as helpers
import numpy as np
import pytest
import torch
from loader_helpers import assert_same, assert_same_run, batches, write_folder

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.spec.build import build
from pretrain.common.errors import UserError
from pretrain.data import loader as loader_module
from pretrain.data.batch import RankBatch, ViewSpec, label_names, number_of_labels
from pretrain.data.masking import mask_tokens
from pretrain.data.shards import ShardReader
from pretrain.data.worker import clip

SEQUENCES, CHUNK_TOKENS, STEPS = 500, 400, 25  # of tests/pretrain/data/conftest.py: 2.5 epochs


def test_batches_are_what_the_shards_and_the_keys_say(folder):
    reader = ShardReader(folder)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    on_disk = Ragged.concatenate([chunk.sequences for chunk in chunks])
    pipelines = [build(spec, helpers.VOCABULARY) for spec in ("del-span,reorder", "none")]
    for batch in batches(folder, views=helpers.views("del-span,reorder", "none"), copies=2):
        expected = on_disk.take(batch.sequence_ids.astype(np.int64))
        assert batch.original == expected
        for number, (view, pipeline) in enumerate(zip(batch.views.values(), pipelines, strict=True)):
            keys = sequence_keys(3, batch.epoch, batch.sequence_ids, number, "augment")
            assert view.tokens == pipeline(expected, keys)  # of the unmasked original
        for copy, masked in enumerate(batch.masked):
            keys = sequence_keys(3, batch.epoch, batch.sequence_ids, copy, "mask")
            assert masked.batch == mask_tokens(expected, keys, helpers.VOCABULARY).batch
            assert np.array_equal(batch.original.ids[masked.positions], masked.labels)
        assert not np.array_equal(batch.masked[0].positions, batch.masked[1].positions)


LABELLED = [
    ViewSpec("anchor", "none"),
    ViewSpec("augmented", "del-word:rate=0.5|crop:rate=1|none|repeat", labelled=True),
    ViewSpec("positive", "reorder"),
]


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("views", [helpers.views("del-span,reorder", "del-span,reorder"), LABELLED])
def test_same_batches_for_any_world_size_and_workers(folder, world_size, workers, views):
    assert_same_run(folder, batches(folder, views=views), world_size, workers, views=views)


@pytest.mark.parametrize("world_size,workers", [(1, 0), (2, 1), (4, 2)])
def test_rates_of_masking_are_those_of_the_step_whoever_makes_the_batch(folder, world_size, workers):
    changes = {"rate": 0.3, "later": ((7, 0.15), (20, 0.05)), "linear": True}
    made = batches(folder, **changes)
    for batch in made:
        keys = sequence_keys(3, batch.epoch, batch.sequence_ids, 0, "mask")
        rate = np.interp(batch.step, [0, 7, 20], [0.3, 0.15, 0.05])
        expected = mask_tokens(batch.original, keys, helpers.VOCABULARY, rate=rate)
        assert np.array_equal(batch.masked[0].positions, expected.positions)
    assert_same_run(folder, made, world_size, workers, **changes)
    assert_same(batches(folder, start_step=11, **changes)[0], made[11])


@pytest.mark.parametrize("world_size,workers", [(1, 0), (1, 2), (2, 1), (4, 2)])
def test_a_growing_batch_is_the_same_whoever_makes_it_and_from_any_step(folder, world_size, workers):
    changes = {"start_batch": 8, "growth_steps": 17, "views": LABELLED}
    made = batches(folder, **changes)
    assert [len(batch.original) for batch in made] == [8 + 8 * (5 * s // 17) for s in range(17)] + [48] * 8
    assert_same_run(folder, made, world_size, workers, **changes)
    for start in (3, 16, 20):
        rest = batches(folder, start_step=start, **changes)
        for batch, expected in zip(rest, made[start:], strict=True):
            assert_same(batch, expected)


def test_identities_are_those_of_the_text(folder):
    """Equal for the same sentence in any view, batch and place of the corpus, before it was augmented."""
    sequences = helpers.some_sequences(SEQUENCES)
    doubled = Ragged.concatenate([sequences.slice(0, SEQUENCES // 2)] * 2)
    write_folder(folder, {"train": doubled}, helpers.SIZE, 40, chunk_tokens=CHUNK_TOKENS)
    seen: dict[int, bytes] = {}
    for batch in batches(folder, views=LABELLED):
        identities = batch.views["anchor"].identities
        assert all(np.array_equal(view.identities, identities) for view in batch.views.values())
        assert all(view.present.dtype == bool and view.present.all() for view in batch.views.values())
        for row, number in enumerate(identities.tolist()):
            assert seen.setdefault(number, batch.original[row].tobytes()) == batch.original[row].tobytes()
    assert len(seen) == len(set(seen.values())) == SEQUENCES // 2


def test_labels_say_what_was_done(folder):
    """AugCSE's: the number of the alternative taken, and the last label where nothing has changed."""
    done = [build(spec, helpers.VOCABULARY) for spec in ("del-word:rate=0.5", "crop:rate=1", "repeat")]
    assert label_names(LABELLED[1]) == ["del-word:rate=0.5", "crop:rate=1.0", "repeat", "none"]
    assert number_of_labels(LABELLED[1], ShardReader(folder)) == 4
    counts = np.zeros(4, int)
    for batch in batches(folder, views=LABELLED):
        keys = sequence_keys(3, batch.epoch, batch.sequence_ids, 1, "augment")
        results = [pipeline(batch.original, keys) for pipeline in done]
        assert batch.labels.dtype == np.int64
        counts += np.bincount(batch.labels, minlength=4)
        for row, label in enumerate(batch.labels.tolist()):
            view, text = batch.views["augmented"].tokens[row].tolist(), batch.original[row].tolist()
            assert (label == 3) == (view == text)
            assert label == 3 or view == results[label][row].tolist()
    total = STEPS * 48
    # A quarter each: `none` and crop:rate=1 change nothing, nor does repeat one time in three or more.
    assert (
        counts[1] == 0
        and abs(counts[0] - total / 4) < 100
        and counts[2] < total / 4
        and counts[3] > total / 2
    )
    assert batches(folder, stop_step=1)[0].labels is None


def test_label_names_are_different():
    assert label_names(ViewSpec("a", "crop|reorder|crop", labelled=True)) == ["crop", "reorder", "none"]
    assert label_names(ViewSpec("a", "crop", labelled=True)) == ["crop", "none"]


def test_same_batches_however_steps_are_cut_into_blocks(folder, monkeypatch):
    assert helpers.make_loader(folder).block_steps == 3
    expected = batches(folder)
    for size, steps in ((1, 1), (500, 11), (5000, 105)):
        monkeypatch.setattr(loader_module, "BLOCK_SEQUENCES", size)
        assert helpers.make_loader(folder).block_steps == steps
        for mine, theirs in zip(batches(folder, workers=1), expected, strict=True):
            assert_same(mine, theirs)


@pytest.mark.parametrize("workers", [0, 2])
def test_epoch_covers_each_sequence_at_most_once(folder, workers):
    run = batches(folder, workers=workers)
    for epoch in (0, 1):
        ids = np.concatenate([batch.sequence_ids for batch in run if batch.epoch == epoch])
        assert len(ids) == len(set(ids.tolist())) == SEQUENCES // 48 * 48
    assert [batch.step for batch in run] == list(range(STEPS))
    assert [batch.epoch for batch in run] == [step // 10 for step in range(STEPS)]


@pytest.mark.parametrize("start", [1, 7, 10, 23, STEPS])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_anywhere_goes_on_with_the_same_batches(folder, start, workers):
    rest = batches(folder, start_step=start, workers=workers)
    assert len(rest) == STEPS - start
    for mine, theirs in zip(rest, batches(folder)[start:]):
        assert_same(mine, theirs)


def test_iterating_again_gives_the_same(folder):
    loader = helpers.make_loader(folder, workers=1)
    for first, second in zip(loader, loader):  # two iterations at once, too
        assert_same(first, second)
    assert len(loader) == STEPS


def test_an_epoch_draws_masks_and_views_anew(folder):
    by_sequence: dict[int, list[bytes]] = {}
    for batch in batches(folder, stop_step=20):
        for row, number in enumerate(batch.sequence_ids.tolist()):
            by_sequence.setdefault(number, []).append(batch.views["anchor"].tokens[row].tobytes())
    twice = [views for views in by_sequence.values() if len(views) == 2]
    assert len(twice) > 400 and sum(a != b for a, b in twice) > 0.8 * len(twice)


def test_without_views_or_masks(folder):
    for changes in ({"views": []}, {"copies": 0}, {"views": [], "copies": 0}):
        for batch in batches(folder, workers=2, stop_step=3, **changes):
            assert len(batch.views) == (0 if "views" in changes else 2)
            assert len(batch.masked) == (0 if "copies" in changes else 1)
            assert len(batch.original) == 48


def test_the_random_state_of_the_training_process_is_untouched(folder):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    batches(folder, workers=2)
    assert torch.equal(torch.get_rng_state(), before)


# ---- what is refused ---------------------------------------------------------------------------------------


def test_settings_that_do_not_fit(folder):
    for changes, words in (
        ({"world_size": 9}, r"data\.lanes=8: start at most 8 ranks"),
        ({"global_batch": 504}, r"lower train\.global_batch: there are only 500 sequences"),
        ({"max_length": 30}, r"has 40 tokens per sequence: raise model\.max_positions, or .* max_length 30"),
        ({"views": [ViewSpec(role, "crop", labelled=True) for role in "ab"]}, "a, b are all labelled"),
        ({"views": [ViewSpec("a", "crop,reorder", labelled=True)]}, "several stages"),
        ({"views": [ViewSpec("a", "none", labelled=True)]}, "changes nothing"),
    ):
        with pytest.raises((UserError, AugmentationError), match=words):
            helpers.make_loader(folder, **changes)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sequence_longer_than_the_manifest_says(tmp_path, workers):
    sequences = helpers.some_sequences(SEQUENCES)
    write_folder(tmp_path, {"train": sequences}, helpers.SIZE, 20, chunk_tokens=CHUNK_TOKENS)
    longest = int(sequences.lengths.max())
    with pytest.raises(
        UserError, match=rf"sequence \d+ of .* tokens: raise model.max_positions, .* max_length {longest - 1}"
    ):
        batches(tmp_path, workers=workers, max_length=longest - 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_tokens_that_the_tokenizer_does_not_have(tmp_path, workers):
    sequences = helpers.some_sequences(SEQUENCES)
    sequences.ids[1000] = 400
    write_folder(tmp_path, {"train": sequences}, 1000, 40, chunk_tokens=CHUNK_TOKENS)
    with pytest.raises(UserError, match="holds token 400: use the tokenizer"):
        batches(tmp_path, workers=workers)


def test_clip_keeps_the_end_token():
    batch = Ragged.from_sequences([[1, 5, 6, 7, 8, 2], [1, 2], [], [1, 5, 6, 2]])
    clipped = clip(batch, 4)
    assert clipped == Ragged.from_sequences([[1, 5, 6, 2], [1, 2], [], [1, 5, 6, 2]])
    assert clip(batch, 6) is batch and clip(batch, None) is batch


def test_views_longer_than_the_model_are_cut(folder):
    longest = 0
    for batch in batches(
        folder, views=helpers.views("repeat:rate=1.0", "repeat:rate=1.0"), max_length=40, stop_step=10
    ):
        for tokens in (view.tokens for view in batch.views.values()):
            longest = max(longest, int(tokens.lengths.max()))
            assert (tokens.ids[tokens.offsets[1:] - 1] == helpers.SEP).all()
    assert longest == 40


def test_a_batch_is_its_slices_put_together(folder):
    """Field by field; a slice has as many labels as sequences."""
    whole = replace(batches(folder)[3], labels=np.arange(48))
    for cuts in ([0, 1, 20, 48], [0, 47, 48], [0, 48]):
        parts = [whole.slice(*pair) for pair in pairwise(cuts)]
        for part, (start, stop) in zip(parts, pairwise(cuts)):
            assert part.labels.tolist() == list(range(start, stop))
            fields = [part.original, part.words, part.sequence_ids, *(masked.batch for masked in part.masked)]
            for view in part.views.values():
                fields += [view.tokens, view.present, view.identities]
            assert {len(field) for field in fields} == {stop - start}
        assert_same(RankBatch.concatenate(parts), whole)
