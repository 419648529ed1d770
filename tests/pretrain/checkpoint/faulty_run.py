"""A training run in which one operation of a rank is its last, or does not succeed.

    faulty_run.py '{"rank": 1, "calls": "writes", "number": 40, "what": "kill"}' pretrain/main.py FLAG ...

The calls of a kind are counted in that rank from its first on; at the given one the process kills itself, or
the disk is full from then on.
"""

import errno
import itertools
import json
import os
import runpy
import shutil
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from pretrain.checkpoint.folder_writer import TensorFileWriter

CALLS = {
    "writes": [
        (os, "fsync"), (os, "rename"), (os, "replace"), (os, "mkdir"), (os, "unlink"), (shutil, "copyfile"),
        (shutil, "rmtree"), (TensorFileWriter, "_put"), (TensorFileWriter, "close"),
    ],
    "collectives": [
        (dist, "all_reduce"), (dist, "barrier"), (dist, "broadcast"), (dist, "all_gather_object"),
    ],
}  # fmt: skip
NEED_SPACE = {"fsync", "mkdir", "copyfile", "_put"}


def plant(calls: str, number: int, what: str) -> None:
    """Replace the calls of a kind by ones that count, and fail where they are told to."""
    counter = itertools.count(1)

    def counted(call, name):
        def instead(*arguments, **options):
            now = next(counter)
            if what == "kill" and now == number:
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "full" and now >= number and name in NEED_SPACE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(*arguments, **options)

        return instead

    for owner, name in CALLS[calls]:
        setattr(owner, name, counted(getattr(owner, name), name))


if __name__ == "__main__":
    fault = json.loads(sys.argv[1])
    if int(os.environ["RANK"]) == fault.pop("rank"):
        plant(**fault)
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
