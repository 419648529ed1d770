"""Sort externally, for shuffling and de-duplication: records are scattered into K buckets by their hash.

A reading task writes run files, each sorted by bucket, with an index in front; a bucket is then the
concatenation of its slices over all runs. Equal texts have equal hashes, so all copies meet in one bucket,
and a bucket sorted by a mixed hash is a random sample of the corpus in random order: shuffle and
de-duplication are one pass over the data, in memory that K bounds.

Run file: K+1 record bounds (int64), K+1 text bounds (int64), the records (fixed width), the texts (UTF-8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from augment.core.keys import mix
from pretrain.common.files import make_folder
from pretrain.data.shard_writer import write_atomically

RUN_BYTES = 32 << 20  # text buffered before a run is written: bounds the memory of a reading task
TEXT_RECORD = np.dtype([("key", "<u8"), ("bytes", "<u4"), ("source", "<u2"), ("heldout", "<u2")])
SIGNATURE = np.dtype([("key", "<u8"), ("document", "<u8"), ("index", "<u4"), ("heldout", "<u4")])
DROPPED = np.dtype([("key", "<u8"), ("index", "<u4")])  # a sentence that leaves the document of a key
_BELOW_1 = 2.0**-64


def text_key(text: bytes, seed: int) -> int:
    """Return the 64-bit identity of a text; of 200 million two share one with odds of 1 in 1,000."""
    return xxhash.xxh3_64_intdigest(text, seed)


def mixed(keys: np.ndarray, salt: int) -> np.ndarray:
    """Return a fresh random-looking uint64 for each key and salt."""
    return mix(keys + np.uint64((salt * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & (2**64 - 1)))


def fraction(keys: np.ndarray, salt: int) -> np.ndarray:
    """Return a float64 in [0, 1) for each key: the draw of every sampling decision, by the text alone."""
    return mixed(keys, salt) * _BELOW_1


def is_below(number: int, share: float) -> bool:
    """Return whether the draw of one hash (a `mixed` key) is below `share`."""
    return number * _BELOW_1 < share


def bucket_of(keys: np.ndarray, buckets: int) -> np.ndarray:
    """Return the bucket of every key, int64: bucket b holds one contiguous range of keys."""
    return ((keys >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)


class RunWriter:
    """Collects records, and texts if the dtype has `bytes`, and writes run files `folder/prefix-NNNN.run`."""

    def __init__(self, folder: Path, prefix: str, buckets: int, dtype: np.dtype, limit: int = RUN_BYTES):
        self.folder, self.prefix, self.buckets, self.dtype, self.limit = folder, prefix, buckets, dtype, limit
        self._records: list[tuple] = []
        self._texts: list[bytes] = []
        self._size = self._runs = 0

    def add(self, record: tuple, text: bytes = b"") -> None:
        """Add one record, in the order of the dtype's fields."""
        self._records.append(record)
        if text:
            self._texts.append(text)
        self._size += len(text) + 96  # what the Python objects around a record cost
        if self._size >= self.limit:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered as one run. Raises: UserError when the disk is full."""
        if not self._records:
            return
        records = np.array(self._records, self.dtype)
        bucket = bucket_of(records["key"], self.buckets)
        order = np.argsort(bucket, kind="stable")
        bounds = np.searchsorted(bucket[order], np.arange(self.buckets + 1))
        sizes = records["bytes"].astype(np.int64)[order] if self._texts else np.zeros(len(order), np.int64)
        text_bounds = np.concatenate([[0], np.cumsum(sizes)])[bounds]
        path = self.folder / f"{self.prefix}-{self._runs:04d}.run"
        header = np.concatenate([bounds, text_bounds]).astype("<i8").tobytes()
        make_folder(self.folder)
        texts = map(self._texts.__getitem__, order.tolist()) if self._texts else ()
        write_atomically(path, b"".join((header, records[order].tobytes(), *texts)))
        self._records, self._texts, self._size = [], [], 0
        self._runs += 1


@dataclass(frozen=True)
class RunFile:
    """A run file, whose index is read on demand: all indices are tasks x K numbers."""

    path: Path
    dtype: np.dtype
    buckets: int

    def _bound(self, kind: int, bucket: int) -> int:
        """Return where a bucket begins, in records (kind 0) or text bytes (1); `bucket` = K: the total."""
        return int(np.fromfile(self.path, "<i8", 1, offset=8 * (kind * (self.buckets + 1) + bucket))[0])

    def text_bytes(self, bucket: int) -> int:
        """Return the bytes of text in a bucket."""
        return self._bound(1, bucket + 1) - self._bound(1, bucket)

    def records(self, bucket: int, until: int | None = None) -> np.ndarray:
        """Return the records of buckets bucket..until-1 (one bucket by default)."""
        first = self._bound(0, bucket)
        count = self._bound(0, bucket + 1 if until is None else until) - first
        start = 16 * (self.buckets + 1) + first * self.dtype.itemsize
        return np.fromfile(self.path, self.dtype, count, offset=start)

    def text(self, bucket: int) -> np.ndarray:
        """Return the texts of a bucket, uint8[...], end to end, in the order of its records."""
        start = 16 * (self.buckets + 1) + self._bound(0, self.buckets) * self.dtype.itemsize
        size, place = self.text_bytes(bucket), start + self._bound(1, bucket)
        return np.fromfile(self.path, np.uint8, size, offset=place)


def open_runs(folder: Path, buckets: int, dtype: np.dtype) -> list[RunFile]:
    """Return the runs of a folder in the order of their names, which is the order of the reading tasks."""
    return [RunFile(path, dtype, buckets) for path in sorted(folder.glob("*.run"))]


@dataclass
class Texts:
    """Records with their texts. records: TEXT_RECORD[n]; blob: uint8[...]; starts: int64[n] into blob."""

    records: np.ndarray
    blob: np.ndarray
    starts: np.ndarray

    def decode(self, rows: Sequence[int] | np.ndarray) -> list[str]:
        """Return the texts of some rows."""
        starts, sizes = self.starts[rows].tolist(), self.records["bytes"][rows].tolist()
        view = self.blob.data
        return [str(view[a : a + n], "utf-8") for a, n in zip(starts, sizes)]


def load_texts(runs: list[RunFile], bucket: int, part: int = 0, parts: int = 1) -> Texts:
    """Return the texts of a bucket whose mixed key falls into part `part` of `parts`, by run.

    Reading a bucket that outgrew its bound in several parts costs one more scan of it per part, and keeps
    the memory where it was promised.
    """
    all_records, blobs = [], []
    for run in runs:
        records = run.records(bucket)
        if not len(records):
            continue
        blob = run.text(bucket)
        if parts > 1:
            keep = mixed(records["key"], _PART_SALT) % np.uint64(parts) == part
            blob = blob[np.repeat(keep, records["bytes"])]
            records = records[keep]
        all_records.append(records)
        blobs.append(blob)
    records = np.concatenate(all_records) if all_records else np.empty(0, TEXT_RECORD)
    blob = np.concatenate(blobs) if blobs else np.empty(0, np.uint8)
    return Texts(records, blob, np.cumsum(records["bytes"], dtype=np.int64) - records["bytes"])


_PART_SALT = 1
HELDOUT_SALT = 2
WEIGHT_SALT = 3
SAMPLE_SALT = 4
SEQUENCE_SALT = 5
ORDER_SALT = 16  # plus the number of the copy
