"""Ranks that meet, and ranks that do not: bounded, not silent, and one message."""

import socket
import subprocess

import pytest
from run_helpers import free_port, outputs_of, start_rank

JOIN = """
import sys
import pretrain.common.rendezvous as rendezvous
rendezvous._SECONDS_BETWEEN_LINES = 0.5
import torch
import torch.distributed as dist
from pretrain.common.errors import UserError
{before}
try:
    rendezvous.join("gloo", {patience}, 1234)
except UserError as error:
    print("error:", error)
    sys.exit(2)
total = torch.ones(1)
dist.all_reduce(total)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
print("ranks", int(total), backend.options._timeout.total_seconds(), flush=True)
dist.barrier()
dist.destroy_process_group()  # a process that ends with one aborts now and then
"""


def start(rank: int, world: int, port: object, patience: float, before: str = "") -> subprocess.Popen:
    return start_rank(["-c", JOIN.format(patience=patience, before=before)], rank, world, port)


def test_all_meet_and_collectives_have_the_time_of_the_run():
    port = free_port()
    processes = [start(rank, 3, port, 120) for rank in range(3)]
    outputs = outputs_of(processes, 240)
    assert [p.returncode for p in processes] == [0, 0, 0], outputs
    assert all("ranks 3 1234.0" in output for output in outputs)


@pytest.mark.full
@pytest.mark.parametrize(
    "rank,needle",
    [
        (0, "1 of 3 ranks have reached {where}; missing: ranks 1, 2."),
        (2, "0 does not answer at {where}"),
    ],
)
def test_a_rank_alone_says_who_is_missing_in_time(rank, needle):
    port = free_port()
    process = start(rank, 3, port, 2.0)
    output = process.communicate()[0]
    where = f"127.0.0.1:{port}"
    assert process.returncode == 2
    assert needle.format(where=where) in output and f"rank {rank} of 3, on {socket.gethostname()}" in output
    # not silent meanwhile
    assert "--train.rendezvous_seconds" in output and "waits for the other ranks" in output
    assert "Traceback" not in output and "frame #" not in output


@pytest.mark.full
def test_a_rank_that_is_killed_before_it_arrives_is_named_by_the_others():
    port = free_port()
    killed = start(1, 3, port, 30, before="import os; os.kill(os.getpid(), 9)")
    others = [start(rank, 3, port, 12.0) for rank in (0, 2)]
    outputs = outputs_of([killed, *others], 240)
    assert killed.returncode == -9 and [p.returncode for p in others] == [2, 2], outputs
    assert "2 of 3 ranks have reached" in outputs[1] and "missing: rank 1." in outputs[1]
    assert "error: rank 2 of 3" in outputs[2] and "Traceback" not in outputs[1] + outputs[2]


@pytest.mark.full
def test_a_rank_that_is_killed_while_they_connect_is_one_message():
    """It has arrived, and dies before the process group is formed."""
    port = free_port()
    die = "import os; dist.init_process_group = lambda *args, **rest: os.kill(os.getpid(), 9)"
    killed, other = start(1, 2, port, 30, before=die), start(0, 2, port, 12.0)
    outputs = outputs_of([killed, other], 240)
    assert other.returncode == 2 and "a rank was lost while they connected" in outputs[1], outputs[1]
    assert "Traceback" not in outputs[1]


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("port", ["none", "", "0", "65536", "-1"])
def test_a_port_that_is_none_is_said_at_once_and_is_no_matter_of_waiting(rank, port):
    process = start(rank, 2, port, 60.0)
    output = process.communicate()[0]
    assert process.returncode == 2 and f"MASTER_PORT is {port!r}" in output and "1 to 65535" in output, output
    assert "not answer" not in output and "rendezvous_seconds" not in output and "Traceback" not in output


def test_a_rank_alone_takes_any_port():
    process = start(0, 1, 0, 60.0)
    assert "ranks 1 1234.0" in process.communicate()[0] and process.returncode == 0


def test_a_port_in_use():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process = start(0, 2, taken.getsockname()[1], 3.0)
        output = process.communicate()[0]
    assert process.returncode == 2 and "is in use; choose" in output and "Traceback" not in output, output
