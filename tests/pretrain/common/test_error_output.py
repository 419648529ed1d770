"""Which rank prints an error, how it ends, and which error shows that another rank has ended."""

import os
import subprocess
import sys
import time

import pytest
import torch
from run_helpers import environment

from augment.core.errors import AugmentationError
from pretrain.common import error_output
from pretrain.common.error_output import (
    LOCAL_RANKS,
    PATIENCE,
    exit_process,
    is_printed,
    lost_rank_message,
    mark_printed,
    print_at_end,
    print_before_sending,
    print_error,
    print_whoever_reads,
)
from pretrain.common.errors import UserError


@pytest.fixture
def as_rank(monkeypatch):
    """Act as one of several ranks. same_command: rank 0 started it; met: it is in a process group."""

    def be(rank: int, ranks: int, same_command: bool, met: bool) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        if same_command:
            monkeypatch.setenv(LOCAL_RANKS, str(ranks))
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: met)

    return be


CASES = [  # rank, ranks, same command, met -> what stands before "error", None: nothing is printed
    ((0, 1, False, False), ""),
    ((0, 1, False, True), ""),
    ((0, 2, False, False), "[rank 0] "),
    ((1, 2, False, False), "[rank 1] "),
    ((1, 2, False, True), "[rank 1] "),
    ((0, 2, True, False), ""),
    ((0, 2, True, True), ""),
    ((1, 2, True, False), None),
    ((1, 2, True, True), "[rank 1] "),
]


@pytest.mark.parametrize(("rank", "before"), CASES)
def test_an_error_is_printed_once_by_the_rank_that_knows_it(rank, before, as_rank, capsys, monkeypatch):
    as_rank(*rank)
    error, slept = UserError("no s3://bucket/d?sig=1f"), []
    print_error(error)
    expected = "" if before is None else f"\n{before}error: no s3://bucket/d?***\n"
    assert capsys.readouterr().err == expected
    monkeypatch.setattr(error_output.time, "sleep", slept.append)
    print_at_end(error)
    assert capsys.readouterr().err == expected
    assert slept == ([PATIENCE] if rank == (1, 2, True, True) else [])
    mark_printed(error)
    print_error(error)
    print_at_end(error)
    assert capsys.readouterr().err == "" and len(slept) <= 1


def test_an_error_without_ranks_has_no_rank(capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", LOCAL_RANKS):
        monkeypatch.delenv(name, raising=False)
    print_error(ValueError("bad"))
    assert capsys.readouterr().err == "\nerror: bad\n"


@pytest.mark.parametrize("error", [UserError("the input"), AugmentationError("the input"), KeyError("a bug")])
def test_what_is_sent_to_other_ranks_is_printed_before(error, capsys):
    assert not is_printed(error)
    print_before_sending(error)
    said = capsys.readouterr().err
    assert is_printed(error) and said.count(str(error)) == 1
    assert ("KeyError" in said) == isinstance(error, KeyError) == ("error: the" not in said)
    print_at_end(error)
    assert capsys.readouterr().err == ""


def test_a_collective_that_fails_for_a_lost_peer_says_that_another_rank_ended(as_rank):
    lost = RuntimeError("[gloo] Connection closed by peer\nframe #0: of C++")
    as_rank(1, 2, False, True)
    said = lost_rank_message(lost)
    assert (
        "another rank ended" in said and "([gloo] Connection closed by peer)" in said and "frame" not in said
    )
    others = [ValueError(str(lost)), RuntimeError("uncorrectable ECC error"), RuntimeError("shapes differ")]
    assert [lost_rank_message(error) for error in others] == [None] * 3
    as_rank(1, 2, False, False)
    assert lost_rank_message(lost) is None
    as_rank(1, 2, False, True)
    mark_printed(lost)
    assert lost_rank_message(lost) is None


@pytest.mark.parametrize(
    ("code", "met", "at_once"), [(2, True, True), (2, False, False), (0, True, False), (0, False, False)]
)
def test_a_rank_that_fails_waits_for_no_other(code, met, at_once, as_rank, monkeypatch):
    class AtOnce(BaseException):
        pass

    def end(status):
        raise AtOnce(status)

    as_rank(0, 2, False, met)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(AtOnce if at_once else SystemExit) as ended:
        exit_process(code)
    assert ended.value.args == (code,)


PRINTS = """
import sys
from pretrain.common.error_output import print_whoever_reads
print_whoever_reads(of_run=True)
print(".", end="")
sys.stdin.readline()
for stream in (sys.stdout, sys.stderr):
    print("Grüße", file=stream)
    print("at once", file=stream, flush=True)
print("the rest")
"""


def who_prints(code: str = PRINTS, **streams) -> subprocess.Popen:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | streams
    words, variables = [sys.executable, "-c", code], environment(PYTHONIOENCODING="utf-8")
    return subprocess.Popen(
        words, env=variables, stdin=subprocess.PIPE, text=True, encoding="utf-8", **streams
    )


def test_who_prints_goes_on_after_its_readers_and_on_a_full_disk():
    with open("/dev/full", "w") as full:
        for streams in ({}, {"stdout": full}, {"stderr": full}, {"stdout": full, "stderr": full}):
            with who_prints(**streams) as process:
                for read in (process.stdout, process.stderr) if not streams else ():
                    read.close()
                process.stdin.close()
                said = "".join(read.read() for read in (process.stdout, process.stderr) if streams and read)
            assert process.returncode == 0 and "Traceback" not in said, said


def test_what_can_be_printed_is():
    with who_prints() as process:
        out, errors = process.communicate("")
    assert (process.returncode, out, errors) == (0, ".Grüße\nat once\nthe rest\n", "Grüße\nat once\n")


def test_what_is_printed_without_a_buffer_is_there_at_once(monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    with who_prints() as process:
        assert process.stdout.read(1) == "."
        process.communicate("")


TABLE = """
from pretrain.common import cli
def main() -> int:
    print("a table")
    return {status}
cli.run(main, outlives_readers={outlives})
"""


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("outlives", [True, False])
@pytest.mark.parametrize("status", [0, 3])
def test_a_result_that_the_disk_does_not_take_is_an_error(status, outlives, buffered, monkeypatch):
    """And not one that nobody reads, of a command that goes on then; others end as by SIGPIPE."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    code = TABLE.format(status=status, outlives=outlives)
    with open("/dev/full", "w") as full, who_prints(code, stdout=full) as process:
        _, errors = process.communicate("")
    assert process.returncode == (status or 1) and errors.count("error: ") == (not status), errors
    assert "Traceback" not in errors and ("No space left" in errors) == (not status)
    with who_prints(code) as process:
        process.stdout.close()
        assert not process.stderr.read()
    ended = buffered and status  # it has printed nothing when it ends
    assert process.returncode == (status if outlives or ended else 141)


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize("fault", ["KeyError()", "UserError('bad')"])
def test_an_error_is_said_alone_when_nobody_reads_what_was_printed_before(fault, buffered, monkeypatch):
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    code = TABLE.replace("return {status}", f"raise {fault}").format(outlives=False)
    with who_prints(f"from pretrain.common.errors import UserError{code}") as process:
        process.stdout.close()
        errors = process.stderr.read()
    assert "BrokenPipe" not in errors and ("Traceback" in errors) == (buffered and "Key" in fault), errors
    assert process.returncode == (141 if not buffered else 1 if "Key" in fault else 2)


@pytest.mark.parametrize("buffered", [True, False])
def test_a_pipe_that_does_not_wait_gets_all_of_a_result(buffered, monkeypatch):
    """As of a program that reads several at once; a slow reader of one loses nothing."""
    monkeypatch.setenv("PYTHONUNBUFFERED", "" if buffered else "1")
    code = TABLE.replace('"a table"', '"7" * 300_000').format(status=0, outlives=False)
    read, write = os.pipe()
    os.set_blocking(write, False)
    with who_prints(code, stdout=write) as process, open(read, "rb") as pipe:
        os.close(write)
        assert pipe.read(9) == b"7" * 9
        time.sleep(0.5)  # it has come to a full pipe
        assert len(pipe.read()) == 300_001 - 9
        assert not process.stderr.read()
    assert process.returncode == 0


@pytest.mark.parametrize("words", [["pretrain.clearly"], ["pretrain.main", "--help", "all"]])
def test_help_that_the_disk_does_not_take_is_one_error(words):
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 1 and done.stderr.startswith("\nerror: No space left on device: "), done.stderr
    assert done.stderr.count("\n") == 2


def test_a_stream_that_is_not_the_own_one_of_the_process_stays(capsys):
    streams = sys.stdout, sys.stderr
    print_whoever_reads()
    assert (sys.stdout, sys.stderr) == streams
