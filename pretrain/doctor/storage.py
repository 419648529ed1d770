"""Examine the folders: space, speed, locks that nobody holds any more, and whether all nodes see them."""

import os
import shutil
import socket
import time
import uuid
from pathlib import Path

from pretrain.common.folder_lock import LEASE, LOCK, holder, lease_of, state_here
from pretrain.doctor.findings import Finding

_MEBIBYTES = 256
_LEAST_GIB = 10
_LEAST_RATE = 100  # MiB/s
_REMOTE = ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "cephfs", "fuse", "9p", "cifs")


def disk(folder: Path) -> list[Finding]:
    """Write and read a file of 256 MiB in a folder, and look at the space that is left.

    Where the folder is not there yet, the one that it would be made in is looked at: nothing is left behind.
    """
    asked, folder = folder, next(place for place in (folder, *folder.absolute().parents) if place.exists())
    try:
        usage = shutil.disk_usage(folder)
        path = folder / f".doctor-{uuid.uuid4().hex}"
        try:
            written, read = _rates(path)
        finally:
            path.unlink(missing_ok=True)
    except OSError as error:
        return [
            Finding("wrong", f"{asked} cannot be written: {error.strerror}", "name another with --folder")
        ]
    kind = _file_system(folder)
    free = usage.free / 2**30
    todo = ""
    if free < _LEAST_GIB:
        todo = "a checkpoint takes 12 bytes a parameter, data 2 a token: `clearly plan` has the sums"
    what = f"{folder} ({kind}): {free:,.0f} GiB free of {usage.total / 2**30:,.0f}"
    findings = [Finding("note" if todo else "good", what, todo)]
    slow = min(written, read) < _LEAST_RATE
    todo = "put runs/ and data/ on a faster disk, local where there is one" if slow else ""
    what = f"{folder}: writes {written:,.0f} MiB/s to the disk, reads {read:,.0f} MiB/s"
    return [*findings, Finding("note" if slow else "good", what, todo)]


def _rates(path: Path) -> tuple[float, float]:
    """Return MiB/s of writing a file, synced, and of reading it without the page cache."""
    block = os.urandom(1 << 20)
    started = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(_MEBIBYTES):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = time.perf_counter() - started
    started = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    return _MEBIBYTES / written, _MEBIBYTES / (time.perf_counter() - started)


def _file_system(folder: Path) -> str:
    """Return the type of the file system that a folder lies on."""
    place, best, kind = str(folder.resolve()), "", "unknown file system"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        mount = mount.replace("\\040", " ")
        if len(mount) >= len(best) and (place == mount or place.startswith(mount.rstrip("/") + "/")):
            best, kind = mount, name
    return f"{kind}, shared between machines" if kind.split(".")[0] in _REMOTE else kind


def locks(folder: Path) -> list[Finding]:
    """Look at the locks below a folder: who holds them, and whether they are alive."""
    findings = []
    for path in sorted(folder.rglob(f"*{LOCK}")) if folder.is_dir() else []:
        lock = lease_of(path)
        if (owner := lock.owner) is None:
            continue
        try:
            age = time.time() - path.stat().st_mtime
        except FileNotFoundError:  # released meanwhile
            continue
        if state_here(owner) in ("lives", "dies"):
            findings.append(Finding("good", f"{path.parent} is being written by {holder(lock)}"))
        elif age < LEASE:  # on another machine, or it has ended without a word
            what = f"{path.parent} was held {age:.0f} s ago by {holder(lock)}, which is no process seen here"
            todo = f"nothing: {LEASE:.0f} s after its last sign of life the next run takes it over by itself"
            findings.append(Finding("good", what, todo))
        else:
            what = f"{path} was left by {holder(lock)}, {age / 60:.0f} minutes ago"
            findings.append(Finding("note", what, "nothing: the next run takes it over by itself"))
    return findings or [Finding("good", f"no lock below {folder}")]


def visibility(folder: Path, environment: dict[str, str], wait: float = 60.0) -> list[Finding]:
    """Have every task of a Slurm step leave a file in a folder, and look whether all see all of them.

    Args:
        environment: of the process; without SLURM_NTASKS above 1 there is nobody to look for.
        wait: seconds until all files must be seen.
    """
    tasks = int(environment.get("SLURM_NTASKS", "1"))
    if tasks < 2 or "SLURM_STEP_ID" not in environment:
        todo = "srun --label --nodes 2 --ntasks-per-node 1 clearly doctor --folder DIR"
        return [Finding("note", "whether other nodes see the folder: not asked", f"to ask, {todo}")]
    me = int(environment["SLURM_PROCID"])
    place = folder / f".doctor-{environment['SLURM_JOB_ID']}.{environment['SLURM_STEP_ID']}"
    place.mkdir(parents=True, exist_ok=True)
    (place / str(me)).write_text(socket.gethostname())
    deadline = time.monotonic() + wait
    while len(seen := _names(place)) < tasks and time.monotonic() < deadline:
        time.sleep(0.2)
    missing = sorted(set(range(tasks)) - seen.keys())
    if missing:
        todo = "name a folder on a file system that all nodes mount"
        what = (
            f"{socket.gethostname()} does not see what tasks {', '.join(map(str, missing))} wrote in {folder}"
        )
        return [Finding("wrong", what, todo)]
    (place / f"{me}.seen").touch()
    while me == 0 and len(list(place.glob("*.seen"))) < tasks and time.monotonic() < deadline:
        time.sleep(0.2)
    if me == 0:
        shutil.rmtree(place, ignore_errors=True)
    return [Finding("good", f"{folder} is seen by {', '.join(sorted(set(seen.values())))}")]


def _names(place: Path) -> dict[int, str]:
    """Return task -> host of the files that are there, whole."""
    found = {}
    for path in place.iterdir():  # listing makes a network file system fetch the present state
        if path.name.isdecimal() and (host := path.read_text()):
            found[int(path.name)] = host
    return found
