"""Where the time of a step goes."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

PENDING_EVENTS = 8192
"""Device events kept before they are looked at; keeping costs memory."""


class Stopwatch:
    """Measure the time of named parts: `with stopwatch("encode"): ...`.

    On a GPU, events on its stream bracket the parts, at a few microseconds; `seconds` reads those that have
    come by then, and leaves the rest to its next call. It waits for none. So a part's time there is what the
    device spent between the brackets: work queued earlier counts where it was queued, and data loading that
    overlaps it counts as nothing.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter, cuda: bool | None = None) -> None:
        """cuda: whether to measure by device events; None: if there is a GPU."""
        self._clock = clock
        self._cuda = torch.cuda.is_available() if cuda is None else cuda
        self._parts: dict[str, float] = {}
        self._events = deque[tuple[Any, ...]]()  # part, begin, end
        self._whole = 0.0
        self._step_started = clock()
        self.part = ""  # the part that runs now, by the host's order; "" in none

    def start_step(self) -> None:
        self._step_started = self._clock()

    def end_step(self) -> float:
        """Return the seconds since `start_step`, by the host's clock."""
        seconds = self._clock() - self._step_started
        self._whole += seconds
        return seconds

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        around, self.part = self.part, part
        began = self._clock()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if self._cuda else []
        if events:
            events[0].record()
        try:
            yield
        finally:
            seconds, self.part = self._clock() - began, around
            if events:
                events[1].record()
                self._events.append((part, *events))
                if len(self._events) >= PENDING_EVENTS:
                    self._read_events()
            else:
                self._book(part, seconds)

    def _book(self, part: str, seconds: float) -> None:
        self._parts[part] = self._parts.get(part, 0.0) + seconds

    def _read_events(self) -> None:
        while self._events and self._events[0][2].query():  # else none that was queued later
            part, begin, end = self._events.popleft()
            self._book(part, begin.elapsed_time(end) / 1000)

    def seconds(self) -> dict[str, float]:
        """Return part -> seconds since the last call, and "other" for the rest of the steps' time."""
        self._read_events()
        seconds, booked = self._parts, sum(self._parts.values())
        if (whole := max(self._whole, booked)) > 0:
            seconds["other"] = whole - booked
        self._parts, self._whole = {}, 0.0
        return seconds
