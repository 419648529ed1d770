"""Calls of commands with their words as they are typed."""

from collections.abc import Callable, Iterable
from typing import Any

from pretrain.common.cli import Command


def call(function: Callable, *words: Any, keys: Iterable[tuple] = (), **flags: Any) -> Any:
    """Return what a command returns for bare words and flags (eval_data="d" is --eval-data=d)."""
    command = Command(function, function.__name__, keys)
    left, texts = command.read([*map(str, words), *(f"--{name}={value}" for name, value in flags.items())])
    return command(*left, **texts)
