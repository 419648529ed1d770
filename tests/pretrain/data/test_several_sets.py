"""Several folders of data in one run: which set a step reads, what it reads of it, and resumes."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import loader_helpers as helpers
import numpy as np
import pytest
from loader_helpers import assert_same, write_folder
from run_helpers import command, curve, finish, records, start

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.config.recipe import validate_config
from pretrain.data.batch import BatchSpec, RankBatch, ViewSpec
from pretrain.data.lanes import Lanes, MixedLanes
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.masking import Masking
from pretrain.data.shards import MixedShardReader, ShardReader

SETS = [np.array([37, 41, 1, 58]), np.array([29, 44, 40]), np.array([300])]
SHARES = [0.55, 0.3, 0.15]


def mixed(seed: int = 3) -> MixedLanes:
    return MixedLanes(SETS, SHARES, seed, 24, 8)


def test_each_set_has_its_share_of_the_steps_at_any_time():
    lanes = mixed()
    sets = lanes.set_of(np.arange(20_000))
    counts = np.cumsum(sets[:, None] == np.arange(3), axis=0)
    wanted = np.arange(1, 20_001)[:, None] * np.array(SHARES)
    assert np.abs(counts - wanted).max() < 4
    assert np.array_equal(lanes.taken(7_001), counts[7_000])
    assert np.array_equal(lanes.taken(5), counts[4])  # backwards, too
    assert not np.array_equal(sets, mixed(4).set_of(np.arange(20_000)))


def test_a_step_is_the_next_step_of_its_own_set():
    lanes, own = mixed(), [0, 0, 0]
    first = np.cumsum([0, *map(len, SETS)])
    for step, number in enumerate(lanes.set_of(np.arange(60)).tolist()):
        alone = Lanes(SETS[number], 3, 24, 8)
        chunk, index = lanes.draw_steps(step, step + 1, 2, 7)
        expected = alone.draw_steps(own[number], own[number] + 1, 2, 7)
        assert np.array_equal(chunk, expected[0] + first[number]) and np.array_equal(index, expected[1])
        assert lanes.epoch_of(step) == alone.epoch_of(own[number])
        replaced = lanes.replacements(1, int(first[number]), 20)
        assert np.array_equal(replaced, alone.replacements(1, 0, 20) + first[number])
        own[number] += 1


def test_cuts_into_blocks_and_lanes_change_nothing():
    whole = [part.reshape(50, 8, 3) for part in mixed().draw_steps(0, 50, 0, 8)]
    for first, stop, lane, end in ((0, 50, 0, 4), (13, 29, 4, 8), (49, 50, 7, 8)):
        for part, expected in zip(mixed().draw_steps(first, stop, lane, end), whole):
            assert np.array_equal(part, expected[first:stop, lane:end].ravel())
    steps = np.arange(13, 29)
    assert mixed().epochs_of(steps).tolist() == [mixed().epoch_of(step) for step in steps.tolist()]


def pairs(count: int, seed: int) -> Ragged:
    """Records of three texts, some without a negative."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        for absent in (0.0, 0.0, 0.5):
            content = random.integers(5, helpers.SIZE, random.integers(2, 38))
            rows.append([] if random.random() < absent else [helpers.CLS, *content, helpers.SEP])
    return Ragged.from_sequences(rows)


@pytest.fixture
def sets(tmp_path) -> list[Path]:
    """Sentences, and triples."""
    folders = [tmp_path / "wiki", tmp_path / "nli"]
    sentences = {"train": helpers.some_sequences(500)}
    write_folder(folders[0], sentences, helpers.SIZE, 40, chunk_tokens=400, chunks_per_shard=6)
    columns = ("text", "positive", "negative")
    write_folder(
        folders[1], {"train": pairs(300, 1)}, helpers.SIZE, 40, "record", chunk_tokens=900, columns=columns
    )
    return folders


def batches(folders: list[Path], first: int = 0, rank: int = 0, world: int = 1, workers: int = 0, **more):
    reader = MixedShardReader([ShardReader(folder) for folder in folders], [3.0, 1.0])
    views = [ViewSpec("anchor", "del-span"), ViewSpec("positive", "none"), ViewSpec("negative", "none")]
    spec = BatchSpec(views, Masking(), helpers.VOCABULARY)
    loader = Loader(reader, spec, LoaderSettings(3, 48, 8, workers, **more), Position(first, 20, rank, world))
    return loader, list(loader)


@pytest.mark.full
def test_a_batch_is_of_one_set_for_any_ranks_workers_and_resumes(sets):
    loader, expected = batches(sets)
    counts = np.zeros(2, int)
    for batch in expected:
        triples = batch.sequence_ids >= 500
        assert triples.all() or not triples.any()
        counts[int(triples[0])] += 48
        there = batch.views["negative"].present
        assert (0 < there.sum() < 48) if triples[0] else not there.any()
        if not triples[0]:  # without columns, the text itself
            assert batch.views["positive"].tokens == batch.original
    assert loader.counts(20) == {"sets": {"wiki": counts[0], "nli": counts[1]}}
    assert abs(counts[0] - 0.75 * 20 * 48) <= 3 * 48
    for world, workers, first in ((2, 0, 0), (4, 1, 0), (1, 2, 0), (2, 1, 7)):
        ranks = [batches(sets, first, rank, world, workers)[1] for rank in range(world)]
        for number, batch in enumerate(expected[first:]):
            assert_same(RankBatch.concatenate([rank[number] for rank in ranks]), batch)


def test_a_damaged_chunk_is_replaced_within_its_set(sets):
    helpers.damage(sets[1], "flip")
    _, found = batches(sets, damaged="skip")
    replaced = [row for batch in found for row in batch.substitutions]
    first = ShardReader(sets[0]).num_chunks
    assert replaced and all(min(row["chunk"], row["replacement"]) >= first for row in replaced)


def test_sets_that_do_not_go_together_are_refused(sets, tmp_path):
    write_folder(tmp_path / "other", {"train": helpers.some_sequences(99)}, helpers.SIZE, 40, "sentence", "x")
    with pytest.raises(UserError, match="prepare it with --tokenizer"):
        MixedShardReader([ShardReader(sets[0]), ShardReader(tmp_path / "other")], [1, 1])
    readers = [ShardReader(sets[1]) for _ in range(2)]
    readers[0].labels, readers[1].labels = 2, 3
    with pytest.raises(UserError, match=f"labels differ: {sets[1]} 2, {sets[1]} 3"):
        MixedShardReader(readers, [1, 1])
    readers[0].labels, readers[1].labels, readers[1].scored = 0, 0, True
    with pytest.raises(UserError, match="one alone has scores"):
        MixedShardReader(readers, [1, 1])
    with pytest.raises(UserError, match=r"set 3 of data\.sets has 300 sequences"):
        MixedLanes([np.array([400]), np.array([400]), np.array([300])], SHARES, 3, 304, 8)
    for settings, says in (
        ({"sets": ["a", "b"], "folder": "c"}, "exclude each other"),
        ({"sets": ["a", "b"], "cache": 2}, "data.cache exclude each other"),
        ({"sets": ["a@2", "b"]}, "to all sets, or to none"),
        ({"sets": ["a@2", "a@3"]}, "names a folder twice"),
    ):
        with pytest.raises(UserError, match=says):
            validate_config({"data": settings}, "test")
    with pytest.raises(UserError, match="all batches have one size"):
        validate_config({"data": {"sets": ["a"]}, "train": {"batch_warmup_steps": 5}}, "test")


def of_sets(words: list[str], sets: str) -> list[str]:
    """A training command's words with several sets in place of --data FOLDER."""
    place = words.index("--data")
    return [*words[:place], *words[place + 2 :], "--data.sets", sets]


@pytest.mark.full
def test_negatives_are_counted_set_by_set(tiny_data, tmp_path):
    """Of triples N - 1 and N hard ones, less what records lack; of sentences N - 1."""
    reader = ShardReader(tiny_data)
    sentences = Ragged.concatenate([reader.read(number).sequences for number in range(reader.num_chunks)])
    third, rows = len(sentences) // 3, np.arange(len(sentences) // 3 * 3)
    rows[2::12] = len(sentences)  # every fourth record has no negative
    empty = Ragged(np.empty(0, np.int32), np.zeros(2, np.int64))
    triples = Ragged.concatenate([sentences, empty]).take(rows)
    write_folder(
        tmp_path / "nli", {"train": triples}, 512, 48, "record", reader.tokenizer_hash,
        columns=("text", "positive", "negative"),
    )  # fmt: skip
    more = {"train__log_every": 1, "objective__name": "simcse", "objective__simcse__hard_negatives": "true"}
    words = of_sets(command(tiny_data, tmp_path / "run", **more), f"{tiny_data}@1,{tmp_path / 'nli'}@1")
    assert third > 32 and f"31 negatives per anchor, 15 in {tiny_data}" in finish(start(words))
    found, before = {"nli": set(), tiny_data.name: set()}, {"nli": 0, tiny_data.name: 0}
    for row in records(tmp_path / "run"):
        if "loss" in row:
            (name,) = (name for name, count in row["sets"].items() if count > before[name])
            found[name].add(row["effective_negatives"])
            before = row["sets"]
    assert found[tiny_data.name] == {15.0} and len(found["nli"]) > 1
    assert all(15 < count < 31 and count == int(count) for count in found["nli"])


@pytest.mark.full
def test_a_resumed_run_of_several_sets_is_the_same_run(tiny_data, tmp_path):
    reader = ShardReader(tiny_data)
    sentences = Ragged.concatenate([reader.read(number).sequences for number in range(reader.num_chunks)])
    half = len(sentences) // 2 * 2
    write_folder(
        tmp_path / "pairs", {"train": sentences.slice(0, half)}, 512, 48, "record", reader.tokenizer_hash,
        columns=("text", "positive"),
    )  # fmt: skip
    sets = f"{tiny_data}@1,{tmp_path / 'pairs'}@2"
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(start(of_sets(command(tiny_data, whole, checkpoint__keep=9), sets)))
    last = [row for row in records(whole) if "loss" in row][-1]
    assert set(last["sets"]) == {tiny_data.name, "pairs"} and sum(last["sets"].values()) == 16 * 10
    assert last["sets"]["pairs"] > last["sets"][tiny_data.name]
    shutil.copytree(whole, cut)
    for step in (9, 10):
        shutil.rmtree(cut / "checkpoints" / f"step-{step:08d}")
    words = command(tiny_data, cut, checkpoint__resume="auto")
    refused = finish(start(of_sets(words, sets.replace("@2", "@3"))), expect=2)
    assert "with other inputs" in refused and "--data.sets" in refused
    assert "resumed from" in finish(start(of_sets(words, sets)))
    assert curve(cut) == curve(whole)


def test_sequences_of_each_set_are_counted_by_name():
    """By its path where two have the same name; nothing of one set."""
    lanes, settings = mixed(), SimpleNamespace(global_batch=24)
    for folders, names in (
        ("a/wiki b/nli c/faq", "wiki nli faq"),
        ("a/wiki b/wiki c/faq", "a/wiki b/wiki c/faq"),
    ):
        parts = [SimpleNamespace(folder=Path(folder)) for folder in folders.split()]
        loader = SimpleNamespace(lanes=lanes, settings=settings, reader=SimpleNamespace(parts=parts))
        drawn = np.bincount(lanes.set_of(np.arange(50)), minlength=3) * 24
        assert Loader.counts(loader, 50) == {"sets": dict(zip(names.split(), drawn.tolist(), strict=True))}
    alone = SimpleNamespace(lanes=Lanes(SETS[0], 3, 24, 8))
    assert Loader.counts(alone, 50) == {}
