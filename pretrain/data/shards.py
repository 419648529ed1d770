"""Read shards: plain webdataset tars of chunks of some 64 thousand tokens, and their manifest.

A prepared folder::

    DATA/manifest.json
    DATA/tokenizer/               a Hugging Face fast tokenizer
    DATA/train/shard-00000.tar    000000.tokens.u16  000000.sequence_starts.u32  ...
    DATA/heldout/shard-00000.tar

Data of records has C columns: sequence k * C + c of a chunk is column c of record k, and what is counted are
records.

Members are raw little-endian arrays, never pickles. One member per sentence would cost 29 bytes of tar and
a Python call per token-sized scrap; a chunk per sample costs 4 kB of headers per 64k tokens. The manifest
keeps the byte range and the sha256 of every chunk inside its tar, so any chunk is one `pread`, checked
before it is believed, while `webdataset.WebDataset` still reads the same files as a stream.
"""

import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.data.annotation import Annotation
from pretrain.data.manifest import read_manifest

TOKEN_MEMBERS = {"uint16": ("u16", "<u2"), "int32": ("i32", "<i4")}
"""Type of tokens in the manifest -> (suffix of the member, numpy's name of its type)."""
LABELS, SCORES = ("labels.i32", "<i4"), ("scores.f32", "<f4")
"""Name of the member, and numpy's name of its type."""
_STARTS = ("sequence_starts", "sentence_starts", "document_starts")
_HASH = 4  # column of a shard's chunk rows in the manifest; the others are numbers


class DamagedShard(UserError):
    """A chunk that is missing, cut short or altered.

    Attributes: file (str, with the data folder), chunk (int), reason (str).
    """

    def __init__(self, file: str, chunk: int, reason: str):
        self.file, self.chunk, self.reason = str(file), int(chunk), reason
        super().__init__(
            f"Damaged shard {file}, chunk {chunk}: {reason}. Restore the file from a copy, or prepare the "
            "data again (clearly prepare); or train without the chunk: --data.damaged skip."
        )

    # the default would call __init__ with the message alone when a worker sends it home
    def __reduce__(self):
        return type(self), (self.file, self.chunk, self.reason)


@dataclass(slots=True, eq=False)
class Chunk:
    """What one sample of a shard holds: N sequences, or N records of C sequences each.

    stored: Ragged of N * C, int32 ids with special tokens; row k * C + c is column c of record k, empty if
    it has none.
    sequence_ids: uint64[N], number of each sequence or record in its split (the key of its randomness).
    sentence_starts: int64[S], index into `stored.ids` of the first token of every sentence (of a record's
    every text).
    document_starts: int64[D], the same for documents; empty for the units `sentence` and `record`, whose
    neighbours are strangers.
    columns: C names, the first of them "text". labels: int32[N] of records that have labels, float32[N]
    of records that have scores, else None.
    annotation: text and parse of every stored sequence, of data prepared with --annotate, else None.
    """

    stored: Ragged
    sequence_ids: np.ndarray
    sentence_starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    document_starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    columns: tuple[str, ...] = ("text",)
    labels: np.ndarray | None = None
    annotation: Annotation | None = None

    @property
    def sequences(self) -> Ragged:
        """The texts: every sequence, or the first column of every record."""
        return self.column("text")

    def column(self, name: str) -> Ragged:
        """One column, Ragged of N."""
        if len(self.columns) == 1:
            return self.stored
        return self.stored.take(np.arange(self.columns.index(name), len(self.stored), len(self.columns)))


class ShardReader:
    """Random access to the chunks of one split of a prepared folder; cheap to pickle and to open in a worker.

    chunk_sizes, chunk_tokens: int64[C]. annotation: what the manifest says of the parser, None of data that
    is not annotated. columns: ("text",) unless the data is of records, which then are what chunk_sizes and
    num_sequences count. labels: how many different labels the records may have, 0 without labels. scored:
    whether they have scores instead. content_hash: sha256 over the split's shards.
    """

    def __init__(self, folder: str | Path, split: str = "train"):
        self.folder, self.split = Path(folder), split
        self.manifest = read_manifest(folder)
        if split not in self.manifest["splits"]:
            raise UserError(f"{folder} has no split {split!r}; it has {', '.join(self.manifest['splits'])}.")
        summary = self.manifest["splits"][split]
        rows = [(number, *row) for number, shard in enumerate(summary["shards"]) for row in shard["chunks"]]
        self._files = [shard["file"] for shard in summary["shards"]]
        self._hashes = [row[1 + _HASH] for row in rows]
        table = np.array([row[: 1 + _HASH] for row in rows], np.int64).reshape(-1, 1 + _HASH)
        columns = np.ascontiguousarray(table.T)
        self._shard, self._offset, self._bytes, self.chunk_sizes, self.chunk_tokens = columns
        self._first = np.concatenate([[0], np.cumsum(self.chunk_sizes)]).astype(np.uint64)
        self._suffix, self._code = TOKEN_MEMBERS[self.manifest["token_dtype"]]
        self._open: dict[int, int] = {}
        self.num_chunks = len(rows)
        self.num_sequences, self.num_tokens = int(summary["sequences"]), int(summary["tokens"])
        self.unit, self.max_length = self.manifest["unit"], int(self.manifest["max_length"])
        self.columns = tuple(self.manifest.get("columns", ("text",)))
        self.labels = int(self.manifest.get("labels", 0))
        self.scored = "scores" in self.manifest
        self.annotation = self.manifest.get("annotation")
        self.tokenizer_hash = self.manifest["tokenizer_hash"]
        hashes = "".join(shard["sha256"] for shard in summary["shards"])
        self.content_hash = hashlib.sha256(hashes.encode()).hexdigest()
        self.tokenizer_path = self.folder / self.manifest["tokenizer"]

    shares: Sequence[float] = (1.0,)
    """Of the steps, one for each of its parts, adding up to 1."""

    @property
    def parts(self) -> list["ShardReader"]:
        """The readers of which it is made: itself, or one for each of several sets."""
        return [self]

    def read(self, chunk: int) -> Chunk:
        """Read one chunk, verified against the manifest's sha256. Raises DamagedShard."""
        from webdataset.tariterators import tar_file_iterator

        fragment = self._fragment(chunk)
        file = self.folder / self._files[self._shard[chunk]]
        if hashlib.sha256(fragment).hexdigest() != self._hashes[chunk]:
            raise DamagedShard(file, chunk, "its bytes do not match the sha256 in the manifest")
        try:
            items = tar_file_iterator(io.BytesIO(fragment))
            members = {item["fname"].split(".", 1)[1]: item["data"] for item in items}
            tokens = np.frombuffer(members[f"tokens.{self._suffix}"], self._code)
            starts = [np.frombuffer(members[f"{name}.u32"], "<u4").astype(np.int64) for name in _STARTS]
            name, code = SCORES if self.scored else LABELS
            labels = np.frombuffer(members[name], code) if self.labels or self.scored else None
            annotation = Annotation(members, self.annotation["language"]) if self.annotation else None
        except KeyError as error:
            raise DamagedShard(file, chunk, f"it has no {error.args[0]}") from error
        except Exception as error:  # tarfile and numpy raise many kinds; all mean the same to the reader
            raise DamagedShard(file, chunk, f"not a readable chunk ({error})") from error
        sequence_starts, sentence_starts, document_starts = starts
        count, length = int(self.chunk_sizes[chunk]), int(self.chunk_tokens[chunk])
        texts = count * len(self.columns)
        counted = [("sequences", len(sequence_starts), texts), ("tokens", len(tokens), length)]
        if annotation is not None:
            counted.append(("annotated texts", len(annotation), texts))
        for what, found, wanted in counted:
            if found != wanted:
                raise DamagedShard(file, chunk, f"{found} {what} instead of {wanted}")
        if fault := self._out_of_range(count, tokens, starts, labels):
            raise DamagedShard(file, chunk, fault)
        offsets = np.append(sequence_starts, np.int64(length))
        ids = np.arange(self._first[chunk], self._first[chunk + 1], dtype=np.uint64)
        stored = Ragged(tokens.astype(np.int32), offsets)
        return Chunk(stored, ids, sentence_starts, document_starts, self.columns, labels, annotation)

    def _out_of_range(
        self, count: int, tokens: np.ndarray, starts: list[np.ndarray], labels: np.ndarray | None
    ) -> str | None:
        """Say what is out of range in a chunk whose bytes are as they were written.

        A hash does not say who wrote them.
        """
        if tokens.min(initial=0) < 0:
            return f"token {tokens.min()} is negative"
        if len(starts[0]) and starts[0][0] != 0:
            return f"its first sequence starts at token {starts[0][0]}"
        for name, array in zip(_STARTS, starts):
            if (np.diff(array) < 0).any() or array.max(initial=0) > len(tokens):
                return f"its {name} do not rise from 0 to {len(tokens)}"
        if labels is None:
            return None
        if self.scored:
            good, what = np.isfinite(labels).all(), "scores"
        else:
            good = (labels >= 0).all() and labels.max(initial=0) < self.labels
            what = f"labels from 0 to {self.labels - 1}"
        return None if good and len(labels) == count else f"it does not have {count} {what}"

    def _fragment(self, chunk: int) -> bytes:
        number, size = int(self._shard[chunk]), int(self._bytes[chunk])
        file = self.folder / self._files[number]
        try:
            if number not in self._open:
                # far below the usual limit of 1024 files, even with several readers
                if len(self._open) >= 64:
                    os.close(self._open.pop(next(iter(self._open))))
                self._open[number] = os.open(file, os.O_RDONLY)
            fragment = os.pread(self._open[number], size, int(self._offset[chunk]))
        except FileNotFoundError as error:
            raise DamagedShard(file, chunk, "the file is missing") from error
        except OSError as error:
            raise DamagedShard(file, chunk, f"cannot be read ({error.strerror})") from error
        if len(fragment) != size:
            raise DamagedShard(file, chunk, f"cut short, {len(fragment)} of {size} bytes")
        return fragment

    def close(self) -> None:
        """Close the open files; reading again opens them anew."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_open": {}}  # file descriptors do not travel to another process

    def __del__(self):
        if getattr(self, "_open", None) and os is not None:  # at the interpreter's end modules go first
            self.close()


class MixedShardReader(ShardReader):
    """A split of several prepared folders, read as one: chunks and sequences are numbered set after set.

    Columns are all that any set has: a record lacks those that its own set has not, as records may. What a
    reader says of its data besides (folder, manifest, unit, tokenizer) is the first set's. Text and parse are
    there if all sets have the same columns, parsed alike.
    """

    def __init__(self, parts: Sequence[ShardReader], weights: Sequence[float]) -> None:
        first, *others = self._parts = list(parts)
        self._open = {}  # the files are the parts'
        for other in others:
            if other.tokenizer_hash != first.tokenizer_hash:
                raise UserError(f"{other.folder}: prepare it with --tokenizer {first.tokenizer_path}")
            if other.scored != first.scored:
                both = f"{first.folder} and {other.folder}"
                raise UserError(f"data.sets: of {both} one alone has scores: give all, or none")
            if other.labels != first.labels:
                counts = f"{first.folder} {first.labels}, {other.folder} {other.labels}"
                raise UserError(f"data.sets: labels differ: {counts}; give all the same labels, or none")
        self.shares = [weight / sum(weights) for weight in weights]
        self.folder, self.split, self.manifest = first.folder, first.split, first.manifest
        self.chunk_sizes = np.concatenate([part.chunk_sizes for part in parts])
        self.chunk_tokens = np.concatenate([part.chunk_tokens for part in parts])
        self.num_chunks, self.labels, self.scored = len(self.chunk_sizes), first.labels, first.scored
        self.num_sequences = sum(part.num_sequences for part in parts)
        self.num_tokens = sum(part.num_tokens for part in parts)
        self.unit, self.max_length = first.unit, max(part.max_length for part in parts)
        self.columns = tuple(dict.fromkeys(column for part in parts for column in part.columns))
        alike = all((part.columns, part.annotation) == (first.columns, first.annotation) for part in others)
        self.annotation = first.annotation if alike else None
        self.tokenizer_hash, self.tokenizer_path = first.tokenizer_hash, first.tokenizer_path
        order = [(part.content_hash, share) for part, share in zip(parts, self.shares)]
        self.content_hash = hashlib.sha256(repr(order).encode()).hexdigest()
        self._first_chunk = np.cumsum([0, *(part.num_chunks for part in parts)])
        self._first_sequence = np.cumsum([0, *(part.num_sequences for part in parts)])

    @property
    def parts(self) -> list[ShardReader]:
        return self._parts

    def read(self, chunk: int) -> Chunk:
        """As `ShardReader.read`; columns that the chunk's set has not are empty."""
        number = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        own = self._parts[number].read(chunk - int(self._first_chunk[number]))
        ids = own.sequence_ids + np.uint64(self._first_sequence[number])
        if own.columns == self.columns:
            return replace(own, sequence_ids=ids)
        records, nothing = np.arange(len(ids)), len(own.stored)
        rows = np.full((len(ids), len(self.columns)), nothing)
        for column in own.columns:
            rows[:, self.columns.index(column)] = records * len(own.columns) + own.columns.index(column)
        empty = Ragged(np.empty(0, np.int32), np.zeros(2, np.int64))
        stored = Ragged.concatenate([own.stored, empty]).take(rows.ravel())
        return replace(own, stored=stored, sequence_ids=ids, columns=self.columns, annotation=None)

    def close(self) -> None:
        for part in self._parts:
            part.close()
