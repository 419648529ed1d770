"""Rounding of rows, and giving freed memory back."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from pretrain.common import memory
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


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc and calls glibc's malloc_trim")
def test_what_other_threads_freed_is_given_back_after_a_pause():
    flat, live = FlatMemory(settle=1), []

    def write_a_checkpoint():  # in a thread, whose heap is its own
        blocks = [bytearray(100 * 1024) for _ in range(512)]
        live.append(blocks[-1])

    for _ in range(2):
        flat.after_step()
    before = resident_bytes()
    for _ in range(8):
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(write_a_checkpoint)
        flat.after_pause()
        assert resident_bytes() < before + 24 * 2**20
    assert len(live) == 16


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


def test_free_memory_is_what_the_tightest_limit_leaves(tmp_path, monkeypatch):
    """Control groups: a job with a limit, a step of it without, and the system's root, which has no files."""
    whole = memory.free_memory()
    membership = tmp_path / "cgroup"
    membership.write_text("1:cpu:/\n0::/job/step\n")
    monkeypatch.setattr(memory, "_CGROUP", membership)
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    assert memory.free_memory() == pytest.approx(whole, rel=0.2), "no limit"
    for group, limit, used, files in [("job/step", "max", 500, 0), ("job", "1000000", 700_000, 50_000)]:
        folder = tmp_path / group
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 7\ninactive_file {files}\nactive_file 9\n")
    assert memory.free_memory() == 1_000_000 - 700_000 + 50_000
    (tmp_path / "job" / "memory.current").write_text("2000000\n")
    assert memory.free_memory() == 1, "nothing; 0 would mean that it is not known"
