"""Environment variables that must be set before torch computes or DeepSpeed is imported.

Import this module first in every entry point that trains.
"""

import os
import re

from pretrain.common.memory import limit_kernel_cache, reuse_large_blocks


def slow_compressing_stores(cpuinfo: str) -> bool:
    """Return whether /proc/cpuinfo describes AMD's Zen 4: family 25 with AVX-512.

    Its compressing AVX-512 stores are microcoded, and numpy's AVX-512 sort consists of them: 33 to 39 ns a
    64-bit number where the AVX2 sort takes 6 to 9. Neither Intel's AVX-512 nor Zen 5's is slow.
    """
    first = cpuinfo.split("\n\n", 1)[0]
    is_family = re.search(r"^cpu family\s*: 25$", first, re.M) is not None
    return "AuthenticAMD" in first and is_family and " avx512f " in first


def prefer_fast_sorts() -> None:
    """Disable numpy's AVX-512 if it is slow, unless the user has set it; call before numpy's import."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            cpuinfo = file.read()
    except OSError:
        return
    if slow_compressing_stores(cpuinfo):
        os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL")


def spin_longer_between_kernels() -> None:
    """Let GNU OpenMP's threads spin 1,000 turns, not 100, before they sleep; call before torch's import.

    Autograd's thread has a pool of its own beside the main one, so there are more threads than cores, and
    OpenMP then all but stops spinning: waking a thread for each of a step's hundreds of small kernels cost up
    to a third of the step. GOMP_SPINCOUNT is for threads with a core each, and set to its default, 3 ms. The
    user's own settings stay.
    """
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.update(OMP_WAIT_POLICY="active", GOMP_SPINCOUNT="300000")


def choose_accelerator() -> None:
    """Name the CPU to DeepSpeed if there is no GPU; call before its import.

    It would warn, in every process, that it found nothing else.
    """
    import torch  # a second: not if only flags are read

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


limit_kernel_cache()
reuse_large_blocks()
prefer_fast_sorts()
spin_longer_between_kernels()
# Tokenizers' threads and forked loader workers do not mix; preparation asks for them itself.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
