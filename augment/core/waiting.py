"""Bound how long a call may take that cannot be interrupted, such as one to a network or a file system."""

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SLOW_SECONDS = 10.0
"""Seconds after which a line says what is waited for."""


def within(seconds: float, action: Callable[[], T], slow: str = "") -> T:
    """Return what an action returns, in a thread that is left behind when the time is up (TimeoutError).

    Time-outs of sockets are of one packet: a server that sends a byte a second meets none of them.
    """
    limit, results = seconds, list[T]()
    errors: list[BaseException] = []

    def act() -> None:
        try:
            results.append(action())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    if slow and seconds > SLOW_SECONDS:
        thread.join(SLOW_SECONDS)
        seconds -= SLOW_SECONDS
        if thread.is_alive():
            print(slow, file=sys.stderr, flush=True)
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"it took more than {limit:g} s")
    return results[0]
