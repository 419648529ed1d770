"""Signals that ask a run to stop: real ones, in every order."""

import itertools
import os
import signal
import subprocess
import sys

import pytest
from forked_python import run_python
from run_helpers import environment

from pretrain.common.run_folder import guard
from pretrain.common.shutdown import (
    HANGUP,
    INTERRUPT,
    MOVED,
    NONE,
    REQUEUE,
    SIGNALS,
    STOP,
    STOP_FILE,
    TERMINATE,
    Shutdown,
)


@pytest.fixture(autouse=True)
def handlers_as_they_were():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    "order", list(itertools.permutations(SIGNALS)), ids=lambda order: "-".join(s.name for s in order)
)
def test_of_several_signals_the_weightiest_counts_whatever_came_last(tmp_path, order):
    shutdown = Shutdown(tmp_path, watch_file=True)
    assert shutdown.requested() == NONE
    for count, number in enumerate(order, 1):
        os.kill(os.getpid(), number)
        assert shutdown.requested() == max(SIGNALS[sent] for sent in order[:count])
    assert shutdown.requested() == REQUEUE > TERMINATE > HANGUP > INTERRUPT
    (tmp_path / STOP_FILE).touch()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert shutdown.requested() == STOP  # who asks for a stop does not want a requeue
    os.kill(os.getpid(), signal.SIGTERM)
    assert shutdown.requested() == STOP
    shutdown.clear_stop_file()
    assert not (tmp_path / STOP_FILE).exists()


@pytest.mark.parametrize("before", ["", "SIGTERM", "SIGHUP", "SIGUSR1", "stop file"])
def test_a_second_ctrl_c_ends_at_once_but_not_one_that_a_launcher_sends_with_the_first(tmp_path, before):
    """After another request, too: it says so."""
    first = f"os.kill(os.getpid(), signal.{before}); " if before.startswith("SIG") else ""
    if before == "stop file":
        (tmp_path / STOP_FILE).touch()
    code = (
        "import os, pathlib, signal, time; from pretrain.common import shutdown\n"
        "of_run = shutdown.Shutdown(pathlib.Path('.'), watch_file=True)\n"
        "def press(): os.kill(os.getpid(), signal.SIGINT)\n"
        f"{first}press(); press()\n"
        "print(of_run.requested() >= shutdown.INTERRUPT, flush=True)\n"
        "now = time.monotonic()\n"
        "time.monotonic = lambda: now + shutdown.AT_ONCE\n"
        "press(); print('goes on', flush=True)"
    )
    done = run_python(["-c", code], environment(), tmp_path)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "True\n")
    assert done.stderr.count("Ctrl-C") == 2 and "once more" in done.stderr and "Traceback" not in done.stderr


def test_what_ctrl_c_does_is_said_to_no_file_that_has_the_number_of_a_closed_stderr(tmp_path):
    code = (
        "import os, pathlib, signal; from pretrain.common import shutdown\n"
        "files = [open(f'file-{number}', 'wb') for number in range(3)]\n"
        "shutdown.Shutdown(pathlib.Path('.'), watch_file=True)\n"
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    words = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code]
    subprocess.run(words, env=environment(), cwd=tmp_path, check=True)
    assert [path.read_bytes() for path in tmp_path.glob("file-*")] == [b""] * 3


def test_a_closed_terminal_is_no_request_under_nohup(tmp_path):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    shutdown = Shutdown(tmp_path, watch_file=False)
    os.kill(os.getpid(), signal.SIGHUP)
    assert shutdown.requested() == NONE


def test_a_rename_that_is_undone_hides_no_later_request(tmp_path):
    run, away = tmp_path / "run", tmp_path / "away"
    run.mkdir()
    (run / "mark").write_text("this run's")
    with guard(run, "mark"):
        shutdown = Shutdown(run, watch_file=True)
        run.rename(away)
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.requested() == MOVED
        away.rename(run)
        assert shutdown.requested() == TERMINATE
        os.kill(os.getpid(), signal.SIGUSR1)
        assert shutdown.requested() == REQUEUE


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_request_while_python_ends_does_not_kill_what_is_done(tmp_path, number):
    """Sent when the modules are taken down, by what one of them has held."""
    code = (
        "import os, pathlib; from pretrain.common.shutdown import Shutdown\n"
        "class Late:\n"
        "    def __del__(self, kill=os.kill, me=os.getpid()):\n"
        f"        kill(me, {int(number)}); print('sent', flush=True)\n"
        "held, shutdown = Late(), Shutdown(pathlib.Path('.'), watch_file=False)"
    )
    done = run_python(["-c", code], environment(), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sent\n", "")
