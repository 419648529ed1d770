"""Keeping a CPU process flat when every batch has another shape.

Two things grow without bound of their own, measured on rows of varying length (docs/memory.md):

- oneDNN compiles a kernel for every distinct shape of a bfloat16 product, and both it and PyTorch's layer
  above
  it (ideep) keep up to 1,024 of them, about half a MB each. `SentenceEncoder` and the masked-language loss
  round their rows up, so that few shapes occur, and `limit_kernel_cache` bounds both caches: 900 shapes of
  one small product left 619 MB behind, 383 or 545 with one of the two bounded, 22 with both.
- glibc's allocator keeps what was freed between blocks still in use. Blocks of ever new sizes fit the old
  holes badly, so the heap grows although live memory does not. `FlatMemory` gives those pages back.
"""

from __future__ import annotations

import ctypes
import functools
import os

ROW_FRACTION = 16
SMALLEST_MULTIPLE = 64
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
# above the 350 or so that rounded rows need: 128 made a loop 12% slower, by compiling again
KERNEL_CACHE = 512


def rounded_rows(count: int) -> int:
    """`count` up to a multiple of a 16th to a 32nd of itself (least 64): 16 sizes an octave, 2% of waste."""
    multiple = max(SMALLEST_MULTIPLE, (1 << count.bit_length()) // (2 * ROW_FRACTION))
    return -(-count // multiple) * multiple


def limit_kernel_cache() -> None:
    """Bound both caches of compiled kernels, unless the environment says otherwise.

    They look at their variables at the first product, so this comes before any computation on CPU. A kernel
    that has to be compiled again costs about a millisecond.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, str(KERNEL_CACHE))


def reuse_large_blocks() -> None:
    """Let glibc keep freed blocks of up to 1 GB for the next step (glibc only; before any large allocation).

    By default a block over 32 MB is mapped anew at every use, and the system zeroes its pages each time: with
    11,000 tokens in a micro-batch that was 15% of the step. Kept blocks leave holes; `FlatMemory` bounds
    them.
    """
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 30)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


class FlatMemory:
    """Gives freed pages back to the system when resident memory has outgrown what a step needs.

    What a step needs is the most that was resident over the first `settle` steps; growth beyond it by `slack`
    is holes between blocks of ever new sizes. Returned pages must be zeroed again at their next use, which
    costs a fifth of a step, so this must stay rare: if memory that is in use has grown, the level follows.
    Looking costs 20 us a step. Where resident memory cannot be read or released (no /proc, no glibc) it does
    nothing.
    """

    def __init__(self, slack: float = 0.25, settle: int = 10):
        self.slack, self.settle = slack, settle
        self._level = 0.0
        self._steps = self._released_at = 0

    def after_step(self) -> bool:
        """Look, and release if it is time; true if it was."""
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


def resident_bytes() -> int:
    """Resident memory of this process, 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def release_free_memory() -> None:
    """Return the allocator's free pages to the system (glibc only; some 50 ms for 500 MB)."""
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)


@functools.cache
def _glibc(name: str):
    try:
        return getattr(ctypes.CDLL("libc.so.6"), name)
    except (OSError, AttributeError):  # musl, macOS, Windows
        return None
