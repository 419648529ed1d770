"""What is set, read and said of this process: variables, memory, its start, its name, its end."""

import ctypes
import errno
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_helpers import fork, status_of

from pretrain.common import environment, files, folder_lock, memory, processes, program, shutdown
from pretrain.common.files import copy_tree, exchange, library_errors
from pretrain.common.memory import FlatMemory, cut_by_size, processes_that_fit, resident_bytes
from pretrain.common.shutdown import Shutdown
from pretrain.common.transfer import Numbers, send

ZEN_4 = "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nflags\t\t: fpu avx512f aes\n"


@pytest.fixture
def variables(monkeypatch):
    """The environment, for this test alone."""
    found = dict(os.environ)
    monkeypatch.setattr(os, "environ", found)
    return found


@pytest.mark.parametrize(("of", "given", "found"), [(ZEN_4, None, "X86_V4 AVX512_ICL"), (ZEN_4, "X", "X"),
                                                   ("vendor_id\t: GenuineIntel\n", None, None)])  # fmt: skip
def test_slow_sorts_are_turned_off(of, given, found, variables, monkeypatch, tmp_path):
    name = "NPY_DISABLE_CPU_FEATURES"
    variables.pop(name, None)
    if given:
        variables[name] = given
    (tmp_path / "cpuinfo").write_text(of)
    monkeypatch.setattr(
        environment, "open", lambda path, **more: (tmp_path / Path(path).name).open(), raising=False
    )
    environment.prefer_fast_sorts()
    assert variables.get(name) == found
    (tmp_path / "cpuinfo").unlink()
    environment.prefer_fast_sorts()  # another system


def test_variables_are_set_unless_they_are_there(variables, monkeypatch):
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        variables.pop(name, None)
    environment.spin_longer_between_kernels()
    memory.limit_kernel_cache()
    assert [variables[name] for name in names] == ["active", "300000", "512", "512"]
    variables |= {"LRU_CACHE_CAPACITY": "9", "OMP_WAIT_POLICY": "passive"}
    del variables["GOMP_SPINCOUNT"]
    environment.spin_longer_between_kernels()
    memory.limit_kernel_cache()
    assert variables["LRU_CACHE_CAPACITY"] == "9" and variables["OMP_WAIT_POLICY"] == "passive"
    assert "GOMP_SPINCOUNT" not in variables
    for there, set_to in ((True, None), (False, "cpu")):
        variables.pop("DS_ACCELERATOR", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        environment.choose_accelerator()
        assert variables.get("DS_ACCELERATOR") == set_to


def test_large_blocks_are_kept_for_the_next_step(monkeypatch):
    """Of malloc.h: M_TRIM_THRESHOLD is -1 and M_MMAP_THRESHOLD -3."""
    said = []
    monkeypatch.setattr(memory, "_glibc", lambda name: lambda *words: said.append((name, *words)))
    memory.reuse_large_blocks()
    assert sorted(said) == [("mallopt", -3, 2**30), ("mallopt", -1, 2**31 - 1)]
    memory.release_free_memory()
    assert said[2:] == [("malloc_trim", 0)]
    monkeypatch.setattr(memory, "_glibc", lambda name: None)
    memory.reuse_large_blocks()
    memory.release_free_memory()
    assert len(said) == 3


def test_a_library_without_a_function_has_none(monkeypatch):
    find = memory._glibc.__wrapped__
    assert find("malloc_trim") is not None and find("no_such_function") is None

    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert find("malloc_trim") is None


def test_memory_is_what_the_kernel_says(monkeypatch, tmp_path):
    status = Path("/proc/self/status").read_text()
    assert resident_bytes() == pytest.approx(1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]), rel=0.05)
    (tmp_path / "cgroup").write_text("1:cpu:/\n")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path / "cgroup")
    available = int(re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())[1])
    assert memory.free_memory() == pytest.approx(1024 * available, rel=0.2)
    monkeypatch.setattr(memory, "free_memory", lambda: 7_200_000)
    assert processes_that_fit(10_000, 200_000) == 10  # half of it: 3.6 MB, by 0.36 MB each
    assert processes_that_fit(10_000, 200_001) == 9

    def no_proc(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(memory, "open", no_proc, raising=False)
    assert resident_bytes() == 0


def test_free_memory_is_not_known_without_proc(monkeypatch):
    def no_proc(*_):
        raise FileNotFoundError

    monkeypatch.setattr(memory.Path, "read_text", no_proc)
    assert memory.free_memory() == 0


def test_pages_are_given_back_when_memory_outgrows_what_steps_need(monkeypatch):
    """The level is 100 over two steps; 25% above it is allowed, and 12.5% more after a second growth soon."""
    now, released = [0], []
    monkeypatch.setattr(memory, "resident_bytes", lambda: now[0])
    monkeypatch.setattr(memory, "release_free_memory", lambda: released.append(now[0]))
    flat = FlatMemory(settle=2)

    def steps(*resident):
        done = []
        for now[0] in resident:
            done.append(flat.after_step())
        return done

    assert steps(100) == [False]
    flat.after_pause()
    assert steps(90) == [False]
    flat.after_pause()
    assert released == []
    assert steps(125, 126, 125) == [False, True, False] and released == [126]
    assert steps(126, 140, 141) == [True, False, True]  # the level is 112.5 from the first on, 126.6 after
    flat.after_pause()
    assert released == [126, 126, 141, 141]
    assert steps(*[158] * 19, 159) == [False] * 19 + [True]  # 20 steps later: the level stays
    assert steps(159)[0] and steps(*[177] * 3) == [False] * 3


def test_lists_are_full_and_hold_at_most_so_much():
    items = [3, 5, 4, 4, 1, 9, 1, 0, 7, 1]
    assert cut_by_size(items, int, 8) == [[3, 5], [4, 4], [1], [9], [1, 0, 7], [1]]
    assert cut_by_size([], int, 8) == []


# -- processes -----------------------------------------------------------


def test_the_time_since_the_start_of_this_process():
    assert processes.start_of(2**30) is None and processes.stat_fields(2**30) == []
    before = time.monotonic()

    def child():
        time.sleep(0.2)
        running, parent = processes.seconds_running(), processes.start_of(os.getppid())
        tick = 1 / os.sysconf("SC_CLK_TCK")  # its start is known to a tick
        assert 0.2 - tick < running < time.monotonic() - before + 2 * tick
        assert 0 <= parent <= processes.start_of(os.getpid())

    assert status_of(fork(child)) == 0


def test_a_child_dies_with_its_parent(monkeypatch):
    """PR_SET_PDEATHSIG is 1. A parent that has ended before sends nothing more."""
    said, ended = [], []
    monkeypatch.setattr(processes, "_C", SimpleNamespace(prctl=lambda *words: said.append(words)))
    monkeypatch.setattr(os, "_exit", ended.append)
    processes.die_with(os.getppid())
    assert said == [(1, signal.SIGKILL)] and ended == []
    processes.die_with(os.getppid() + 1, signal.SIGTERM)
    assert said[1:] == [(1, signal.SIGTERM)] and ended == [1]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("pretrain.commands.show.__main__", "clearly show"),
        ("finetune.sts", "clearly sts"),
        ("pretrain.somewhere.__main__", "python -m pretrain.somewhere"),
        (None, "python 'a program.py'"),
        ("pytest.__main__", "python 'a program.py'"),
    ],
)
def test_a_process_says_how_it_was_started(spec, said, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["a program.py", "word"])
    about = None if spec is None else SimpleNamespace(name=spec)
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=about))
    assert program.program() == said


def test_every_word_of_the_command_stands_for_a_module():
    words = "prepare cache recipes train adapt inspect augment plan mine sweep eval export compare search "
    words += "convert show verify record doctor report benchmarks sts senteval glue anli clustering intents "
    words += "nanobeir own-sets mteb-english nli-distance cola-probe zh-sts geometry figures"
    assert list(program.COMMANDS) == words.split()
    modules = [module for module, _ in program.COMMANDS.values()]
    assert len(set(modules)) == len(modules) and all(importlib.util.find_spec(module) for module in modules)


def test_a_version_names_the_commit_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    monkeypatch.setattr(program, "_SOURCES", tmp_path)
    assert program._commit() == ""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # a user's may sign commits
    words = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.org"]
    (tmp_path / "a").write_text("one")
    for more in (["init", "-q"], ["add", "."], ["commit", "-qm", "Begin"], ["tag", "-am", "v", "v1"]):
        subprocess.run([*words, *more], check=True)
    head = subprocess.check_output([*words, "rev-parse", "HEAD"], text=True).strip()
    assert program._commit() == head
    version = program.own_version.__wrapped__()
    assert version.endswith(f"commit {head}")
    (tmp_path / "a").write_text("two")
    assert program._commit() == f"{head}-dirty"
    monkeypatch.setenv("PATH", "")
    assert program._commit() == "" and "commit" not in program.own_version.__wrapped__()


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_ends_the_process_at_once(first, tmp_path, monkeypatch):
    monkeypatch.setattr(shutdown, "AT_ONCE", 0.0)  # else they are one, which a launcher has doubled

    def act():
        Shutdown(tmp_path, watch_file=False)
        os.kill(os.getpid(), first)
        os.kill(os.getpid(), signal.SIGINT)
        return 7

    assert status_of(fork(act)) == (-signal.SIGINT if first == signal.SIGINT else 7)


def test_requests_at_the_end_are_ignored_where_they_were_collected(tmp_path):
    before = {number: signal.getsignal(number) for number in shutdown.SIGNALS}
    try:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        shutdown._ignore_late_requests()
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        Shutdown(tmp_path, watch_file=False)
        shutdown._ignore_late_requests()
        assert {signal.getsignal(number) for number in shutdown.SIGNALS} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize(("there", "itself"), [(True, True), (True, False), (False, True), (False, False)])
def test_who_has_lost_the_lock_ends_unless_it_looks_itself(there, itself, tmp_path, monkeypatch, capsys):
    """It looks for a folder that is gone, and for no lock that another has taken."""
    folder, given, ended = tmp_path / "run", [], []
    folder.mkdir()
    lease = folder_lock.lease_of
    monkeypatch.setattr(
        folder_lock, "lease_of", lambda path, **more: given.append(more) or lease(path, **more)
    )
    monkeypatch.setattr(os, "_exit", ended.append)
    with folder_lock.folder_lock(folder, says_itself=itself):
        if not there:
            folder.rename(tmp_path / "away")
        given[0]["on_compromise"](SimpleNamespace(lock_file=str(folder / ".lock"), reason="expired"))
        if not there:
            (tmp_path / "away").rename(folder)
    said = capsys.readouterr().err
    assert ended == ([2] if there or not itself else [])
    assert ("of this process is gone (expired)" in said) == there
    assert ("was renamed or removed" in said) == (not there and not itself)


# -- files and numbers -----------------------------------------------------


def test_names_are_exchanged_or_the_reason_is_an_error(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("1")
    second.write_text("2")
    exchange(first, second)
    assert (first.read_text(), second.read_text()) == ("2", "1")
    with pytest.raises(FileNotFoundError) as missing:
        exchange(first, tmp_path / "none")
    assert (missing.value.filename, missing.value.filename2) == (str(first), str(tmp_path / "none"))
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace())
    with pytest.raises(OSError, match=os.strerror(errno.ENOSYS)) as error:
        exchange(first, second)
    assert error.value.errno == errno.ENOSYS


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EACCES])
def test_a_folder_is_replaced_where_a_file_system_cannot_exchange_names(number, tmp_path, monkeypatch):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)

    def cannot(first, second):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "exchange", cannot)
    if number == errno.EACCES:
        with pytest.raises(PermissionError):
            files.put_in_place(tmp_path / "new", tmp_path / "old")
    else:
        files.put_in_place(tmp_path / "new", tmp_path / "old")
        assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old" / "file").read_text() == ("old" if number == errno.EACCES else "new")


@pytest.mark.parametrize(
    ("raised", "kind", "number"),
    [
        (Exception("No space left on device (os error 28)"), OSError, errno.ENOSPC),
        (OSError(errno.EIO, "(os error 28)"), OSError, errno.EIO),
        (shutil.Error([("a", "b", "[Errno 28] No space left on device: 'b'")]), OSError, errno.ENOSPC),
        (KeyError("a bug"), KeyError, None),
    ],
)
def test_errors_that_say_their_number_in_their_text_alone_are_those_of_the_system(raised, kind, number):
    with pytest.raises(kind) as found, library_errors():
        raise raised
    assert getattr(found.value, "errno", None) == number


def test_a_copy_that_fails_says_where_and_why(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "file").touch()

    def full(source, target, **_):
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr(shutil, "copystat", full)  # shutil.Error, of all files, has no strerror
    with pytest.raises(OSError) as found:
        copy_tree(tmp_path / "old", tmp_path / "new")
    assert (found.value.strerror, found.value.filename) == (os.strerror(28), str(tmp_path / "new"))
    assert os.listdir(tmp_path) == ["old"]


def test_numbers_come_in_their_order_and_exactly():
    device, before = torch.device("cpu"), time.monotonic()
    values = {"z": torch.tensor(0.1), "a": 3, "m": torch.tensor(2**53, dtype=torch.int64), "b": 0.1}
    numbers = Numbers(values)
    assert before <= numbers.came <= time.monotonic()
    came = numbers.came
    assert [*numbers.read().items()] == [
        ("z", float(torch.tensor(0.1))),
        ("a", 3.0),
        ("m", 2.0**53),
        ("b", 0.1),
    ]
    assert numbers.came == came and Numbers({"a": 1}).read() == {"a": 1.0} and Numbers({}).read() == {}
    tensors = [torch.arange(3), torch.ones(2)]
    assert all(one is other for one, other in zip(send(tensors, device), tensors, strict=True))
