"""Load the compiled inner loops of text augmentation (the folder native), where they were built.

`make install` builds them where it finds a C++17 compiler with 128-bit integers (GCC, Clang), and
`pip install -e .` where nanobind is installed too. Without them `native` is None, and Python gives the same
results, slower (docs/augmentations.md).
"""

import importlib
import os
from typing import Any

INTERFACE = 12  # of the sources in native: a module compiled from other sources is not used
VARIABLE = "CLEAR_COMPILED"  # 0 turns it off, to compare


def _load() -> Any:
    if os.environ.get(VARIABLE) == "0":
        return None
    try:
        module = importlib.import_module("augment._native")
    except ImportError:
        return None
    return module if module.INTERFACE == INTERFACE else None


native: Any = _load()
