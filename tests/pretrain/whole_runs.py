"""Whole runs in forks of the tests' own process: the import of torch and DeepSpeed is there already."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from forked_python import IMPORTS
from run_helpers import TINY, fork, status_of
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from augment.core.own_code import allow
from pretrain import main
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.prepare.run import prepare
from pretrain.start import summary

PEAK = 1e9
"""FLOP/s that runs take for measured."""


@dataclass
class Done:
    """A command that has ended: its folder, its exit status and its output."""

    folder: Path
    code: int
    said: str


def _import_all() -> None:
    """Import once, in the parent, what every run needs."""
    for name in IMPORTS:
        import_module(name)
    get_checkpoint_conversion_mapping("bert")


def _in_fork(folder: Path, action) -> Done:
    """Run an action in a forked child with its output in a file; a UserError is exit status 2."""
    _import_all()
    log = folder.with_name(f"{folder.name}.log")

    def act() -> int | None:
        file = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - not pytest's
        os.environ.pop("CLEAR_DATA", None)
        torch.set_num_threads(1)
        summary.measure_peak_flops = lambda device, dtype: PEAK
        try:
            return action()
        except UserError as error:
            print(f"error: {error}")
            return 2

    return Done(folder, status_of(fork(act)), log.read_text())


def prepared(corpus: Path, out: Path) -> Path:
    """Prepare a corpus as `preparation_of` does."""
    sizes = {"vocabulary": 512, "max_length": 48, "heldout": 0.05, "chunk_tokens": 2048}
    config = data_config({"sources": [str(corpus)], **sizes})
    done = _in_fork(out, lambda: prepare(config, out, 1, False, False) and None)
    assert done.code == 0, done.said
    return out


def train(
    data: Path, run: Path, dry_run: bool = False, expect: int = 0, before: Callable = int, **flags: object
) -> Done:
    """Train TINY with some flags changed. before: is called in the child first."""
    changed = {key.replace("__", "."): value for key, value in flags.items()}
    settings = {key: str(value) for key, value in (TINY | changed).items() if value is not None}
    settings |= {"data.folder": str(data), "folder": str(run)}

    def action() -> int:
        allow(settings.values())
        before()
        return main.main(dry_run=dry_run, **settings)

    done = _in_fork(run, action)
    assert done.code == expect, done.said
    return done
