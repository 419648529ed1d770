"""Command lines: flags reach the configuration as the raw strings that were typed, errors are one message."""

from __future__ import annotations

import difflib
import inspect
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from pathlib import Path

import fire
from fire.decorators import SetParseFn

from augment.core.errors import AugmentationError
from pretrain.common.errors import UserError


def run(function: Callable, help_text: Callable[[], str] | None = None, positional: int = 0) -> None:
    """Run `function` with the flags of the command line and exit with the status that it returns.

    Values stay raw strings (fire would turn `subs,reorder` into a tuple and `2026_11` into a number).
    `--help` prints `help_text()`, or else what the function's signature and docstring say. A UserError prints
    its message alone and exits with status 2; so does a flag that the function does not have, with the
    nearest name. `positional`: how many words may stand without a flag, -1 for any number (the function then
    takes *args).
    """
    # the deepspeed launcher adds it
    arguments = [a for a in sys.argv[1:] if not a.startswith("--local_rank")]
    try:
        if any(a in ("--help", "-h", "help") for a in arguments):
            print(help_text() if help_text is not None else signature_help(function))
            sys.exit(0)
        _check(arguments, function, positional)
        code = fire.Fire(
            SetParseFn(str)(function), command=arguments, name=function.__name__, serialize=lambda _: None
        )
    except BrokenPipeError:  # the reader of a pipe (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except (UserError, AugmentationError) as error:
        complain(error)
        code = 2
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        code = 130
    except Exception as error:
        code = 1
        if _is_of_lost_rank(error):
            complain(
                UserError(
                    "another rank has ended, in the middle of what all do together: its own output says why "
                    f"({str(error).splitlines()[0]}). Then go on with the same command and --resume auto"
                )
            )
        elif not getattr(error, "told", False):
            raise
    code = code if isinstance(code, int) else 0
    if code and "torch" in sys.modules and sys.modules["torch"].distributed.is_initialized():
        # Other ranks may wait in a collective: nothing here may wait for them, not even an orderly end of the
        # process group.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def tell_first(error: Exception) -> None:
    """Print an error that this rank is about to tell the others, and mark it as told.

    They end as soon as they hear of it, and a launcher that sees one rank end kills the rest: what is printed
    only when the error has reached the end of the program may be lost.
    """
    if isinstance(error, (UserError, AugmentationError)):
        complain(error)
    else:
        traceback.print_exception(error)
        sys.stderr.flush()
    error.told = True


def _is_of_lost_rank(error: Exception) -> bool:
    """Whether a collective failed because another rank is gone: in gloo's or NCCL's words, which have no
    class of their own."""
    if not isinstance(error, RuntimeError) or getattr(error, "told", False):
        return False
    if "torch" not in sys.modules or not sys.modules["torch"].distributed.is_initialized():
        return False
    words = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "remote process exited")
    return any(word in str(error) for word in words)


def complain(error: Exception) -> None:
    """Print an error's message, with the rank where there are several; nothing where that has been done."""
    if getattr(error, "told", False):
        return
    rank = int(os.environ.get("RANK", 0))
    where = f"[rank {rank}] " if int(os.environ.get("WORLD_SIZE", 1)) > 1 else ""
    print(f"\n{where}error: {error}", file=sys.stderr, flush=True)


def _check(arguments: list[str], function: Callable, positional: int) -> None:
    """Refuse what fire would take in silence: stray words, flags that the function does not have, arguments
    left out.

    A word is a flag, the value of the flag before it, or one of at most `positional` (-1: any number of) bare
    words.
    """
    flags, bare, after_flag = set(), 0, False
    for word in arguments:
        # to fire, the end of one call and the start of the next: what follows would be ignored
        if word == "-":
            raise UserError("unexpected argument '-'; --help lists the flags")
        if word.startswith("-") and not word[1:2].isdigit():
            flags.add(word.lstrip("-").split("=")[0].replace("-", "_"))
            after_flag = "=" not in word
        elif after_flag:
            after_flag = False
        elif positional < 0 or bare < positional:
            bare += 1
        else:
            raise UserError(
                f"unexpected argument {word!r}: flags are written --key value or --key=value; --help "
                "lists them"
            )
    parameters = inspect.signature(function).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        for name in sorted(flags - set(parameters)):
            near = difflib.get_close_matches(name, parameters, n=1, cutoff=0.0)[0]
            raise UserError(f"unknown flag --{name}; did you mean --{near}? --help lists them")
    needed = [
        name
        for name, p in parameters.items()
        if p.default is inspect.Parameter.empty and p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    missing = [name for name in needed[bare:] if name not in flags]
    if missing:
        raise UserError(f"{missing[0].upper()} is missing; --help says what goes where")


def signature_help(function: Callable) -> str:
    """The help page of a command: its usage line, its docstring, and the default of every flag."""
    module = inspect.getmodule(function)
    program = (
        module.__spec__.name if module is not None and module.__spec__ is not None else function.__name__
    )
    program = program.removesuffix(".__main__")
    words, defaults = [], []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            words.append(f"{name.upper()}...")
        elif parameter.default is inspect.Parameter.empty:
            words.append(name.upper())
        else:
            defaults.append(
                f"  --{name} {parameter.default!r}" if parameter.default not in ("", None) else f"  --{name}"
            )
    usage = " ".join(["python -m", program, *words, "[--flag value ...]"])
    return f"{usage}\n\n{inspect.getdoc(function)}\n\nFlags and defaults:\n" + "\n".join(defaults)


def as_bool(value: bool | str, flag: str) -> bool:
    """A switch's value: given alone it is true."""
    text = str(value).lower()
    if text not in ("true", "false", "1", "0", "yes", "no"):
        raise UserError(
            f"--{flag} is a switch: give it alone, or as --{flag}=true or --{flag}=false, not {value!r}"
        )
    return text in ("true", "1", "yes")


def as_count(value: int | str, flag: str, least: int = 0, most: int | None = None) -> int:
    """A flag's whole number, from `least` to `most`."""
    text = str(value)
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        allowed = f", {least} or more" if most is None else f" from {least} to {most}"
        raise UserError(f"--{flag} {text!r}: give a whole number{allowed}")
    return int(text)


def as_rate(value: str, flag: str = "lr") -> float:
    """A flag's learning rate; 0.0 where it is not given."""
    try:
        rate = float(value) if value else 0.0
    except ValueError:
        rate = -1.0
    if not 0 <= rate < 1 or (value and rate == 0):  # nan is not within either
        raise UserError(f"--{flag} {value!r}: give a learning rate such as 2e-5")
    return rate


def require_writable(place: str | Path, name: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to, before the work whose results go there.

    The folder is not made: what is refused later would leave it behind. place: "" is a flag that was not
    given. name: what the message calls it.

    Raises:
        UserError: the place, or what it would lie in, is no folder, or is not writable.
    """
    if not place:
        return
    path = Path(place).absolute()
    try:
        there = next(part for part in (path, *path.parents) if part.exists())
        fault = "is not a folder" if not there.is_dir() else "is not writable"
        if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
            return
    except OSError as error:  # a name that is too long, a folder that cannot be looked into
        there, fault = path, f"cannot be used ({error.strerror})"
    raise UserError(f"{name} {place}: {there} {fault}; name another place")


def key_table(rows: list[tuple[str, str, str, str]]) -> str:
    """Rows of (key, type, default, meaning) as text for a terminal."""
    width = max(60, shutil.get_terminal_size((110, 24)).columns)
    lines = []
    for key, kind, default, meaning in rows:
        lines.append(f"  --{key} {kind} (default {default or repr(default)})")
        lines += textwrap.wrap(meaning, width - 8, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(lines)
