"""Threads and precision of a run on the machine at hand."""

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pretrain.common.cores import ranks_here, threads_of_user, usable_cores
from pretrain.common.errors import UserError
from pretrain.common.ranks import gathered, host_group, on_rank_zero
from pretrain.config.run import Config, Precision
from pretrain.start.data import Data
from pretrain.start.estimate import fitting_micro_batch

_BFLOAT16 = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)
"""In /proc/cpuinfo: what a processor with instructions for bfloat16 lists, x86's or ARM's."""


def device_name() -> str:
    """Return the model of the GPU, or without one of the processor: on another sums may round otherwise."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else platform.machine()


def set_threads(config: Config) -> int:
    """Set the CPU threads of this rank, an equal share of the cores by default, and return their number."""
    threads = config.train.threads or threads_of_user() or max(1, usable_cores() // ranks_here())
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # denormal gradients are hundreds of times slower on some CPUs
    return threads


def set_deterministic(config: Config) -> None:
    """Let torch choose only algorithms that give the same bits again, if `train.deterministic`, on a GPU."""
    if config.train.deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it, by NVIDIA's notes
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # kernels here write what they return


def allow_tf32(config: Config) -> None:
    """Let a GPU round float32 products, as those of heads and losses, to TF32 (11 bits) by `train.tf32`.

    "auto" does in a run in bf16 or fp16, whose encoder's products are rounded to as many bits or fewer,
    unless `train.deterministic` or `model.attention: exact` is set.
    """
    train, exact = config.train, config.train.deterministic or config.model.attention == "exact"
    auto = train.tf32 == "auto" and train.precision in ("bf16", "fp16") and not exact
    torch.backends.cuda.matmul.allow_tf32 = auto or train.tf32 == "on"


def choose_precision(config: Config, state: dict[str, Any] | None) -> Precision:
    """Return the precision to train in, the same on all ranks. Collective.

    `auto` is what the run used before it was resumed (`state` of the checkpoint), else bfloat16 if rank 0's
    device computes it itself: if it is emulated it is several times slower than float32.
    """
    precision = _chosen(config, state, "precision", native_precision)
    if precision == "fp16" and not torch.cuda.is_available():
        raise UserError("train.precision=fp16 is for GPUs; on a CPU use bf16, fp32 or auto")
    return precision


def choose_micro_batch(config: Config, state: dict[str, Any] | None, data: Data) -> int:
    """Return the most tokens of a pass, the same on all ranks, once the precision is chosen. Collective.

    `auto` is what the run used before, else what every GPU has free memory for; with `train.deterministic`
    all its memory counts, as what others use must not change the bits.
    """
    memory = 0
    if torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        memory = min(gathered(total if config.train.deterministic else free, host_group()))

    def fitting() -> int:
        longest, ranks = data.train.max_length, dist.get_world_size()
        return fitting_micro_batch(config, data.tokenizer, longest, ranks, memory)

    return _chosen(config, state, "micro_batch_tokens", fitting)


def _chosen(config: Config, state: dict[str, Any] | None, key: str, choose: Callable[[], Any]) -> Any:
    if (value := getattr(config.train, key)) != "auto":
        return value
    return on_rank_zero(choose) if state is None else state["config"]["train"][key]


def native_precision(cpuinfo: Path = Path("/proc/cpuinfo")) -> Precision:
    """Return bf16 if the GPU, or without one the processor, has instructions for it; else fp32."""
    if torch.cuda.is_available():
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if cpuinfo.is_file() and _BFLOAT16.search(cpuinfo.read_text("utf-8", "replace")) else "fp32"
