"""Write files that survive a kill and a power cut. All writes of the product go through here.

Three rules hold at every instant:

- What is under its name is whole. A file or folder is written under a hidden name and renamed when all its
  bytes are on the disk, so a reader finds the old one or the new one.
- A name that was given is on the disk before anything builds on it: the folder that holds it is fsynced, and
  so are those above it that were made for it.
- What a kill leaves has a name that the next attempt takes, or removes.

Nothing here has a second way to reach the disk: every operation is a call of `os`, or `exchange`. So tests
stop, or fail, each of them in turn. Libraries that write by themselves do so into a hidden folder that
`put_in_place` then syncs and names.
"""

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import stat
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

from pretrain.common.errors import UserError
from pretrain.common.run_folder import require_in_place

_BUFFER_BYTES = 1 << 18
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)

# -- folders ------------------------------------------------------------


def fsync_folder(folder: Path) -> None:
    """Make renames and creations inside `folder` durable (on Linux a rename is only in memory until then)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with _named(folder):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, unless it is there; the names of new ones are durable."""
    folder = Path(folder)
    require_in_place(folder)
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # what cannot be read cannot be synced
        fsync_folder(folder.parent)


def put_in_place(hidden: Path, folder: Path) -> None:
    """Give a finished hidden folder its name; a folder that has it is replaced, and removed.

    Readers find the old folder or the new one, also after a kill or a power cut. If the file system cannot
    exchange two names (NFS), there is an instant without either, and `recover` mends a kill in it.
    """
    require_in_place(folder)
    for path in [*hidden.rglob("*"), hidden]:
        fsync_folder(path)  # the same calls sync a file
    recover(folder)
    if not folder.exists():
        os.rename(hidden, folder)
        fsync_folder(folder.parent)
        return
    try:
        exchange(hidden, folder)
        replaced = hidden
    except OSError as error:
        if error.errno not in _NO_EXCHANGE:
            raise
        replaced = _replaced(folder)
        discard(replaced)
        os.rename(folder, replaced)
        try:
            os.rename(hidden, folder)
        except BaseException:
            os.rename(replaced, folder)
            raise
    fsync_folder(folder.parent)
    discard(replaced)


@contextlib.contextmanager
def filled_folder(folder: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, which then takes the place of `folder`, whole or not at all."""
    hidden = folder.with_name(f".{folder.name}.tmp")
    _let_write(hidden)
    remove_tree(hidden)
    try:
        make_folder(hidden)
        yield hidden
        put_in_place(hidden, folder)
    finally:
        discard(hidden)


def recover(folder: Path) -> None:
    """Give back its name to a folder that `put_in_place` was replacing when it was killed."""
    if not folder.exists() and _replaced(folder).exists():
        rename_durably(_replaced(folder), folder)


def _replaced(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.old")


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two files or folders of one file system, at one instant (Linux, renameat2).

    Raises OSError: EINVAL or ENOSYS if the file system or the system cannot.
    """
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    here, flag = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if call(here, os.fsencode(first), here, os.fsencode(second), flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(first), None, str(second))


def copy_tree(source: Path, folder: Path) -> None:
    """Copy a folder, in place of the one that is there; whole or not at all. Its owner may write the copy."""
    with filled_folder(folder) as hidden, _named(folder), library_errors():
        shutil.copytree(source, hidden, dirs_exist_ok=True)
        _let_write(hidden)


def let_read(folder: Path) -> None:
    """Give the weights in a folder of ours, which safetensors writes for their owner alone, its rights."""
    rights = os.stat(folder).st_mode & 0o666
    for path in folder.rglob("*.safetensors"):
        os.chmod(path, rights)


def _let_write(folder: Path) -> None:
    """Let the owner change the folders of a copy: those of read-only data are copied with their mode."""
    for place, _, _ in os.walk(folder):
        mode = os.stat(place).st_mode
        if mode & stat.S_IRWXU != stat.S_IRWXU:
            os.chmod(place, mode | stat.S_IRWXU)


# -- files ----------------------------------------------------------------


class _Descriptor(io.FileIO):
    """A descriptor to write to, by `os`; closed with it."""

    def write(self, data: Any) -> int:
        return os.write(self.fileno(), data)


def create(path: Path) -> io.BufferedWriter:
    """Open an empty file to write to. It has its last name only in a folder that has not got its own yet."""
    require_in_place(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    return io.BufferedWriter(_Descriptor(descriptor, "wb"), _BUFFER_BYTES)


def sync(file: io.BufferedWriter) -> None:
    """Make all that was written to a file durable."""
    file.flush()
    os.fsync(file.fileno())


def abandon(file: io.BufferedWriter) -> None:
    """Close a file after a failure, without its buffered rest if that cannot be written either."""
    with contextlib.suppress(OSError):
        file.close()
    with contextlib.suppress(OSError):
        file.raw.close()


def write_durably(path: Path, data: bytes) -> dict[str, object]:
    """Write and fsync a new file; return {"bytes": size, "sha256": hex digest}."""
    file = create(path)
    try:
        with _named(path):
            file.write(data)
            sync(file)
    finally:
        abandon(file)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def replace_durably(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically, and make it durable.

    A reader sees the old content or the new, whenever the writer dies. Of two writers the last one wins.
    """
    replace(path, data, durable=True)
    fsync_folder(path.parent)


def replace(path: Path, data: bytes, durable: bool = False) -> None:
    """Replace the content of a file atomically; unless it is durable, a power cut may spoil it."""
    partial, file = open_partial(path)
    try:
        with _named(path):
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.rename(partial, path)
    except BaseException:
        discard(partial)
        raise
    finally:
        abandon(file)


def open_partial(path: Path, folder: Path | None = None) -> tuple[Path, io.BufferedWriter]:
    """Open the hidden file that will be `path`, empty; return its path, and what writes to it.

    Its name is always the same, so that the next writer takes what a killed one has left. The lock keeps two
    writers apart: the second one, or one on a file system without locks, gets a name of its own. It goes when
    the file is closed: rename it before. folder: of the hidden file; None: beside `path`.
    """
    require_in_place(path)
    folder = folder or path.parent
    partial = folder / f".{path.name}.partial"
    descriptor = _locked(partial)
    if descriptor is None:
        partial = folder / f".{path.name}.{uuid.uuid4().hex}.partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    return partial, io.BufferedWriter(_Descriptor(descriptor, "wb"), _BUFFER_BYTES)


def _locked(partial: Path) -> int | None:
    """Open a hidden file, empty and locked; None: another writer has it, or there are no locks here."""
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.stat(partial), status := os.fstat(descriptor)):
            if status.st_size:
                os.ftruncate(descriptor, 0)
            return descriptor
    except (BlockingIOError, FileNotFoundError):  # another has it, or has just given it its name
        pass
    except OSError:  # no locks here: every writer has a name of its own
        discard(partial)
    os.close(descriptor)
    return None


def rename_durably(source: Path, target: Path) -> None:
    """Rename a file or a folder whose content is durable; a file that has the name is replaced."""
    require_in_place(target)
    os.rename(source, target)
    fsync_folder(target.parent)
    if source.parent != target.parent:
        fsync_folder(source.parent)


def remove_durably(path: Path) -> None:
    """Remove a file, if it is there, before what depends on its absence."""
    path.unlink(missing_ok=True)
    fsync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there. It may come back with a power cut."""
    path.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def remove_if_empty(folder: Path) -> None:
    """Remove a folder that holds nothing; leave any other."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def discard(path: Path) -> None:
    """Remove a file or a folder as far as that can be done: the next attempt takes it, or removes it."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class AppendedFile:
    """A file to append to: each piece is in it whole, or not at all, unless a kill comes in the middle.

    What the disk refuses waits in memory, and is appended, in order, when the disk takes it. Readers leave
    out a last piece without its end. It becomes durable by `sync`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        fsync_folder(path.parent)

    def append(self, piece: bytes) -> None:
        """Append a piece, behind those that wait. Raises: OSError; then it waits, too."""
        self.waiting.append(piece)
        self._flush()

    def _flush(self) -> None:
        require_in_place(self.path)
        while self.waiting:
            before = os.fstat(self._descriptor).st_size
            try:
                rest = memoryview(self.waiting[0])
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise
            self.waiting.popleft()

    def sync(self) -> None:
        """Append what waits, and make all durable. Raises: OSError."""
        self._flush()
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Append what waits, and close the file. Raises: OSError; it is closed then, too."""
        try:
            self._flush()
        finally:
            os.close(self._descriptor)


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an error say which file it is of: operations on a descriptor do not."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def is_of_disk(error: Exception) -> TypeGuard[OSError]:
    """Return whether an error names a file whose disk is full, over quota, read-only or broken."""
    return (
        isinstance(error, OSError)
        and bool(error.filename)
        and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
    )


def told_to_users(error: Exception) -> Exception:
    """Return an error; of a disk that takes nothing, full or read-only, one for users. EIO may pass."""
    if not is_of_disk(error) or error.errno == errno.EIO:
        return error
    told = UserError(f"{error.filename}: {error.strerror}")
    told.__cause__ = error
    return told


@contextlib.contextmanager
def library_errors() -> Iterator[None]:
    """Turn errors that say their number in their text alone, those of Rust and of shutil, into OSErrors."""
    try:
        yield
    except Exception as error:
        number = re.search(r"\(os error (\d+)\)|\[Errno (\d+)\]", str(error))
        if number and getattr(error, "errno", None) is None:
            code = int(number[1] or number[2])
            raise OSError(code, os.strerror(code)) from error
        raise


# -- beside them ------------------------------------------------------------


def to_json(value: Any) -> bytes:
    """Return readable JSON; floats keep all their bits (Python writes the shortest text that reads back)."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content as a hex digest."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_writable(place: str | Path, name: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to, before the work whose results go there.

    The folder is not made: what is refused later would leave it behind. A file is made and removed in the
    nearest folder that is there: for root, and on some file systems, access bits say nothing. place: "" is a
    flag that was not given. Raises OSError if the disk is full or broken.
    """
    if not place:
        return
    path = Path(place).absolute()
    try:
        nearest = next(part for part in (path, *path.parents) if part.exists() or part.is_symlink())
        fault = _fault_of_writing(nearest) if nearest.is_dir() else "is not a folder"
    except OSError as error:  # a name that is too long, a folder that cannot be looked into
        if is_of_disk(error):
            raise
        nearest, fault = path, f"cannot be used ({error.strerror})"
    if fault:
        raise UserError(f"{name} {place}: {nearest} {fault}; name another place")


def _fault_of_writing(folder: Path) -> str:
    """Return why no file can be made in a folder; "" if one can. Raises: OSError of a disk that is full."""
    trial = folder / f".{uuid.uuid4().hex}.partial"
    try:
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        if is_of_disk(error) and error.errno != errno.EROFS:
            raise
        return f"is not writable ({error.strerror})"
    discard(trial)
    return ""


def require_writable_file(place: str | Path, name: str = "--out") -> None:
    """Refuse a file that cannot be written or replaced; else as `require_writable`, of its folder."""
    if not place:
        return
    if os.path.isdir(place):
        raise UserError(f"{name} {place}: a folder; name a file in it")
    require_writable(Path(place).absolute().parent, name)
