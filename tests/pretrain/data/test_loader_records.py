"""Batches of records: every view is made of its own column, whoever makes it, and says what is there and what
is not."""

from pathlib import Path

import loader_helpers as helpers
import numpy as np
import pytest
from loader_helpers import assert_same, assert_same_run, batches, damage, write_folder

from augment.core.identity import sequence_identities
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.spec.build import build
from pretrain.common.errors import UserError
from pretrain.data import loader as loader_module
from pretrain.data.batch import ViewSpec, number_of_labels
from pretrain.data.loader import require_negatives
from pretrain.data.masking import mask_tokens
from pretrain.data.shards import DamagedShard, ShardReader

RECORDS, CHUNK_TOKENS = 500, 1200
COLUMNS = ("text", "positive", "negative")
VIEWS = [
    ViewSpec("anchor", "none"),
    ViewSpec("positive", "repeat", labelled=True),
    ViewSpec("negative", "del-span"),
    ViewSpec("another", "reorder"),
    ViewSpec("positive2", "none"),
    ViewSpec("negative2", "none"),
]


def some_records(count: int, seed: int = 0) -> tuple[Ragged, np.ndarray]:
    """A third of the positives and half of the negatives are not there; labels below 5."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        for absent in (0.0, 0.3, 0.5):
            content = random.integers(5, helpers.SIZE, random.integers(2, 38))
            rows.append([] if random.random() < absent else [helpers.CLS, *content, helpers.SEP])
    return Ragged.from_sequences(rows), random.integers(0, 5, count)


@pytest.fixture
def folder(tmp_path) -> Path:
    stored, labels = some_records(RECORDS)
    write_folder(
        tmp_path, {"train": stored}, helpers.SIZE, 40, "record", chunk_tokens=CHUNK_TOKENS,
        chunks_per_shard=6,
        columns=COLUMNS, labels={"train": labels},
    )  # fmt: skip
    return tmp_path


def test_shards_hold_columns_and_labels(folder):
    stored, labels = some_records(RECORDS)
    reader = ShardReader(folder)
    assert (reader.columns, reader.labels, reader.num_sequences) == (COLUMNS, 5, RECORDS)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    assert [len(chunk.sequences) for chunk in chunks] == reader.chunk_sizes.tolist() and len(chunks) > 15
    for number, name in enumerate(COLUMNS):
        expected = stored.take(np.arange(number, len(stored), 3))
        assert Ragged.concatenate([chunk.column(name) for chunk in chunks]) == expected
    assert Ragged.concatenate([chunk.sequences for chunk in chunks]) == stored.take(
        np.arange(0, len(stored), 3)
    )
    assert np.array_equal(np.concatenate([chunk.labels for chunk in chunks]), labels)
    assert np.array_equal(np.concatenate([chunk.sequence_ids for chunk in chunks]), np.arange(RECORDS))
    for chunk in chunks:
        assert (chunk.stored.ids[chunk.sentence_starts - 1] == helpers.CLS).all()
        assert len(chunk.sentence_starts) == (chunk.stored.lengths > 0).sum()


def test_views_are_made_of_their_columns(folder):
    """Record by record: the column, or the text where it is empty; never what belongs to another record."""
    stored, labels = some_records(RECORDS)
    absent = 0
    for batch in batches(folder, views=VIEWS):
        records = batch.sequence_ids.astype(np.int64)
        column = {name: stored.take(3 * records + number) for number, name in enumerate(COLUMNS)}
        assert batch.original == column["text"]
        assert (
            batch.masked[0].batch
            == mask_tokens(batch.original, keys(batch, 0, "mask"), helpers.VOCABULARY).batch
        )
        assert np.array_equal(batch.labels, labels[records]) and batch.labels.dtype == np.int64
        for number, spec in enumerate(VIEWS):
            rows = zip(column.get(spec.role.rstrip("2"), column["text"]), column["text"])
            source = Ragged.from_sequences([own if len(own) else text for own, text in rows])
            pipeline = build(spec.augmentation, helpers.VOCABULARY)
            view = batch.views[spec.role]
            assert view.tokens == pipeline(source, keys(batch, number, "augment"))
            assert np.array_equal(view.identities, sequence_identities(source))
            there = column["negative"].lengths > 0 if spec.role.startswith("negative") else np.ones(48, bool)
            assert np.array_equal(view.present, there) and view.present.dtype == bool
            absent += int((~there).sum())
    assert 0.4 < absent / (25 * 48 * 2) < 0.6
    assert number_of_labels(VIEWS[1], ShardReader(folder)) == 5


def keys(batch, number: int, purpose: str) -> np.ndarray:
    return sequence_keys(3, batch.epoch, batch.sequence_ids, number, purpose)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_same_batches_for_any_world_size_and_workers(folder, world_size, workers):
    assert_same_run(folder, batches(folder, views=VIEWS), world_size, workers, views=VIEWS)


def test_same_batches_however_steps_are_cut_into_blocks(folder, monkeypatch):
    expected = batches(folder, views=VIEWS)
    for size in (1, 5000):
        monkeypatch.setattr(loader_module, "BLOCK_SEQUENCES", size)
        for mine, theirs in zip(batches(folder, views=VIEWS), expected, strict=True):
            assert_same(mine, theirs)


@pytest.mark.parametrize("start", [1, 10, 23])
def test_resuming_anywhere_goes_on_with_the_same_batches(folder, start):
    rest = batches(folder, views=VIEWS, start_step=start, workers=2)
    for mine, theirs in zip(rest, batches(folder, views=VIEWS)[start:], strict=True):
        assert_same(mine, theirs)


@pytest.mark.parametrize("how", ["flip", "truncate", "remove"])
def test_damage_is_replaced_the_same_way_whoever_reads(folder, how):
    damage(folder, how)
    with pytest.raises(DamagedShard, match="shard-00000"):
        batches(folder, views=VIEWS)
    expected = batches(folder, views=VIEWS, damaged="skip")
    assert any(batch.substitutions for batch in expected)
    for world_size, workers in ((2, 0), (4, 0), (1, 2)):
        assert_same_run(folder, expected, world_size, workers, views=VIEWS, damaged="skip")


def test_columns_and_views_in_any_number(tmp_path):
    stored, _ = some_records(RECORDS)
    pairs = stored.take(np.arange(len(stored)).reshape(-1, 3)[:, :2].ravel())
    write_folder(
        tmp_path, {"train": pairs}, helpers.SIZE, 40, "record", chunk_tokens=400, columns=("text", "positive")
    )
    assert not ShardReader(tmp_path).labels and ShardReader(tmp_path).read(0).labels is None
    for roles in ((), ("negative",), ("positive", "positive2", "text")):
        views = [ViewSpec(role, "del-span") for role in roles]
        for batch in batches(tmp_path, views=views, stop_step=2, copies=0):
            assert tuple(batch.views) == roles and batch.labels is None
            if roles[2:]:
                first, second, text = batch.views.values()
                assert first.tokens != second.tokens and np.array_equal(first.identities, second.identities)
                assert np.array_equal(text.identities, sequence_identities(batch.original))


def test_negatives_made_of_the_text(tmp_path):
    """Without a column of negatives an augmentation makes them; what it leaves as it was is no negative."""
    sequences = helpers.some_sequences(RECORDS)
    write_folder(tmp_path, {"train": sequences}, helpers.SIZE, 40, chunk_tokens=CHUNK_TOKENS)
    present = []
    for batch in batches(tmp_path, views=helpers.views("none", "none", "repeat")):
        view = batch.views["negative"]
        for row in range(len(batch.original)):
            assert view.present[row] == (view.tokens[row].tolist() != batch.original[row].tolist())
        present.append(view.present)
    assert 0.5 < np.mean(present) < 1
    with pytest.raises(UserError, match=r"no column 'negative': .*clearly mine.* or set augment\.negative"):
        require_negatives(ShardReader(tmp_path, "train"), helpers.views("none", "none", "none"))


def test_a_column_longer_than_the_manifest_says(tmp_path):
    stored, _ = some_records(RECORDS)
    write_folder(
        tmp_path, {"train": stored}, helpers.SIZE, 20, "record", chunk_tokens=CHUNK_TOKENS, columns=COLUMNS
    )
    longest = int(stored.take(np.arange(0, len(stored), 3)).lengths.max())
    assert longest < stored.lengths.max() or longest == 39
    with pytest.raises(UserError, match=r"sequence \d+ of .* has \d+ tokens: raise .* max_length 38"):
        batches(tmp_path, views=VIEWS[:3:2], max_length=38)


def test_batches_without_repeated_anchors_or_answers(tmp_path):
    """An eighth of the texts is one of 30; some records lack a positive, and some have two."""
    random = np.random.default_rng(1)
    texts = [[helpers.CLS, *random.integers(5, helpers.SIZE, 9), helpers.SEP] for _ in range(2000)]
    rows = [texts[random.integers(0, 30) if random.random() < 0.125 else number] for number in range(2000)]
    for number in range(500):
        rows[4 * number + 2] = rows[4 * number + 2] if number % 3 else []
        rows[4 * number + 1] = rows[4 * number + 1] if number % 5 else []
    stored = Ragged.from_sequences(rows)
    columns = ("text", "positive", "positive2", "negative")
    write_folder(tmp_path, {"train": stored}, helpers.SIZE, 40, "record", chunk_tokens=1200, columns=columns)
    own = {"views": [ViewSpec(role, "none") for role in ("anchor", "positive", "positive2")]}
    own |= {"global_batch": 24, "stop_step": 60}

    def repeats(batch) -> int:
        records = zip(*(view.identities.tolist() for view in batch.views.values()))
        every = [text for record in records for text in set(record)]
        return len(every) - len(set(every))

    plain, whole = batches(tmp_path, **own), batches(tmp_path, no_duplicates=True, **own)
    assert sum(map(repeats, plain)) > 50
    last = {batch.step for batch in whole if repeats(batch)}
    assert all(step % 20 >= 17 for step in last) and sum(map(repeats, whole)) < 40, last
    for world_size, workers in ((2, 2), (3, 1)):
        assert_same_run(tmp_path, whole, world_size, workers, no_duplicates=True, **own)
    for mine, theirs in zip(
        batches(tmp_path, start_step=31, no_duplicates=True, **own), whole[31:], strict=True
    ):
        assert_same(mine, theirs)
    for epoch in range(3):
        drawn = np.concatenate([batch.sequence_ids for batch in whole[20 * epoch : 20 * (epoch + 1)]])
        assert len(np.unique(drawn)) == 480
