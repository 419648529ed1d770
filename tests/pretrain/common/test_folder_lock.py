"""One writer a folder: a second one is refused, and a lock ends with its holder and with nothing else."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_helpers import ROOT, command, curve, finish, outputs_of, paths_in, records, start, wait_for

from pretrain.commands.sweep.file import Row, TableEntry
from pretrain.commands.sweep.runs import SweepRun, Trainer
from pretrain.common import folder_lock as locks
from pretrain.common.folder_lock import FolderTakenError, folder_lock
from pretrain.common.shutdown import EXIT_REQUEUE, SIGNALS
from pretrain.config.recipe import DEFAULT_RECIPE

HOLD = """
import os, socket, sys, time
from pathlib import Path
{before}
from pretrain.common import folder_lock as locks
locks.LEASE, locks.BEAT = 2.0, 0.2
with locks.folder_lock(Path(sys.argv[1])):
    {inside}
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def short_lease(monkeypatch):
    monkeypatch.setattr(locks, "LEASE", 2.0)
    monkeypatch.setattr(locks, "BEAT", 0.2)


@pytest.fixture
def hold(tmp_path):
    """Starts processes that hold tmp_path until they are killed."""
    started = []

    def hold(before: str = "", inside: str = "") -> subprocess.Popen:
        code = HOLD.format(before=before, inside=inside)
        process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_second_writer_is_told_at_once_who_the_first_is(tmp_path, hold, capfd):
    process = hold()
    with pytest.raises(FolderTakenError) as error, folder_lock(tmp_path):
        pass
    assert "waiting" not in capfd.readouterr().err, "a holder on this machine needs no sign of life"
    assert f"process {process.pid} on {socket.gethostname()}" in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert process.poll() is None


def take_at_once(folder: Path, wait: float = 0.0) -> None:
    """Take the lock, which then is ours and nobody else's, and leave nothing."""
    began = time.monotonic()
    with (
        folder_lock(folder, wait=wait),
        pytest.raises(FolderTakenError, match=f"process {os.getpid()} on"),
        folder_lock(folder),
    ):
        pass
    assert time.monotonic() - began < 30  # far below the lease
    assert list(folder.iterdir()) == []


def test_a_lock_goes_with_a_killed_holder_at_once_and_leaves_nothing(tmp_path, hold):
    process = hold()
    process.kill()
    process.wait()
    take_at_once(tmp_path)


def test_a_child_that_outlives_a_killed_holder_does_not_hold_its_folder(tmp_path, hold):
    """datatrove's manager is a forked child, which a SIGKILL of its parent alone leaves behind."""
    process = hold(inside="if os.fork() == 0: time.sleep(60); os._exit(0)")
    process.kill()
    process.wait()
    with folder_lock(tmp_path):
        pass


@pytest.mark.full
def test_a_suspended_holder_keeps_its_lock(tmp_path, hold, short_lease):
    process = hold()
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5 * locks.LEASE)
    with pytest.raises(FolderTakenError), folder_lock(tmp_path):
        pass
    process.send_signal(signal.SIGCONT)
    time.sleep(5 * locks.BEAT)
    assert process.poll() is None


@pytest.mark.full
def test_a_suspended_holder_keeps_its_lock_from_who_waits_longer_than_the_lease(tmp_path, hold, short_lease):
    process = hold()
    process.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    with (
        pytest.raises(FolderTakenError, match=f"process {process.pid} on"),
        folder_lock(tmp_path, wait=3 * locks.LEASE),
    ):
        pass
    assert time.monotonic() - began >= 3 * locks.LEASE
    process.send_signal(signal.SIGCONT)
    time.sleep(5 * locks.BEAT)
    assert process.poll() is None


@pytest.mark.parametrize("wait", [0.0, 60.0])
def test_a_killed_holder_whose_parent_has_not_asked_after_it_holds_nothing(tmp_path, hold, wait):
    process = hold()
    process.kill()
    while ") Z" not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    take_at_once(tmp_path, wait)


def test_the_lock_of_a_dead_process_is_removed_and_never_that_of_another(tmp_path, hold):
    """Between the look at a dead holder and the removal of its lock another process may have taken it."""
    live = hold()
    lock = locks.SoftFileLease(tmp_path / locks.LOCK, lease_duration=2.0, heartbeat_interval=0.2)
    locks._remove(lock, lock.owner._replace(token="0" * 32))
    time.sleep(1)
    assert lock.owner.pid == live.pid and live.poll() is None
    assert set(tmp_path.iterdir()) == {tmp_path / locks.LOCK}
    locks._remove(lock, lock.owner)
    assert lock.owner is None


def test_several_who_find_a_dead_holder_get_its_lock_one_by_one(tmp_path, hold):
    process = hold()
    process.kill()
    while ") Z" not in Path(f"/proc/{process.pid}/stat").read_text():
        time.sleep(0.01)
    code = """
import sys, time
from pathlib import Path
from pretrain.common.folder_lock import folder_lock
folder = Path(sys.argv[1])
with folder_lock(folder, wait=60):
    (folder / "inside").touch(exist_ok=False)
    time.sleep(0.3)
    (folder / "inside").unlink()
"""
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], env=os.environ | {"PYTHONPATH": str(ROOT)}
        )
        for _ in range(4)
    ]
    assert [other.wait() for other in others] == [0] * 4


OTHER_HOST = "socket.gethostname = lambda: 'far-away'"


@pytest.mark.full
def test_a_holder_on_another_machine_keeps_its_lock_while_it_refreshes_it_and_no_longer(
    tmp_path, hold, short_lease, capfd
):
    process = hold(before=OTHER_HOST)
    time.sleep(1.5 * locks.LEASE)
    with (
        pytest.raises(FolderTakenError, match=f"process {process.pid} on far-away"),
        folder_lock(tmp_path),
    ):
        pass
    process.kill()
    process.wait()
    # no process of that name can be asked after here: only time shows that it is gone
    with folder_lock(tmp_path):
        assert "waiting up to 2 s to see whether it is alive" in capfd.readouterr().err


def test_who_has_lost_the_lock_stops_before_writing_more(tmp_path, hold):
    process = hold()
    (tmp_path / locks.LOCK).unlink()
    _, said = process.communicate()
    assert process.returncode == 2 and "error: the lock" in said and "Traceback" not in said


def test_who_cannot_refresh_the_lock_says_that_the_storage_fails_and_may_be_started_again(tmp_path, hold):
    fail = "import filelock._lease as lease\n    def touch(*place, **more): raise OSError(5, 'I/O error')\n"
    process = hold(inside=f"{fail}    lease.touch = touch")
    _, said = process.communicate()
    assert process.returncode == EXIT_REQUEUE and said.count("error: ") == 1 and "Traceback" not in said
    for part in ("for 2 s (I/O error)", str(tmp_path / locks.LOCK), "--resume auto"):
        assert part in said
    assert "is gone" not in said


def test_who_cannot_refresh_the_lock_says_for_how_long(monkeypatch, tmp_path, capsys):
    """filelock tells it a refresh before another process may take the lock."""
    monkeypatch.setattr(os, "_exit", lambda status: None)
    error = OSError(5, "I/O error")
    locks._stop(SimpleNamespace(lock_file=tmp_path / ".lock", reason="refresh-failed", error=error))
    assert f"for {locks.LEASE - locks.BEAT:.0f} s (I/O" in capsys.readouterr().err


def test_waiting_for_a_short_piece_of_work(tmp_path, hold, short_lease):
    process = hold(inside="print('held', flush=True); time.sleep(1); sys.exit()")
    with folder_lock(tmp_path, wait=60):
        assert process.wait() == 0


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(locks.UserError, match="cannot write into"), folder_lock(tmp_path / "file"):
        pass


@pytest.mark.parametrize("part", ["", "sweep"])
def test_a_sweep_leaves_a_run_to_the_process_that_trains_it(tmp_path, part):
    """That process may be another sweep, or a training that has outlived the sweep that started it."""
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    said: list[str] = []
    run = SweepRun("one", TableEntry("one", "one", Row(), DEFAULT_RECIPE), 1, tmp_path / "run")
    run.folder.mkdir()
    try:
        trainer = Trainer([sys.executable, "-c", "print('started')"], dict(os.environ), said.append)
        with folder_lock(run.folder, part=part):
            assert trainer.train(run, "1 of 1: ") is False
            assert "another process trains it" in said[0] and f"process {os.getpid()} on" in said[0]
        assert not (run.folder / "log.txt").exists()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


# -- by the command -----------------------------------------------------------


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_stopped(pid: int) -> bool:
    """Return whether every thread of a process is suspended: a signal takes its time on a busy machine."""
    states = set()
    for path in paths_in(Path(f"/proc/{pid}/task"), "*/stat"):
        with suppress(OSError):  # a thread has just ended
            states.add(path.read_text().rsplit(")", 1)[1].split()[0])
    return states == {"T"}


@pytest.mark.full
def test_a_second_run_in_a_folder_is_refused_before_it_touches_anything(tiny_data, tmp_path):
    run = tmp_path / "run"
    first = start(command(tiny_data, run), ranks=2)
    wait_for(lambda: len(records(run)) > 1, first)
    for process in first:  # suspended, so that whatever changes in its folder, the second has done
        process.send_signal(signal.SIGSTOP)
    wait_for(lambda: all(is_stopped(process.pid) for process in first), first)
    before = tree(run)
    second = start(command(tiny_data, run, checkpoint__resume="auto"), ranks=2)
    output = "".join(outputs_of(second, 200))
    assert [process.returncode for process in second] == [2, 2]
    assert f"{run} is being written by process {first[0].pid} on {socket.gethostname()}" in output
    assert output.count("error:") == 1 and "Traceback" not in output
    assert tree(run) == before
    for process in first:
        process.send_signal(signal.SIGCONT)
    finish(first)
    assert list(curve(run)) == list(range(11))
    assert not list(run.glob(".lock*"))


def test_a_run_that_is_refused_leaves_no_folder_behind(tiny_data, tmp_path):
    finish(
        start(command(tiny_data, tmp_path / "run", data__lanes=1, train__global_batch=15), ranks=2), expect=2
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "host,start,fields,state",
    [
        ("here?1", 77, ["S", "1"], "lives"),
        ("here", 77, ["T", "1"], "lives"),  # suspended
        ("here", 77, ["Z", "1"], "dead"),
        ("here", 77, ["X", "0"], "dead"),
        ("here", 77, ["Z", "2"], "dies"),  # a thread ends a write
        ("here", 76, ["S", "1"], "elsewhere"),  # another process of the same number
        ("here", 78, ["Z", "1"], "elsewhere"),
        ("here", None, ["S", "1"], "elsewhere"),
        ("there", 77, ["S", "1"], "elsewhere"),
        ("here", 77, [], "elsewhere"),
    ],
)
def test_the_state_of_a_holder_is_what_the_kernel_says(host, start, fields, state, monkeypatch):
    lines = [fields[0], *["0"] * 16, fields[1], "0", "77"] if fields else []
    monkeypatch.setattr(locks, "stat_fields", lambda pid: lines if pid == 9 else [])
    monkeypatch.setattr(socket, "gethostname", lambda: "here")
    assert locks.state_here(SimpleNamespace(hostname=host, start=start, pid=9)) == state
    assert locks.state_here(None) == "elsewhere"


def test_a_holder_lives_if_it_refreshes_its_lock(tmp_path):
    """Since the first look; another holder's first look is anew, and a lock that is gone has none."""
    file, owner = tmp_path / "lock", SimpleNamespace(token="a")
    lock = SimpleNamespace(lock_file=file, owner=owner)
    watch = locks._Watch(lock)
    assert not watch.holder_lives()

    def refresh(at):
        file.touch()
        os.utime(file, ns=(at, at))

    for at, token, lives in [
        *[(5, "a", False), (5, "a", False), (6, "a", True), (6, "a", True), (4, "a", True)],
        *[(8, "b", False), (8, "b", False), (9, "b", True)],
    ]:
        refresh(at)
        owner.token = token
        assert watch.holder_lives() is watch.lives is lives
    file.unlink()
    assert not watch.holder_lives() and not watch.lives
    refresh(10)
    assert not watch.holder_lives()  # the first look again


class Told:
    """A lock over a clock of its own, whose holder's state at each second is told: None, if it is free."""

    lock_file = "the lock"

    def __init__(self, state, beats):
        self.now, self.state, self.beats, self.removed = 0.0, state, beats, False

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds

    @property
    def owner(self):
        state = None if self.removed else self.state(self.now)
        return state and SimpleNamespace(state=state, pid=7, hostname="there")

    def holder_lives(self):
        """Refreshed every 10 s, if at all."""
        self.lives = self.beats and self.now >= 10
        return self.lives

    lives = False

    def acquire(self, timeout, poll_interval, cancel_check):
        """As a lease does, which counts as free when it was not refreshed for its time."""
        end = self.now + timeout
        while self.owner is not None and (self.beats or self.now < locks.LEASE):
            if self.state(self.now) == "mismatch":
                raise locks.LeaseSettingsMismatch("the lock", 1.0, 2.0)
            if cancel_check() or self.now >= end:
                raise locks.Timeout("the lock")
            self.now += poll_interval


@pytest.mark.parametrize(
    "state,beats,wait,taken,at,said",
    [
        (lambda now: None, False, 0, True, 0, 0),
        (lambda now: "lives", True, 0, False, 0, 0),
        (lambda now: "lives", True, 5, False, 5, 0),
        (lambda now: "lives", False, 300, False, 300, 0),  # suspended: never by the age of its lock
        (lambda now: "lives" if now < 3 else None, True, 5, True, 3, 0),
        (lambda now: "dies", False, 0, False, 10, 0),
        (lambda now: "dies", False, 5, False, 15, 0),
        (lambda now: "dies" if now < 4 else "dead", False, 0, True, 4, 0),
        (lambda now: "dead", False, 0, True, 0, 0),
        (lambda now: "elsewhere", True, 0, False, 10, 1),
        (lambda now: "elsewhere", True, 30, False, 30, 1),
        (lambda now: "elsewhere" if now < 20 else None, True, 30, True, 20, 1),
        (lambda now: "elsewhere" if now < 0.5 else None, True, 0, True, 0.5, 0),
        (lambda now: "elsewhere", False, 0, True, 120, 1),
        (
            lambda now: "elsewhere" if now < 40 else "lives",
            True,
            60,
            False,
            60,
            1,
        ),  # one of here has taken it
        (lambda now: "elsewhere" if now < 40 else "dead", False, 0, True, 40, 1),
        (lambda now: "mismatch", False, 60, False, 0, 0),
    ],
)
def test_a_lock_is_waited_for_as_long_as_its_holder_may_live(
    state, beats, wait, taken, at, said, monkeypatch, tmp_path, capsys
):
    lock = Told(state, beats)
    monkeypatch.setattr(locks, "time", lock)
    monkeypatch.setattr(locks, "_Watch", lambda lock: lock)
    monkeypatch.setattr(locks, "state_here", lambda owner: getattr(owner, "state", "elsewhere"))
    monkeypatch.setattr(locks, "_remove", lambda lock, owner: setattr(lock, "removed", owner.state == "dead"))
    try:
        locks._acquire(lock, tmp_path, wait)
        got = True
    except FolderTakenError as error:
        got = False
        assert f"{tmp_path} is being written by process 7 on there. " in str(error)
    assert got is taken and lock.now == pytest.approx(at, abs=0.35)
    line = (
        f"{tmp_path} is held by process 7 on there; waiting up to {120 + wait} s to see whether it is alive\n"
    )
    assert capsys.readouterr().err == line * said
