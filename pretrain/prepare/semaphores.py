"""Remove the named semaphores of preparations that were killed.

A pool of worker processes has six semaphores with names, which a helper of Python's removes when the pool's
process ends. Where all processes are killed at once, as Slurm does and the kernel where memory runs out, the
helper is killed too, and the names stay in /dev/shm until the machine starts again. So each name says whose
it is, and the next preparation on the machine removes those of the dead.
"""

import os
import re
from pathlib import Path
from typing import Any

from pretrain.common.files import discard
from pretrain.common.processes import start_of

_PLACE = Path("/dev/shm")
_NAME = re.compile(r"sem\.clear-(\d+)-(\d+)-(\d+)-\w+")


def name_semaphores(process: Any) -> None:
    """Have all semaphores that this process makes from now on say whose they are; remove those of the dead.

    process: what `current_process()` returns, of multiprocessing or of multiprocess.
    """
    start = start_of(os.getpid())
    if start is None or not _PLACE.is_dir():  # not Linux
        return
    space = _process_ids()
    process._config["semprefix"] = f"/clear-{space}-{os.getpid()}-{start}"
    for path in _PLACE.glob("sem.clear-*"):
        owner = _NAME.fullmatch(path.name)
        if owner and int(owner[1]) == space and start_of(int(owner[2])) != int(owner[3]):
            discard(path)  # unless it is another user's


def _process_ids() -> int:
    """Return what tells the process ids of this container from those of others that share /dev/shm."""
    return os.stat("/proc/self/ns/pid").st_ino
