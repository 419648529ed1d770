"""What people typed to start this process."""

from __future__ import annotations

import os
import sys

TYPED = "CLEARLY_TYPED"
"""Environment variable by which `clearly` tells the process that it becomes: "clearly train"."""

_typed = os.environ.pop(TYPED, "")  # not for the processes that this one starts


def program() -> str:
    """Return how this process was started: "clearly sweep", "python -m pretrain.sweep"."""
    if _typed:
        return _typed
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name.startswith("pytest"):
        return f"python {sys.argv[0]}"
    return "python -m " + spec.name.removesuffix(".__main__")
