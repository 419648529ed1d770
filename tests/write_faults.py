"""Stop, or fail, each operation of a block that writes, and say what a reader finds afterwards.

Operations are counted at the functions of `os` (and `open`), below everything that the product writes with:
what is tested is not how it writes, but what is on the disk. Three faults come at each operation:

- kill: the process ends before it. Its files are as they are then, so one recorded run gives all of them.
- power cut before it: of files that were not fsynced the bytes are lost, or are zeros; in each folder that
  was not fsynced the names are as they were at its last fsync, or as they are. Also recorded in one run.
- error: the operation fails, with ENOSPC or EDQUOT from there on, or with EIO once. Half of a write is done.

After each of them a reader must find the old content or the new, whole; and the next attempt must succeed,
and leave the files that an undisturbed one leaves. An error must be one of those that the command shows as
one line, and must leave no file that was not there before.
"""

import builtins
import contextlib
import errno
import io
import itertools
import os
import re
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pretrain.common import files

State = dict[str, bytes | None]
"""A folder: path in it -> content of a file; None: it is a folder."""

_BY_PATH = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "truncate")
_BY_DESCRIPTOR = ("write", "fsync", "ftruncate")
_REMOVES = ("unlink", "remove", "rmdir")
_TAKES_SPACE = ("open", "write", "mkdir")


def is_lock(name: str) -> bool:
    """Return whether a file says who holds a folder: a dead process holds none, which has its own tests."""
    return ".lock" in name


@dataclass
class Subject:
    """A block that writes.

    act: writes into the folder; done twice it must leave what it leaves done once. find: what a reader finds
    there, "old" or "new", whole; anything else it finds is an assertion that fails. make: the old content.
    errors: that `act` may raise. same: of a path, what is compared of it (for names that are drawn); "":
    nothing.
    durable: whether a power cut right after it leaves the new content.
    """

    act: Callable[[Path], object]
    find: Callable[[Path], str]
    make: Callable[[Path], object] = lambda folder: None
    errors: tuple[type[Exception], ...] = (OSError,)
    same: Callable[[str], str] = str
    durable: bool = True


# -- at the operating system's calls ---------------------------------------------


@contextlib.contextmanager
def watched(root: Path, before: Callable[[str, str, tuple], None], after: Callable = lambda *_: None):
    """Call `before` and `after` with the name, path and arguments of each operation in a folder."""
    here, inside = str(root) + os.sep, threading.local()

    def path_of(place: Any, folder: int | None = None) -> str:
        if isinstance(place, int):
            return os.readlink(f"/proc/self/fd/{place}")
        place = os.fspath(place)
        within = os.getcwd() if folder is None else os.readlink(f"/proc/self/fd/{folder}")
        return os.path.join(within, os.fsdecode(place))

    def wrapped(name: str, call: Callable, counts: Callable[..., bool] = lambda *_, **__: True):
        def operation(*arguments, **options):
            if getattr(inside, "busy", False) or not counts(*arguments, **options):
                return call(*arguments, **options)
            path = path_of(arguments[0], options.get("dir_fd"))
            if not (path + os.sep).startswith(here) or is_lock(os.path.basename(path)):
                return call(*arguments, **options)
            inside.busy = True
            try:
                before(name, path, arguments)
                result = call(*arguments, **options)
                after(name, path, arguments)
                return result
            finally:
                inside.busy = False

        return operation

    def writes(file, mode="r", *_, **__):
        return not isinstance(file, int) and any(letter in mode for letter in "wax+")

    with pytest.MonkeyPatch.context() as patch:
        for name in (*_BY_PATH, *_BY_DESCRIPTOR):
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        flags = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        patch.setattr(os, "open", wrapped("open", os.open, lambda _, asked, *__, **___: bool(asked & flags)))
        opened = wrapped("open", io.open, writes)
        patch.setattr(builtins, "open", opened)
        patch.setattr(io, "open", opened)
        patch.setattr(files, "exchange", wrapped("exchange", files.exchange))
        yield


# -- what survives ------------------------------------------------------------------


class Disk:
    """What of a folder is on the disk itself, and what the system has only promised (POSIX, no more)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._pins: dict[int, int] = {}  # inode -> descriptor: its number is not given to another meanwhile
        self._content: dict[int, bytes] = {}  # that was synced
        self._names: dict[int, dict[str, int]] = {}
        self._look()
        for number in self._pins:
            self._settle(number)

    def close(self) -> None:
        for descriptor in self._pins.values():
            os.close(descriptor)

    def after(self, name: str, path: str, arguments: tuple) -> None:
        """Take note of an operation that was done."""
        self._look()
        if name == "fsync":
            self._settle(os.fstat(arguments[0]).st_ino)

    def _look(self) -> None:
        for folder, _, names in os.walk(self.root):
            for path in (folder, *(os.path.join(folder, name) for name in names)):
                number = os.stat(path).st_ino
                if number not in self._pins:
                    self._pins[number] = os.open(path, os.O_RDONLY)

    def _is_folder(self, number: int) -> bool:
        return stat.S_ISDIR(os.fstat(self._pins[number]).st_mode)

    def _settle(self, number: int) -> None:
        if self._is_folder(number):
            self._names[number] = self._listed(number)
        else:
            self._content[number] = self._written(number)

    def _listed(self, number: int) -> dict[str, int]:
        with os.scandir(self._pins[number]) as entries:
            return {entry.name: entry.inode() for entry in entries if not is_lock(entry.name)}

    def _written(self, number: int) -> bytes:
        descriptor = self._pins[number]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    def survivors(self) -> Iterator[State]:
        """Yield what may be found after a power cut now."""
        self._look()
        pending = [
            number
            for number in self._pins
            if self._is_folder(number) and self._listed(number) != self._names.get(number, {})
        ]
        undone = {frozenset(), frozenset(pending)}
        for number in pending:
            undone |= {frozenset({number}), frozenset(pending) - {number}}
        for folders, zeros in itertools.product(undone, (False, True)):
            state: State = {}
            self._collect(os.stat(self.root).st_ino, "", folders, zeros, state)
            yield state

    def _collect(self, number: int, path: str, undone: frozenset[int], zeros: bool, state: State) -> None:
        if not self._is_folder(number):
            now, synced = self._written(number), self._content.get(number, b"")
            if number not in self._content or now != synced:
                kept = len(synced) if now.startswith(synced) else 0  # appending spoils nothing
                now = now[:kept] + bytes(len(now) - kept) if zeros else synced
            state[path] = now
            return
        if path:
            state[path] = None
        names = self._names.get(number, {}) if number in undone else self._listed(number)
        for name, child in names.items():
            self._collect(child, f"{path}/{name}".lstrip("/"), undone, zeros, state)


def state_of(root: Path) -> State:
    """Return what is in a folder."""
    found = (path for path in root.rglob("*") if not is_lock(path.name))
    return {str(p.relative_to(root)): None if p.is_dir() else p.read_bytes() for p in found}


def restore(state: State, root: Path) -> Path:
    """Make a folder that holds a state; return it."""
    root.mkdir(parents=True)
    for name, content in state.items():
        path = root / name
        if content is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    return root


# -- every case ------------------------------------------------------------------------


@dataclass
class Cases:
    """How many cases there were, by fault; and what readers found in them."""

    operations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    found: set[str] = field(default_factory=set)


def require_all(subject: Subject, folder: Path, least: int, every: int = 1) -> Cases:
    """Try every fault at every operation of a subject.

    Args:
        least: how many operations there must be: one that is not seen is not tested.
        every: of so many states, one goes through the next attempt, and of so many operations one fails (by
            turns with one of the three errors); for what takes long. A reader looks at all states.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)  # the machine has no power cut: save the wait
        return _all(subject, folder, least, every)


def _all(subject: Subject, folder: Path, least: int, every: int) -> Cases:
    cases, numbers = Cases(), itertools.count()
    old = _old(subject, folder / "old")
    states: dict[frozenset, tuple[str, str, State]] = {}
    _record(subject, restore(old, folder / "recorded"), cases, states)
    paths = _paths(subject, folder / "recorded")
    assert subject.find(folder / "recorded") == "new"
    assert len(cases.operations) >= least, cases.operations
    for count, (fault, where, state) in enumerate(states.values()):
        place = restore(state, folder / str(next(numbers)))
        with _said(f"{fault} before {where}"):
            found = _require_whole(subject, place, paths, cases, again=count % every == 0)
            assert found == "new" or where != _END or not subject.durable, "it was not durable"
        cases.faults[fault] += 1
        shutil.rmtree(place)
    for number in range(0, len(cases.operations), every):
        for kind in _ERRORS if every == 1 else [_ERRORS[number // every % 3]]:
            place = restore(old, folder / str(next(numbers)))
            with _said(f"{errno.errorcode[kind]} at {number}: {cases.operations[number]}"):
                _fail(subject, place, number, kind)
                _require_whole(subject, place, paths, cases)
            cases.faults[errno.errorcode[kind]] += 1
            shutil.rmtree(place)
    return cases


_END = "the end"
_ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT)


def _old(subject: Subject, root: Path) -> State:
    root.mkdir(parents=True)
    subject.make(root)
    return state_of(root)


def _paths(subject: Subject, root: Path) -> set[str]:
    return {subject.same(path) for path in state_of(root)} - {""}


def _record(subject: Subject, root: Path, cases: Cases, states: dict) -> None:
    """Do it once; put what a kill and a power cut before each operation leave into `states`."""
    disk = Disk(root)

    def keep(where: str) -> None:
        for fault, state in [("kill", state_of(root)), *(("power cut", s) for s in disk.survivors())]:
            key = frozenset(state.items())
            if key not in states or where == _END:
                states[key] = fault, where, state

    def before(name: str, path: str, arguments: tuple) -> None:
        cases.operations.append(f"{name} {os.path.relpath(path, root)}")
        keep(f"operation {len(cases.operations) - 1}, {cases.operations[-1]}")
        if name == "write" and len(arguments[1]) > 1:  # killed in the middle of it
            half = state_of(root)
            place = os.path.relpath(path, root)
            if place in half:
                half[place] = (half[place] or b"") + bytes(arguments[1])[: len(arguments[1]) // 2]
                states.setdefault(frozenset(half.items()), ("kill", "the middle of a write", half))

    with watched(root, before, disk.after):
        subject.act(root)
    keep(_END)
    disk.close()


def _fail(subject: Subject, root: Path, number: int, kind: int) -> None:
    """Let one operation fail; an error of the subject must be one that it names, and leave nothing new."""
    made, failed = itertools.count(), []

    def before(name: str, path: str, arguments: tuple) -> None:
        is_due = next(made) == number
        goes_on = failed and kind != errno.EIO and name in _TAKES_SPACE
        if not (is_due or goes_on) or (kind != errno.EIO and name in _REMOVES):
            return
        failed.append(name)
        if name == "write":
            _WRITE(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        raise OSError(kind, os.strerror(kind), path)

    there = set(state_of(root))
    try:
        with watched(root, before):
            subject.act(root)
    except subject.errors as error:
        assert str(error), "an error says something"
    found = subject.find(root)
    if found == "old" and not set(failed) & set(_REMOVES):
        left = {path for path in set(state_of(root)) - there if _UNFINISHED.search(path)}
        assert not left, "what was half written stayed"


_WRITE = os.write
_UNFINISHED = re.compile(r"(^|/)\.([^/]*\.(partial|tmp|old)|(tmp|old)-[^/]*)(/|$)")


def _require_whole(subject: Subject, root: Path, paths: set[str], cases: Cases, again: bool = True) -> str:
    """A reader finds old or new; the next attempt makes it new, and leaves what an undisturbed one does."""
    found = subject.find(root)
    assert found in ("old", "new"), found
    cases.found.add(found)
    if again:
        subject.act(root)
        assert subject.find(root) == "new"
        left = _paths(subject, root)
        assert left == paths, f"other files than after an undisturbed one: {left ^ paths}"
    return found


@contextlib.contextmanager
def _said(what: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(what)
        raise
