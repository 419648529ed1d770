"""The processor cores that this process may use, and the threads that its user wants."""

import os
from pathlib import Path

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def physical_cores() -> list[int]:
    """Return a logical processor of each physical core of this process's affinity."""
    logical = sorted(os.sched_getaffinity(0))
    try:
        return list({Path(_SIBLINGS.format(number)).read_text(): number for number in logical}.values())
    except OSError:  # no such description: a virtual machine, another system
        return logical


def usable_cores() -> int:
    """Return the number of physical cores of this process's affinity, or fewer if a quota allows fewer.

    Two hardware threads of a core share its arithmetic units, so they count once.
    """
    cores = len(physical_cores())
    return max(1, min(cores, _quota() or cores))


def ranks_here() -> int:
    """Return the number of ranks on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or 1)


def threads_of_user() -> int | None:
    """Return the number of threads that the user has set in OMP_NUM_THREADS; None: none.

    torchrun sets 1 for two or more ranks if the user has set nothing, so a 1 under torchrun counts as not
    set.
    """
    # OpenMP's own form is a list, one number for each level of nesting; torch has one level.
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if not value.isdecimal() or not int(value):
        return None
    by_torchrun = int(value) == 1 and "TORCHELASTIC_RUN_ID" in os.environ and ranks_here() > 1
    return None if by_torchrun else int(value)


def _quota() -> int | None:
    """Return the whole cores of a container's quota (cgroup 2); None: no quota."""
    try:
        allowed, period = _QUOTA.read_text().split()
    except (OSError, ValueError):
        return None
    return None if allowed == "max" else max(1, int(allowed) // int(period))
