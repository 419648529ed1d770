"""best/: the export of the step with the best evaluation, at the start and after a resume."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pretrain.checkpoint import store
from pretrain.checkpoint.folder import Reason, set_aside
from pretrain.common.errors import UserError
from pretrain.common.files import discard, recover
from pretrain.common.ranks import on_rank_zero
from pretrain.export.folder import export, is_export, read_policy
from pretrain.export.sums import changed_files
from pretrain.step.progress import Progress


def keep_start(folder: Path, save: Callable[[Path], Path], keep_best: Callable[[Path], None]) -> None:
    """Export the untrained model to best/: until an evaluation is better, the start is the best. Collective.

    A checkpoint is what all ranks can write together at any ZeRO stage. This one is no place to resume from,
    and is removed.
    """
    with _checkpoint_of_start(folder, save) as checkpoint:
        keep_best(checkpoint)


@contextmanager
def _checkpoint_of_start(folder: Path, save: Callable[[Path], Path]) -> Iterator[Path]:
    temporary = folder / ".start"
    on_rank_zero(lambda: discard(temporary))
    yield save(temporary / "checkpoints")
    on_rank_zero(lambda: discard(temporary))


def repair_best(folder: Path, progress: Progress, save_start: Callable[[Path], Path]) -> None:
    """Make best/ the export of the best step that a resumed run records. Collective.

    It is another one where a kill came between a checkpoint and its export, where its files were damaged, and
    where it belongs to steps that this resume discards. Step 0 has no checkpoint, and is made again. Without
    a checkpoint of another best step there is nothing to export again: best/ is set aside, and the next
    evaluation is the best.

    Args:
        save_start: as `keep_start` takes it, of the untrained model: call this before the checkpoint is
            loaded.

    Raises:
        UserError: that checkpoint cannot be read now, or best/ cannot be written.
    """
    on_rank_zero(lambda: recover(folder / "best"))
    step = progress.best_step
    if step == 0 and progress.best_score is not None and on_rank_zero(lambda: _step_held(folder)) != 0:
        with _checkpoint_of_start(folder, save_start) as start:
            on_rank_zero(lambda: _export_best(folder, progress, start))
        return
    source = folder / "checkpoints" / f"step-{step:08d}"
    if not on_rank_zero(lambda: _export_best(folder, progress, source)):
        progress.best_score = None


def _step_held(folder: Path) -> int | None:
    """Return the step that best/ is of; None: it is no whole export."""
    try:
        policy = None if changed_files(folder / "best") else read_policy(folder / "best")
    except UserError:
        return None
    return None if policy is None else policy["step"]


def _export_best(folder: Path, progress: Progress, source: Path) -> bool:
    """Export the best step from `source` to best/ if that holds another; return whether it holds it then."""
    best, held = folder / "best", _step_held(folder)
    if held == progress.best_step:
        return True
    problem = store.problem_with(source) if source.is_dir() else None
    if problem is not None and problem.kind != "damaged":
        raise UserError(f"{best} must be exported again from {source}, which {problem}. {problem.remedy}")
    can_export = source.is_dir() and problem is None
    finding = "" if can_export or progress.best_score is None else "is missing"
    if best.exists() and not (can_export and is_export(best)):  # else the export replaces it
        kind: Reason = "damaged" if held is None else "abandoned"
        why = "is not a whole export" if held is None else f"is of step {held}"
        try:
            finding = f"{why}, and is renamed to {set_aside(best, kind).name}"
        except OSError as error:
            raise UserError(f"cannot rename {best}, which {why}: {error.strerror}") from None
    if finding:
        then = (
            f"exported again from {source.name if progress.best_step else 'the start'}"
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
