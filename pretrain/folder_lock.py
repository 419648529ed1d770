"""One process at a time works on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pretrain.errors import UserError

LOCK = "lock"


@contextlib.contextmanager
def folder_lock(work: Path) -> Iterator[None]:
    """Hold the lock file of a work folder; it goes with the process that took it, however that ends.

    A child that is forked meanwhile does not hold it: one that outlives its parent (datatrove's manager does, after a
    SIGKILL of the parent alone) would bar the folder for good.

    Raises: UserError when another process holds it.
    """
    with open(work / LOCK, "w") as stream:
        os.register_at_fork(after_in_child=stream.close)  # of a closed stream: nothing
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{work.parent} is being prepared by another process; wait for it, or choose another --out.") \
                from error
        except OSError:
            pass  # a network file system without locks: two processes would still write the same bytes
        yield
