"""Every fault at every operation of a cache of augmented sentences: a shard, and the stage after which the
folder counts as prepared data."""

from pathlib import Path

import numpy as np
import pytest
from cache_helpers import make, records_of
from export_helpers import make_tokenizer
from loader_helpers import write_folder
from prepare_helpers import digest
from write_faults import Subject, require_all

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import save_tokenizer, tokenizer_hash
from pretrain.prepare.cache.run import AugmentedShard, AugmentShard, MergeCache

COLUMNS = {"augmented": "del-word:rate=0.5|reorder"}
ERRORS = (UserError, OSError)


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """Prepared data of two splits, a shard each."""
    folder, draw = tmp_path_factory.mktemp("texts") / "data", np.random.default_rng(0)
    save_tokenizer(make_tokenizer(), folder / "tokenizer")
    rows = [[1, *draw.integers(6, 25, draw.integers(3, 11)), 2] for _ in range(20)]  # [CLS] ... [SEP]
    sequences = Ragged(np.concatenate(rows).astype(np.int32), np.cumsum([0, *map(len, rows)]))
    splits = {"train": sequences, "heldout": sequences.slice(0, 5)}
    write_folder(folder, splits, 64, 16, tokenizer_hash=tokenizer_hash(folder), chunk_tokens=60)
    return folder


class _Stopped(BaseException):
    """As a kill: nothing catches it."""


def before(stage: type, texts: Path, folder: Path) -> None:
    """Make a cache up to a stage."""

    def stop(*_: object, **__: object) -> None:
        raise _Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "run", stop)
        with pytest.raises(_Stopped):
            make(texts, folder / "cache", COLUMNS)


def test_a_shard_of_a_cache_is_there_before_its_record_says_so(texts, tmp_path):
    run = AugmentShard.run

    def find(folder: Path) -> str:
        if not AugmentedShard.exists(folder / "cache" / ".work"):
            return "old"
        record = AugmentedShard.read(folder / "cache" / ".work").shard
        assert sha256_of(folder / "cache" / record["file"]) == record["sha256"]
        return "new"

    subject = Subject(
        act=lambda folder: run(AugmentShard(folder / "cache" / ".work"), rank=0),
        find=find,
        make=lambda folder: before(AugmentShard, texts, folder),
        errors=ERRORS,
    )
    assert require_all(subject, tmp_path, least=12, every=3).found == {"old", "new"}


def test_a_cache_that_counts_as_prepared_data_is_whole(texts, tmp_path):
    run = MergeCache.run

    def find(folder: Path) -> str:
        data = folder / "cache"
        if not (data / MANIFEST).is_file():
            return "old"
        for split, count in (("train", 20), ("heldout", 5)):
            columns, labels = records_of(data, split)
            assert [len(column) for column in (*columns.values(), labels)] == [count] * 3
        assert tokenizer_hash(data) == ShardReader(data).manifest["tokenizer_hash"]
        return "new"

    subject = Subject(
        act=lambda folder: run(MergeCache(folder / "cache" / ".work")),
        find=find,
        make=lambda folder: before(MergeCache, texts, folder),
        errors=ERRORS,
    )
    assert require_all(subject, tmp_path / "cases", least=12, every=3).found == {"old", "new"}
    # and what is whole is what an undisturbed command makes
    make(texts, tmp_path / "whole", COLUMNS)
    done = digest(tmp_path / "cases" / "recorded" / "cache")
    assert {name: one for name, one in done.items() if not name.startswith(".work")} == digest(
        tmp_path / "whole"
    )
