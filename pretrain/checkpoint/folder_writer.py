"""Write one checkpoint's folder, and remove those that it makes superfluous."""

import hashlib
import json
import logging
import math
import shutil
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from pretrain.checkpoint.store import FORMAT_VERSION, CheckpointError, candidates, step_of
from pretrain.common import files

logger = logging.getLogger(__name__)

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


class TensorFileWriter:
    """Write the tensors of `entries`, in that order, to a safetensors file; `close` makes it durable.

    The library reads single tensors and slices, but writes (`save_file`) only what is in memory all at once,
    and does not fsync. A checkpoint holds three times the model (parameters and two moments) and assembles
    one parameter at a time from its partitions. So this writer takes the shapes first, writes the header,
    then streams: peak memory is the largest tensor. The sha256 is computed on the way, without reading back,
    and in a thread beside the one that writes: hashing a tensor takes about as long as handing it to the
    system.

    Format: https://huggingface.co/docs/safetensors (8-byte little-endian header length, JSON header, raw
    buffer).

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
        self._file = files.create(path)
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
        files.sync(self._file)
        self._file.close()
        return {"bytes": self.num_bytes, "sha256": self._hash.hexdigest()}

    def abandon(self) -> None:
        """Close after a failure. Writing the buffered rest may fail too; only the first error counts."""
        self._hasher.shutdown()
        files.abandon(self._file)


class FolderWriter:
    """Write one checkpoint folder: hidden while it is written, named when it is whole.

    Rank 0 begins it, every rank writes files of its own into it, rank 0 finishes it when all have.

    A failure is kept in `error`, and not raised: other ranks are waiting for this one. Nothing is attempted
    after it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hidden = folder.with_name(f".tmp-{folder.name}")
        self.error: str | None = None
        self.files: dict[str, dict[str, object]] = {}  # written by this rank: name -> {"bytes", "sha256"}
        self._planned: deque[tuple[str, list[TensorEntry]]] = deque()
        self._open: TensorFileWriter | None = None

    def attempt(self, action: Callable[[], object]) -> None:
        """Run one step of writing, unless an earlier one has failed."""
        if self.error is not None:
            return
        try:
            action()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError):  # the disk; anything else is a fault of this program
                self.error = error.strerror or str(error)
            else:
                logger.exception("writing checkpoint %s failed", self.folder)
            if self._open is not None:
                self._open.abandon()

    def begin(self, need: int) -> None:
        """Make the hidden folder, after removing what saves that were killed have left.

        need: bytes of all tensors.
        """
        files.make_folder(self.folder.parent)
        for leftover in self.folder.parent.glob(".tmp-step-*"):
            files.remove_tree(leftover)
        for leftover in self.folder.parent.glob(".latest.*partial"):
            files.remove_file(leftover)
        free = shutil.disk_usage(self.folder.parent).free
        if need > free:
            raise OSError(28, f"{need / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free")
        files.make_folder(self.hidden)

    def plan(self, files: list[tuple[str, list[TensorEntry]]]) -> None:
        """Take the names of the files that this rank writes, each with its tensors, in order."""
        self._planned.extend(files)

    def write(self, entry: TensorEntry, tensor: torch.Tensor) -> None:
        """Write the next tensor of the plan; the last one of a file makes it durable."""
        if self._open is None:
            name, batch = self._planned.popleft()
            self._open = TensorFileWriter(self.hidden / name, batch)
        self._open.write(entry.name, tensor)
        if self._open.is_complete:
            self.files[self._open.path.name] = self._open.close()
            self._open = None
            if not self._planned:
                files.fsync_folder(self.hidden)

    def finish(self, written: dict[str, dict[str, object]], state: bytes) -> None:
        """Add state.json and the manifest, give the folder its name, and point `latest` to it.

        Args:
            written: files of all ranks. state: the content of state.json.
        """
        written = written | {"state.json": files.write_durably(self.hidden / "state.json", state)}
        manifest = {"format_version": FORMAT_VERSION, "files": written}
        files.write_durably(self.hidden / "manifest.json", files.to_json(manifest))
        files.fsync_folder(self.hidden)
        if self.folder.exists():
            # The same step again (it was damaged, or a resume started before it). Between the two renames the
            # old one still counts under its other name: at no instant is there no checkpoint of this step.
            replaced = self.folder.with_name(f"{self.folder.name}.replaced")
            files.remove_tree(replaced)
            files.rename_durably(self.folder, replaced)
        files.rename_durably(self.hidden, self.folder)
        files.replace_durably(self.folder.parent / "latest", f"{self.folder.name}\n".encode())

    def discard(self, error: str) -> str:
        """Remove what was written, when no rank writes any more; return the message for all ranks."""
        files.discard(self.hidden)
        good = "Earlier ones are untouched"
        with suppress(CheckpointError):
            previous = [path.name for path in candidates(self.folder.parent)]
            good = f"{previous[0]} is untouched" if previous else "There is no earlier one"
        return (
            f"could not write checkpoint {self.folder.name} under {self.folder.parent}: {error}. {good}. "
            "Free some space, or use another disk, which all nodes share; then resume"
        )


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay when a newer one is whole.

    newest: how many, the new one included. every: those of steps that are multiples of it stay forever; 0:
    none. steps: stay, too. What `every` and `steps` keep does not count among the newest.
    """

    newest: int
    every: int = 0
    steps: frozenset[int] = frozenset()


def remove_superfluous(newest: Path, retention: Retention) -> None:
    """Remove what the new checkpoint makes superfluous. Failing to is a warning: the new one is good.

    Those of later steps stay: a resume from an earlier step has renamed them (`pretrain.start.resume`).
    """
    step = step_of(newest)
    try:
        older = [path for path in candidates(newest.parent) if path != newest]
    except CheckpointError as error:
        logger.warning("old checkpoints stay: %s", error)
        return
    every, steps = retention.every, retention.steps
    stays = {s for s in map(step_of, older) if s in steps or (every and s % every == 0)}
    earlier = [path for path in older if step_of(path) < step and step_of(path) not in stays]
    doomed = [path for path in older if step_of(path) == step] + earlier[retention.newest - 1 :]
    for path in doomed:
        hidden = path.with_name(f".old-{path.name}")
        with suppress(OSError):
            # rename first: a half-removed folder must not look like a damaged checkpoint
            files.remove_tree(hidden)  # a save of this step that was killed here has left it
            files.rename_durably(path, hidden)
    for leftover in newest.parent.glob(".old-step-*"):
        try:
            files.remove_tree(leftover)
        except OSError as error:
            logger.warning("could not remove the old checkpoint %s: %s", leftover, error)
