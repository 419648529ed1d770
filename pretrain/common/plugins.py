"""Import a user's own code: an objective of training, a function that is evaluated."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from pretrain.common.errors import UserError


def import_file(path: str | Path) -> ModuleType:
    """Import a Python file that belongs to no package; a process imports it once.

    Raises:
        UserError: there is no such file, or importing it fails; the message continues the caller's sentence.
    """
    path = Path(path).resolve()
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # of every file whose name ends in .py
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException as error:
            del sys.modules[name]
            if not isinstance(error, Exception):
                raise
            raise UserError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return sys.modules[name]
