"""Rounding of rows, and giving freed memory back."""

import sys

import numpy as np
import pytest

from pretrain.common.memory import FlatMemory, resident_bytes, rounded_rows


def test_rounding_wastes_little_and_leaves_few_sizes():
    counts = np.arange(1, 20_000)
    rounded = np.array([rounded_rows(int(c)) for c in counts])
    assert (rounded >= counts).all()
    large = counts >= 1024
    assert ((rounded - counts) / counts)[large].max() < 1 / 16
    assert ((rounded - counts) / counts)[large].mean() < 0.03
    assert len(set(rounded[(counts > 4096) & (counts <= 8192)])) == 16
    assert rounded_rows(0) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and calls glibc's malloc_trim")
def test_freed_memory_between_live_blocks_is_given_back():
    before, allowed = resident_bytes(), 32 * 2**20
    flat = FlatMemory(slack=allowed / before, settle=1)  # the share is small in a process that is large
    flat.after_step()
    blocks = [bytearray(64 * 1024) for _ in range(4096)]  # 256 MB in blocks that glibc keeps on its heap
    live = blocks[-1::-64]
    del blocks
    assert flat.after_step() or resident_bytes() < before + allowed + 16 * 2**20
    assert resident_bytes() < before + 2 * allowed
    assert not flat.after_step()
    assert len(live) == 64


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_steps_own_memory_is_not_given_back_at_every_step():
    flat = FlatMemory(settle=2)
    released = []
    for _ in range(12):
        block = bytearray(200 * 2**20)  # what each step takes and frees
        del block
        released.append(flat.after_step())
    assert sum(released) <= 1


@pytest.mark.parametrize(
    "vendor, family, flags, slow",
    [
        ("AuthenticAMD", 25, "avx2 avx512f avx512_bf16", True),  # Zen 4
        ("AuthenticAMD", 25, "avx2", False),  # Zen 3
        ("AuthenticAMD", 26, "avx2 avx512f avx512_bf16", False),  # Zen 5
        ("GenuineIntel", 6, "avx2 avx512f", False),
    ],
)
def test_processors_whose_compressing_stores_are_slow(vendor, family, flags, slow):
    from pretrain.common.environment import slow_compressing_stores

    cpu = f"processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: fpu {flags} aes\n"
    assert slow_compressing_stores(cpu + "\n" + cpu) is slow
