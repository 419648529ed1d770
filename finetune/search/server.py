"""A page on this machine that answers queries: `clearly search ... --serve`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs

import numpy as np
from jinja2 import Environment, PackageLoader

from finetune.search.index import Hit, SentenceIndex
from pretrain.common.errors import UserError

_LONGEST = 2000  # characters of a query
_MOST = 100  # sentences shown
_SECONDS = 10.0  # without a byte before a connection is closed
_HOST = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'none'"
)


@dataclass(frozen=True)
class Searcher:
    """A model and the index of its vectors. encode: queries -> float32[N, d]."""

    name: str
    encode: Callable[[Sequence[str]], np.ndarray]
    index: SentenceIndex


def listen(port: int, page: type[BaseHTTPRequestHandler] = BaseHTTPRequestHandler) -> ThreadingHTTPServer:
    """Return a server at 127.0.0.1:port that answers by `page`."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), page)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "the last port is 65535"
        raise UserError(f"--port {port}: {why}; name another, or 0 for a free one") from None


def server_of(searchers: Sequence[Searcher], text: str, top: int, port: int) -> ThreadingHTTPServer:
    """Return a server at 127.0.0.1:port that shows what each searcher finds in what the page calls `text`."""
    environment = Environment(loader=PackageLoader("finetune.search", ""), autoescape=True)
    template = environment.get_template("page.html.jinja")
    one_at_a_time = Lock()  # models are not made for several threads

    class Page(BaseHTTPRequestHandler):
        timeout = _SECONDS

        def do_GET(self) -> None:
            if not _HOST.fullmatch(
                self.headers.get("Host", "")
            ):  # a name of somebody's that resolves to here
                self.send_error(403, "open this page as localhost")
                return
            path, _, words = self.path.partition("?")
            if path != "/":
                self.send_error(404)
                return
            parameters = parse_qs(words)
            query = parameters.get("q", [""])[0].strip()[:_LONGEST]
            count = parameters.get("top", [str(top)])[0]
            if not re.fullmatch("[1-9][0-9]{0,8}", count):
                self.send_error(400, f"top: a number from 1 to {_MOST}")
                return
            shown = min(int(count), max(_MOST, top))
            found: dict[str, list[Hit]] = {}
            if query:
                with one_at_a_time:
                    found = {one.name: one.index.nearest(one.encode([query]), shown)[0] for one in searchers}
            body = template.render(query=query, found=found, text=text, top=shown).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def end_headers(self) -> None:
            self.send_header("Content-Security-Policy", _POLICY)
            super().end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing: queries are the user's own."""

    return listen(port, Page)


def serve_until_interrupted(
    searchers: Sequence[Searcher], text: str, top: int, port: int, say: Callable[[str], None]
) -> None:
    """Answer queries until Ctrl-C."""
    with server_of(searchers, text, top, port) as server:
        say(f"http://127.0.0.1:{server.server_address[1]}  (Ctrl-C ends it)")
        server.serve_forever()
