"""Leaving a run in good order: signals and the stop file become a wish that all ranks agree on at a step
boundary."""

from __future__ import annotations

import os
import signal
from pathlib import Path

EXIT_REQUEUE = 75  # EX_TEMPFAIL: a batch script requeues the job and goes on with --resume auto
STOP_FILE = "stop"

# Wishes, in rising order of weight; the largest over ranks wins.
STAY, INTERRUPT, TERMINATE, REQUEUE, STOP = range(5)  # who asks for a stop does not want a requeue
EXIT_CODES = {STOP: 0, INTERRUPT: 130, TERMINATE: 143, REQUEUE: EXIT_REQUEUE}
REASONS = {STOP: "the stop file", INTERRUPT: "Ctrl-C", TERMINATE: "SIGTERM", REQUEUE: "SIGUSR1"}
SIGNALS = {signal.SIGINT: INTERRUPT, signal.SIGTERM: TERMINATE, signal.SIGUSR1: REQUEUE}


class Leaving:
    """Collects the wish to leave. Handlers only set a number: nothing collective ever runs inside a signal
    handler.

    A second Ctrl-C ends the process at once; the last checkpoint stays good.
    """

    def __init__(self, folder: Path, watch_file: bool):
        """`watch_file`: whether this rank looks for `folder`/stop at every step (one rank is enough)."""
        self._wish = STAY
        self._stop_file = folder / STOP_FILE if watch_file else None
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._wish == INTERRUPT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        self._wish = max(self._wish, SIGNALS[signal.Signals(number)])

    def wish(self) -> int:
        """This rank's wish now."""
        if self._stop_file is not None and self._stop_file.exists():
            self._wish = STOP
        return self._wish

    def clear_stop_file(self) -> None:
        """Take the stop file away once it has been obeyed, or the next start would stop at once."""
        if self._stop_file is not None:
            self._stop_file.unlink(missing_ok=True)
