"""The processor cores that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cores() -> int:
    """Return the number of physical cores of this process's affinity, or fewer where a quota allows fewer.

    Two hardware threads of a core share its arithmetic units, so they count once.
    """
    logical = os.sched_getaffinity(0)
    try:
        cores = len({Path(_SIBLINGS.format(number)).read_text() for number in logical})
    except OSError:  # no such description: a virtual machine, another system
        cores = len(logical)
    return max(1, min(cores, _quota() or cores))


def _quota() -> int | None:
    """Return the whole cores of a container's quota (cgroup 2); None: no quota."""
    try:
        allowed, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return None
    return None if allowed == "max" else max(1, int(allowed) // int(period))
