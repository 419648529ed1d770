"""Threads and precision of a run on the machine at hand."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from pretrain.common.cores import ranks_here
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably
from pretrain.common.folder_lock import folder_lock
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config, Precision
from pretrain.start.local_ranks import threads_of_rank
from pretrain.telemetry.throughput import choose_precision as measure_precision

SECONDS_FOR_ANOTHER = 600.0
"""How long to wait for another run that measures; it takes a second or two."""


def set_threads(config: Config) -> int:
    """Set the CPU threads of this rank, and return their number (`threads_of_rank`)."""
    threads = threads_of_rank(config.train.threads, ranks_here())
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # denormal gradients are hundreds of times slower on some CPUs
    return threads


def set_deterministic(config: Config) -> None:
    """Let torch choose only algorithms that give the same bits again, where `train.deterministic` says so.

    On a CPU they all do. On a GPU an operation that has none raises an error from then on.
    """
    if config.train.deterministic and torch.cuda.is_available():
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS wants it, by NVIDIA's notes
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # kernels here write what they return


def allow_tf32(config: Config) -> None:
    """Let a GPU round float32 products to TF32's 11 digits in a run whose encoder's have fewer or no more.

    Those are the heads' and the losses' of a run in bf16 or fp16. With `train.deterministic` or
    `model.attention: exact`, and in fp32, they stay as they are.
    """
    exact = config.train.deterministic or config.model.attention == "exact"
    torch.backends.cuda.matmul.allow_tf32 = config.train.precision in ("bf16", "fp16") and not exact


def choose_precision(config: Config, state: dict[str, Any] | None) -> Precision:
    """Return the precision to train in, the same on all ranks. Collective.

    It is `train.precision`. Where that is `auto`: what the run used before it was resumed, else what
    `train.precision_file` says, else the faster one, as measured by rank 0.

    Args:
        state: of the checkpoint to resume from; None: a new run.
    """
    precision = config.train.precision
    if precision == "auto" and state is not None:
        precision = state["config"]["train"]["precision"]
    elif precision == "auto":
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        file = config.train.precision_file
        precision = on_rank_zero(
            lambda: shared_choice(file, device.type, lambda: measure_precision(device)[0])
        )
    if precision == "fp16" and not torch.cuda.is_available():
        raise UserError("train.precision=fp16 is for GPUs; on a CPU use bf16, fp32 or auto")
    return precision


def shared_choice(path: Path | None, device: str, measure: Callable[[], Precision]) -> Precision:
    """Return the precision that the first of several runs has measured.

    Two measurements on a busy machine may differ, and the runs of one comparison must not. Of runs that start
    at once one measures, and the others wait for it.

    Args:
        path: a file for each type of device is made from it, PATH-cpu or PATH-cuda; None: measure.
    """
    if path is None:
        return measure()
    file = path.with_name(f"{path.name}-{device}")
    try:
        if not file.is_file():
            make_folder(file.parent)
            with folder_lock(file.parent, SECONDS_FOR_ANOTHER, part=file.name):
                if not file.is_file():
                    replace_durably(file, f"{measure()}\n".encode())
        precision = file.read_text().strip()
    except OSError as error:
        raise UserError(f"train.precision_file: {file} cannot be used ({error.strerror})") from None
    if precision not in ("fp32", "bf16"):
        raise UserError(f"train.precision_file: {file} says {precision!r}, not fp32 or bf16; remove it")
    return cast(Precision, precision)
