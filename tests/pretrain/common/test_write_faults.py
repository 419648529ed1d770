"""Every fault at every operation of what all writes are made of."""

import errno
import fcntl
import os
import re
import resource
import signal
from pathlib import Path

import pytest
from run_helpers import fork, status_of
from write_faults import Subject, require_all, restore, state_of

from pretrain.common import files

OLD, NEW = b"old" * 400, b"new content" * 500


def content_is(name: str):
    def find(folder: Path) -> str:
        path = folder / name
        return {OLD: "old", NEW: "new"}[path.read_bytes()] if path.exists() else "old"

    return find


@pytest.mark.parametrize("exists", [True, False])
def test_a_file_is_replaced(tmp_path, exists):
    subject = Subject(
        act=lambda folder: files.replace_durably(folder / "file", NEW),
        find=content_is("file"),
        make=lambda folder: (folder / "file").write_bytes(OLD) if exists else None,
    )
    cases = require_all(subject, tmp_path, least=5)
    assert cases.found == {"old", "new"}


def test_a_file_in_a_new_folder(tmp_path):
    def act(folder: Path) -> None:
        files.make_folder(folder / "a" / "b")
        files.replace_durably(folder / "a" / "b" / "file", NEW)

    require_all(Subject(act, content_is("a/b/file")), tmp_path, least=9)


TREES = {
    "old": {"a": b"1", "in": None, "in/b": b"2" * 300},
    "new": {"a": b"3", "in": None, "in/c": b"4" * 300},
}


def tree_is(name: str, may_lack: bool = False):
    def find(folder: Path) -> str:
        if may_lack and not (folder / name).exists():
            return "old"
        found = state_of(folder / name)
        return next(which for which, state in TREES.items() if state == found)

    return find


def place(folder: Path) -> None:
    files.remove_tree(folder / ".hidden")
    try:
        restore(TREES["new"], folder / ".hidden")
        files.put_in_place(folder / ".hidden", folder / "tree")
    finally:
        files.discard(folder / ".hidden")


@pytest.mark.parametrize("exists", [True, False])
def test_a_folder_is_put_in_place(tmp_path, exists):
    def make(folder: Path) -> None:
        if exists:
            restore(TREES["old"], folder / "tree")

    cases = require_all(Subject(place, tree_is("tree", not exists), make), tmp_path, least=12)
    assert cases.found == {"old", "new"}


def test_a_folder_is_replaced_where_names_cannot_be_exchanged(tmp_path, monkeypatch):
    """For an instant there is neither: `recover`, which each attempt begins with, mends a kill in it."""

    def cannot(first: Path, second: Path) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    def find(folder: Path) -> str:
        files.recover(folder / "tree")
        return tree_is("tree")(folder)

    monkeypatch.setattr(files, "exchange", cannot)
    subject = Subject(place, find, lambda folder: restore(TREES["old"], folder / "tree"))
    assert require_all(subject, tmp_path, least=12).found == {"old", "new"}


def test_a_folder_is_copied(tmp_path):
    source = restore(TREES["new"], tmp_path / "source")
    subject = Subject(
        act=lambda folder: files.copy_tree(source, folder / "tree"),
        find=tree_is("tree"),
        make=lambda folder: restore(TREES["old"], folder / "tree"),
    )
    require_all(subject, tmp_path / "cases", least=12)


def test_a_copy_of_a_read_only_folder_can_be_replaced(tmp_path):
    source = restore(TREES["new"], tmp_path / "source")
    folders = [source, *(place for place in source.rglob("*") if place.is_dir())]
    for place in folders:
        place.chmod(0o555)
    for _ in range(3):
        files.copy_tree(source, tmp_path / "copy")
        copied = [tmp_path / "copy" / place.relative_to(source) for place in folders]
        assert len(copied) > 1 and all(place.stat().st_mode & 0o777 == 0o755 for place in copied)
    for place in folders:
        place.chmod(0o755)


def test_a_file_is_moved_to_another_folder(tmp_path):
    def make(folder: Path) -> None:
        restore({"from": None, "from/file": NEW, "to": None, "to/file": OLD}, folder / "both")

    def act(folder: Path) -> None:
        if (folder / "both/from/file").exists():
            files.rename_durably(folder / "both/from/file", folder / "both/to/file")

    def find(folder: Path) -> str:
        assert (folder / "both/to/file").read_bytes() in (OLD, NEW)
        return "old" if (folder / "both/from/file").exists() else "new"

    require_all(Subject(act, find, make), tmp_path, least=3)


def test_a_file_that_a_library_wrote_is_put_in_place(tmp_path):
    def act(folder: Path) -> None:
        try:
            (folder / ".file.partial").write_bytes(NEW)
            files.fsync_folder(folder / ".file.partial")  # the same calls sync a file
            files.rename_durably(folder / ".file.partial", folder / "file")
        finally:
            files.discard(folder / ".file.partial")

    subject = Subject(act, content_is("file"), lambda folder: (folder / "file").write_bytes(OLD))
    require_all(subject, tmp_path, least=4)


def test_a_synced_line_stays(tmp_path):
    def find(folder: Path) -> str:
        path = folder / "lines"
        return "new" if path.exists() and path.read_bytes().endswith(b"a line\n") else "old"

    def act(folder: Path) -> None:
        lines = files.AppendedFile(folder / "lines")
        try:
            if find(folder) == "old":
                lines.append(b"a line\n")
            lines.sync()
        finally:
            lines.close()

    require_all(Subject(act, find), tmp_path, least=4)


def test_a_removed_file_stays_removed(tmp_path):
    def find(folder: Path) -> str:
        return "old" if (folder / "file").exists() else "new"

    subject = Subject(
        act=lambda folder: files.remove_durably(folder / "file"),
        find=find,
        make=lambda folder: (folder / "file").write_bytes(OLD),
    )
    require_all(subject, tmp_path, least=2)


def test_without_locks_each_writer_has_a_name_of_its_own(tmp_path, monkeypatch):
    def none(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    files.replace_durably(tmp_path / "file", NEW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path):
    """Of the operating system itself: a limit on the size of files."""

    def write() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        lines = files.AppendedFile(tmp_path / "lines")
        lines.append(b"a" * 600 + b"\n")
        with pytest.raises(OSError, match="File too large"):
            lines.append(b"b" * 600 + b"\n")

    assert status_of(fork(write)) == 0
    assert (tmp_path / "lines").read_text() == "a" * 600 + "\n"


def bare(folder: Path) -> None:
    (folder / "file").write_bytes(NEW)


def unsynced(folder: Path) -> None:
    (folder / ".file.partial").write_bytes(NEW)
    os.rename(folder / ".file.partial", folder / "file")
    files.fsync_folder(folder)


def unnamed(folder: Path) -> None:
    files.write_durably(folder / ".file.partial", NEW)
    os.rename(folder / ".file.partial", folder / "file")


def forgotten(folder: Path) -> None:
    partial = folder / f".{os.urandom(4).hex()}.partial"
    files.write_durably(partial, NEW)
    files.rename_durably(partial, folder / "file")


def half(folder: Path) -> None:
    with open(folder / "file", "wb") as file:
        for part in (NEW[:700], NEW[700:]):
            file.write(part)
            files.sync(file)


@pytest.mark.parametrize(
    ("write", "finding"),
    [
        (bare, "it was not durable"),
        (unsynced, "KeyError"),
        (unnamed, "it was not durable"),
        (forgotten, "other files than after an undisturbed one|what was half written stayed"),
        (half, "KeyError"),
    ],
)
def test_what_is_wrong_is_found(tmp_path, write, finding):
    """Writers as one would write them at first, and which fault shows what they lack."""
    subject = Subject(write, content_is("file"), lambda folder: (folder / "file").write_bytes(OLD))
    with pytest.raises((AssertionError, KeyError)) as found:
        require_all(subject, tmp_path, least=1)
    assert re.search(finding, repr(found.value))


@pytest.mark.parametrize("durable", [True, False])
def test_a_write_that_fails_holds_no_file_while_its_error_is_kept(tmp_path, durable):
    (tmp_path / "file" / "a folder").mkdir(parents=True)
    with pytest.raises(OSError) as kept:
        files.replace(tmp_path / "file", NEW, durable)
    held = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    assert kept.value and not [place for place in held if place.startswith(str(tmp_path))]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
