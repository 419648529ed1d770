"""A web server of one folder that answers requests for ranges, and misbehaves as it is told."""

from __future__ import annotations

import contextlib
import random
import threading
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

FAULTS = ("503", "stall", "drop", "cut", "corrupt")


class RangeServer(ThreadingHTTPServer):
    """Serve a folder; use as a context manager.

    faults: of the next requests of a path (without its first "/"), first to last; "" is none.
    share: of all other requests, this share meets one of `kinds`, but each range only once.
    login: NAME:PASSWORD that every request must bring; "": none.
    requests: path -> how many came.
    """

    daemon_threads = True

    def __init__(
        self, folder: Path, share: float = 0.0, kinds: Sequence[str] = FAULTS, ranges: bool = True
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.share, self.kinds, self.ranges = folder, share, kinds, ranges
        self.login = ""
        self.faults: dict[str, list[str]] = {}
        self.requests: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self.server_port}"
        self._random, self._failed, self._lock = random.Random(1), set(), threading.Lock()
        self.stopping = threading.Event()

    def next_fault(self, path: str, range_: str) -> str:
        with self._lock:
            self.requests[path] += 1
            fault = self.faults[path].pop(0) if self.faults.get(path) else ""
            if not fault and (path, range_) not in self._failed and self._random.random() < self.share:
                fault = self._random.choice(self.kinds)
                self._failed.add((path, range_))
            self.met[fault] += 1
            return fault

    def __enter__(self) -> RangeServer:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stopping.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RangeServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if (
            self.server.login
            and self.headers.get("Authorization") != "Basic " + b64encode(self.server.login.encode()).decode()
        ):
            return self._answer(401, b"")
        path, asked = self.path.lstrip("/"), self.headers.get("Range", "")
        fault = self.server.next_fault(path, asked)
        if fault == "503":
            return self._answer(503, b"busy")
        file = self.server.folder / path
        if not file.is_file():
            return self._answer(404, b"")
        content, status = file.read_bytes(), 200
        if asked and self.server.ranges:
            first, last = asked.removeprefix("bytes=").split("-")
            content, status = content[int(first) : int(last) + 1], 206
        if fault == "corrupt":
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault == "stall":
            self.server.stopping.wait(3600)  # until the client has gone, or the test has ended
        if fault in ("drip", "drip-headers", "endless"):
            return self._go_on(fault, len(content))
        half = content[: len(content) // 2]
        if fault == "drop":
            return self._answer(status, half, len(content))
        if fault == "cut":
            return self._answer(status, half)
        self._answer(status, content)

    def _go_on(self, fault: str, size: int) -> None:
        """Send a byte a tenth of a second of a body or of a header, or a body without an end."""
        self.close_connection = True
        head = b"HTTP/1.1 206 Partial\r\nX-Long: "
        if fault != "drip-headers":
            length = b"" if fault == "endless" else b"Content-Length: %d\r\n" % size
            head = b"HTTP/1.1 206 Partial\r\n" + length + b"\r\n"
        piece = b" " * (1 << 16) if fault == "endless" else b" "
        with contextlib.suppress(OSError):  # the client has gone
            self.wfile.write(head)
            while not self.server.stopping.wait(0 if fault == "endless" else 0.1):
                self.wfile.write(piece)

    def _answer(self, status: int, body: bytes, promised: int | None = None) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if promised is None else promised))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()
        except OSError:
            pass  # the client has gone
        if promised is not None:
            self.close_connection = True

    def log_message(self, *words: object) -> None:
        pass
