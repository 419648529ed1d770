"""The hyper-parameters of a fine-tuning, and the exception of a stopped one; free of torch, for flags."""

import sys
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters. The defaults are RoBERTa's for GLUE (Liu et al. 2019, table 10)."""

    lr: float
    batch_size: int
    epochs: int = 10
    warmup: float = 0.06
    """Share of all updates over which the rate rises linearly from 0; then it falls linearly to 0."""
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-6
    weight_decay: float = 0.1
    """Not for biases and norms."""
    clip: float = 0.0
    """Largest L2 norm of the gradient; 0: no clipping."""
    dropout: float = 0.1
    """In the encoder (attention too) and the head, whatever the encoder was trained with."""


class Interrupted(Exception):
    """The run was asked to stop and has saved its state; `code` is the process's exit status."""

    def __init__(self, code: int):
        super().__init__(f"asked to stop (exit status {code})")
        self.code = code


def until_stopped(work: Callable[[], None]) -> int:
    """Do work of a command and return its exit status, where it is asked to stop that of `Interrupted`."""
    try:
        work()
    except Interrupted as interrupted:
        print("stopped; finished work is kept, and the same command continues from there", file=sys.stderr)
        return interrupted.code
    return 0
