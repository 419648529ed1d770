"""Batches that a run has read are made again, through damage, growth and several sets."""

import loader_helpers as helpers
import numpy as np
import pytest
from loader_helpers import batches, damage, write_folder

from augment.core.ragged import Ragged
from pretrain.commands.verify.files import LedgerRecord, compare
from pretrain.commands.verify.replay import Replay
from pretrain.config.recipe import validate_config
from pretrain.data.batch import BatchSpec, RankBatch, ViewSpec
from pretrain.data.lanes import MixedLanes
from pretrain.data.ledger import begin_ledger, extend_ledger, sum_words
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.shards import DamagedShard


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "data"
    splits = {"train": helpers.some_sequences(500)}
    write_folder(folder, splits, helpers.SIZE, 40, chunk_tokens=400, chunks_per_shard=6)
    return folder


def replay_of(folder, substitutions=(), jumped=(), **train) -> Replay:
    """The replay of runs of the helpers' loaders."""
    settings = {"global_batch": 48, "seed": 3, "steps": 25, "warmup_steps": 1, **train}
    data = (
        {"lanes": 8, "sets": [str(f) for f in folder]}
        if isinstance(folder, list)
        else {"lanes": 8, "folder": str(folder)}
    )
    return Replay(validate_config({"data": data, "train": settings}, "test"), substitutions, jumped)


def of_sequences(read: list[RankBatch]) -> list[tuple[int, ...]]:
    return [sum_words(batch.words)[:2] for batch in read]


def replayed(replay: Replay, first: int = 0, stop: int = 25) -> list[tuple[int, ...]]:
    sums = list(replay.sums(first, stop))
    assert [step for step, _ in sums] == list(range(first, stop))
    return [of_step[:2] for _, of_step in sums]


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damage_between_two_starts_is_replayed(folder, how):
    """The second start replaces what the first has read; the third meets repaired data, and keeps to it."""
    first = batches(folder, stop_step=9, damaged="skip")
    _, good = damage(folder, how)
    second = batches(folder, start_step=9, stop_step=17, damaged="skip")
    rows = [row for batch in second for row in batch.substitutions]
    (folder / "train" / "shard-00000.tar").write_bytes(good)
    third = batches(folder, start_step=17, damaged="refuse", recorded=rows)
    rows += [row for batch in third for row in batch.substitutions]
    read = first + second + third
    assert rows and of_sequences(read) != of_sequences(batches(folder))
    assert replayed(replay_of(folder, rows)) == of_sequences(read)
    assert replayed(replay_of(folder, rows), 11, 20) == of_sequences(read[11:20])
    for workers in (0, 2):
        again = batches(folder, recorded=rows, replaying=True, workers=workers)
        assert all(np.array_equal(one.words, other.words) for one, other in zip(again, read, strict=True))


def test_what_is_still_damaged_is_read_from_its_replacement(folder):
    damage(folder, "flip")
    read = batches(folder, damaged="skip")
    rows = [row for batch in read for row in batch.substitutions]
    replay = replay_of(folder, rows)
    assert replayed(replay) == of_sequences(read) and not replay.unread


@pytest.mark.parametrize("at_once", [1, 100])
def test_any_number_of_steps_is_drawn_at_a_time(folder, monkeypatch, at_once):
    """One at least, also of a batch that is larger than what is drawn at a time."""
    monkeypatch.setattr("pretrain.commands.verify.replay._DRAWN_AT_ONCE", at_once)
    assert replayed(replay_of(folder)) == of_sequences(batches(folder))


def test_a_growing_batch_is_replayed(folder):
    read = batches(folder, start_batch=8, growth_steps=7)
    replay = replay_of(folder, batch_warmup_steps=7, batch_start=8)
    assert replayed(replay) == of_sequences(read)
    assert replayed(replay, 3, 12) == of_sequences(read[3:12])


def test_several_sets_are_replayed(folder, tmp_path):
    random = np.random.default_rng(0)
    records = Ragged.from_sequences(
        [[helpers.CLS, *random.integers(5, helpers.SIZE, 9), helpers.SEP] for _ in range(600)]
    )
    other = tmp_path / "pairs"
    columns = ("text", "positive")
    write_folder(other, {"train": records}, helpers.SIZE, 40, "record", chunk_tokens=900, columns=columns)
    replay = replay_of([folder, other])
    assert isinstance(replay.lanes, MixedLanes)
    spec = BatchSpec(
        [ViewSpec("anchor", "none"), ViewSpec("positive", "none")], Masking(), helpers.VOCABULARY
    )
    read = list(Loader(replay.reader, spec, LoaderSettings(3, 48, 8), Position(0, 25)))
    assert {bool(batch.sequence_ids[0] < 500) for batch in read} == {False, True}
    assert replayed(replay) == of_sequences(read)


def test_steps_that_a_run_has_jumped_over_are_not_replayed(folder):
    jumps = [(4, 9), (20, 22)]
    read = batches(folder, jumps=jumps)
    there = [step for step in range(25) if not any(first <= step < stop for first, stop in jumps)]
    assert [batch.step for batch in read] == there
    links = begin_ledger(0)
    for batch in read:
        links = extend_ledger(links, sum_words(batch.words))
    sums = list(replay_of(folder, jumped=jumps).sums(0, 25))
    assert [step for step, _ in sums] == there
    record = LedgerRecord(25, "row", links)
    assert compare([record], None, sums, ("sequences",)) is None
    unaware = replay_of(folder).sums(0, 25)
    assert compare([record], None, unaware, ("sequences",)).last == 25


def test_views_are_made_again_as_they_were_read(folder, monkeypatch):
    """By the loader that trains: from replacements of what is damaged, and never from others."""
    damage(folder, "flip")
    views = helpers.views("del-span,reorder", "del-span,reorder")
    spec = BatchSpec(views, Masking(0.3), helpers.VOCABULARY)
    read = batches(folder, jumps=[(4, 9)], damaged="skip", rate=0.3)
    rows = [row for batch in read for row in batch.substitutions]
    monkeypatch.setattr("pretrain.commands.verify.replay.load_tokenizer", lambda folder: folder)
    monkeypatch.setattr("pretrain.commands.verify.replay.batch_spec", lambda *_: spec)
    replay = replay_of(folder, rows, jumped=[(4, 9)])
    for first, stop, there in ((0, 25, slice(0, 20)), (3, 12, slice(3, 7))):
        again = list(replay.sums_with_views(first, stop, workers=1))
        assert again == [(batch.step, sum_words(batch.words)) for batch in read[there]]
    with pytest.raises(DamagedShard):
        list(replay_of(folder).sums_with_views(0, 25, workers=0))
