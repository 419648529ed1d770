"""Environment variables that must be set before torch computes or DeepSpeed is imported.

Import this module first in every entry point that trains.
"""

import os
import re

from pretrain.common.memory import limit_kernel_cache, reuse_large_blocks


def slow_compressing_stores(cpuinfo: str) -> bool:
    """Whether /proc/cpuinfo describes AMD's Zen 4: family 25 with AVX-512.

    Its AVX-512 stores that compress are microcoded, and numpy's AVX-512 sort is made of them: 33 to 39 ns a
    64-bit number where the AVX2 one takes 6 to 9. Neither Intel's AVX-512 nor Zen 5's has that.
    """
    first = cpuinfo.split("\n\n", 1)[0]
    return bool(
        "AuthenticAMD" in first and re.search(r"^cpu family\s*: 25$", first, re.M) and " avx512f " in first
    )


def prefer_fast_sorts() -> None:
    """Keep numpy from AVX-512 where that is slow, unless the environment says otherwise; before numpy is
    imported."""
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            cpuinfo = file.read()
    except OSError:
        return
    if slow_compressing_stores(cpuinfo):
        os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "X86_V4 AVX512_ICL")


def spin_longer_between_kernels() -> None:
    """GNU OpenMP's threads wait 1,000 turns for the next kernel before they sleep, not 100; before torch is
    imported.

    Autograd's thread has a pool of its own beside the main one, so there are more threads than cores, and
    OpenMP then all but stops spinning: waking a thread for each of a step's hundreds of small kernels cost up
    to a third of it. The count where threads have a core each is the default, 3 ms; a setting of the user's
    own stands.
    """
    if "OMP_WAIT_POLICY" not in os.environ and "GOMP_SPINCOUNT" not in os.environ:
        os.environ.update(OMP_WAIT_POLICY="active", GOMP_SPINCOUNT="300000")


limit_kernel_cache()
reuse_large_blocks()
prefer_fast_sorts()
spin_longer_between_kernels()
# Tokenizers' threads and forked loader workers do not mix; preparation asks for them itself.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import torch  # noqa: E402  (reads the variables above)

if not torch.cuda.is_available():
    # or DeepSpeed warns, in every process, that it found nothing else
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
