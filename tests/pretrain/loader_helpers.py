"""What loader tests and the processes that they start share."""

import multiprocessing
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from pretrain.common.processes import stat_fields
from pretrain.data.batch import BatchSpec, RankBatch, ViewSpec
from pretrain.data.loader import Loader, LoaderSettings, Position
from pretrain.data.manifest import FORMAT
from pretrain.data.masking import Masking
from pretrain.data.shard_writer import (
    ShardWriter,
    chunk_bounds,
    split_summary,
    token_dtype,
    write_manifest,
)
from pretrain.data.shards import ShardReader

SIZE = 300
PAD, CLS, SEP, MASK, DEL = range(5)
_special = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(
    SIZE, PAD, CLS, SEP, MASK, DEL, _special, np.ones(SIZE, bool), np.where(_special, 0, 1).astype(np.uint8)
)


def write_folder(
    folder: str | Path,
    splits: dict[str, Ragged],
    vocabulary_size: int,
    max_length: int,
    unit: str = "sentence",
    tokenizer_hash: str = "",
    chunk_tokens: int = 65536,
    chunks_per_shard: int = 1024,
    columns: tuple[str, ...] = ("text",),
    labels: dict[str, np.ndarray] | None = None,
) -> dict:
    """Write tokenised sequences as a prepared folder, in the order given; return the manifest.

    Every sequence counts as one sentence that begins after its first (special) token.

    columns: of more than one, each split has the columns of its records in turn (`Chunk.stored`). labels: of
    every split, int[records].
    """
    folder, dtype = Path(folder), token_dtype(vocabulary_size)
    summaries, width = {}, len(columns)
    for split, sequences in splits.items():
        cuts = chunk_bounds(np.diff(sequences.offsets[::width]), chunk_tokens)
        records: list[dict[str, Any]] = []
        for first in range(0, len(cuts) - 1, chunks_per_shard):
            with ShardWriter(folder / split / f"shard-{len(records):05d}.tar", dtype) as shard:
                for start, stop in zip(cuts[first : first + chunks_per_shard], cuts[first + 1 :]):
                    part = sequences.slice(int(start) * width, int(stop) * width)
                    starts = part.offsets[:-1][part.lengths > 0] + 1
                    of_part = None if labels is None else labels[split][start:stop]
                    shard.write(part, starts, columns=width, labels=of_part)
            records.append(shard.record)
        summaries[split] = split_summary(records)
    manifest = {
        "format": FORMAT,
        "unit": unit,
        "max_length": max_length,
        **({"columns": list(columns)} if width > 1 else {}),
        **({"labels": max(int(array.max(initial=-1)) for array in labels.values()) + 1} if labels else {}),
        "vocabulary_size": vocabulary_size,
        "token_dtype": dtype,
        "tokenizer": "tokenizer",
        "tokenizer_hash": tokenizer_hash,
        "splits": summaries,
    }
    write_manifest(folder, manifest)
    return manifest


def some_sequences(count: int, seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 38, count)
    return Ragged.from_sequences([[CLS, *random.integers(5, SIZE, length), SEP] for length in lengths])


def views(*augmentations: str) -> list[ViewSpec]:
    """An anchor, a positive and a negative, or as many of them as there are augmentations."""
    return [
        ViewSpec(role, augmentation)
        for role, augmentation in zip(("anchor", "positive", "negative"), augmentations)
    ]


def make_loader(folder: str | Path, vocabulary: Vocabulary = VOCABULARY, **changes: Any) -> Loader:
    """A loader of 25 steps of 48 sequences from 8 lanes, save for `changes`: fields of what it takes."""
    values = {
        "seed": 3,
        "global_batch": 48,
        "lanes": 8,
        "views": views("del-span,reorder", "del-span,reorder"),
        "start_step": 0,
        "stop_step": 25,
        "vocabulary": vocabulary,
        **changes,
    }

    def of(kind: type, **more: Any) -> Any:
        given = {field.name: values.pop(field.name) for field in fields(kind) if field.name in values}
        return kind(**given, **more)

    arguments = of(BatchSpec, masking=of(Masking)), of(LoaderSettings), of(Position)
    assert not values, f"unknown: {values}"
    return Loader(ShardReader(folder), *arguments)


def batches(folder: Path, **changes) -> list[RankBatch]:
    return list(make_loader(folder, **changes))


def assert_same(first: RankBatch, second: RankBatch) -> None:
    assert (first.step, first.epoch) == (second.step, second.epoch)
    assert np.array_equal(first.sequence_ids, second.sequence_ids)
    assert first.original == second.original
    assert list(first.views) == list(second.views)
    for mine, theirs in zip(first.views.values(), second.views.values()):
        assert mine.tokens == theirs.tokens
        for one, other in ((mine.identities, theirs.identities), (mine.present, theirs.present)):
            assert one.dtype == other.dtype and np.array_equal(one, other)
    assert (first.labels is None) == (second.labels is None)
    assert first.labels is None or np.array_equal(first.labels, second.labels)
    assert len(first.masked) == len(second.masked)
    for mine, theirs in zip(first.masked, second.masked):
        assert mine.batch == theirs.batch
        assert np.array_equal(mine.positions, theirs.positions)
        assert np.array_equal(mine.labels, theirs.labels)
    assert first.substitutions == second.substitutions
    assert np.array_equal(first.words, second.words)


def assert_same_run(
    folder: Path, expected: list[RankBatch], world_size: int, workers: int, **changes
) -> None:
    ranks = [
        batches(folder, rank=rank, world_size=world_size, workers=workers, **changes)
        for rank in range(world_size)
    ]
    assert all(len(rank) == len(expected) for rank in ranks)
    for number, batch in enumerate(expected):
        assert_same(RankBatch.concatenate([rank[number] for rank in ranks]), batch)


def damage(folder: Path, how: str) -> tuple[int, bytes]:
    """Damage the first shard; returns (chunks that suffer, the good bytes)."""
    path = folder / "train" / "shard-00000.tar"
    good = path.read_bytes()
    if how == "flip":
        reader = ShardReader(folder)
        offset = int(reader._offset[2] + reader._bytes[2] // 2)
        path.write_bytes(good[:offset] + bytes([good[offset] ^ 1]) + good[offset + 1 :])
        return 1, good
    if how == "truncate":
        path.write_bytes(good[: len(good) // 2])
    else:
        path.unlink()
    return 6, good


def children() -> set[int]:
    """Process numbers of the worker processes of this one.

    Not those in /proc/PID/task/PID/children: the kernel may leave out some while another ends.
    """
    return {process.pid for process in multiprocessing.active_children()}


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or waits for its parent to notice: its last thread has ended, too."""
    fields = stat_fields(pid)
    return not fields or (fields[0] in "ZX" and int(fields[17]) <= 1)
