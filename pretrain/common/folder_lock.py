"""Let one process at a time write into a folder: a run, a preparation, an export.

The lock is a file in the folder that its holder refreshes every few seconds (filelock's lease). It needs
nothing of the file system but exclusive creation, so it also works between the nodes of a cluster, where
kernel locks often do not. It ends with its holder: on the same machine at once, since the process is gone; on
another one as soon as it has not been refreshed for `LEASE` seconds.

filelock takes a lease by its age alone. What this module adds is a look at /proc: a process of this machine
that is suspended keeps its lock, and a killed one loses it at once. It also names the holder.
"""

import contextlib
import os
import socket
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import LeaseSettingsMismatch, SoftFileLease, Timeout

from pretrain.common.errors import UserError
from pretrain.common.processes import stat_fields
from pretrain.common.run_folder import guard, moved
from pretrain.common.shutdown import EXIT_REQUEUE

LOCK = ".lock"
LEASE = 120.0
"""Seconds without a refresh after which a holder on another machine counts as dead."""
BEAT = 10.0
"""Seconds between two refreshes."""


class FolderTakenError(UserError):
    """Another process writes into the folder."""


@contextlib.contextmanager
def folder_lock(folder: Path, wait: float = 0.0, part: str = "", says_itself: bool = False) -> Iterator[None]:
    """Hold `folder` for writing until the block ends or this process dies.

    A child that is forked meanwhile does not hold it. Nothing is written into a folder that is renamed or
    removed meanwhile (`guard`). Raises FolderTakenError if another process holds it.

    Args:
        wait: how many seconds to wait for a live holder.
        part: a file or folder in it; hold that alone.
        says_itself: whether the holder looks by itself, soon, for a folder that is renamed or removed.
    """
    path = folder / (f".{part}{LOCK}" if part else LOCK)

    def stop(loss: Any) -> None:
        if not (says_itself and moved()):
            _stop(loss)

    lock = lease_of(path, on_compromise=stop)
    try:
        _acquire(lock, folder / part, wait)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror or error}; name another") from None
    try:
        with contextlib.nullcontext() if part else guard(folder, LOCK):
            yield
    finally:
        lock.release()


def lease_of(path: Path, **more: Any) -> SoftFileLease:
    """Return the lease that a lock's file is, to take or to look at."""
    return SoftFileLease(path, lease_duration=LEASE, heartbeat_interval=BEAT, **more)


def _acquire(lock: SoftFileLease, place: Path, wait: float) -> None:
    """Take the lock; raise FolderTakenError if its holder lives, or nothing shows that it is gone."""
    watch, deadline, printed = _Watch(lock), time.monotonic() + wait, False

    def give_up() -> bool:
        elsewhere = state_here(lock.owner) == "elsewhere"
        return not elsewhere or (watch.holder_lives() and time.monotonic() >= deadline)

    while True:
        # Not within `acquire`: that takes a lease by its age alone, also from a process of this machine that
        # is suspended.
        while (state := state_here(owner := lock.owner)) in ("lives", "dies"):
            if time.monotonic() >= deadline + (10 if state == "dies" else 0):
                break
            time.sleep(0.1)
        if state in ("lives", "dies"):
            raise _taken(lock, place)
        if state == "dead":
            _remove(lock, owner)
        for seconds in (1.0, wait + 1.5 * LEASE):
            try:
                lock.acquire(timeout=seconds, poll_interval=0.1, cancel_check=give_up)
                return
            except LeaseSettingsMismatch:  # held by a version of this program with another lease
                raise _taken(lock, place) from None
            except Timeout:
                if state_here(lock.owner) != "elsewhere":
                    break
                if watch.lives and time.monotonic() >= deadline:
                    raise _taken(lock, place) from None
            if not (printed or watch.lives):
                said = f"waiting up to {LEASE + wait:.0f} s to see whether it is alive"
                print(f"{place} is held by {holder(lock)}; {said}", file=sys.stderr, flush=True)
                printed = True
        else:
            raise _taken(lock, place)


def _taken(lock: SoftFileLease, place: Path) -> FolderTakenError:
    return FolderTakenError(
        f"{place} is being written by {holder(lock)}. Wait for it, stop it, or name another folder. (If "
        f"there is no such process any more, remove {lock.lock_file}.)"
    )


def _remove(lock: SoftFileLease, dead: Any) -> None:
    """Remove the lock of a dead process, but not that of another which has taken its place meanwhile."""
    path = Path(lock.lock_file)
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        owner = lease_of(aside).owner
        if owner is None or owner.token != dead.token:
            with contextlib.suppress(FileExistsError):
                # put it back: its holder finds the same file again at its next refresh
                os.link(aside, path)
        aside.unlink()


def holder(lock: SoftFileLease) -> str:
    """Return who holds a lock, in words: pid and host."""
    owner = lock.owner
    return "another process" if owner is None else f"process {owner.pid} on {owner.hostname.split('?')[0]}"


class _Watch:
    """Look at a lock that another process holds, repeatedly, for signs that its holder is alive."""

    def __init__(self, lock: SoftFileLease) -> None:
        self.lives, self._lock = False, lock
        self._first: tuple[str | None, int] | None = None  # token and time of the refresh at the first look

    def holder_lives(self) -> bool:
        """Return whether the holder has refreshed its lock since the first look."""
        owner = self._lock.owner
        try:
            # opening makes a network file system fetch the present state
            with open(self._lock.lock_file) as file:
                refreshed = os.fstat(file.fileno()).st_mtime_ns
        except OSError:  # released meanwhile
            self._first, self.lives = None, False
            return False
        token = owner.token if owner is not None else None
        if self._first is None or self._first[0] != token:
            self._first = token, refreshed
        self.lives = refreshed != self._first[1]
        return self.lives


def state_here(owner: Any) -> str:
    """Return what /proc says of the owner of a lock.

    It "lives" on this machine, also if it is suspended. It "dies": it was killed, and one of its threads
    still ends a write. It is "dead": a zombie. Or it is "elsewhere": no process of this machine, or none any
    more.
    """
    if owner is None or owner.hostname.split("?")[0] != socket.gethostname() or owner.start is None:
        return "elsewhere"
    fields = stat_fields(owner.pid)
    if not fields or int(fields[19]) != owner.start % 2**64:
        return "elsewhere"
    if fields[0] not in "ZX":
        return "lives"
    return "dead" if int(fields[17]) <= 1 else "dies"


def _stop(loss: Any) -> None:
    """End this process: it has lost its lock, and another may be writing already."""
    what = (None if Path(loss.lock_file).parent.is_dir() else moved()) or (
        f"the lock {loss.lock_file} of this process is gone ({loss.reason}): it was suspended for long, or "
        "the file was removed. Stopped before anything else is written; what was saved is whole."
    )
    status = 2
    if loss.reason == "refresh-failed":
        status = EXIT_REQUEUE
        what = (
            f"the lock {loss.lock_file} could not be refreshed for {LEASE - BEAT:.0f} s "
            f"({loss.error.strerror}): the storage fails, and another process may take the folder. What was "
            f"saved is whole. This may pass (exit status {status}): then the same command continues, a run "
            "with --resume auto."
        )
    print(f"\nerror: {what}", file=sys.stderr, flush=True)
    os._exit(status)
