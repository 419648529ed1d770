"""The thread that ends a run that hangs, and what it leaves; each part alone, without a hanging run."""

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from run_helpers import fork, status_of, wait_for

from pretrain.common.errors import UserError
from pretrain.common.shutdown import EXIT_REQUEUE
from pretrain.watch import deadline, ending
from pretrain.watch.deadline import Watchdog, record_collectives
from pretrain.watch.ending import CLAIM, END, FOLDER, Ending, RunEnded, begin_folder, read_verdict
from pretrain.watch.heartbeat import heartbeat, read_all, start_of, state_of, who_is_behind

WAITS = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()"]


def waiting(words: list[str] = WAITS) -> tuple[subprocess.Popen, int]:
    """Start a process that waits for its input, or has a child that does; return it and who waits.

    A process that starts may wait for the disk, which heartbeats would say of it.
    """
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pid = int(process.stdout.readline())
    wait_for(lambda: state_of(pid) == "S", [])
    return process, pid


@pytest.fixture
def alone(monkeypatch):
    """A rank without a process group."""
    for name, value in {"get_rank": 0, "get_world_size": 1, "get_backend": "gloo"}.items():
        monkeypatch.setattr(dist, name, lambda value=value: value)


def begun(folder, limit=10.0, rank=0, ranks=1, step=0) -> Watchdog:
    """A watchdog as `begin` makes it, without its threads."""
    begin_folder(folder)
    watchdog = Watchdog(folder, limit)
    watchdog._ending = Ending(folder, rank, ranks, step, 0.01)
    return watchdog


@pytest.mark.parametrize("ranks, between", [(1, 1.0), (50, 1.0), (200, 4.0)])
def test_all_ranks_together_beat_fifty_times_a_second(tmp_path, monkeypatch, ranks, between):
    monkeypatch.setattr(dist, "get_world_size", lambda: ranks)
    assert Watchdog(tmp_path, None).between == between


def test_what_runs_now_decides_how_long_it_may_take(tmp_path, alone):
    hour, end = deadline.OUTSIDE, deadline.END
    assert (hour, end) == (3600.0, 600.0)
    unset, given, none = (Watchdog(tmp_path, limit) for limit in (None, 7.0, 0))
    for watchdog in (unset, given, none):
        assert watchdog.phase == "start"
    assert (unset.limit(), given.limit(), none.limit()) == (hour, 70.0, float("inf"))
    for watchdog in (unset, given, none):
        watchdog.follow(lambda: "")
        assert watchdog.phase == "the rest of a step"
        watchdog.follow(lambda: "encode")  # after a roll-back
        assert watchdog.phase == "encode"
    assert (unset.limit(), given.limit(), none.limit()) == (hour, 70.0, float("inf"))
    for count, expected in ((1, hour), (2, hour), (3, 400.0)):
        unset.end_step(count, 40.0)
        assert unset.limit() == expected
    given.end_step(1, 40.0)
    assert given.limit() == 7.0
    with unset("evaluation"), given("evaluation"):
        assert (unset.phase, unset.limit(), given.limit()) == ("evaluation", hour, 70.0)
        with unset("checkpoint"):
            assert unset.phase == "checkpoint"
        assert unset.phase == "evaluation"
    assert (unset.phase, unset.limit(), given.limit()) == ("encode", 400.0, 7.0)
    for watchdog in (unset, given, none):
        with pytest.raises(KeyError), watchdog.end_after_errors():
            raise KeyError
        assert watchdog.phase == "end"
    assert (unset.limit(), given.limit(), none.limit()) == (end, end, float("inf"))


def test_everything_that_goes_on_is_a_move(tmp_path, alone):
    watchdog, moves = Watchdog(tmp_path, None), []

    def moved():
        moves.append(watchdog._moves)
        return len(set(moves)) == len(moves)

    assert moved()
    watchdog.follow(lambda: "")
    assert moved()
    watchdog.end_step(1, 1.0)
    assert moved()
    with watchdog("export"):
        assert moved()
    assert moved()


def test_a_run_beats_from_its_beginning_to_its_end(tmp_path, alone):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "rank-7").touch()
    with Watchdog(tmp_path, 10.0) as watchdog:
        watchdog.between = 0.01
        watchdog.begin(5)
        wait_for(lambda: read_all(tmp_path / FOLDER), [])
        beat = read_all(tmp_path / FOLDER)[0]
        assert (beat.rank, beat.step, beat.phase, beat.pid) == (0, 5, "start", os.getpid())
        assert not (tmp_path / FOLDER / "rank-7").exists()
        wait_for(lambda: read_all(tmp_path / FOLDER)[0].beat > beat.beat, [])
        assert watchdog._ending.start_step == 5
        watchdog.between = 60.0  # the exit waits up to twice as long for the thread
    assert not watchdog._beats.is_alive() and not watchdog._fired.is_set()


def test_errors_are_explained_and_what_is_no_failure_is_not(tmp_path, alone, capsys):
    for error, said in ((KeyboardInterrupt(), ""), (SystemExit(0), "")):
        with pytest.raises(type(error)), begun(tmp_path) as watchdog:
            watchdog._beats = threading.Thread()
            watchdog._beats.start()
            raise error
        assert capsys.readouterr().err == said and read_verdict(tmp_path) is None and watchdog._done.is_set()
    with pytest.raises(UserError, match="bad data"), begun(tmp_path) as watchdog:
        raise UserError("bad data")
    assert read_verdict(tmp_path).status == 2 and not watchdog._done.is_set()
    for error in (ValueError("odd"), BrokenPipeError("odd")):
        with pytest.raises(RunEnded, match=f"{type(error).__name__}: odd"), begun(tmp_path):
            raise error
    with pytest.raises(ValueError, match="odd"), Watchdog(tmp_path, None) as watchdog:  # not begun
        raise ValueError("odd")
    assert watchdog._done.is_set()


def test_a_rank_that_hangs_leaves_its_stacks_and_says_what_is_safe(tmp_path, alone, capsys):
    (tmp_path / "checkpoints" / "step-00000012").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000012" / "manifest.json").touch()
    watchdog = begun(tmp_path, step=8)
    watchdog.follow(lambda: "backward")
    watchdog.end_step(14, 1.0)
    watchdog._idle = 11.4
    heartbeat(0, 3, 14, "backward", 11.0).write(tmp_path / FOLDER)
    assert watchdog._report() == read_verdict(tmp_path).status
    said = capsys.readouterr().err
    what = "nothing has moved on this rank for 11 s, in backward after step 14 (deadline 10 s"
    assert what in said and what in read_verdict(tmp_path).text
    assert f"Stacks of all ranks: {tmp_path / FOLDER}/stacks-rank-*" in said
    stacks = (tmp_path / FOLDER / "stacks-rank-0").read_text()
    assert stacks.startswith(what) and "_dump" in stacks and "Thread" in stacks
    assert (tmp_path / FOLDER / CLAIM).exists()


def test_who_comes_second_takes_the_status_of_who_spoke(tmp_path, alone, capsys):
    watchdog = begun(tmp_path, ranks=2)
    assert Ending(tmp_path, 1, 2, 0, 0.01).claim()
    (tmp_path / FOLDER / END).write_text("7\nrank 1 knows\n")
    assert watchdog._report() == 7 and capsys.readouterr().err == ""


def test_silent_ranks_of_this_machine_are_ended_and_named(tmp_path, alone, capsys):
    (silent, _), (beating, _) = waiting(), waiting()
    watchdog = begun(tmp_path, ranks=3)
    own = heartbeat(0, 1, 4, "encode", 0.0)
    of = {
        rank: replace(own, rank=rank, pid=child.pid, started=start_of(child.pid))
        for rank, child in ((1, silent), (2, beating))
    }
    looks = [{0: own, **of}, {0: own, 1: of[1], 2: replace(of[2], beat=2)}]
    watchdog._ending.look_twice = lambda: looks
    watchdog._report()
    assert silent.wait(60) == -9 and beating.poll() is None
    beating.communicate()
    said = capsys.readouterr().err
    assert f"rank 1 ({own.host}, process {silent.pid}) gives no sign of life after step 4, in encode" in said
    assert "On rank 0 nothing has moved" in said


@pytest.mark.parametrize(
    "report, patience, status", [(lambda: 9, 300.0, 9), (lambda: time.sleep(600), 0.2, EXIT_REQUEUE)]
)
def test_the_process_ends_whatever_the_report_does(tmp_path, alone, monkeypatch, report, patience, status):
    monkeypatch.setattr(deadline, "REPORT", patience)
    out = tmp_path / "said"

    def hang():
        os.dup2(os.open(out, os.O_CREAT | os.O_WRONLY), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - not pytest's
        watchdog = begun(tmp_path)
        watchdog._report = report
        watchdog._end()

    assert status_of(fork(hang)) == status
    assert ("error: nothing has moved" in out.read_text()) == (status == EXIT_REQUEUE)


def test_the_flight_recorder_is_on_unless_the_user_has_set_it(tmp_path, monkeypatch):
    names = "TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_FR_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT"
    for name in (*names.split(), "TORCH_FR_DUMP_TEMP_FILE"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    record_collectives(tmp_path.relative_to(tmp_path) / "run")
    assert int(os.environ["TORCH_FR_BUFFER_SIZE"]) == 2000
    assert os.environ["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert os.environ["TORCH_FR_DUMP_TEMP_FILE"] == f"{tmp_path}/run/watch/nccl_trace_rank_"
    own = {"TORCH_FR_BUFFER_SIZE": "5", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_FR_DUMP_TEMP_FILE": "mine"}
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    record_collectives(tmp_path)
    assert {name: os.environ[name] for name in own} == own
    monkeypatch.delenv("TORCH_FR_BUFFER_SIZE")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "9")
    record_collectives(tmp_path)
    assert "TORCH_FR_BUFFER_SIZE" not in os.environ


# -- what heartbeats say of processes of this machine


def test_a_rank_that_was_killed_or_stopped_is_said_to_be(tmp_path):
    child, _ = waiting()
    beat = replace(heartbeat(0, 1, 4, "encode", 0.0), pid=child.pid, started=start_of(child.pid))
    look = {0: beat}
    assert "gives no sign of life after step 4, in encode" in who_is_behind(look, look, 1)
    os.kill(child.pid, 19)
    wait_for(lambda: state_of(child.pid) == "T", [])
    assert "is stopped by a signal after step 4, in encode" in who_is_behind(look, look, 1)
    child.kill()
    child.communicate()
    assert "has ended without a word after step 4, in encode: it was killed" in who_is_behind(look, look, 1)


def test_of_a_rank_that_waits_for_data_the_workers_are_looked_at():
    rank, worker = waiting([sys.executable, "-c", f"import subprocess; subprocess.run({WAITS})"])
    beat = replace(heartbeat(0, 1, 4, "data", 0.0), pid=rank.pid, started=start_of(rank.pid))

    def said(phase):
        one = replace(beat, phase=phase)
        return who_is_behind({0: replace(one, beat=0)}, {0: one}, 1)

    assert said("data").endswith("step 5, in data (its loader workers make none)")
    os.kill(worker, 19)
    wait_for(lambda: state_of(worker) == "T", [])
    assert said("data").endswith(f"step 5, in data (loader worker {worker} is stopped by a signal)")
    assert said("encode").endswith("step 5, in encode")
    os.kill(worker, 9)
    rank.communicate()
    assert said("data").endswith("step 5, in data"), "of a process that is not here nothing is known"


# -- who speaks


def test_of_a_folder_that_has_gone_all_is_said_already(tmp_path, monkeypatch):
    gone = ending.FolderMoved("the run folder is gone")
    begin_folder(tmp_path)
    one = Ending(tmp_path, 0, 1, 0, 0.01)
    assert one.explain(gone) is gone
    monkeypatch.setattr(ending, "moved", lambda: gone)
    assert one.explain(ValueError("lost")) is gone and read_verdict(tmp_path) is None


def test_a_rank_waits_for_the_word_of_another_no_longer_than_it_said(tmp_path):
    begin_folder(tmp_path)
    one = Ending(tmp_path, 0, 2, 0, 0.01)
    began = time.monotonic()
    assert one.wait_for_verdict(0.15) is None and 0.1 < time.monotonic() - began < 5
    later = threading.Timer(0.1, lambda: (tmp_path / FOLDER / END).write_text("3\nit was me\n\n"))
    later.start()
    assert tuple(one.wait_for_verdict(20)) == (3, "it was me")
    (tmp_path / FOLDER / END).write_text("three\n")
    assert read_verdict(tmp_path) is None


def test_two_looks_are_more_than_two_beats_apart(tmp_path, monkeypatch):
    begin_folder(tmp_path)
    one, slept = Ending(tmp_path, 0, 2, 0, 4.0), []
    heartbeat(1, 5, 2, "encode", 0.0).write(tmp_path / FOLDER)

    def sleep(seconds):
        slept.append(seconds)
        heartbeat(1, 6, 2, "encode", 0.0).write(tmp_path / FOLDER)

    monkeypatch.setattr(ending, "time", SimpleNamespace(sleep=sleep))
    before, now = one.look_twice()
    assert (before[1].beat, now[1].beat) == (5, 6) and slept == [10.0]


def test_a_lost_connection_names_the_rank_that_is_silent(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(ending, "PATIENCE", 0.01)
    begin_folder(tmp_path)
    one = Ending(tmp_path, 0, 2, 0, 0.01)
    own = heartbeat(0, 5, 2, "encode", 0.0)
    one.look_twice = lambda: ({0: own}, {0: replace(own, beat=7)})
    ended = one.explain(RuntimeError("Connection closed by peer [127.0.0.1]:5"))
    assert isinstance(ended, RunEnded)
    assert "rank 1 has never given a sign of life" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error, status, then",
    [
        (UserError("no room"), 2, "deal with the reason above"),
        (MemoryError("CUDA out of memory"), 1, "halve --train.micro_batch_tokens"),
        (
            RuntimeError("CUDA error: uncorrectable ECC error encountered"),
            75,
            "this may pass (exit status 75)",
        ),
    ],
)
def test_what_to_type_next_is_by_the_reason(tmp_path, capsys, error, status, then):
    (tmp_path / "checkpoints" / "step-00000003").mkdir(parents=True)
    begin_folder(tmp_path)
    assert Ending(tmp_path, 0, 1, 2, 0.01).explain(error).exit_status == status
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(f"  next: {then}") and lines[-2].startswith("  safe: ")
    assert "step-00000003: the run as it was after step 3" in lines[-2]


def test_where_checkpoints_cannot_be_listed_a_passing_fault_is_tried_again(tmp_path, monkeypatch, capsys):
    begin_folder(tmp_path)

    def fails(folder):
        raise OSError("stale")

    monkeypatch.setattr(ending, "candidates", fails)
    only = Ending(tmp_path, 0, 1, 9, 0.01)
    assert only.end("it hung", EXIT_REQUEUE) == EXIT_REQUEUE
    assert "which cannot be listed now" in capsys.readouterr().err
    assert read_verdict(tmp_path).text.startswith("it hung\n  safe: the checkpoints in")


@pytest.mark.parametrize(
    "printed, complete, shown",
    [(1, 1, []), (0, 1, ["all"]), (1, 0, ["safe", "next"]), (0, 0, ["all", "safe", "next"])],
)
def test_the_last_message_says_what_was_not_said(tmp_path, capsys, printed, complete, shown):
    begin_folder(tmp_path)
    Ending(tmp_path, 0, 1, 0, 0.01).end("all of it", 2, bool(printed), bool(complete))
    said = capsys.readouterr().err
    assert [
        word for word in ("all", "safe", "next") if f"{word} of it" in said or f"{word}:" in said
    ] == shown
    assert read_verdict(tmp_path).text.startswith("all of it") and read_verdict(tmp_path).status == 2


@pytest.mark.parametrize("phase", ["encode", "x" * 600])
def test_a_heartbeat_takes_the_room_of_the_one_before(tmp_path, phase):
    for text in (phase, "data"):
        heartbeat(3, 1, 4, text, 0.0).write(tmp_path)
        content = (tmp_path / "rank-3").read_bytes()
        assert len(content) == 512 and content.endswith(b"\n") and content.count(b"\n") == 1
    assert read_all(tmp_path)[3].phase == "data"
