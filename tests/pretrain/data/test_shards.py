"""Shards: what is written is what is read, damage is found and named, and a full disk leaves nothing
behind."""

import errno
import json
import pickle

import numpy as np
import pytest
import webdataset
from loader_helpers import write_folder

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.data.manifest import read_manifest
from pretrain.data.shard_writer import ShardWriter, chunk_bounds
from pretrain.data.shards import DamagedShard, ShardReader


def some_sequences(count: int = 300, vocabulary: int = 1000, seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    return Ragged.from_sequences(
        [random.integers(0, vocabulary, random.integers(3, 40)) for _ in range(count)]
    )


@pytest.fixture
def folder(tmp_path):
    write_folder(
        tmp_path / "data",
        {"train": some_sequences(), "heldout": some_sequences(40, seed=1)},
        1000,
        64,
        chunk_tokens=500,
        chunks_per_shard=4,
    )
    return tmp_path / "data"


@pytest.mark.parametrize("sequence", [0, 150, 299])
def test_the_content_hash_is_of_every_shard(tmp_path, folder, sequence):
    """One token of the first, of a middle or of the last shard is other data."""
    sequences = some_sequences()
    ids = sequences.ids.copy()
    ids[sequences.offsets[sequence]] ^= 1
    same, other = tmp_path / "same", tmp_path / "other"
    for place, content in ((same, sequences), (other, Ragged(ids, sequences.offsets))):
        write_folder(place, {"train": content}, 1000, 64, chunk_tokens=500, chunks_per_shard=4)
    assert len(read_manifest(other)["splits"]["train"]["shards"]) > 2
    assert (
        ShardReader(same).content_hash == ShardReader(folder).content_hash != ShardReader(other).content_hash
    )
    assert ShardReader(folder).content_hash != ShardReader(folder, "heldout").content_hash


@pytest.mark.parametrize("vocabulary,dtype", [(65536, "uint16"), (65537, "int32")])
def test_reads_what_was_written(tmp_path, vocabulary, dtype):
    sequences = some_sequences(vocabulary=vocabulary)
    manifest = write_folder(
        tmp_path, {"train": sequences}, vocabulary, 64, chunk_tokens=500, chunks_per_shard=4
    )
    assert manifest["token_dtype"] == dtype
    reader = ShardReader(tmp_path)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    joined = Ragged.concatenate([chunk.sequences for chunk in chunks])
    assert joined == sequences
    assert np.array_equal(np.concatenate([c.sequence_ids for c in chunks]), np.arange(300, dtype=np.uint64))
    assert [len(c.sequences) for c in chunks] == reader.chunk_sizes.tolist()
    assert [c.sequences.num_tokens for c in chunks] == reader.chunk_tokens.tolist()
    assert reader.num_tokens == sequences.num_tokens and reader.num_sequences == 300
    assert all(np.array_equal(c.sentence_starts, c.sequences.offsets[:-1] + 1) for c in chunks)


def test_chunk_bounds_cover_everything_once():
    lengths = np.random.default_rng(2).integers(1, 900, 500)
    bounds = chunk_bounds(lengths, 1000)
    assert bounds[0] == 0 and bounds[-1] == 500 and (np.diff(bounds) > 0).all()
    sizes = np.add.reduceat(lengths, bounds[:-1])
    assert (sizes[:-1] > 100).all() and sizes.max() <= 1000 + 900
    assert chunk_bounds(np.empty(0, np.int64), 10).tolist() == [0]


def test_webdataset_reads_the_same_files(folder):
    reader = ShardReader(folder)
    files = [str(folder / shard["file"]) for shard in reader.manifest["splits"]["train"]["shards"]]
    assert len(files) > 1
    samples = list(webdataset.WebDataset(files, shardshuffle=False, empty_check=False))
    assert len(samples) == reader.num_chunks
    for number, sample in enumerate(samples):
        assert np.array_equal(np.frombuffer(sample["tokens.u16"], "<u2"), reader.read(number).sequences.ids)


def test_same_arrays_same_bytes(tmp_path):
    for name in "ab":
        write_folder(tmp_path / name, {"train": some_sequences()}, 1000, 64, chunk_tokens=500)
    tars = [(tmp_path / name / "train/shard-00000.tar").read_bytes() for name in "ab"]
    assert tars[0] == tars[1] and read_manifest(tmp_path / "a") == read_manifest(tmp_path / "b")


def test_an_altered_byte_is_found_and_named(folder):
    file = folder / "train/shard-00001.tar"
    reader = ShardReader(folder)
    reader.read(5)  # an open file must not hide the change
    raw = bytearray(file.read_bytes())
    position = reader.manifest["splits"]["train"]["shards"][1]["chunks"][1][0] + 700
    raw[position] ^= 1
    file.write_bytes(bytes(raw))
    with pytest.raises(DamagedShard, match=r"shard-00001\.tar, chunk 5.*sha256") as caught:
        ShardReader(folder).read(5)
    assert (caught.value.file, caught.value.chunk) == (str(folder / "train/shard-00001.tar"), 5)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), DamagedShard)
    ShardReader(folder).read(4)


@pytest.mark.parametrize("counts, what", [("chunk_sizes", "sequences"), ("chunk_tokens", "tokens")])
def test_a_chunk_of_other_counts_than_the_manifests_is_damaged(folder, counts, what):
    reader = ShardReader(folder)
    others = getattr(reader, counts).copy()
    others[5] -= 1
    setattr(reader, counts, others)
    reader.read(4)
    with pytest.raises(DamagedShard, match=rf"chunk 5: {others[5] + 1} {what} instead of {others[5]}"):
        reader.read(5)


def test_a_truncated_and_a_missing_file(folder):
    reader = ShardReader(folder)
    file = folder / "train/shard-00000.tar"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DamagedShard, match="cut short"):
        reader.read(3)
    file.unlink()
    with pytest.raises(DamagedShard, match="missing"):
        ShardReader(folder).read(0)


def test_a_reader_travels_to_another_process(folder):
    reader = ShardReader(folder)
    first = reader.read(0)
    assert pickle.loads(pickle.dumps(reader)).read(0).sequences == first.sequences


def test_a_full_disk_is_one_clear_error_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "train" / "shard-00000.tar"
    writer = ShardWriter(path, "uint16")

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="No space left"), writer:
        monkeypatch.setattr(writer._tar, "write", full)
        writer.write(some_sequences(5))
    assert list(path.parent.iterdir()) == []


def test_an_interrupted_shard_leaves_nothing(tmp_path):
    path = tmp_path / "train" / "shard-00000.tar"
    with pytest.raises(KeyboardInterrupt), ShardWriter(path, "uint16") as writer:
        writer.write(some_sequences(5))
        raise KeyboardInterrupt
    assert list(path.parent.iterdir()) == []


def test_folders_that_are_not_prepared_data(tmp_path, folder):
    with pytest.raises(UserError, match="clearly prepare"):
        ShardReader(tmp_path)
    with pytest.raises(UserError, match="no split 'test'"):
        ShardReader(folder, "test")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": "other"}))
    with pytest.raises(UserError, match="format 'other'"):
        ShardReader(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        ShardReader(folder)
