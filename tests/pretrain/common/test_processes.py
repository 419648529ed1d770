"""What a command that runs another one makes of the other's end."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from run_helpers import ROOT

from pretrain.common import processes
from pretrain.common.errors import UserError
from pretrain.common.processes import (
    end_session,
    failure_line,
    free_port,
    no_rank,
    run_module,
    run_to_end,
    start_logged,
    stat_fields,
    wait_for_end,
)
from pretrain.common.shutdown import EXIT_BUDGET, EXIT_CODES, TERMINATE

STOPPED = EXIT_CODES[TERMINATE]
ENDS = {
    "done": ("pass", ""),
    "out of its budget of time": (f"sys.exit({EXIT_BUDGET})", ""),
    "killed": ("os.kill(os.getpid(), 9)", r"ending was killed by SIGKILL\. Say it again"),
    "stopped": (f"sys.exit({STOPPED})", r"ending was stopped by a signal\. Say it again"),
    "failed": ("sys.exit(3)", "ending failed with status 3"),
    "its own reason": (f"print('error: the disk is full'); sys.exit({STOPPED})", "^the disk is full$"),
}


@pytest.mark.parametrize("end", ENDS)
def test_only_what_did_not_come_to_its_end_is_an_error(end, tmp_path, monkeypatch):
    does, expected = ENDS[end]
    (tmp_path / "ending.py").write_text(f"import os, sys\nassert sys.argv[1:] == ['a', 'b']\n{does}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    if not expected:
        return run_to_end("ending", ["a", "b"], "Say it again")
    with pytest.raises(UserError, match=expected):
        run_to_end("ending", ["a", "b"], "Say it again")


def test_an_interrupt_reaches_the_process_that_is_streamed(tmp_path, monkeypatch):
    """All of its group; what it says at its end is printed, and then the interrupt is raised."""
    (tmp_path / "ending.py").write_text(
        "import time\ntry:\n    print('ready')\n    for _ in range(6000):\n        time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n    print('stopped')\n"  # a long sleep misses a signal just before it
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    said = []

    def show(line, **_):
        said.append(line)
        if line == "ready\n":
            raise KeyboardInterrupt

    monkeypatch.setattr(processes, "print", show, raising=False)
    with pytest.raises(KeyboardInterrupt):
        processes.run_and_stream("ending", [])
    assert said == ["ready\n", "stopped\n"]


def test_sigterm_and_the_end_of_the_terminal_let_the_process_that_is_streamed_save(tmp_path):
    """A shell sends the second after the kernel has; under nohup neither of them says anything."""
    (tmp_path / "saving.py").write_text(
        "import time\ntry:\n    print('ready')\n    for _ in range(6000):\n        time.sleep(0.01)\n"
        "except KeyboardInterrupt:\n    print('saving')\n    time.sleep(0.2)\n    open('saved', 'w')\n"
    )
    code = (
        "from pretrain.common import processes as p\n"
        "from pretrain.common.error_output import print_whoever_reads\n"
        "print_whoever_reads(); p.take_ends_for_interrupt(); p.run_and_stream('saving', [])"
    )
    for before, first, second in (
        ("trap '' HUP;", signal.SIGHUP, signal.SIGINT),
        ("", signal.SIGHUP, signal.SIGHUP),
        ("", signal.SIGTERM, signal.SIGTERM),
    ):
        words = ["sh", "-c", f'{before} exec "$@"', "sh", sys.executable, "-c", code]
        environment = no_rank() | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        with subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout.readline() == b"ready\n"
            process.stdout.close()
            process.send_signal(first)
            time.sleep(0.05)
            process.send_signal(second)
        assert process.returncode == -signal.SIGINT and (tmp_path / "saved").exists()
        (tmp_path / "saved").unlink()


def test_a_logged_process_is_waited_for_and_looked_at(tmp_path):
    log, looked = tmp_path / "log", []
    log.write_text("before\n")
    environment = {"PATH": os.environ["PATH"], "OWN": "value"}
    code = "echo $OWN; echo error >&2; ps -o sid= $$; sleep 0.3; exit 3"
    process = start_logged(["sh", "-c", code], log, environment, append=True)
    assert wait_for_end(process, lambda: looked.append(1), every=0.02) == 3
    assert len(looked) >= 3
    *lines, session = log.read_text().split()
    assert lines == ["before", "value", "error"] and int(session) == process.pid
    assert wait_for_end(start_logged(["sh", "-c", "exit 0"], log, environment), looked.clear) == 0
    assert log.read_text() == ""


@pytest.mark.parametrize("ignores", [False, True])
def test_what_is_raised_while_waiting_ends_the_process_and_its_children(tmp_path, ignores, monkeypatch):
    """Those that ignore Ctrl-C, too."""
    monkeypatch.setattr(end_session, "__defaults__", (0.3,))
    trap = 'trap "" INT; ' if ignores else ""
    code = f"{trap}sleep 60 & echo $! > {tmp_path}/child; wait"
    process = start_logged(["bash", "-c", code], tmp_path / "log", dict(os.environ))

    def look():
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait_for_end(process, look, every=0.02)
    assert time.monotonic() - began < 30 and process.poll() is not None
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if (stat_fields(child) or "Z")[0] == "Z":
            break
        time.sleep(0.05)
    assert (stat_fields(child) or "Z")[0] == "Z"


def test_a_free_port_can_be_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port := free_port()))
        assert port > 0 and free_port() != port


def test_a_process_that_is_no_rank_imports_this_project(monkeypatch):
    of_a_rank = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "CLEAR_LOCAL_RANKS")
    for name in of_a_rank:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("PYTHONPATH", f"/other{os.pathsep}{ROOT}")
    monkeypatch.setenv("OWN", "kept")
    made = no_rank()
    assert not {*of_a_rank} & made.keys() and made["OWN"] == "kept"
    assert made["PYTHONPATH"] == f"{ROOT}{os.pathsep}/other"


def test_a_module_that_fails_says_so(monkeypatch):
    ran = []

    def run(words, env):
        ran.append(words)
        return SimpleNamespace(returncode=len(ran) - 1)

    monkeypatch.setattr(subprocess, "run", run)
    run_module("json.tool", ["--help"], "this")
    assert ran == [[sys.executable, "-m", "json.tool", "--help"]]
    with pytest.raises(UserError, match=r"this failed \(exit 1\); the reason is above\."):
        run_module("json.tool", [], "this")


@pytest.mark.parametrize(
    "printed,reason",
    [
        ("", "it printed nothing"),
        ("\n \n", "it printed nothing"),
        ("one\ntwo\n\n", "two"),
        ("error: disk\nbye\n", "error: disk"),
        ("error: disk\n[rank 1] error: memory\nbye\n", "[rank 1] error: memory"),
        ("error: disk\nerror: it failed; the reason is above.\n", "error: disk"),
        ("error: it failed; the reason is above.\n", "error: it failed; the reason is above."),
    ],
)
def test_the_last_error_with_a_reason(tmp_path, printed, reason):
    (tmp_path / "log").write_text(printed)
    assert failure_line(tmp_path / "log") == failure_line(tmp_path / "log", 2) == reason
    memory = ", as the kernel does when memory runs out"
    assert failure_line(tmp_path / "log", -9) == f"it was killed by SIGKILL{memory}"
    assert failure_line(tmp_path / "log", -15) == "it was killed by SIGTERM"
