"""Write shards and their manifest: atomically, and with the same bytes for the same data.

`pretrain.data.shards` describes the format.
"""

import contextlib
import errno
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.ragged import Ragged
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST
from pretrain.data.shards import LABELS, SCORES, TOKEN_MEMBERS

_OFFSET, _BYTES, _SEQUENCES, _TOKENS = range(4)  # columns of a shard's chunk rows in the manifest


def token_dtype(vocabulary_size: int) -> str:
    """Return "uint16" if every id fits, else "int32"."""
    return "uint16" if vocabulary_size <= 1 << 16 else "int32"


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file durably. Raises UserError if the disk is full."""
    with naming_full_disk(path):
        files.replace_durably(path, data)


@contextlib.contextmanager
def naming_full_disk(path: Path) -> Iterator[None]:
    """Raise UserError in place of an OSError that says that the disk is full (ENOSPC, EDQUOT)."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"No space left on the disk (or over quota) for {path}. Free some, and give the same command "
            "again: it continues."
        ) from error


class ShardWriter:
    """Writes one shard: `with ShardWriter(path, dtype) as shard: shard.write(...)`, then `shard.record`.

    The file appears under its name only when it is complete and on disk; an exception inside the block
    leaves nothing. Two writers of the same shard (a task started again while its orphaned twin still runs)
    do not meet: each has its own temporary file, and both produce the same bytes.
    """

    def __init__(self, path: Path, dtype: str, temporary: Path | None = None):
        import webdataset  # imports torch: one second, so only if a tar is really written

        self.path, self.dtype = Path(path), dtype
        self.record: dict[str, Any] = {}  # the manifest's entry, once the shard is complete
        self._suffix, self._code = TOKEN_MEMBERS[dtype]
        self._rows: list[list[int]] = []
        with naming_full_disk(self.path):
            files.make_folder(temporary or self.path.parent)
            files.make_folder(self.path.parent)
            self._partial, self._stream = files.open_partial(self.path, temporary)
        # Fixed time, owner and mode, no encoder: the same arrays give the same bytes.
        self._tar = webdataset.TarWriter(
            self._stream, encoder=False, mtime=0.0, user="", group="", mode=0o444
        )

    def write(
        self,
        sequences: Ragged,
        sentence_starts: np.ndarray | None = None,
        document_starts: np.ndarray | None = None,
        columns: int = 1,
        labels: np.ndarray | None = None,
        annotation: dict[str, bytes] | None = None,
    ) -> None:
        """Append one chunk; the starts index into `sequences.ids` (int, ascending).

        columns: sequences of a record, which follow each other. labels: int[records], or scores,
        float[records]. annotation: of the sequences, as `pretrain.data.annotation.pack` makes it.
        """
        nothing = np.empty(0, np.uint32)
        key = f"{len(self._rows):06d}"
        arrays = {
            "sequence_starts": sequences.offsets[:-1] - sequences.offsets[0],
            "sentence_starts": nothing if sentence_starts is None else sentence_starts,
            "document_starts": nothing if document_starts is None else document_starts,
        }
        sample = {f"{name}.u32": np.ascontiguousarray(a, "<u4").tobytes() for name, a in arrays.items()}
        if labels is not None:
            name, code = SCORES if labels.dtype.kind == "f" else LABELS
            sample[name] = np.ascontiguousarray(labels, code).tobytes()
        sample.update(annotation or {})
        sample[f"tokens.{self._suffix}"] = np.ascontiguousarray(sequences.ids, self._code).tobytes()
        begin = self._tar.tarstream.offset
        with naming_full_disk(self.path):
            self._tar.write({"__key__": key, **sample})
        size = self._tar.tarstream.offset - begin
        self._rows.append([begin, size, len(sequences) // columns, int(sequences.num_tokens)])

    def __enter__(self) -> "ShardWriter":
        return self

    def __exit__(self, kind, error, trace) -> None:
        try:
            if kind is None:
                with naming_full_disk(self.path):
                    self._tar.close()
                    files.sync(self._stream)
                    self.record = self._describe()
                    files.rename_durably(self._partial, self.path)
        except (OSError, UserError):
            self._discard()
            raise
        if kind is not None:
            self._discard()
        self._stream.close()

    def _discard(self) -> None:
        self._tar.tarstream.fileobj.closed = True  # or tarfile flushes into the closed file when collected
        files.discard(self._partial)
        files.abandon(self._stream)

    def _describe(self) -> dict:
        """Manifest entry; one pass over the file, still in the page cache."""
        whole, rows = hashlib.sha256(), []
        with open(self._partial, "rb") as stream:
            for row in self._rows:
                fragment = stream.read(row[_BYTES])
                whole.update(fragment)
                rows.append([*row, hashlib.sha256(fragment).hexdigest()])
            whole.update(stream.read())
            size = stream.tell()
        return {
            "file": f"{self.path.parent.name}/{self.path.name}",
            "bytes": size,
            "sha256": whole.hexdigest(),
            "chunks": rows,
        }


def split_summary(shards: list[dict]) -> dict:
    """Summarise one split for the manifest, from its shards' records."""
    rows = [row for shard in shards for row in shard["chunks"]]
    return {
        "sequences": sum(row[_SEQUENCES] for row in rows),
        "tokens": sum(row[_TOKENS] for row in rows),
        "chunks": len(rows),
        "shards": shards,
    }


def chunk_bounds(lengths: np.ndarray, chunk_tokens: int) -> np.ndarray:
    """Return where chunks of about `chunk_tokens` tokens begin and end: int64[C + 1].

    Sequences `bounds[c]:bounds[c + 1]` make chunk c; none is empty.
    """
    if len(lengths) == 0:
        return np.zeros(1, np.int64)
    ends = np.cumsum(lengths)
    chunk = (ends - 1) // chunk_tokens  # by the sequence's last token: monotone, so equal runs are chunks
    return np.concatenate([[0], np.flatnonzero(np.diff(chunk)) + 1, [len(lengths)]]).astype(np.int64)


def write_manifest(folder: Path, manifest: dict) -> None:
    """Write DATA/manifest.json atomically: a folder that has one is complete."""
    files.make_folder(folder)
    write_atomically(folder / MANIFEST, files.to_json(manifest))
