"""Write files that survive a kill and a power cut: written beside their place, fsynced, renamed.

And refuse a place that cannot be written to, before there is something to write.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import Any

from pretrain.common.errors import UserError


def fsync_folder(folder: Path) -> None:
    """Make renames and creations inside `folder` durable (on Linux a rename is only in memory until then)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make `folder`, and all files and folders under it, durable."""
    for path in [*folder.rglob("*"), folder]:
        fsync_folder(path)  # the same calls sync a file


def write_durably(path: Path, data: bytes) -> dict[str, object]:
    """Write and fsync a new file; return {"bytes": size, "sha256": hex digest}."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def replace_durably(path: Path, data: bytes) -> None:
    """Replace the content of a file atomically.

    A reader sees the old content or the new, whenever the writer dies. Of two writers the last one wins.
    """
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        write_durably(partial, data)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def to_json(value: Any) -> bytes:
    """Return readable JSON; floats keep all their bits (Python writes the shortest text that reads back)."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content as a hex digest."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_writable(place: str | Path, name: str = "--out") -> None:
    """Refuse a folder that cannot be made or written to, before the work whose results go there.

    The folder is not made: what is refused later would leave it behind. place: "" is a flag that was not
    given. name: what the message calls it.

    Raises:
        UserError: the place, or what it would lie in, is no folder, or is not writable.
    """
    if not place:
        return
    path = Path(place).absolute()
    try:
        nearest = next(part for part in (path, *path.parents) if part.exists())
        fault = "is not a folder" if not nearest.is_dir() else "is not writable"
        if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
            return
    except OSError as error:  # a name that is too long, a folder that cannot be looked into
        nearest, fault = path, f"cannot be used ({error.strerror})"
    raise UserError(f"{name} {place}: {nearest} {fault}; name another place")
