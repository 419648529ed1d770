"""Stop a run cleanly: signals and the stop file become a request that all ranks act on at a step boundary."""

import atexit
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from pretrain.common.files import remove_file
from pretrain.common.run_folder import moved

EXIT_REQUEUE = 75  # EX_TEMPFAIL: a batch script requeues the job, which resumes with --resume auto
EXIT_BUDGET = 124  # that of `timeout`: work that was left when the time was up is kept, and can be continued
STOP_FILE = "stop"
AT_ONCE = 1.0
"""Seconds in which a second Ctrl-C is the first: a launcher passes on what the terminal sends to all."""
_STOPPING = "\nCtrl-C: saving after this step; Ctrl-C once more ends at once, without saving\n"

# Requests, the weightier the larger: the largest over all ranks wins. A stop file forbids a requeue.
# UNSAVED: a checkpoint could not be written, which the next save raises on all ranks. MOVED: the run folder
# was renamed or removed. DEAD_LOSS: the sentence loss learns nothing, and `train.faults.dead_loss` is stop.
NONE, UNSAVED, DEAD_LOSS, INTERRUPT, HANGUP, TERMINATE, REQUEUE, STOP, MOVED = range(9)
EXIT_CODES = {STOP: 0, DEAD_LOSS: 1, INTERRUPT: 130, HANGUP: 129, TERMINATE: 143, REQUEUE: EXIT_REQUEUE}
REASONS = {
    STOP: "found the stop file",
    DEAD_LOSS: "the sentence loss learns nothing (train.faults.dead_loss is stop)",
    INTERRUPT: "received Ctrl-C",
    HANGUP: "its terminal closed (SIGHUP)",
    TERMINATE: "received SIGTERM",
    REQUEUE: "received SIGUSR1",
}
SIGNALS = {
    signal.SIGINT: INTERRUPT,
    signal.SIGHUP: HANGUP,
    signal.SIGTERM: TERMINATE,
    signal.SIGUSR1: REQUEUE,
}


class Shutdown:
    """Collect requests to stop.

    A signal handler only sets a number: nothing collective may run inside one. A second Ctrl-C ends the
    process at once; the last checkpoint stays good.
    """

    def __init__(self, folder: Path, watch_file: bool):
        """watch_file: whether this rank looks at every step for the stop file and for the run's folder."""
        self._requested, self._pressed = NONE, 0.0
        self._stop_file = folder / STOP_FILE if watch_file else None
        for number in SIGNALS:
            if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN):  # not under nohup
                signal.signal(number, self._handle)

    def _handle(self, number: int, frame) -> None:
        if number == signal.SIGINT and self._pressed:
            if time.monotonic() < self._pressed + AT_ONCE:
                return
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        elif number == signal.SIGINT:
            self._pressed = time.monotonic()
            if self._stop_file is not None and sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):  # a print in here could meet another
                    os.write(sys.stderr.fileno(), _STOPPING.encode())
        self._requested = max(self._requested, SIGNALS[signal.Signals(number)])

    def requested(self) -> int:
        """Return the weightiest request that this rank has received, NONE if there is none."""
        if self._stop_file is not None:
            if moved():
                return MOVED  # and not kept: it may be moved back
            if self._stop_file.exists():
                self._requested = STOP
        return self._requested

    def clear_stop_file(self) -> None:
        """Remove the stop file after stopping for it; otherwise the next start would stop at once."""
        if self._stop_file is not None:
            remove_file(self._stop_file)


def _ignore_late_requests() -> None:
    """Ignore requests from here on, if a Shutdown collects them.

    Python gives signals their own meaning back before it takes its modules down, which takes a tenth of a
    second with torch: a request then would kill a process that has done all its work.
    """
    for number in SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Shutdown):
            signal.signal(number, signal.SIG_IGN)


atexit.register(_ignore_late_requests)  # at the import: what is registered first comes last
