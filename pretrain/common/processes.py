"""Run a command of this project in a process of its own."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from augment.core.own_code import words_allow_nothing
from pretrain.common.error_output import LOCAL_RANKS, mark_printed
from pretrain.common.errors import UserError
from pretrain.common.shutdown import EXIT_BUDGET, EXIT_CODES

_OF_A_RANK = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", LOCAL_RANKS)
_PR_SET_PDEATHSIG = 1
_ABOVE = "the reason is above."
_C = ctypes.CDLL(None)  # looked up before a fork, for which other threads may hold the loader's locks


def die_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send this process a signal when its parent ends, however that ends.

    Of a parent with several threads, it is the thread that started this process whose end counts.
    """
    _C.prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def python_path() -> str:
    """Return PYTHONPATH with this project first, so that other processes import the same code."""
    here = str(Path(__file__).resolve().parents[2])
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(dict.fromkeys([here, *given]))


def free_port() -> int:
    """Return a TCP port of this machine that nobody uses now; another program may take it meanwhile."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_module(module: str, arguments: Sequence[str], what: str) -> None:
    """Run `python -m module arguments...`, no rank of a launcher. what: names the work in the error."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], env=no_rank() | words_allow_nothing())
    if done.returncode:
        raise UserError(f"{what} failed (exit {done.returncode}); {_ABOVE}")


def run_to_end(module: str, words: Sequence[str], again: str) -> None:
    """Run `python -m module words...` to its end, as `run_and_stream` does, or to that of its budget of time.

    again: what to do after a signal has stopped it. Raises UserError with what it said is wrong.
    """
    code, error = run_and_stream(module, words)
    if code < 0:
        raise UserError(f"{module} was killed by {signal.Signals(-code).name}. {again}")
    if code in EXIT_CODES.values() and code and not error:
        raise UserError(f"{module} was stopped by a signal. {again}")
    if code not in (0, EXIT_BUDGET):
        failure = UserError(error or f"{module} failed with status {code}; what it printed says why")
        if error:
            mark_printed(failure)
        raise failure


def run_and_stream(module: str, arguments: Sequence[str]) -> tuple[int, str]:
    """Run `python -m module arguments...` for somebody who watches, in a notebook for instance.

    Its lines are printed as they come, to whatever `sys.stdout` is. It has a session of its own, so that
    Ctrl-C reaches it through this process only: all processes of its group, as in a terminal; it is raised
    here when they have ended. It is killed when this process ends.

    Returns: its exit status, and the first error that it printed; "" for none.
    """
    last_lines: deque[str] = deque(maxlen=500)
    interrupted, parent = False, os.getpid()
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=no_rank() | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
        preexec_fn=lambda: die_with(parent),
    ) as process:
        assert process.stdout is not None
        while True:
            try:
                for line in process.stdout:
                    last_lines.append(line)
                    print(line, end="", flush=True)
                break
            except KeyboardInterrupt:
                interrupted = True
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return process.returncode, _first_error(last_lines)


def take_ends_for_interrupt() -> None:
    """Take SIGTERM and the end of the terminal for Ctrl-C, each once: shells repeat the second.

    Under nohup the second says nothing.
    """

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for end in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(end) != signal.SIG_IGN:
            signal.signal(end, interrupt)


def start_logged(
    words: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    append: bool = False,
    at_parents_end: signal.Signals = signal.SIGKILL,
) -> subprocess.Popen:
    """Start a process that prints into `log`, and receives a signal when this thread ends.

    It has a session of its own, so that Ctrl-C reaches it through this process only.
    """
    parent = os.getpid()
    with open(log, "ab" if append else "wb") as stream:
        return subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: die_with(parent, at_parents_end),
        )


def wait_for_end(process: subprocess.Popen, while_running: Callable[[], None], every: float = 0.1) -> int:
    """Wait for a process (`start_logged`), calling `while_running` `every` seconds; return its exit status.

    What `while_running` raises ends the process and its children first.
    """
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(every)
            while_running()
    except BaseException:
        end_session(process)
        raise


def end_session(process: subprocess.Popen, patience: float = 5.0) -> None:
    """End a process that leads a session, and its children: SIGINT, and after `patience` seconds SIGKILL."""
    for by in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, by)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def failure_line(log: Path, code: int = 1) -> str:
    """Return the last error that a failed process printed and that gives a reason, else its last line.

    code: its exit status; of one that was killed, what it printed is no reason.
    """
    if code < 0:
        return f"it {killed_by(code)}"
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.split("] ")[-1].startswith("error: ")]
    errors = [line for line in errors if not line.endswith(_ABOVE)]
    return (errors or lines or ["it printed nothing"])[-1]


def killed_by(code: int) -> str:
    """Return how a process of a negative exit status ended."""
    name = signal.Signals(-code).name
    return f"was killed by {name}{', as the kernel does when memory runs out' * (name == 'SIGKILL')}"


def no_rank() -> dict[str, str]:
    """Return an environment for a process that is no rank and imports the same code."""
    own = {name: value for name, value in os.environ.items() if name not in _OF_A_RANK}
    return own | {"PYTHONPATH": python_path()}


def _first_error(lines: Iterable[str]) -> str:
    """Return the first error among printed lines, up to a blank line, without the word "error"; or "".

    Of several ranks the first to fail says why, and the others that it has ended.

    >>> _first_error(["step 1\\n", "[rank 1] error: no such file;\\n", "name another\\n", "\\n", "error: x"])
    'no such file;\\nname another'
    """
    found = re.search(r"^(?:\[rank \d+\] )?error: (.*?)(?:\n\s*\n|\Z)", "".join(lines), re.M | re.S)
    return found[1].strip() if found else ""


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; [] for no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def start_of(pid: int) -> int | None:
    """Return when a process started, in ticks of the kernel since the boot; None: there is none."""
    fields = stat_fields(pid)
    return int(fields[19]) if fields else None


def seconds_running() -> float:
    """Return how long ago this process started; a shell that became it by `exec` began it."""
    ticks = start_of(os.getpid()) or 0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
