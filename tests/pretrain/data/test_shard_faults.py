"""Every fault at every operation of what a preparation writes: shards, run files, tokenizer, manifest."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from export_helpers import make_tokenizer
from loader_helpers import write_folder
from write_faults import Subject, require_all

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.common.files import sha256_of
from pretrain.data.manifest import MANIFEST
from pretrain.data.shard_writer import ShardWriter
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import save_tokenizer, tokenizer_hash
from pretrain.prepare.buckets import TEXT_RECORD, RunWriter, open_runs
from pretrain.prepare.work_folder import BuiltShards

ERRORS = (UserError, OSError)


def some_sequences(count: int = 12) -> Ragged:
    generator = np.random.default_rng(count)
    lengths = generator.integers(3, 9, count)
    return Ragged(
        generator.integers(0, 90, lengths.sum()).astype(np.int32), np.concatenate([[0], np.cumsum(lengths)])
    )


def test_a_folder_with_a_manifest_is_whole(tmp_path):
    sequences = some_sequences()

    def act(folder: Path) -> None:
        write_folder(folder / "data", {"train": sequences}, 100, 16, chunk_tokens=30, chunks_per_shard=2)

    def find(folder: Path) -> str:
        if not (folder / "data" / MANIFEST).is_file():
            return "old"
        reader = ShardReader(folder / "data")
        chunks = [reader.read(number).sequences for number in range(reader.num_chunks)]
        assert Ragged.concatenate(chunks) == sequences
        return "new"

    cases = require_all(Subject(act, find, errors=ERRORS), tmp_path, least=18)
    assert cases.found == {"old", "new"}


def test_a_shard_is_there_before_its_record_says_so(tmp_path):
    """As a task of a preparation writes them: the manifest is made of the records alone."""

    def act(folder: Path) -> None:
        path, work = folder / "train" / "shard-00000.tar", folder / ".work"
        with ShardWriter(path, "uint16", work / "partial") as shard:
            shard.write(some_sequences())
        BuiltShards(counts={}, shards={"train": shard.record}).write(work)

    def find(folder: Path) -> str:
        if not BuiltShards.exists(folder / ".work"):
            return "old"
        record = BuiltShards.read(folder / ".work").shards["train"]
        assert sha256_of(folder / record["file"]) == record["sha256"]
        return "new"

    require_all(Subject(act, find, errors=ERRORS), tmp_path, least=18)


def marked(write: Callable[[Path], None], check: Callable[[Path], None]) -> Subject:
    """A task that datatrove marks as done, by a file of its own which is on the disk at once."""

    def act(folder: Path) -> None:
        write(folder)
        (folder / "done").write_bytes(b"")

    def find(folder: Path) -> str:
        if not (folder / "done").exists():
            return "old"
        check(folder)
        return "new"

    return Subject(act, find, errors=ERRORS, durable=False)


def test_a_run_file_is_there_before_its_task_is_marked(tmp_path):
    def write(folder: Path) -> None:
        writer = RunWriter(folder / "texts", "00000", 4, TEXT_RECORD)
        for number in range(20):
            text = f"text {number}".encode()
            writer.add((number << 58, len(text), 0, 0), text)
        writer.flush()

    def check(folder: Path) -> None:
        (run,) = open_runs(folder / "texts", 4, TEXT_RECORD)
        assert sum(len(run.records(bucket)) for bucket in range(4)) == 20
        assert b"text 0text 1" in b"".join(run.text(bucket).tobytes() for bucket in range(4))

    require_all(marked(write, check), tmp_path, least=8)


def test_a_tokenizer_is_there_before_its_task_is_marked(tmp_path):
    tokenizer = make_tokenizer()

    def check(folder: Path) -> None:
        assert len(tokenizer_hash(folder)) == 64

    subject = marked(lambda folder: save_tokenizer(tokenizer, folder / "tokenizer"), check)
    # the names are drawn: what a kill leaves lies in the work folder, and goes with it
    subject.same = lambda path: "" if ".tokenizer." in path else path
    require_all(subject, tmp_path, least=8)
