"""A folder here that stands for prepared data elsewhere: its manifest and tokenizer, and chunks as they come.

    MIRROR/manifest.json, MIRROR/tokenizer/    copies
    MIRROR/remote.json                         {"url": where from, "cache_bytes": how much to keep}
    MIRROR/chunks/ab/ab12...                   chunks that were read, by their sha256

Whatever opens a folder of prepared data opens a mirror, and reads the shards that are not in it from there.
HTTP goes through `requests`, everything else (s3://, gs://, file://, memory:// ...) through fsspec, whose
package for a protocol the user installs (s3fs, gcsfs).
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from filelock import FileLock, Timeout

from augment.core.waiting import within
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, remove_file, replace, replace_durably, to_json

CONNECT_SECONDS, STALL_SECONDS = 10.0, 30.0
"""How long to wait for a connection, and for the next bytes of an answer."""
_FINAL = (400, 401, 403, 404, 405, 410)  # answers that another try does not change
_PIECE = 1 << 14  # a thread that was left behind ends when it has as many bytes
_LARGEST = 1 << 30  # bytes of a file whose size nothing says: a manifest, a tokenizer


class Unreachable(Exception):
    """Bytes that could not be had. place: their URL. why: for an error that names the place itself."""

    def __init__(self, place: str, why: str) -> None:
        super().__init__(f"{place}: {why}")
        self.place, self.why = place, why


@dataclass(frozen=True)
class Retries:
    """How often to try, and how long to wait before trying again.

    tries: at most. first, longest: seconds before the second try, and the most before any; the wait doubles
        each time, times a random number from 0.5 to 1.5, so that ranks do not come back together.
    deadline: seconds for one try, from the connection to the last byte.
    """

    tries: int = 7
    first: float = 0.5
    longest: float = 30.0
    deadline: float = 120.0

    def wait(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures, 1 or more."""
        return min(self.longest, self.first * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.5)


class Transport:
    """Read files below a URL; may be pickled and forked: each process opens connections of its own."""

    def __init__(self, url: str, retries: Retries | None = None) -> None:
        self.url, self.retries = url.rstrip("/"), retries or Retries()
        self._opened: tuple[int, Any] | None = None  # process, its session or file system

    def read(
        self,
        file: str,
        start: int = 0,
        size: int | None = None,
        sha256: str | None = None,
        is_json: bool = False,
    ) -> bytes:
        """Return `size` bytes of a file from `start` on; None: all of it.

        sha256: of the bytes, as a hex digest; None: not known. is_json: whether they are JSON. What comes
        with another hash, or is no JSON, is read again.

        Raises:
            Unreachable: after all tries, or at once if another could not help.
        """
        began, failures, place = time.monotonic(), 0, f"{self.url}/{file}"
        deadline = self.retries.deadline
        slow = f"waiting for {place}, up to {deadline:g} s"
        while True:
            try:
                content = within(deadline, lambda: self._read_once(place, start, size), slow)
                if size is not None and len(content) != size:
                    raise OSError(f"{len(content):,} of {size:,} bytes came")
                if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                    raise OSError("what came does not match the sha256 in the manifest")
                if is_json:
                    json.loads(content)
                return content
            except (OSError, ValueError) as error:  # the errors of requests are OSErrors, too
                failures += 1
                if failures == self.retries.tries:
                    seconds = time.monotonic() - began
                    why = f"it cannot be read: {_innermost(error)} ({failures} tries in {seconds:.0f} s)"
                    raise Unreachable(place, why) from error
            time.sleep(self.retries.wait(failures))

    def _read_once(self, place: str, start: int, size: int | None) -> bytes:
        if not self.url.startswith(("http://", "https://")):
            return self._by_fsspec(place, start, size)
        headers = {} if size is None else {"Range": f"bytes={start}-{start + size - 1}"}
        timeouts = CONNECT_SECONDS, STALL_SECONDS
        with self._opener().get(place, headers=headers, stream=True, timeout=timeouts) as answer:
            if answer.status_code in _FINAL:
                raise Unreachable(place, f"the server answers {answer.status_code} {answer.reason}")
            if answer.status_code not in (200, 206):
                raise OSError(f"the server answers {answer.status_code} {answer.reason}")
            if size is not None and answer.status_code == 200:
                raise Unreachable(
                    place,
                    "the server sends no ranges of bytes; use one that does, as nginx, or copy the folder",
                )
            content, most = bytearray(), _LARGEST if size is None else size
            for piece in answer.iter_content(_PIECE):
                content += piece
                if len(content) > most:
                    raise Unreachable(place, f"the server sends more than {most:,} bytes")
            return bytes(content)

    def _by_fsspec(self, place: str, start: int, size: int | None) -> bytes:
        system = self._opener()
        try:
            return system.cat_file(place, start, None if size is None else start + size)
        except FileNotFoundError:
            raise Unreachable(place, "there is no such file") from None
        except PermissionError as error:
            raise Unreachable(place, f"access is refused ({error})") from None
        except Exception as error:  # every protocol has errors of its own
            raise OSError(str(error)) from error

    def _opener(self) -> Any:
        """Return this process's session of requests, or file system of fsspec: none outlives a fork."""
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), self._open()
        return self._opened[1]

    def _open(self) -> Any:
        if self.url.startswith(("http://", "https://")):
            import requests

            return requests.Session()
        import fsspec

        try:
            return fsspec.filesystem(self.url.partition("://")[0], skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.url} cannot be read: {error}") from None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_opened": None}


def _innermost(error: BaseException) -> str:
    """Return the innermost message of an error, in one line: libraries wrap one error in others."""
    while inner := [
        one for one in (getattr(error, "reason", None), *error.args) if isinstance(one, Exception)
    ]:
        error = inner[0]
    return " ".join(str(error).split())[:200] or type(error).__name__


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
        folder: the mirror (`pretrain.data.remote.mirror`).
        limit: bytes to keep; if processes write at once, a twentieth more for each.
    """

    def __init__(self, folder: Path, transport: Transport, limit: int) -> None:
        self.folder, self.transport, self.limit = folder / KEPT, transport, limit
        self._written = 0

    def read(self, place: Place) -> bytes:
        """Return a chunk, whose sha256 is right.

        Raises:
            Unreachable: it is not kept here and cannot be fetched; says why.
        """
        if (content := self._kept(place)) is not None:
            return content
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


REMOTE, MANIFEST = "remote.json", "manifest.json"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")  # the first must be there


def mirror(url: str, folder: Path, cache_bytes: int, retries: Retries | None = None) -> None:
    """Make a folder the mirror of prepared data at a URL, or check that it is one.

    cache_bytes: how many bytes of chunks to keep there; may change from one start to the next.

    Raises:
        UserError: the data cannot be read; or the folder holds other data, or a mirror of other data.
    """
    transport = Transport(url, retries)
    try:
        manifest = transport.read(MANIFEST, is_json=True)
        is_mirror = (folder / MANIFEST).is_file()
        if is_mirror:
            _require_same(url, folder, manifest)
        else:
            _copy_tokenizer(transport, folder, manifest)
        replace_durably(folder / REMOTE, to_json({"url": url, "cache_bytes": cache_bytes}))
        if not is_mirror:
            replace_durably(folder / MANIFEST, manifest)  # last: a folder with a manifest is whole
    except Unreachable as error:
        raise UserError(f"data.remote: {error}. Name a folder of prepared data") from None


def chunks_of(folder: Path) -> RemoteChunks | None:
    """Return what reads the chunks of a mirror; None of a folder that is none."""
    file = folder / REMOTE
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text("utf-8"))
        return RemoteChunks(folder, Transport(found["url"]), int(found["cache_bytes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is damaged ({error!r}); give --data.remote URL again") from None


def _copy_tokenizer(transport: Transport, folder: Path, manifest: bytes) -> None:
    place = f"{transport.url}/{MANIFEST}"
    try:
        tokenizer = PurePosixPath(json.loads(manifest)["tokenizer"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unreachable(place, f"it is no manifest of prepared data ({error!r})") from None
    if tokenizer.is_absolute() or ".." in tokenizer.parts:
        raise Unreachable(place, f"it names a tokenizer outside of its folder ({tokenizer})")
    make_folder(folder / tokenizer)
    for number, name in enumerate(_TOKENIZER):
        try:
            content = transport.read(f"{tokenizer}/{name}", is_json=True)
        except Unreachable:
            if number == 0:
                raise
            continue
        replace_durably(folder / tokenizer / name, content)


def _require_same(url: str, folder: Path, manifest: bytes) -> None:
    if (folder / MANIFEST).read_bytes() == manifest:
        return
    if (folder / REMOTE).is_file():
        raise UserError(f"the data at {url} is not what {folder} mirrors: name another folder (--data)")
    raise UserError(f"{folder} holds prepared data of its own: name an empty folder (--data) for {url}")
