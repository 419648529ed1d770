"""Run code of the user's own: an objective, an augmentation, a function that embeds. The one gate for it.

Recipes, run folders and tables of results name such code too, and may come from other people. So it runs only
if a word of this command names it, or the command says --trust.
"""

import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from augment.core.errors import AugmentationError

ALLOWED = "CLEARLY_CODE"
"""Environment variable with what may run, a line each: files by their whole paths and modules; or `*`.

Processes that a command starts inherit it."""
_NO_MORE = "!"  # a line by which words of this process allow nothing
OWN = re.compile(r"^(?P<file>.+\.py):(?P<name>[^\W\d]\w*)$")


def allow(words: Iterable[str], everything: bool = False) -> None:
    """Allow the code (FILE.py:NAME, module:NAME) that words of a command name, YAML too; or everything."""
    if _NO_MORE in allowed():
        return
    found = [os.environ.get(ALLOWED, ""), "*" if everything else ""]
    for word in words:
        value = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        found += re.findall(r"^([^\W\d][\w.]*):[^\W\d]\w*$", value)
        for end in re.finditer(r"\.py(?=:[^\W\d])", word):
            head = word[: end.end()]
            names = [head[start.end() :] for start in re.finditer(r"^|[=,|+\s\"'{\[]", head)]
            found += [str(path) for path in map(_resolved, names) if path.is_file()]
    os.environ[ALLOWED] = "\n".join(dict.fromkeys(filter(None, found)))


def allowed() -> list[str]:
    """Return what may run."""
    return os.environ.get(ALLOWED, "").split("\n")


def words_allow_nothing() -> dict[str, str]:
    """Return the variable of a process whose words come from data: it may run what this one may, no more."""
    return {ALLOWED: "\n".join([*allowed(), _NO_MORE])}


def require_allowed(where: str) -> None:
    """Refuse a file that is there, or a module, that no word of this command names."""
    path = _resolved(where)
    if where.endswith(".py") and not path.is_file():
        return
    name = str(path) if where.endswith(".py") else where
    if not {name, "*"} & set(allowed()):
        raise AugmentationError(
            f"code in {name} runs only where the command itself names it: write FILE.py:NAME or MODULE:NAME "
            "there too, or add --trust if you trust who wrote it (in Python, pretrain.api takes the name)"
        )


def load(name: str) -> Any:
    """Return what FILE.py:NAME or package.module:NAME names, None if there is none; it must be allowed."""
    where, _, attribute = name.rpartition(":")
    try:
        if where.endswith(".py"):
            module = _import_file(_resolved(where))
        else:
            require_allowed(where)
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(where)
    except AugmentationError:
        raise
    except Exception as error:  # whatever the user's module does when it is imported
        raise AugmentationError(f"{where} cannot be imported: {type(error).__name__}: {error}") from error
    return getattr(module, attribute, None)


def _resolved(file: str) -> Path:
    return Path(os.path.expanduser(file)).resolve()


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AugmentationError(f"there is no file {path}")
    require_allowed(str(path))
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None  # of every file whose name ends in .py
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
