"""A page on this machine that answers queries: `clearly search ... --serve`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit

import numpy as np
from jinja2 import Environment, PackageLoader

from finetune.search.index import Hit, SentenceIndex
from pretrain.common.errors import UserError

_LONGEST = 2000  # characters of a query
_MOST = 100  # sentences shown


@dataclass(frozen=True)
class Searcher:
    """A model and the index of its vectors. encode: queries -> float32[N, d]."""

    name: str
    encode: Callable[[Sequence[str]], np.ndarray]
    index: SentenceIndex


def listen(port: int, page: type[BaseHTTPRequestHandler] = BaseHTTPRequestHandler) -> ThreadingHTTPServer:
    """Return a server at 127.0.0.1:port that answers by `page`.

    Raises:
        UserError: the port is taken, or there is no such port.
    """
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), page)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "the last port is 65535"
        raise UserError(f"--port {port}: {why}; name another, or 0 for a free one") from None


def server_of(searchers: Sequence[Searcher], text: str, top: int, port: int) -> ThreadingHTTPServer:
    """Return a server at 127.0.0.1:port whose page asks for a query and shows what each searcher finds.

    text: what the page calls the text that is searched.

    Raises: as `listen`.
    """
    environment = Environment(loader=PackageLoader("finetune.search", ""), autoescape=True)
    template = environment.get_template("page.html.jinja")
    one_at_a_time = Lock()  # models are not made for several threads

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path != "/":
                self.send_error(404)
                return
            asked = parse_qs(address.query)
            query = asked.get("q", [""])[0].strip()[:_LONGEST]
            count = asked.get("top", [""])[0]
            shown = min(int(count), _MOST) if count.isdecimal() and int(count) else top
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
