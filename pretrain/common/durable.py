"""Files that survive a kill and a power cut: written aside, fsynced, renamed."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from pathlib import Path
from typing import Any


def fsync_folder(folder: Path) -> None:
    """Make renames and creations inside `folder` durable (on Linux a rename is only in memory until then)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(folder: Path) -> None:
    """Make all files and folders under `folder`, and itself, durable."""
    for path in [*folder.rglob("*"), folder]:
        fsync_folder(path)  # a file is synced by the same calls


def write_durably(path: Path, data: bytes) -> dict[str, object]:
    """Write and fsync a new file. Returns {"bytes": size, "sha256": hex digest}."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file's content at once: a reader sees the old one or the new one, whenever the writer dies,
    and of two writers one wins."""
    aside = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        write_durably(aside, data)
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


def to_json(value: Any) -> bytes:
    """Readable JSON; floats keep all their bits (Python writes the shortest text that reads back the
    same)."""
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
