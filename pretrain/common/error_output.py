"""Print an error once, although several ranks meet it, and exit without waiting for other ranks."""

import errno
import io
import os
import select
import sys
import time
import traceback
from typing import Any

from augment.core.errors import AugmentationError
from pretrain.common.credentials import without_credentials
from pretrain.common.errors import UserError
from pretrain.common.passing_faults import PEER, fault_of

LOCAL_RANKS = "CLEAR_LOCAL_RANKS"
"""Variable of ranks that a plain command has started: how many there are (`pretrain.start.local_ranks`)."""

PATIENCE = 3.0
"""Seconds in which rank 0 is expected to print an error that all ranks meet."""


class _Output(io.FileIO):
    """A descriptor to print to, which takes what is lost: the disk is full, or the reader has gone."""

    goes_on, of_run, fault = True, True, ""

    def write(self, data: Any) -> int:
        left = memoryview(data)
        try:
            while left:  # whole: without a buffer nobody asks how much was taken
                if taken := super().write(left):
                    left = left[taken:]
                else:  # a pipe that does not wait is full
                    select.select((), (self,), ())
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                _Output.fault = os.strerror(error.errno)
            elif not _Output.goes_on:
                raise
        return len(data)


def print_whoever_reads(goes_on: bool = True, of_run: bool = False) -> None:
    """Let this process go on, from here on, when a full disk takes nothing of what it prints.

    goes_on: also when its reader has gone, as `tee` or a terminal: a run takes weeks. of_run: metrics.jsonl
    has what matters. Else what is printed is a result (`require_printed`). Streams that are not the process's
    own stay.
    """
    _Output.goes_on, _Output.of_run = goes_on, of_run
    for name in ("stdout", "stderr"):
        before = getattr(sys, name)
        if before is None or before is not getattr(sys, f"__{name}__"):  # it is closed; a notebook's
            continue
        before.flush()
        raw = _Output(before.fileno(), "wb", closefd=False)
        output: Any = raw if before.write_through else io.BufferedWriter(raw)
        how = before.encoding, before.errors, None, before.line_buffering, before.write_through
        setattr(sys, name, io.TextIOWrapper(output, *how))


def require_printed() -> None:
    """Raise UserError if a full disk has taken what `print_whoever_reads` lets this process print."""
    if not _Output.of_run and sys.stdout is not None:
        sys.stdout.flush()
        if _Output.fault:
            error = UserError(f"{_Output.fault}: part of what was printed is lost; what is in files is whole")
            error.exit_status = 1
            raise error


def print_error(error: Exception) -> None:
    """Print an error's message, with the rank if a launcher started several.

    Do nothing if it is marked printed, or if this rank was started by rank 0 with the same command line
    (`LOCAL_RANKS`) and has not met the others: then rank 0 prints the same.
    """
    rank, same_command = int(os.environ.get("RANK", 0)), LOCAL_RANKS in os.environ
    if is_printed(error) or (rank and same_command and not _has_process_group()):
        return
    several = int(os.environ.get("WORLD_SIZE", 1)) > 1 and (rank or not same_command)
    where = f"[rank {rank}] " if several else ""
    print(f"\n{where}error: {without_credentials(str(error))}", file=sys.stderr, flush=True)


def print_at_end(error: Exception) -> None:
    """Print an error that ends this program.

    A rank that another one has started waits first. If the first meets the same error it prints it, and
    its end ends this process.
    """
    started = LOCAL_RANKS in os.environ and int(os.environ.get("RANK", 0)) > 0
    if started and _has_process_group() and not is_printed(error):
        time.sleep(PATIENCE)
    print_error(error)


def print_before_sending(error: Exception) -> None:
    """Print an error that this rank is about to send to the others, and mark it printed.

    The others end as soon as they receive it, and a launcher that sees one rank end kills the rest.
    """
    if isinstance(error, (UserError, AugmentationError)):
        print_error(error)
    else:
        traceback.print_exception(error)
        sys.stderr.flush()
    mark_printed(error)


def mark_printed(error: Exception) -> None:
    """Mark an error as printed, by this rank or another, so that it is not printed again at the end."""
    vars(error)["printed"] = True


def is_printed(error: Exception) -> bool:
    """Return whether an error is marked as printed."""
    return getattr(error, "printed", False)


def lost_rank_message(error: Exception) -> str | None:
    """Return the message if a collective failed because another rank has ended; else None."""
    if not isinstance(error, RuntimeError) or is_printed(error) or not _has_process_group():
        return None
    fault = fault_of(error)
    if fault is None or fault.kind != PEER:
        return None
    reason = str(error).splitlines()[0]
    return f"another rank ended, and its output says why ({reason}). Then continue with --resume auto"


def exit_process(code: int) -> None:
    """Exit with a status; after an error in a run of several ranks, at once.

    The other ranks may wait in a collective, so an orderly end of the process group could wait forever.
    """
    if code and _has_process_group():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def _has_process_group() -> bool:
    return "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized()
