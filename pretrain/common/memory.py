"""Keep the memory of a CPU process bounded although every batch has another shape.

Two things grow, as measured on rows of varying length (docs/training.md):

- Compiled kernels. oneDNN compiles one for every distinct shape of a bfloat16 product; it and PyTorch's layer
  above it (ideep) each keep up to 1,024 of them, about half a MB each. `SentenceEncoder` and the
  masked-language loss round their rows up, so that few shapes occur, and `limit_kernel_cache` bounds both
  caches: 900 shapes of one small product left 619 MB behind, 383 or 545 with one of the two bounded, 22 with
  both.
- Holes in the heap. glibc's allocator keeps what was freed between blocks still in use. Blocks of ever new
  sizes do not fit the old holes, so the heap grows although live memory does not. `FlatMemory` returns those
  pages.
"""

import ctypes
import functools
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

ROW_FRACTION = 16
SMALLEST_MULTIPLE = 64
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# above the 350 or so that rounded rows need: 128 made a loop 12% slower, by compiling again
KERNEL_CACHE = 512
_CGROUP, _CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
T = TypeVar("T")
_BYTES_A_PARAMETER = 16  # float32: weight, gradient, two moments


def free_memory() -> int:
    """Return the bytes of memory that may still be taken here; 0 if the system does not say.

    If a container or a job of a cluster has a limit of its own (cgroup 2), no more than is left of it.
    """
    try:
        found = re.search(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        found = None
    return min([int(found[1]) * 1024, *_left_of_limits()]) if found else 0


def _left_of_limits() -> list[int]:
    """Return what is left of the memory of each control group that this process is in and that has a limit.

    Pages of files that are not in use count as left: the system takes them back first.
    """
    try:
        line = next(line for line in _CGROUP.read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return []
    group = Path(line.removeprefix("0::").strip("/"))
    left = []
    for folder in (_CGROUPS / part for part in (group, *group.parents)):
        try:
            limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
            files = re.search(r"^inactive_file (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
        except OSError:
            continue  # the root has none
        if limit != "max":
            left.append(max(1, int(limit) - int(used) + (int(files[1]) if files else 0)))
    return left


def processes_that_fit(parameters: float, bytes_beside: int) -> int:
    """Return how many processes that each train `parameters` parameters fit into half of the free memory.

    bytes_beside: what each needs besides: libraries, data, activations.
    """
    return int(free_memory() / 2 / (parameters * _BYTES_A_PARAMETER + bytes_beside))


def rounded_rows(count: int) -> int:
    """Round `count` up to a multiple of a 16th to a 32nd of itself, at least of 64.

    That gives 16 sizes an octave and 2% of waste.
    """
    multiple = row_multiple(count)
    return -(-count // multiple) * multiple


def row_multiple(count: int) -> int:
    """Return what `rounded_rows` makes `count` a multiple of."""
    return max(SMALLEST_MULTIPLE, (1 << count.bit_length()) // (2 * ROW_FRACTION))


def limit_kernel_cache() -> None:
    """Bound both caches of compiled kernels, unless the environment says otherwise.

    They read their variables at the first product, so call this before any computation on the CPU. Compiling
    a kernel again costs about a millisecond.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(KERNEL_CACHE))


def reuse_large_blocks() -> None:
    """Let glibc keep freed blocks of up to 1 GB for the next step; call it before any large allocation.

    By default a block over 32 MB is mapped again at every use, and the system zeroes its pages each time:
    with 11,000 tokens in a micro-batch that was 15% of the step. Kept blocks leave holes, which `FlatMemory`
    bounds. Without glibc this does nothing.
    """
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


class FlatMemory:
    """Return freed pages to the system when resident memory has outgrown what a step needs.

    What a step needs is the most that was resident over the first `settle` steps. Growth beyond it by a share
    `slack` is holes between blocks of ever new sizes. The system zeroes returned pages at their next use,
    which costs a fifth of a step, so this must stay rare: if the memory in use has grown, the level
    follows. Reading resident memory costs 20 us a step. Without /proc or glibc this does nothing.
    """

    def __init__(self, slack: float = 0.25, settle: int = 10):
        self.slack, self.settle = slack, settle
        self._level = 0.0
        self._steps = self._released_at = 0

    def after_step(self) -> bool:
        """Release the free pages if there are too many; return whether it did."""
        self._steps += 1
        resident = resident_bytes()
        if self._steps <= self.settle:
            self._level = max(self._level, resident)
            return False
        if resident <= self._level * (1 + self.slack):
            return False
        if self._released_at and self._steps - self._released_at < 10 * self.settle:
            self._level *= 1 + self.slack / 2  # soon again: the steps themselves have grown
        release_free_memory()
        self._released_at = self._steps
        return True

    def after_pause(self) -> None:
        """Release the free pages after an evaluation or a checkpoint.

        Both take blocks of other sizes than a step, some in threads of their own, with heaps of their own:
        their holes add up over hours, too slowly for `after_step`. Rare enough not to cost anything.
        """
        if self._steps > self.settle:
            release_free_memory()


def resident_bytes() -> int:
    """Return the resident memory of this process; 0 without /proc."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def release_free_memory() -> None:
    """Give the allocator's free pages back to the system (glibc only; some 50 ms for 500 MB)."""
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _glibc(name: str):
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # musl, macOS, Windows
        return None


def cut_by_size(items: Iterable[T], size: Callable[[T], int], most: int) -> list[list[T]]:
    """Cut items, in order, into lists of at most `most`, by size; a larger item has its own.

    >>> cut_by_size([3, 5, 4], int, 8)
    [[3, 5], [4]]
    """
    lists: list[list[T]] = []
    room = 0
    for item in items:
        if not lists or size(item) > room:
            lists.append([])
            room = most
        lists[-1].append(item)
        room -= size(item)
    return lists
