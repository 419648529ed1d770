"""Loader workers: signals, deaths, and an end that leaves nothing behind."""

import os
import pickle
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import loader_helpers as helpers
import pytest
import torch
from loader_helpers import assert_same, batches
from run_helpers import fork, status_of, wait_for

from pretrain.common.errors import UserError
from pretrain.data import processes


def test_closing_early_stops_the_workers(folder):
    before = helpers.children()
    iterator = iter(helpers.make_loader(folder, workers=2, stop_step=10_000_000))
    next(iterator)
    assert len(helpers.children() - before) == 2
    iterator.close()
    assert not helpers.children() - before


def test_signals_meant_for_the_training_process_do_not_stop_workers(folder):
    expected = batches(folder)
    before = helpers.children()
    iterator = iter(helpers.make_loader(folder, workers=2))
    run = [next(iterator)]
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP):
        for pid in helpers.children() - before:
            os.kill(pid, number)
        run.append(next(iterator))
    run += iterator
    for mine, theirs in zip(run, expected, strict=True):
        assert_same(mine, theirs)


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("moment", range(4))
def test_a_killed_worker_is_one_error_at_the_next_batch(folder, workers, moment):
    """Whenever it dies: while the training process computes, which nothing interrupts, or while it waits."""
    before = helpers.children()
    handler = signal.getsignal(signal.SIGCHLD)
    iterator = iter(helpers.make_loader(folder, workers=workers, stop_step=10_000_000))
    for _ in range(moment):
        next(iterator)
    next(iterator)
    victim = sorted(helpers.children() - before)[-1]
    os.kill(victim, signal.SIGKILL)
    end = time.monotonic() + 0.3
    # "a step": an exception in here would be one in the middle of a backward pass
    while time.monotonic() < end or not helpers.has_ended(victim):
        sum(range(1000))
    said = rf"loader worker {victim} was killed by SIGKILL.*--resume auto.*--data.workers {workers - 1}"
    with pytest.raises(UserError, match=said):
        next(iterator)
    iterator.close()
    assert not helpers.children() - before
    if callable(handler):  # before the first loader of a process there is none, then DataLoader's
        assert signal.getsignal(signal.SIGCHLD) == handler


def test_a_worker_has_one_thread_and_ignores_signals_of_the_training_process():
    def act():
        os.environ["TOKENIZERS_PARALLELISM"] = "true"
        torch.set_num_threads(2)
        processes._start_worker(os.getppid())
        assert torch.get_num_threads() == 1 and os.environ["TOKENIZERS_PARALLELISM"] == "false"
        for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP"):
            os.kill(os.getpid(), getattr(signal, name))
        return 7

    assert status_of(fork(act)) == 7


def test_half_a_block_of_a_dead_worker_is_not_waited_for(folder, monkeypatch):
    def send_half(sender, made, room):
        block = pickle.dumps(made.get())
        os.write(sender.fileno(), struct.pack("!i", len(block)) + block[: len(block) // 2])
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(processes, "_send", send_half)
    with pytest.raises(UserError, match="was killed by SIGKILL"):
        list(helpers.make_loader(folder, workers=2, stop_step=1000))


def test_children_of_others_do_not_disturb_the_loader(folder):
    iterator = iter(helpers.make_loader(folder, workers=1))
    next(iterator)
    for status in (0, 3):
        subprocess.run([sys.executable, "-c", f"import sys; sys.exit({status})"])
        next(iterator)
    iterator.close()


SCRIPT = """
    import sys, time
    sys.path.insert(0, {helpers!r})
    import loader_helpers as helpers
    iterator = iter(helpers.make_loader({folder!r}, workers=2, stop_step=10_000_000))
    next(iterator)
    print(*helpers.children(), flush=True)
    {ending}
"""


def start(folder: Path, ending: str) -> tuple[subprocess.Popen, list[int]]:
    text = textwrap.dedent(SCRIPT).format(
        helpers=str(Path(__file__).parents[1]), folder=str(folder), ending=ending
    )
    root = Path(__file__).resolve().parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in process.stdout.readline().split()]
    if len(workers) != 2:
        process.kill()
        raise AssertionError(process.communicate()[1])
    return process, workers


@pytest.mark.full
def test_workers_die_with_a_killed_parent(folder):
    """Its queues are full when it is killed: the workers wait to write what nothing reads any more."""
    process, workers = start(folder, "time.sleep(600)")
    time.sleep(0.5)
    process.kill()
    process.wait()  # not communicate: workers that outlive their parent hold its pipes open
    wait_for(lambda: all(map(helpers.has_ended, workers)), [])


@pytest.mark.full
@pytest.mark.parametrize("ending,status", [("sys.exit(3)", 3), ("raise ValueError('boom')", 1)])
def test_ending_the_program_in_the_middle_does_not_hang(folder, ending, status):
    process, workers = start(folder, ending)
    process.communicate()
    assert process.returncode == status
    wait_for(lambda: all(map(helpers.has_ended, workers)), [])
