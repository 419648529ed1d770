"""The loader on real shards: the same batches whoever makes them, damage, signals, and leaving without a
trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import loader_helpers as helpers
import numpy as np
import pytest
import torch
from loader_helpers import assert_same, assert_same_run, batches, damage

from augment.core.errors import AugmentationError
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.spec.build import build
from pretrain.common.errors import UserError
from pretrain.data import loader as loader_module
from pretrain.data.batch import RankBatch, ViewSpec, label_names, number_of_labels
from pretrain.data.masking import mask_tokens
from pretrain.data.shards import DamagedShard, ShardReader, write_folder
from pretrain.data.worker import BlockMaker, clip

SEQUENCES, CHUNK_TOKENS = 500, 400
STEPS = 25  # two epochs of ten steps and a half


@pytest.fixture
def folder(tmp_path) -> Path:
    sequences = helpers.some_sequences(SEQUENCES)
    write_folder(
        tmp_path, {"train": sequences}, helpers.SIZE, 40, chunk_tokens=CHUNK_TOKENS, chunks_per_shard=6
    )
    return tmp_path


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few steps, so that a run of 25 is many of them."""
    monkeypatch.setattr(loader_module, "BLOCK_SEQUENCES", 100)


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
    assert helpers.make_loader(folder).items.block_steps == 3
    expected = batches(folder)
    for size, steps in ((1, 1), (500, 11), (5000, 105)):
        monkeypatch.setattr(loader_module, "BLOCK_SEQUENCES", size)
        assert helpers.make_loader(folder).items.block_steps == steps
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


# ---- damage ------------------------------------------------------------------------------------------------


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
    # Once an epoch, lane and chunk, at the first step where the lane meets it.
    places = [(entry["epoch"], entry["lane"], entry["chunk"]) for entry in listed]
    assert len(places) == len(set(places))
    assert all(entry["step"] == batch.step for batch in expected for entry in batch.substitutions)
    assert not {entry["replacement"] for entry in listed} & {entry["chunk"] for entry in listed}


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
    assert entries and all(entry["step"] == start and entry["under_way"] for entry in entries)
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
    with pytest.raises(UserError, match="were the 100 chunks tried in its place"):
        batches(folder, damaged="skip")


# ---- what is refused ---------------------------------------------------------------------------------------


def test_settings_that_do_not_fit(folder):
    for changes, words in (
        ({"world_size": 3}, r"data\.lanes = 8 .* 3 ranks"),
        ({"global_batch": 50}, r"train\.global_batch = 50 is not a multiple of data\.lanes = 8"),
        ({"global_batch": 504}, r"500 sequences, fewer than one global batch"),
        ({"max_length": 30}, r"up to 40 tokens, the model takes 30: raise model\.max_positions"),
        ({"damaged": "ignore"}, "'refuse' or 'skip'"),
        ({"start_step": 30}, "last step before the first"),
        ({"workers": -1}, "must not be negative"),
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
    with pytest.raises(UserError, match=rf"sequence \d+ of .* has \d+ tokens, the model takes {longest - 1}"):
        batches(tmp_path, workers=workers, max_length=longest - 1)


@pytest.mark.parametrize("workers", [0, 1])
def test_tokens_that_the_tokenizer_does_not_have(tmp_path, workers):
    sequences = helpers.some_sequences(SEQUENCES)
    sequences.ids[1000] = 400
    write_folder(tmp_path, {"train": sequences}, 1000, 40, chunk_tokens=CHUNK_TOKENS)
    with pytest.raises(UserError, match="token 400, the tokenizer has 300 tokens"):
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


# ---- processes ---------------------------------------------------------------------------------------------


def test_leaving_early_stops_the_workers(folder):
    before = helpers.children()
    iterator = iter(helpers.make_loader(folder, workers=2, stop_step=10_000_000))
    next(iterator)
    assert len(helpers.children() - before) == 2
    started = time.monotonic()
    iterator.close()
    assert not helpers.children() - before
    assert time.monotonic() - started < 5


def test_signals_meant_for_the_training_process_do_not_stop_workers(folder):
    expected = batches(folder)
    before = helpers.children()
    iterator = iter(helpers.make_loader(folder, workers=2))
    run = [next(iterator)]
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2):
        for pid in helpers.children() - before:
            os.kill(pid, number)
        run.append(next(iterator))
    run += iterator
    for mine, theirs in zip(run, expected, strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("moment", range(4))
def test_a_killed_worker_is_one_error_at_the_next_batch(folder, workers, moment):
    """Whenever it dies: while the training process computes, which nothing interrupts, or while it waits."""
    before = helpers.children()
    handler = signal.getsignal(signal.SIGCHLD)
    iterator = iter(helpers.make_loader(folder, workers=workers, stop_step=10_000_000))
    for _ in range(moment):
        next(iterator)
    next(iterator)
    victim = sorted(helpers.children() - before)[-1]
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + 0.3
    # "a step": an exception in here would be one in the middle of a backward pass
    while time.monotonic() < end:
        sum(range(1000))
    said = rf"loader worker {victim} was killed by SIGKILL.*--resume auto.*--data.workers {workers - 1}"
    with pytest.raises(UserError, match=said):
        next(iterator)
    iterator.close()
    assert not helpers.children() - before and time.monotonic() < end + 60
    if callable(handler):  # before the first loader of a process there is none, then DataLoader's
        assert signal.getsignal(signal.SIGCHLD) == handler


def test_a_worker_that_dies_while_it_is_waited_for_is_reported(folder, monkeypatch):
    """It dies with the lock of the pipe in its hand, half of a block written: nothing more will come."""
    original = BlockMaker.make

    def make(self, first, *rest):
        if first >= 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, first, *rest)

    monkeypatch.setattr(BlockMaker, "make", make)
    began = time.monotonic()
    with pytest.raises(UserError, match="was killed by SIGKILL"):
        list(helpers.make_loader(folder, workers=2, stop_step=1000))
    assert time.monotonic() - began < 30


def test_children_of_others_do_not_disturb_the_loader(folder):
    iterator = iter(helpers.make_loader(folder, workers=1))
    next(iterator)
    for status in (0, 3):
        subprocess.run([sys.executable, "-c", f"import sys; sys.exit({status})"])
        next(iterator)
    iterator.close()


SCRIPT = """
    import sys, time
    sys.path.insert(0, {helpers!r})
    import loader_helpers as helpers
    iterator = iter(helpers.make_loader({folder!r}, workers=2, stop_step=10_000_000))
    next(iterator)
    print(*helpers.children(), flush=True)
    {ending}
"""


def start(folder: Path, ending: str) -> tuple[subprocess.Popen, list[int]]:
    text = textwrap.dedent(SCRIPT).format(
        helpers=str(Path(__file__).parents[1]), folder=str(folder), ending=ending
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    if len(workers) != 2:
        process.kill()
        raise AssertionError(process.communicate()[1])
    return process, workers


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int], seconds: float) -> list[int]:
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and any(map(running, pids)):
        time.sleep(0.05)
    return [pid for pid in pids if running(pid)]


def test_workers_die_with_a_killed_parent(folder):
    """Its queues are full when it is killed: the workers wait to write what nothing reads any more."""
    process, workers = start(folder, "time.sleep(600)")
    time.sleep(0.5)
    process.kill()
    process.wait()  # not communicate: workers that outlive their parent hold its pipes open
    left = wait_until_gone(workers, 10)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.parametrize("ending,status", [("sys.exit(3)", 3), ("raise ValueError('boom')", 1)])
def test_leaving_the_program_in_the_middle_does_not_hang(folder, ending, status):
    process, workers = start(folder, ending)
    process.communicate(timeout=60)
    assert process.returncode == status
    assert wait_until_gone(workers, 5) == []
