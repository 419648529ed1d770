"""Safetensors files written tensor by tensor.

The library reads single tensors and slices, but writes (`save_file`) only what is in memory all at once, and
does not fsync. A checkpoint holds three times the model (parameters and two moments) and assembles one
parameter at a time from its partitions. So this writer takes the shapes first, writes the header, then
streams: peak memory is the largest tensor. The sha256 is computed on the way, without reading back, and in a
thread beside the one that writes: hashing a tensor takes about as long as handing it to the system.

Format: https://huggingface.co/docs/safetensors (8-byte little-endian header length, JSON header, raw buffer).
"""

import hashlib
import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch

from pretrain.common.files import abandon, create, sync

DTYPE_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8",
    torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
_HASHED_AT_ONCE = 1 << 18  # bytes; of fewer the hash takes no longer than handing them to a thread


class TensorEntry(NamedTuple):
    """The name, dtype and shape of a tensor to come."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def split_entries(entries: Sequence[TensorEntry], max_file_bytes: int) -> list[list[TensorEntry]]:
    """Cut entries, in order, into files of at most `max_file_bytes`; a larger tensor gets its own."""
    files: list[list[TensorEntry]] = []
    filled = 0
    for entry in entries:
        if not files or filled + entry.num_bytes > max_file_bytes:
            files.append([])
            filled = 0
        files[-1].append(entry)
        filled += entry.num_bytes
    return files


class TensorFileWriter:
    """Write the tensors of `entries`, in that order, to a safetensors file; `close` makes it durable.

    Raises:
        OSError: as the file system does (ENOSPC, EDQUOT, EIO).
    """

    def __init__(self, path: Path, entries: Sequence[TensorEntry]) -> None:
        self.path = path
        self._pending = list(reversed(entries))
        self._hash = hashlib.sha256()
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self.num_bytes = 0
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for entry in entries:
            header[entry.name] = {
                "dtype": DTYPE_NAMES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": [offset, offset + entry.num_bytes],
            }
            offset += entry.num_bytes
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)  # aligned data, so that readers can map it without a copy
        self._file = create(path)
        self._put(len(encoded).to_bytes(8, "little"))
        self._put(encoded)

    def _put(self, data: bytes | memoryview) -> None:
        if len(data) <= _HASHED_AT_ONCE:
            self._hash.update(data)
            self._file.write(data)
        else:
            hashed = self._hasher.submit(self._hash.update, data)
            self._file.write(data)
            hashed.result()
        self.num_bytes += len(data)

    @property
    def is_complete(self) -> bool:
        """Whether all tensors are written."""
        return not self._pending

    def write(self, name: str, tensor: torch.Tensor) -> None:
        """Append the next tensor. It must be the next entry: same name, shape and dtype."""
        entry = self._pending.pop()
        assert (name, tensor.dtype, tuple(tensor.shape)) == entry
        flat = tensor.detach().to("cpu").contiguous().reshape(-1)
        if flat.numel():
            self._put(memoryview(flat.view(torch.uint8).numpy()))

    def close(self) -> dict[str, object]:
        """Flush to the disk itself and return {"bytes": size, "sha256": hex digest}."""
        assert not self._pending
        self._hasher.shutdown()
        sync(self._file)
        self._file.close()
        return {"bytes": self.num_bytes, "sha256": self._hash.hexdigest()}

    def abandon(self) -> None:
        """Close after a failure. Writing the buffered rest may fail too; only the first error counts."""
        self._hasher.shutdown()
        abandon(self._file)
