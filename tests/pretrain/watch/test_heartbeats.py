"""Who keeps the others waiting, by the heartbeats of all ranks; and what is safe to do about it."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from pretrain.common.errors import UserError
from pretrain.watch import deadline
from pretrain.watch.deadline import Watchdog
from pretrain.watch.ending import CLAIM, END, FOLDER, Ending, RunEnded, begin_folder, read_verdict
from pretrain.watch.heartbeat import (
    Heartbeat,
    children_of,
    heartbeat,
    read_all,
    silent_ranks,
    start_of,
    state_of,
    who_is_behind,
)


def beats(*places: tuple[int, str], beat: int = 5) -> dict[int, Heartbeat]:
    """Heartbeats of ranks on other machines, at (step, phase)."""
    return {
        rank: Heartbeat(rank, f"node{rank}", 100 + rank, 7, "elsewhere", beat, step, phase, 61.0)
        for rank, (step, phase) in enumerate(places)
    }


def later(before: dict[int, Heartbeat], *silent: int) -> dict[int, Heartbeat]:
    return {rank: one if rank in silent else replace(one, beat=one.beat + 2) for rank, one in before.items()}


def test_a_step_may_take_ten_times_the_longest_of_recent_ones(tmp_path, monkeypatch):
    """A slow loader makes many steps' batches at once: most steps do not wait at all."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    watchdog = Watchdog(tmp_path, None)
    watchdog.follow(lambda: "encode")
    for seconds in (51.0, 1.0, 1.0, 1.0):
        watchdog.end_step(1, seconds)
    assert watchdog.limit() == 510.0
    for _ in range(64):
        watchdog.end_step(1, 1.0)
    assert watchdog.limit() == 300.0


@pytest.mark.parametrize("suspended, fires_at", [([], 41), ([9], 22), ([0, 1], 3)])
def test_of_a_time_in_which_the_process_was_stopped_little_counts(tmp_path, monkeypatch, suspended, fires_at):
    """Ticks of 0.25 s under a deadline of 10 s; in some the process is stopped for an hour: 5 s count."""
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    watchdog, now, ticks, fired = Watchdog(tmp_path, 10.0), [0.0], [], []
    watchdog.follow(lambda: "encode")
    watchdog.end_step(1, 1.0)

    def wait(seconds):
        ticks.append(3600.0 if len(ticks) in suspended else seconds)
        now[0] += ticks[-1]
        return len(ticks) > 99

    watchdog._done = SimpleNamespace(wait=wait, is_set=lambda: False)
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog, "_end", lambda: fired.append(len(ticks)))
    watchdog._watch()
    assert fired[0] == fires_at


def test_the_rank_without_a_sign_of_life_comes_first():
    before = beats((40, "data"), (40, "backward"), (39, "encode"))
    said = who_is_behind(before, later(before, 1), 3)
    assert said.startswith("rank 1 (node1, process 101) gives no sign of life after step 40, in backward")
    ended = {rank: replace(one, phase="end") for rank, one in before.items()}
    assert "the other ranks" not in who_is_behind(ended, later(ended, 1), 3)
    assert "rank 2" not in said and "the other ranks wait in data and encode" in said
    assert silent_ranks({}, later(before, 1), 4) == [3]
    assert "rank 3 has never given a sign of life" in who_is_behind(before, later(before), 4)


def test_then_the_lowest_step_then_who_waits_for_data():
    before = beats((40, "data"), (40, "backward"), (39, "encode"))
    said = who_is_behind(before, later(before), 3)
    assert said.startswith("rank 2 (node2, process 102) is at step 40, in encode;")
    before = beats((40, "data"), (40, "backward"), (40, "encode"))
    assert who_is_behind(before, later(before), 3).startswith(
        "rank 0 (node0, process 100) is at step 41, in data"
    )
    before = beats((40, "backward"), (40, "backward"))
    assert "all 2 ranks are at step 41, in backward" in who_is_behind(before, later(before), 2)
    alone = who_is_behind(beats((3, "data")), beats((3, "data"), beat=9), 1)
    assert alone == "rank 0 (node0, process 100) does not go on with step 4, in data"


def test_many_silent_ranks_are_counted():
    before = beats(*[(8, "encode")] * 9)
    assert who_is_behind(before, later(before, *range(1, 9)), 9).count("no sign of life") == 4
    assert "and 4 more" in who_is_behind(before, later(before, *range(1, 9)), 9)


def test_heartbeats_are_written_over_and_read_back(tmp_path):
    for number in range(3):
        one = heartbeat(0, number, 12, "encode", 3.14159)
        one.write(tmp_path)
    (tmp_path / "rank-1").write_text("{half")
    assert read_all(tmp_path) == {0: one} and one.beat == 2 and one.seconds == 3.1
    assert one.is_here and not one.has_ended and state_of(one.pid) == "R"


def test_only_a_process_of_this_machine_with_the_same_start_is_killed():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert child.pid in children_of(os.getpid())
    mine = replace(heartbeat(1, 0, 0, "data", 0.0), pid=child.pid)
    for other in (mine, replace(mine, machine="elsewhere")):  # another start; another machine
        other.kill()
    assert child.poll() is None and not mine.is_here and mine.has_ended
    own = replace(mine, started=start_of(child.pid))
    own.kill()
    assert child.wait(10) == -9 and own.has_ended


def test_a_process_that_nobody_has_waited_for_has_ended():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    beat = replace(heartbeat(1, 0, 0, "data", 0.0), pid=child.pid, started=start_of(child.pid))
    assert beat.is_here and not beat.has_ended
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert state_of(child.pid) == "Z" and beat.has_ended
    child.wait()
    assert beat.has_ended and not beat.is_here


# ---- one message ----


def endings(folder, ranks: int, start_step: int = 0) -> list[Ending]:
    begin_folder(folder)
    return [Ending(folder, rank, ranks, start_step, 0.01) for rank in range(ranks)]


def test_of_several_ranks_with_one_error_one_speaks(tmp_path, capsys):
    first, second = endings(tmp_path, 2)
    ended = [rank.explain(UserError("data/x is damaged")) for rank in (first, second)]
    assert [one.exit_status for one in ended] == [2, 2]
    assert capsys.readouterr().err.count("data/x is damaged") == 1
    assert read_verdict(tmp_path).status == 2


def test_a_full_disk_is_one_error_and_a_broken_one_may_pass(tmp_path, capsys):
    for number, status in ((28, 2), (122, 2), (30, 2), (5, 1)):  # 5: no checkpoint since the start
        (only,) = endings(tmp_path, 1)
        ended = only.explain(OSError(number, os.strerror(number), "runs/x/config.yaml"))
        said = capsys.readouterr().err
        assert (ended.exit_status, "Traceback" in said) == (status, False), said
        if number != 5:
            assert f"error: runs/x/config.yaml: {os.strerror(number)}\n  safe: nothing" in said
    assert "this may pass" in said


def test_a_full_device_is_answered_with_the_flag_that_needs_less_memory(tmp_path):
    endings(tmp_path, 1)[0].explain(MemoryError("CUDA out of memory. Tried to allocate 24.00 MiB"))
    assert "halve --train.micro_batch_tokens" in read_verdict(tmp_path).text


@pytest.mark.parametrize(
    "lost",
    [
        "Connection closed by peer [10.0.0.7]:1234",
        "Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_who_only_lost_the_connection_takes_the_status_of_who_failed(tmp_path, capsys, lost):
    first, second = endings(tmp_path, 2)
    first.explain(UserError("data/x is damaged"))
    ended = second.explain(RuntimeError(lost))
    assert isinstance(ended, RunEnded) and ended.exit_status == 2
    assert lost not in capsys.readouterr().err
    assert lost in (tmp_path / FOLDER / "error-rank-1").read_text()


@pytest.mark.parametrize("newest,start,status", [(None, 0, 1), (40, 40, 1), (40, 20, 75), (20, 0, 75)])
def test_a_passing_fault_asks_for_another_start_where_there_was_progress(
    tmp_path, capsys, newest, start, status
):
    if newest is not None:
        (tmp_path / "checkpoints" / f"step-{newest:08d}").mkdir(parents=True)
    (only,) = endings(tmp_path, 1, start)
    ended = only.explain(RuntimeError("CUDA error: uncorrectable ECC error encountered\nmore"))
    said = capsys.readouterr().err
    assert ended.exit_status == status and "Traceback" not in said
    assert "a GPU failed (CUDA error: uncorrectable ECC error encountered)" in said
    assert ("not requeued" in said) == (status == 1)
    safe = f"step-{newest:08d}: the run as it was after step {newest}" if newest else "no checkpoint yet"
    assert safe in said


def test_a_fault_of_the_code_keeps_its_traceback_and_ends_with_what_is_safe(tmp_path, capsys):
    (only,) = endings(tmp_path, 1)
    try:
        raise ZeroDivisionError("division by zero")
    except ZeroDivisionError as error:
        assert only.explain(error).exit_status == 1
    said = capsys.readouterr().err
    assert "Traceback" in said and said.rstrip().endswith("then the same command with --resume auto")
    assert said.index("Traceback") < said.index("error: ZeroDivisionError: division by zero\n  safe: ")


def test_what_a_start_left_is_kept_once(tmp_path):
    (only,) = endings(tmp_path, 1)
    assert only.claim() and not only.claim()
    only.end("it hung", 1)
    begin_folder(tmp_path)
    assert not (tmp_path / FOLDER / CLAIM).exists()
    assert (tmp_path / "watch.before" / END).read_text().startswith("1\nit hung")


def test_without_the_folder_every_rank_speaks(tmp_path):
    (only,) = endings(tmp_path / "gone" / "run", 1)
    only.folder = tmp_path / "nowhere"
    assert only.claim() and only.end("it hung", 1) == 1
