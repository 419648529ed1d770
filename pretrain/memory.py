"""Keeping a CPU process flat when every batch has another shape.

Two things grow without bound of their own, measured on rows of varying length (docs/memory.md):

- oneDNN compiles a kernel for every distinct shape of a bfloat16 product, and both it and PyTorch's layer above
  it (ideep) keep up to 1,024 of them, about half a MB each. `SentenceEncoder` and the masked-language loss
  round their rows up, so that few shapes occur, and `limit_kernel_cache` bounds both caches: 900 shapes of one
  small product left 619 MB behind, 383 or 545 with one of the two bounded, 22 with both.
- glibc's allocator keeps what was freed between blocks still in use. Blocks of ever new sizes fit the old
  holes badly, so the heap grows although live memory does not. `FlatMemory` gives those pages back.
"""

from __future__ import annotations

import ctypes
import functools
import os

ROW_FRACTION = 16
SMALLEST_MULTIPLE = 64
KERNEL_CACHE = 512  # above the 350 or so that rounded rows need: 128 made a loop 12% slower, by compiling again


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


class FlatMemory:
    """Gives freed pages back to the system when resident memory has grown by `slack` since it last did.

    Call it once a step: 20 us to look, some 50 ms to release 500 MB. Where resident memory cannot be
    read or released (no /proc, no glibc) it does nothing.
    """

    def __init__(self, slack: float = 0.25):
        self.slack = slack
        self._level = 0

    def after_step(self) -> bool:
        """Look, and release if it is time; true if it was."""
        resident = resident_bytes()
        if resident <= self._level * (1 + self.slack):
            return False
        release_free_memory()
        self._level = resident_bytes()
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
    if (trim := _malloc_trim()) is not None:
        trim(0)


@functools.cache
def _malloc_trim():
    try:
        return ctypes.CDLL("libc.so.6").malloc_trim
    except (OSError, AttributeError):  # musl, macOS, Windows
        return None
