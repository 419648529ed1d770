"""Hyper-parameters and flags of a fine-tuning, and the exception of a stopped one; free of torch."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from finetune.flags import Precision
from pretrain.common import cli
from pretrain.common.shutdown import EXIT_CODES, Shutdown


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


class TrainingOptions(BaseModel, frozen=True, use_attribute_docstrings=True):
    """Flags of every evaluation that fine-tunes."""

    seeds: cli.Count = Field(1, description="number of seeds; figures are their mean")
    lr: cli.Rate | None = Field(None, description="learning rate, in place of the recipe's")
    batch_size: cli.Count | None = Field(None, description="examples per step, in place of the recipe's")
    precision: Precision = "auto"
    max_train: cli.Natural = 0
    """most training examples of a set, for a quick trial; marks the result incomplete"""
    token_budget: int = Field(16384, ge=512, description="most tokens of one forward pass; bounds memory")


class Interrupted(Exception):
    """The run was asked to stop and has saved its state; `code` is the process's exit status."""

    def __init__(self, code: int):
        super().__init__(f"asked to stop (exit status {code})")
        self.code = code


def stop_code_of(folder: Path) -> Callable[[], int]:
    """Return a function that says the exit status of a requested stop, 0: none is; folder: of the results."""
    shutdown = Shutdown(folder, watch_file=False)
    return lambda: EXIT_CODES.get(shutdown.requested(), 0)


def until_stopped(work: Callable[[], None]) -> int:
    """Do the work of a command; return its exit status, or the code of `Interrupted` if it was stopped."""
    try:
        work()
    except Interrupted as interrupted:
        print("stopped; finished work is kept, and the same command continues from there", file=sys.stderr)
        return interrupted.code
    return 0
