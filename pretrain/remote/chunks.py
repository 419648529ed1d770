"""Chunks of remote shards, kept on this machine's disk up to a number of bytes."""

import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from pretrain.common.files import make_folder, remove_file, replace
from pretrain.remote.transport import Transport, Unreachable

KEPT = "chunks"  # folder of the chunks, in the mirror
_AT_ONCE = 8  # chunks that are fetched side by side
_SLACK = 20  # a process looks at the folder after writing this share of the limit
_LOW = 0.9  # share of the limit that is left of chunks after the oldest are removed


@dataclass(frozen=True)
class Place:
    """Where a chunk lies: `size` bytes of a file from `start` on, with this sha256 (hex)."""

    file: str
    start: int
    size: int
    sha256: str


class RemoteChunks:
    """Read chunks through a folder that holds the last ones used; shared by all processes of the machine.

    A chunk that was kept is believed if its sha256 is right, and is fetched again otherwise. When the disk is
    full, chunks are not kept. May be pickled and forked.

    Args:
        folder: the mirror (`pretrain.remote.mirror`).
        limit: bytes to keep; where processes write at once, a twentieth more for each.
    """

    def __init__(self, folder: Path, transport: Transport, limit: int) -> None:
        self.folder, self.transport, self.limit = folder / KEPT, transport, limit
        self._written = 0

    def read(self, place: Place) -> bytes:
        """Return a chunk, whose sha256 is right.

        Raises:
            Unreachable: it is not kept here and cannot be fetched; says why.
        """
        kept = self._kept(place)
        if kept is not None:
            return kept
        content = self.transport.read(place.file, place.start, place.size, place.sha256)
        with suppress(OSError):
            self._keep(place, content)
        return content

    def fetch(self, places: Iterable[Place]) -> None:
        """Fetch chunks that are not kept yet, several at once; what fails is left to `read`."""

        def fetch_one(place: Place) -> None:
            with suppress(Unreachable):
                self.read(place)

        missing = [place for place in places if not self._path(place).exists()]
        if len(missing) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                list(pool.map(fetch_one, missing))

    def _path(self, place: Place) -> Path:
        return self.folder / place.sha256[:2] / place.sha256

    def _kept(self, place: Place) -> bytes | None:
        path = self._path(place)
        try:
            content = path.read_bytes()
            os.utime(path)  # used last
        except OSError:
            return None
        return content if hashlib.sha256(content).hexdigest() == place.sha256 else None

    def _keep(self, place: Place, content: bytes) -> None:
        if len(content) > self.limit:
            return
        path = self._path(place)
        make_folder(path.parent)
        replace(path, content)  # not synced: it is believed only by its hash
        self._written += len(content)
        if self._written * _SLACK >= self.limit:
            self._written = 0
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        """Remove the chunks that were used longest ago, while there are more bytes than the limit."""
        try:
            with FileLock(self.folder / ".lock", timeout=0):
                files = []
                for path in self.folder.glob("??/*"):
                    with suppress(OSError):
                        found = path.stat()
                        files.append((found.st_mtime_ns, found.st_size, path))
                left = sum(size for _, size, _ in files)
                if left <= self.limit:
                    return
                for _, size, path in sorted(files):
                    if left <= _LOW * self.limit:
                        break
                    remove_file(path)
                    left -= size
        except Timeout:
            pass  # another process is at it
