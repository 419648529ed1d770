"""What every fuzz target is: a generator of cases, a check of one case, and a limit on its time.

A case is bytes, so that it can be kept as a file and replayed. `generate` draws one from a `random.Random`:
valid input, mutated more or less. `check` gives it to the product. Either the product accepts it, and a
property holds that the check names; or it refuses it with one of the project's own errors, whose message
says what and where. Anything else that is raised, a hang or a crash is a fault.
"""

import json
import random
import signal
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SEEDS = Path(__file__).parent / "seeds"
SECONDS = 10.0  # of a processor, for one case; most take less than a millisecond
LONGEST_MESSAGE = 4000  # characters, besides the folder's name


class TookTooLong(BaseException):
    """A case that takes longer than `SECONDS`. Not an Exception: what catches all of those would hide it."""


class Target(ABC):
    """One door of the product.

    folder: for files of this process, emptied by nobody else.
    """

    name: str
    about: str

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def generate(self, chance: random.Random) -> bytes:
        """Draw a case."""

    @abstractmethod
    def check(self, case: bytes) -> str:
        """Give the case to the product; return "accepted" or "refused", or a finer word for the statistics.

        Raises: any exception is a fault of the product.
        """


def refused(error: Exception, *named: str) -> str:
    """Check the message of a refusal: it is short enough to read, and says where (`named`)."""
    message = str(error)
    assert len(message) > 10, f"a message that says nothing: {message!r}"
    assert len(message) <= LONGEST_MESSAGE, f"a message of {len(message)} characters: {message[:200]!r} ..."
    for name in named:
        assert name in message, f"the message does not name {name!r}: {message!r}"
    return "refused"


@contextmanager
def time_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raise TookTooLong where Python code has had so many seconds of a processor, however busy that is."""

    def stop(*_: object) -> None:
        raise TookTooLong(f"still at work after {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def fault_of(target: Target, case: bytes) -> BaseException | None:
    """Return what a case raises; None where the product keeps its contract."""
    try:
        with time_limit():
            target.check(case)
    except (Exception, TookTooLong, RecursionError) as error:
        return error
    return None


def place_of(error: BaseException) -> str:
    """Return the kind of a fault and the innermost line of this repository: what is the same fault.

    Of a refusal whose message is at fault, it is the line that refused.
    """
    error = error.__context__ if isinstance(error, AssertionError) and error.__context__ else error
    root = str(Path(__file__).parents[2])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith(root)]
    last = frames[-1] if frames else None
    where = f"{Path(last.filename).relative_to(root)}:{last.lineno}" if last else "?"
    return f"{type(error).__name__} at {where}"


def shortened(target: Target, case: bytes, tries: int = 2000) -> bytes:
    """Return a shorter case with the same fault: pieces are cut out, large ones first."""
    error = fault_of(target, case)
    if error is None or isinstance(error, TookTooLong):
        return case
    place, size = place_of(error), len(case) // 2
    while size and tries > 0:
        start = 0
        while start < len(case) and tries > 0:
            tries -= 1
            candidate = case[:start] + case[start + size :]
            other = fault_of(target, candidate)
            if other is not None and place_of(other) == place:
                case = candidate
            else:
                start += size
        size //= 2
    return case


def to_json(value: Any) -> bytes:
    """Return a structured case as bytes; lone surrogates are kept, as escapes."""
    return json.dumps(value, separators=(",", ":")).encode()
