"""Read a range of bytes at a URL, again and again until it is there or must be given up.

HTTP goes through `requests`, everything else (s3://, gs://, file://, memory:// ...) through fsspec, whose
package for a protocol the user installs (s3fs, gcsfs).
"""

import hashlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from augment.core.waiting import within
from pretrain.common.errors import UserError

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

    tries: at most so many. first, longest: seconds before the second try, and the most before any; the wait
        doubles each time, times a random number from 0.5 to 1.5, so that ranks do not come back together.
    deadline: seconds for one try, from the connection to the last byte.
    """

    tries: int = 7
    first: float = 0.5
    longest: float = 30.0
    deadline: float = 120.0

    def wait(self, failures: int) -> float:
        """Return the seconds to wait after so many failures, 1 or more."""
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
            Unreachable: after all tries, or at once where another could not help.
        """
        began, failures = time.monotonic(), 0
        while True:
            try:
                content = self._read_within_deadline(file, start, size)
                if size is not None and len(content) != size:
                    raise OSError(f"{len(content):,} of {size:,} bytes came")
                if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                    raise OSError("what came does not match the sha256 in the manifest")
                if is_json:
                    _require_json(content)
                return content
            except OSError as error:  # the errors of requests are of this kind, too
                failures += 1
                if failures == self.retries.tries:
                    seconds = time.monotonic() - began
                    raise Unreachable(
                        f"{self.url}/{file}",
                        f"it cannot be read: {_reason(error)} ({failures} tries in {seconds:.0f} s)",
                    ) from error
            time.sleep(self.retries.wait(failures))

    def _read_within_deadline(self, file: str, start: int, size: int | None) -> bytes:
        seconds = self.retries.deadline
        place = f"{self.url}/{file}"
        slow = f"waiting for {place}, up to {seconds:g} s"
        try:
            return within(seconds, lambda: self._read_once(place, start, size), slow)
        except TimeoutError:
            raise OSError(f"it took more than {seconds:g} s") from None

    def _read_once(self, place: str, start: int, size: int | None) -> bytes:
        if not self.url.startswith(("http://", "https://")):
            return self._by_fsspec(place, start, size)
        headers = {} if size is None else {"Range": f"bytes={start}-{start + size - 1}"}
        with self._open(_session).get(
            place, headers=headers, stream=True, timeout=(CONNECT_SECONDS, STALL_SECONDS)
        ) as answer:
            if answer.status_code in _FINAL:
                raise Unreachable(place, f"the server answers {answer.status_code} {answer.reason}")
            if answer.status_code not in (200, 206):
                raise OSError(f"the server answers {answer.status_code} {answer.reason}")
            if size is not None and answer.status_code == 200:
                raise Unreachable(
                    place,
                    "the server sends whole files only (it does not answer requests for a range of bytes); "
                    "serve the folder with one that does, such as nginx, or copy it here",
                )
            content, most = bytearray(), _LARGEST if size is None else size
            for piece in answer.iter_content(_PIECE):
                content += piece
                if len(content) > most:
                    raise Unreachable(place, f"the server sends more than {most:,} bytes")
            return bytes(content)

    def _by_fsspec(self, place: str, start: int, size: int | None) -> bytes:
        system = self._open(self._file_system)
        try:
            return system.cat_file(place, start, None if size is None else start + size)
        except FileNotFoundError:
            raise Unreachable(place, "there is no such file") from None
        except PermissionError as error:
            raise Unreachable(place, f"access is refused ({error})") from None
        except Exception as error:  # every protocol has errors of its own
            raise OSError(str(error)) from error

    def _file_system(self) -> Any:
        import fsspec

        protocol = self.url.partition("://")[0]
        try:
            # an instance of this process alone: those of another do not outlive a fork
            return fsspec.filesystem(protocol, skip_instance_cache=True)
        except (ImportError, ValueError) as error:
            raise UserError(f"{self.url} cannot be read: {error}") from None

    def _open(self, how: Callable[[], Any]) -> Any:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), how()
        return self._opened[1]

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_opened": None}


def _session() -> Any:
    import requests

    return requests.Session()


def _require_json(content: bytes) -> None:
    try:
        json.loads(content)
    except ValueError as error:
        raise OSError(f"what came is no JSON ({error})") from None


def _reason(error: BaseException) -> str:
    """Return the innermost message of an error, in one line: libraries wrap one error in others."""
    while inner := next((of for of in (getattr(error, "reason", None), *error.args) if _is_error(of)), None):
        error = inner
    return " ".join(str(error).split())[:200] or type(error).__name__


def _is_error(value: object) -> bool:
    return isinstance(value, Exception)
