"""Damaged chunks: refused by name, or replaced in the same way whoever reads, and recorded."""

from pathlib import Path

import loader_helpers as helpers
import numpy as np
import pytest
from loader_helpers import assert_same, batches, damage

from pretrain.common.errors import UserError
from pretrain.data.batch import RankBatch
from pretrain.data.damage import replay
from pretrain.data.lanes import Lanes
from pretrain.data.shards import DamagedShard, ShardReader

STEPS = 25  # two epochs of ten steps and a half


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how,words", [("flip", "sha256"), ("truncate", "cut short"), ("remove", "missing")])
def test_damage_is_refused_by_name(folder, workers, how, words):
    damage(folder, how)
    with pytest.raises(DamagedShard, match=f"shard-00000.*{words}"):
        batches(folder, workers=workers)


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damage_is_replaced_the_same_way_whoever_reads(folder, how):
    damaged, _ = damage(folder, how)
    expected = batches(folder, damaged="skip")
    for world_size, workers in ((2, 0), (4, 0), (1, 2), (2, 2)):
        ranks = [
            batches(folder, damaged="skip", rank=rank, world_size=world_size, workers=workers)
            for rank in range(world_size)
        ]
        for number, batch in enumerate(expected):
            assert_same(RankBatch.concatenate([rank[number] for rank in ranks]), batch)
    listed = [entry for batch in expected for entry in batch.substitutions]
    assert 0 < len({entry["chunk"] for entry in listed}) <= damaged
    for entry in listed:
        passed = {*entry["passed"]}
        assert len(passed) == len(entry["passed"]) and not passed & {entry["chunk"], entry["replacement"]}
    # Once an epoch, lane and chunk, at the first step where the lane meets it.
    places = [(entry["epoch"], entry["lane"], entry["chunk"]) for entry in listed]
    assert len(places) == len(set(places))
    assert all(entry["step"] == batch.step for batch in expected for entry in batch.substitutions)
    assert not {entry["replacement"] for entry in listed} & {entry["chunk"] for entry in listed}


def test_each_lane_lists_a_chunk_at_the_first_step_at_which_it_draws_of_it(folder):
    loader = helpers.make_loader(folder)
    wanted = set()
    for step in range(STEPS):
        drawn = loader.lanes.draw_steps(step, step + 1, 0, 8)[0].reshape(8, -1)
        for lane in np.flatnonzero((drawn == 2).any(axis=1)).tolist():
            wanted.add((loader.lanes.epoch_of(step), lane, step))
    first = {
        (epoch, lane, min(s for e, n, s in wanted if (e, n) == (epoch, lane))) for epoch, lane, _ in wanted
    }
    damage(folder, "flip")
    listed = [entry for batch in batches(folder, damaged="skip") for entry in batch.substitutions]
    assert {(entry["epoch"], entry["lane"], entry["step"]) for entry in listed} == first and len(first) == 3
    assert {entry["chunk"] for entry in listed} == {2}


def test_replaced_draws_come_from_the_replacement_alone(folder):
    good = batches(folder)
    damage(folder, "flip")
    sizes = ShardReader(folder).chunk_sizes
    first = np.concatenate([[0], np.cumsum(sizes)])
    replaced = {}
    changed = 0
    for before, after in zip(good, batches(folder, damaged="skip")):
        for entry in after.substitutions:
            replaced[(entry["epoch"], entry["chunk"])] = entry["replacement"]
        differ = before.sequence_ids != after.sequence_ids
        was = np.searchsorted(first, before.sequence_ids, side="right") - 1
        now = np.searchsorted(first, after.sequence_ids, side="right") - 1
        assert np.array_equal(differ, was == 2)
        if differ.any():
            other = replaced[(after.epoch, 2)]
            assert (now[differ] == other).all()
            index = (before.sequence_ids[differ] - np.uint64(first[2])).astype(np.int64)
            assert np.array_equal(
                after.sequence_ids[differ].astype(np.int64) - first[other], index % sizes[other]
            )
        changed += int(differ.sum())
    assert changed > 0


def test_resumed_after_a_repair_the_run_stays_the_same(folder):
    _, good = damage(folder, "flip")
    expected = batches(folder, damaged="skip")
    listed = [entry for batch in expected for entry in batch.substitutions]
    (folder / "train" / "shard-00000.tar").write_bytes(good)
    for start in range(0, STEPS, 4):
        recorded = [entry for entry in listed if entry["step"] < start]
        if not recorded:
            continue
        for batch, again in zip(
            expected[start:], batches(folder, recorded=recorded, start_step=start, workers=2), strict=True
        ):
            assert_same(batch, again)  # with what is listed: only what the record lacks


def test_damage_between_two_starts_is_listed_at_the_first_step(folder):
    good = batches(folder)
    damage(folder, "flip")
    first = int(np.flatnonzero([(sequences_of_chunk(folder, batch) == 2).any() for batch in good])[0])
    start = first + 1  # lanes are in the middle of the chunk
    again = batches(folder, start_step=start, damaged="skip", workers=1)
    silent = [
        batch.step
        for batch, before in zip(again, good[start:])
        if not np.array_equal(batch.sequence_ids, before.sequence_ids) and not known_by(again, batch)
    ]
    # no batch differs from what the sound data gives without an entry at its step or before
    assert not silent
    entries = again[0].substitutions
    assert entries and all(entry["step"] == start for entry in entries)
    # On going on from there with that record, nothing is listed twice and the data is the same.
    recorded = [row for batch in again[:2] for row in batch.substitutions]
    more = batches(folder, start_step=start + 2, damaged="skip", recorded=recorded)
    for mine, theirs in zip(again[2:], more, strict=True):
        assert_same(mine, theirs)


def sequences_of_chunk(folder: Path, batch: RankBatch) -> np.ndarray:
    first = np.concatenate([[0], np.cumsum(ShardReader(folder).chunk_sizes)])
    return np.searchsorted(first, batch.sequence_ids, side="right") - 1


def known_by(run: list[RankBatch], batch: RankBatch) -> bool:
    """Whether an entry up to this batch's step is of its epoch."""
    return any(
        entry["epoch"] == batch.epoch
        for earlier in run
        if earlier.step <= batch.step
        for entry in earlier.substitutions
    )


def test_a_repaired_chunk_does_not_become_a_replacement(folder):
    """The chunk that would stand in for a damaged one was damaged too: repaired, it is still passed over."""
    loader = helpers.make_loader(folder)
    stand_in = int(loader.lanes.replacements(0, 2, 1)[0])
    path = folder / "train" / f"shard-{stand_in // 6:05d}.tar"
    sound = path.read_bytes()
    reader = ShardReader(folder)
    for chunk in {2, stand_in}:
        shard = folder / "train" / f"shard-{chunk // 6:05d}.tar"
        content = bytearray(shard.read_bytes())
        content[int(reader._offset[chunk] + reader._bytes[chunk] // 2)] ^= 1
        shard.write_bytes(content)
    run = batches(folder, damaged="skip")
    first = next(batch.step for batch in run if any(entry["chunk"] == 2 for entry in batch.substitutions))
    recorded = [entry for batch in run[: first + 1] for entry in batch.substitutions]
    assert any(stand_in in entry["passed"] for entry in recorded)
    repaired = bytearray(path.read_bytes())
    start, size = int(reader._offset[stand_in]), int(reader._bytes[stand_in])
    repaired[start : start + size] = sound[start : start + size]
    path.write_bytes(repaired)
    for batch, again in zip(
        run[first + 1 :], batches(folder, damaged="skip", start_step=first + 1, recorded=recorded)
    ):
        assert np.array_equal(batch.sequence_ids, again.sequence_ids)


def test_draws_of_a_chunk_that_is_replaced_twice_keep_their_index():
    """Chunk 0 is read from chunk 1 from step 1 on, and from chunk 2 from step 3 on."""
    sizes = np.array([40, 30, 7])
    lanes = Lanes(sizes, seed=3, global_batch=7, lanes=1)
    drawn, drawn_index = lanes.draw_steps(0, 11, 0, 1)
    chunk, index, step = drawn.copy(), drawn_index.copy(), np.arange(77) // 7
    row = {"epoch": 0, "lane": 0, "chunk": 0}
    rows = [{**row, "step": 3, "replacement": 2}, {**row, "step": 1, "replacement": 1}]
    replay(chunk, index, lanes, (0, 11), (0, 1), rows)
    assert np.array_equal(chunk, np.where(drawn == 0, np.select([step >= 3, step >= 1], [2, 1]), drawn))
    assert np.array_equal(index, drawn_index % sizes[chunk])


def test_a_recorded_chunk_is_replaced_where_damage_is_refused_but_new_damage_is_refused(folder):
    damage(folder, "flip")
    run = batches(folder, damaged="skip")
    recorded = [entry for batch in run[:12] for entry in batch.substitutions]
    for mine, theirs in zip(run[12:], batches(folder, start_step=12, recorded=recorded), strict=True):
        assert np.array_equal(mine.sequence_ids, theirs.sequence_ids)
    replacement = recorded[0]["replacement"]
    (folder / "train" / f"shard-{replacement // 6:05d}.tar").unlink()
    with pytest.raises(DamagedShard, match=r"missing.*--data\.damaged skip"):
        batches(folder, start_step=12, recorded=recorded)


def test_nothing_good_left(folder):
    for path in (folder / "train").glob("*.tar"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match="is damaged, and 100 others"):
        batches(folder, damaged="skip")
