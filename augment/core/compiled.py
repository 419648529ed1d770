"""Load the compiled inner loops of text augmentation (the folder native), which every installation builds."""

import importlib
from typing import Any

INTERFACE = 13  # of the sources in native: a module compiled from other sources is refused

try:
    native: Any = importlib.import_module("augment._native")
except ImportError as error:
    raise ImportError("augment/native is not compiled: run `make install`, or `pip install -e .`") from error
if native.INTERFACE != INTERFACE:
    raise ImportError("augment/native has changed since it was compiled: run `make install` again")
