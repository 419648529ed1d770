"""best/: the export of the step with the best evaluation, at the start and after a resume."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from pretrain.checkpoint import store
from pretrain.checkpoint.folder import Reason, set_aside
from pretrain.common.errors import UserError
from pretrain.common.ranks import on_rank_zero
from pretrain.export.folder import export, is_export, read_policy
from pretrain.step.progress import Progress


def keep_start(folder: Path, save: Callable[[Path], Path], keep_best: Callable[[Path], None]) -> None:
    """Export the untrained model to best/: until an evaluation is better, the start is the best. Collective.

    A checkpoint is what all ranks can write together at any ZeRO stage. This one is no place to resume from,
    and is removed.
    """
    temporary = folder / ".start"
    on_rank_zero(lambda: shutil.rmtree(temporary, ignore_errors=True))
    keep_best(save(temporary / "checkpoints"))
    on_rank_zero(lambda: shutil.rmtree(temporary, ignore_errors=True))


def repair_best(folder: Path, progress: Progress) -> None:
    """Make best/ the export of the best step that a resumed run records. Collective.

    It is another one where a kill came between a checkpoint and its export, where its files were damaged, and
    where it belongs to steps that this resume discards. Without a checkpoint of the best step there is
    nothing to export again: best/ is set aside, and the next evaluation is the best.

    Raises:
        UserError: that checkpoint cannot be read now, or best/ cannot be written.
    """
    if not on_rank_zero(lambda: _export_best(folder, progress)):
        progress.best_score = None


def _export_best(folder: Path, progress: Progress) -> bool:
    """Export the best step to best/ if that holds another; return whether best/ holds it afterwards."""
    best, source = folder / "best", folder / "checkpoints" / f"step-{progress.best_step:08d}"
    try:
        policy = read_policy(best)
    except UserError:
        policy = None
    if policy is not None and policy["step"] == progress.best_step:
        return True
    problem = store.problem_with(source) if source.is_dir() else None
    if problem is not None and problem.kind != "damaged":
        raise UserError(f"{best} must be exported again from {source}, which {problem}. {problem.remedy}")
    can_export = source.is_dir() and problem is None
    finding = "" if can_export or progress.best_score is None else "is missing"
    if best.exists() and not (can_export and is_export(best)):  # else the export replaces it
        kind: Reason = "damaged" if policy is None else "abandoned"
        why = "is not a whole export" if policy is None else f"is of step {policy['step']}"
        try:
            finding = f"{why}, and is renamed to {set_aside(best, kind).name}"
        except OSError as error:
            raise UserError(f"cannot rename {best}, which {why}: {error.strerror}") from None
    if finding:
        then = (
            f"exported again from {source.name}"
            if can_export
            else "of which there is no checkpoint to export again: the next evaluation counts as the best"
        )
        print(
            f"warning: {best} {finding}. The best step so far is {progress.best_step}, {then}",
            file=sys.stderr,
            flush=True,
        )
    if can_export:
        export(source, best)
    return can_export
