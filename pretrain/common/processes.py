"""Run a command of this project in a process of its own."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pretrain.common.error_output import LOCAL_RANKS
from pretrain.common.errors import UserError

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", LOCAL_RANKS)
_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def python_path() -> str:
    """Return PYTHONPATH with this project first, so that other processes import the same code."""
    here = str(Path(__file__).resolve().parents[2])
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([here, *given]))


def run_module(module: str, arguments: Sequence[str], what: str) -> None:
    """Run `python -m module arguments...` without the launcher's variables, which would make it a rank.

    what: names the work in the error.
    Raises: UserError if the command fails; it has printed why.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    environment["PYTHONPATH"] = python_path()
    done = subprocess.run([sys.executable, "-m", module, *arguments], env=environment)
    if done.returncode:
        raise UserError(f"{what} failed (exit {done.returncode}); the reason is above.")
