"""Errors that all ranks share: printed once, by rank 0, before a launcher that sees another rank end kills
it."""

import signal

import pytest
from run_helpers import ROOT, start

CODE = """
import sys, time
sys.path.insert(0, {root!r})
import torch.distributed as dist
from contextlib import contextmanager
from pretrain.common import cli
from pretrain.common.errors import UserError
from pretrain.common.ranks import on_rank_zero

@contextmanager
def held():  # what rank 0 has to leave in good order takes its time
    try:
        yield
    finally:
        if dist.get_rank() == 0:
            time.sleep(60)

def fail(error):
    raise error

def main():
    dist.init_process_group("gloo")
    with held():
        {action}

cli.run(main)
"""
ACTIONS = {
    "user error": (
        "on_rank_zero(lambda: fail(UserError('the only copy')))",
        "[rank 0] error: the only copy",
    ),
    "full disk": (
        "on_rank_zero(lambda: fail(OSError(28, 'No space left on device', 'runs/x/config.yaml')))",
        "[rank 0] error: runs/x/config.yaml: No space left on device",
    ),
    "bug": ("on_rank_zero(lambda: fail(KeyError('the only copy')))", "KeyError: 'the only copy'"),
}


@pytest.mark.parametrize("case", ACTIONS)
def test_an_error_of_rank_0_is_printed_before_the_others_end(tmp_path, case):
    action, said = ACTIONS[case]
    code = CODE.format(root=str(ROOT), action=action)
    processes = start(["-c", code], ranks=2)
    processes[1].wait()
    processes[0].send_signal(signal.SIGTERM)  # as torchrun does
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [-signal.SIGTERM, 2], first + second
    assert first.count(said) == 1 and "error:" not in second and "Traceback" not in second
    assert ("Traceback" in first) == (case == "bug")


def test_a_bug_on_rank_0_is_printed_once(tmp_path):
    """Also where rank 0 comes to its own end."""
    code = CODE.format(root=str(ROOT), action=ACTIONS["bug"][0]).replace("time.sleep(60)", "time.sleep(0.1)")
    processes = start(["-c", code], ranks=2)
    first, _ = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [1, 2] and first.count("Traceback") == 1


def test_a_rank_that_ended_before_is_noticed_at_once():
    """It was killed between two exchanges; while all live, they wait for days."""
    action = """
        import os, signal
        on_rank_zero(lambda: None)
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(3):  # what is sent first may go into a connection that is not closed yet
            on_rank_zero(lambda: time.sleep(0.2))
    """
    code = CODE.format(root=str(ROOT), action=action).replace("time.sleep(60)", "pass")
    processes = start(["-c", code], ranks=2)
    first, _ = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL], first
