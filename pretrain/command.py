"""Command lines: flags reach the configuration as the raw strings that were typed, errors are one message."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Callable

import fire
from fire.decorators import SetParseFn

from augment.errors import AugmentationError
from pretrain.errors import UserError


def run(function: Callable, help_text: Callable[[], str]) -> None:
    """Run `function` with the flags of the command line and exit with the status that it returns.

    Values stay raw strings (fire would turn `subs,reorder` into a tuple and `2026_11` into a number). `--help` prints
    `help_text()`. A UserError prints its message alone and exits with status 2.
    """
    arguments = [a for a in sys.argv[1:] if not a.startswith("--local_rank")]  # the deepspeed launcher adds it
    if any(a in ("--help", "-h", "help") for a in arguments):
        print(help_text())
        sys.exit(0)
    try:
        _refuse_stray(arguments)
        code = fire.Fire(SetParseFn(str)(function), command=arguments, name=function.__name__, serialize=lambda _: None)
    except (UserError, AugmentationError) as error:
        complain(error)
        code = 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        code = 130
    code = code if isinstance(code, int) else 0
    if code and "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        # Other ranks may wait in a collective: nothing here may wait for them, not even an orderly end of the process group.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def complain(error: Exception) -> None:
    """Print an error's message, with the rank where there are several."""
    rank = int(os.environ.get("RANK", 0))
    where = f"[rank {rank}] " if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    print(f"\n{where}error: {error}", file=sys.stderr, flush=True)


def _refuse_stray(arguments: list[str]) -> None:
    """Every word must be a flag or the value of the flag before it."""
    after_flag = False
    for word in arguments:
        if word.startswith("-") and not word[1:2].isdigit():
            after_flag = "=" not in word
        elif after_flag:
            after_flag = False
        else:
            raise UserError(f"unexpected argument {word!r}: flags are written --key value or --key=value; --help lists them")


def as_bool(value: bool | str, flag: str) -> bool:
    """A switch's value: given alone it is true."""
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise UserError(f"--{flag} is a switch: give it alone, or as --{flag}=true or --{flag}=false, not {value!r}")
    return text in ("true", "1", "yes")


def key_table(rows: list[tuple[str, str, str, str]]) -> str:
    """Rows of (key, type, default, meaning) as text for a terminal."""
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    lines = []
    for key, kind, default, meaning in rows:
        lines.append(f"  --{key} {kind} (default {default or repr(default)})")
        lines += textwrap.wrap(meaning, width - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
