"""What people typed to start this process, and which version of this program it is."""

import functools
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path

DISTRIBUTION = "sentence-clear"
"""The name under which pip knows this program."""
_SOURCES = Path(__file__).resolve().parents[2]
TYPED = "CLEARLY_TYPED"
"""Environment variable by which `clearly` tells the process that it becomes: "clearly train"."""

_typed = os.environ.pop(TYPED, "")  # not for the processes that this one starts


def program() -> str:
    """Return how this process was started: "clearly sweep", "python -m finetune.sts"."""
    if _typed:
        return _typed
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if spec is None or spec.name.startswith("pytest"):
        return f"python {shlex.quote(sys.argv[0])}"
    module = spec.name.removesuffix(".__main__")
    name = module.removeprefix("pretrain.commands.")
    return f"python -m {module}" if name == module else f"clearly {name}"


@functools.cache
def own_version() -> str:
    """Return the version and the commit, as "0.1.0, commit 1a2b...-dirty"; what is not known is left out."""
    from importlib.metadata import PackageNotFoundError, version  # takes a while: not of every command

    known = []
    with suppress(PackageNotFoundError):
        known.append(version(DISTRIBUTION))
    if commit := _commit():
        known.append(f"commit {commit}")
    return ", ".join(known)


def _commit() -> str:
    """Return the commit of the checkout that this program is; empty: it was installed without one."""
    if not (_SOURCES / ".git").exists():
        return ""
    import subprocess

    # a command that only looks must not wait for, nor take, the lock of the index
    words = ["git", "--no-optional-locks", "-C", str(_SOURCES)]
    words += ["describe", "--always", "--dirty", "--abbrev=40", "--exclude", "*"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
