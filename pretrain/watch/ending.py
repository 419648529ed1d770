"""How a start of a run ended: one message for all ranks, one exit status, and whether to start again.

Of a thousand ranks that meet the same failure, or only its consequence (a lost connection), one speaks. It is
the first to create a file in `RUN/watch`; the others take its exit status. The message says what happened,
what is safe, and what to type.
"""

import contextlib
import os
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from augment.core.errors import AugmentationError
from augment.core.waiting import within
from pretrain.checkpoint.store import candidates, step_of
from pretrain.common.error_output import is_printed, mark_printed, print_before_sending, print_error
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably, told_to_users
from pretrain.common.passing_faults import PEER, SLOW, fault_of
from pretrain.common.run_folder import FolderMoved, moved
from pretrain.common.shutdown import EXIT_REQUEUE
from pretrain.watch.heartbeat import Heartbeat, read_all, silent_ranks, who_is_behind

FOLDER, FOLDER_BEFORE = "watch", "watch.before"
END, CLAIM = "end", "end.claim"
PATIENCE = 3.0
"""Seconds in which a rank that fails for a reason of its own is expected to say so."""
REPORT = 30.0
"""Seconds that the rank that speaks may take."""

T = TypeVar("T")


class RunEnded(UserError):
    """A failure that has been explained; `exit_status` says whether a batch script starts the run again."""


class Verdict(NamedTuple):
    """What the rank that spoke has said."""

    status: int
    text: str


class Ending:
    """Says, once for all ranks, how this start of a run ended."""

    def __init__(self, run_folder: Path, rank: int, ranks: int, start_step: int, between: float) -> None:
        """start_step: of the checkpoint resumed from, or 0. between: seconds between two heartbeats."""
        self.run_folder, self.folder = run_folder, run_folder / FOLDER
        self.rank, self.ranks, self.start_step, self.between = rank, ranks, start_step, between

    def explain(self, error: Exception) -> Exception:
        """Print why the run ends, unless another rank does, and return what to raise for it.

        That is the error itself, marked printed, if it is one for users and not one that may pass. Of a
        run folder that has gone rank 0 has told all.
        """
        gone = error if isinstance(error, FolderMoved) else moved()
        if gone is not None:
            return gone
        error = told_to_users(error)
        fault, printed = fault_of(error), is_printed(error)
        for_users = isinstance(error, (UserError, AugmentationError))
        text = "".join(traceback.format_exception(error))
        call_with_timeout(lambda: (self.folder / f"error-rank-{self.rank}").write_text(text), 5.0, None)

        # another rank may have failed first, or met the same error: then it speaks
        follows = fault is not None and fault.kind in (PEER, SLOW) and self.ranks > 1 and not printed
        verdict = self.wait_for_verdict(PATIENCE) if follows else None
        if verdict is None and not self.claim():
            verdict = self.wait_for_verdict(REPORT)
        if verdict is not None:
            if not (printed or follows or _first_line(error) in verdict.text):
                print_before_sending(error)
            return _quiet(RunEnded(verdict.text), verdict.status)

        what = str(error) if for_users else f"{type(error).__name__}: {_first_line(error)}"
        if fault is None:
            status = 2 if for_users else 1
            if not printed and not for_users:
                traceback.print_exception(error)
        else:
            status = EXIT_REQUEUE
            what = what if for_users else f"{fault.what} ({_first_line(error)})"
            if follows:
                looks = self.look_twice()
                if silent_ranks(*looks, self.ranks):
                    what = f"{who_is_behind(*looks, self.ranks)}. {what[0].upper()}{what[1:]}"
        status = self.end(what, status, printed, for_users and getattr(error, "says_what_next", False))
        return _quiet(error, status) if fault is None and for_users else _quiet(RunEnded(what), status)

    def claim(self) -> bool:
        """Return whether this rank is the one to speak; so is every rank that cannot reach the folder."""

        def create() -> bool:
            try:
                os.close(os.open(self.folder / CLAIM, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                return False
            return True

        return call_with_timeout(create, 5.0, True)

    def wait_for_verdict(self, seconds: float) -> Verdict | None:
        """Return what another rank has said, if it does so in time."""
        end = time.monotonic() + seconds
        while True:
            verdict = call_with_timeout(lambda: read_verdict(self.run_folder), 5.0, None)
            if verdict is not None or time.monotonic() > end:
                return verdict
            time.sleep(0.1)

    def end(self, what: str, status: int, printed: bool = False, complete: bool = False) -> int:
        """Print the last message and publish it; return the exit status.

        status: EXIT_REQUEUE asks for another start, and becomes 1 if this one has made no progress. printed:
        what happened has been printed. complete: `what` says what is safe and what to type.
        """
        unknown: list[Path] | None = None
        checkpoints = call_with_timeout(lambda: candidates(self.run_folder / "checkpoints"), 10.0, unknown)
        status, after = self._what_next(checkpoints, status, what)
        text = what if complete else f"{what}\n{after}"
        content = f"{status}\n{text}\n".encode()
        call_with_timeout(lambda: replace_durably(self.folder / END, content), 10.0, None)
        if not (printed and complete):
            print_error(UserError(after if printed else text))
        return status

    def _what_next(self, checkpoints: list[Path] | None, status: int, what: str) -> tuple[int, str]:
        """Return the status, and the lines that say what is safe and what to type.

        checkpoints: the newest first; None: they cannot be listed.
        """
        again = "the same command with --resume auto"
        if checkpoints is None:
            safe = f"the checkpoints in {self.run_folder}, which cannot be listed now"
        elif checkpoints:
            safe = f"{checkpoints[0]}: the run as it was after step {step_of(checkpoints[0])}"
        else:
            safe = f"nothing: {self.run_folder} has no checkpoint yet"
        if status != EXIT_REQUEUE and "out of memory" in what:
            then = f"halve --train.micro_batch_tokens, which changes no loss, then {again}"
        elif status != EXIT_REQUEUE:
            then = f"deal with the reason above, then {again}"
        elif checkpoints is None or (checkpoints and step_of(checkpoints[0]) > self.start_step):
            itself = "slurm/pretrain_clear.sh starts the job again by itself"
            then = f"this may pass (exit status {status}). {itself}; otherwise {again}"
        else:
            status = 1
            then = (
                f"this may pass, but no checkpoint was written since this start at step {self.start_step}, "
                f"so the job is not requeued (exit status 1). Lower --checkpoint.every; then {again}"
            )
        return status, f"  safe: {safe}\n  next: {then}"

    def look_twice(self) -> tuple[dict[int, Heartbeat], dict[int, Heartbeat]]:
        """Return all ranks' heartbeats at two moments, with time for two beats between."""
        none: dict[int, Heartbeat] = {}
        before = call_with_timeout(lambda: read_all(self.folder), 5.0, none)
        time.sleep(2.5 * self.between)
        return before, call_with_timeout(lambda: read_all(self.folder), 5.0, none)


def begin_folder(run_folder: Path) -> None:
    """Make RUN/watch anew. What the start before left on its end is kept, once, as RUN/watch.before."""
    folder, before = run_folder / FOLDER, run_folder / FOLDER_BEFORE
    if (folder / CLAIM).exists():
        shutil.rmtree(before, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.rename(folder, before)
    remove_folder(run_folder)
    folder.mkdir(parents=True, exist_ok=True)


def remove_folder(run_folder: Path) -> None:
    """Remove RUN/watch after an end that needs no explanation."""
    shutil.rmtree(run_folder / FOLDER, ignore_errors=True)


def read_verdict(run_folder: Path) -> Verdict | None:
    """Return how the last start of a run ended; None: as it should, or nobody could say."""
    try:
        status, _, text = (run_folder / FOLDER / END).read_text().partition("\n")
        return Verdict(int(status), text.rstrip())
    except (OSError, ValueError):
        return None


def call_with_timeout(action: Callable[[], T], seconds: float, otherwise: T) -> T:
    """Return what an action returns; `otherwise` if it fails, or takes longer."""
    try:
        return within(seconds, action)
    except Exception:
        return otherwise


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _quiet(error: Exception, status: int) -> Exception:
    mark_printed(error)
    if isinstance(error, UserError):
        error.exit_status = status
    return error
