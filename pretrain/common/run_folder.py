"""Run folders: which weights a run's name stands for, and whether a folder still has its name."""

import contextlib
import errno
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from augment.core.pretrained import no_folder
from pretrain.common.errors import UserError

LOWER_IS_BETTER = ("heldout_mlm_loss", "partner_loss")
"""Scores of evaluations during training whose sign is turned when the best one is chosen."""


def is_run(source: str) -> bool:
    """Return whether a name is the folder of a run, rather than of a model."""
    folder = Path(source)
    try:
        return (folder / "config.yaml").is_file() and not any(folder.glob("*config.json"))
    except OSError:  # no path at all, or one that cannot be read: who loads it says more
        return False


def require_folder(folder: Path) -> None:
    """Raise UserError if there is no such folder; the message names the most similar one."""
    if not folder.is_dir():
        raise UserError(no_folder(folder, "give the folder of a run"))


def require_run(folder: Path) -> None:
    """Raise UserError if a folder is not a run folder."""
    require_folder(folder)
    if not is_run(str(folder)):
        raise UserError(f"{folder} is not the folder of a run: it has no config.yaml of one")


def read_json_file(path: Path, remedy: str) -> Any:
    """Return what a JSON file of ours holds; UserError with the remedy if it is damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from None


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return report/summary.json, which a run writes when it is finished; None: it is not."""
    path = run / "report" / "summary.json"
    how = f"remove it; clearly train --run {shlex.quote(str(run))} --resume auto writes it again"
    return read_json_file(path, how) if path.is_file() else None


def is_complete(run: Path, steps: int) -> bool:
    """Return whether a run has done `steps` steps, or has ended before them by `train.patience`."""
    summary = read_summary(run)
    return summary is not None and (summary.get("stopped_early", False) or summary["steps"] >= steps)


def export_of(source: str) -> str:
    """Return the model that a name stands for: a run's best/, else its export/; another name itself.

    A ~ is expanded. One rule wherever a run is named: papers report the checkpoint that was best on dev, and
    best/ is that one. The last one is RUN/export.
    """
    source = os.path.expanduser(source)
    if not is_run(source):
        return source
    for part in ("best", "export"):
        if (Path(source) / part / "config.json").is_file():
            return str(Path(source) / part)
    raise UserError(f"{source} is a run without an export yet; to make one: clearly export {source}")


def describe_export(policy: dict[str, Any] | None) -> str:
    """Return which weights of a run an export holds, as "step 500 of 1,000, best by stsb-dev 71.2".

    policy: what its clear.json says (`pretrain.export.folder.read_policy`); "" if that names no run.
    """
    if policy is None:
        return ""
    try:
        step, progress, steps = policy["step"], policy["progress"], policy["recipe"]["train"]["steps"]
    except (KeyError, TypeError):
        return ""
    where = f"step {step:,} of {steps:,}"
    if (share := policy.get("average", {}).get("alpha")) is not None:
        averaged = f", {share:g} of it and {1 - share:g} of the start" if 0 < share < 1 else ""
        return f"{where}{averaged}, chosen by clearly adapt" if share else "the start, kept by clearly adapt"
    if progress.get("best_step") != step or progress.get("best_score") is None:
        return where
    score = progress["best_score"] * (-1 if progress["best_by"] in LOWER_IS_BETTER else 1)
    start = ": the start; training has not improved it" if step == 0 else ""
    return f"{where}, best by {progress['best_by']} {score:.4g}{start}"


# -- a folder that keeps its name ----------------------------------------


class FolderMoved(UserError, OSError):
    """A folder was renamed or removed while this process wrote into it."""


_guarded: dict[str, tuple[str, bytes]] = {}
"""Absolute path of a folder -> that of a file in it, and its content."""


@contextlib.contextmanager
def guard(folder: Path, mark: str) -> Iterator[None]:
    """Let `pretrain.common.files` write nothing below a folder's name once another folder has it, or none.

    mark: a file in it that does not change, and of which no other folder has the same.
    """
    name = os.path.abspath(folder)
    path = os.path.join(name, mark)
    _guarded[name] = path, Path(path).read_bytes()
    try:
        yield
    finally:
        del _guarded[name]


def moved(path: Path | None = None) -> FolderMoved | None:
    """Return an error if a guarded folder in which a path lies has lost its name; path: None: any."""
    place = None if path is None else os.path.join(os.path.abspath(path), "")
    for folder, (mark, content) in _guarded.items():
        if place is not None and not place.startswith(os.path.join(folder, "")):
            continue
        try:  # its content: a file of the same name may get the same inode, and some file systems change it
            kept = Path(mark).read_bytes() == content
        except OSError as error:  # a file system that is away may come back
            kept = error.errno not in (errno.ENOENT, errno.ENOTDIR)
        if not kept:
            return FolderMoved(
                f"{folder} was renamed or removed while this command wrote into it, so it has stopped. To "
                "go on, name the folder where it is now; of a run with --run NEW_NAME --resume auto"
            )
    return None


def require_in_place(path: Path) -> None:
    """Raise FolderMoved if a guarded folder in which a path lies has lost its name."""
    if error := moved(path):
        raise error
