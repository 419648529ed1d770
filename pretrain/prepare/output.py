"""Make a folder of prepared data once: lock it, run the stages in its work folder, finish its manifest."""

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path

from augment.core.errors import AugmentationError
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.data.manifest import MANIFEST, read_manifest
from pretrain.data.shard_writer import naming_full_disk, write_manifest
from pretrain.prepare.executors import ExecutorOptions, Job, run_jobs


def make_once(
    out: Path,
    options: ExecutorOptions,
    find: Callable[[], dict | None],
    plan: Callable[[Path], list[Job]],
    progress: bool = True,
) -> dict:
    """Make prepared data in the folder `out` unless it exists, or resume what was interrupted.

    find: returns the manifest of a finished result, or None. plan: returns the jobs to run; it gets the work
    folder when the folder is locked.

    Where the input is refused before a task has ended, the work folder is removed, and `out` if it is new.

    Returns: the manifest; {} where the jobs were submitted to Slurm and are not waited for.
    Raises: UserError for a folder that is taken or cannot be made, a full disk, or failed tasks.
    """
    work = out / ".work"
    if (manifest := find()) is not None:
        if work.is_dir():  # left by a kill after the last stage, or by Slurm
            with contextlib.suppress(UserError), folder_lock(out):  # if it is held: its owner tidies up
                if (out / MANIFEST).is_file():
                    files.discard(work)
        return manifest
    began, is_new = time.time(), not out.exists()
    make_folder(out)
    with contextlib.ExitStack() as held:
        if is_new:
            held.callback(files.remove_if_empty, out)  # of what was refused; when the lock's file is gone
        held.enter_context(folder_lock(out))
        if (manifest := find()) is not None:  # made by another process before the lock was ours
            return manifest
        make_folder(work)
        try:
            jobs = plan(work)
            with naming_full_disk(work):  # of a file that datatrove keeps: its logs, its completion marks
                largest = run_jobs(jobs, work, options, progress)
        except (UserError, AugmentationError):
            ended = itertools.chain(work.glob("logs/*/completions/*"), work.glob("counts/**/*.json"))
            if options.executor == "local" and not any(ended):
                files.discard(work)  # refused before any task ended: there is nothing to resume
            raise
        return {} if largest is None else _finish(out, work, began, options, largest)


def make_folder(folder: Path) -> None:
    """Make a folder for output. Raises: UserError if that cannot be."""
    try:
        with naming_full_disk(folder):
            files.make_folder(folder)
    except OSError as error:
        raise UserError(f"--out {folder} cannot be made: {error.strerror}. Choose another folder.") from error


def _finish(out: Path, work: Path, began: float, options: ExecutorOptions, largest: int) -> dict:
    """Note how the folder was made, and remove the work folder. began: seconds since the epoch.

    largest: bytes of the largest process.
    """
    manifest = read_manifest(out)
    manifest["run"] = {
        "seconds": round(time.time() - began, 1),
        "workers": options.parallel,
        "executor": options.executor,
        "peak_task_bytes": largest,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_manifest(out, manifest)
    files.discard(work)
    return manifest


def submitted(out: Path) -> str:
    """Return what to print when the stages have been submitted to Slurm."""
    return (
        f"submitted to Slurm (squeue lists the jobs; logs: {out}/.work/logs). When the jobs have ended, give "
        "the same command again: it submits what has failed, or else removes the work folder"
    )


def run_figures(manifest: dict) -> list[str]:
    """Return the line that says what making the folder took, if this is known."""
    run = manifest.get("run")
    if run is None:
        return []
    peak = run["peak_task_bytes"] / 1e6
    return [f"  {run['seconds']} s with {run['workers']} workers, largest task {peak:.0f} MB"]
