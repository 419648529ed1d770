"""Which checkpoint a run resumes from, and whether it may."""

import sys
from pathlib import Path
from typing import Any

from pretrain.checkpoint import folder as checkpoint_folder
from pretrain.checkpoint import store
from pretrain.common.errors import UserError
from pretrain.common.files import copy_tree, make_folder
from pretrain.common.ranks import on_rank_zero
from pretrain.config.run import Config
from pretrain.start import continuity, inputs
from pretrain.telemetry.metrics_file import copy_metrics


def check_requested(config: Config) -> None:
    """Check the word of --resume, before ranks meet and data is prepared.

    Raises:
        UserError: it is neither auto nor never, and there is no such folder.
    """
    requested = config.checkpoint.resume
    if requested not in ("auto", "never") and not Path(requested).is_dir():
        raise UserError(f"--resume {requested}: there is no such checkpoint; other values: auto, never")


def resume_from(config: Config, current: inputs.Inputs) -> tuple[Path | None, dict[str, Any] | None]:
    """Return the checkpoint to resume from and its state, or (None, None) for a new run. Collective.

    Also makes the run folder, and renames checkpoints that a later start must not take for this run's newest.

    Args:
        current: the inputs of this start.

    Raises:
        UserError: the folder holds a run and `checkpoint.resume` is never; or the inputs
            (`pretrain.start.inputs`) or the recipe are not those of the checkpoint.
    """
    folder, requested = config.run_folder, config.checkpoint.resume
    checkpoints = folder / "checkpoints"
    choice = state = None
    if requested == "never":
        on_rank_zero(lambda: _require_no_run(checkpoints))
    elif requested == "auto":
        choice = store.resume_point(checkpoints)
    else:
        choice = on_rank_zero(lambda: _named_checkpoint(Path(requested), checkpoints))
    if choice is not None:
        state = on_rank_zero(lambda: _state_of(choice.path, config, current))
    on_rank_zero(lambda: _make_run_folder(folder, config.data_folder / "tokenizer"))
    if choice is None or state is None:  # both or none
        return None, None
    if not _is_own(choice.path, checkpoints):
        state["progress"]["best_score"] = None  # best/ is chosen among this folder's own evaluations
        on_rank_zero(lambda: _begin_branch(choice.path, state, folder))
    on_rank_zero(lambda: _set_others_aside(choice, state["step"], checkpoints))
    return choice.path, state


def _require_no_run(checkpoints: Path) -> None:
    """Raise UserError where the run folder holds checkpoints, good ones or such as were set aside."""
    if existing := [
        *checkpoint_folder.candidates(checkpoints),
        *checkpoint_folder.set_aside_folders(checkpoints),
    ]:
        raise UserError(
            f"{checkpoints.parent} already holds a run ({existing[0].name}): resume it with --resume auto, "
            "or name another folder with --run"
        )


def _state_of(source: Path, config: Config, current: inputs.Inputs) -> dict[str, Any]:
    """Return the state in a checkpoint, with what this start changes written into its progress.

    Raises:
        UserError: it has other inputs, or another recipe.
    """
    state = store.read_state(source)
    accepted = inputs.require_same(source, state["inputs"], current, config.checkpoint.accept)
    continuity.record_changes(config, state, source)
    state["progress"]["changes"] += [{"step": state["step"], **change} for change in accepted]
    return state


def _named_checkpoint(source: Path, checkpoints: Path) -> checkpoint_folder.Choice:
    """Return the checkpoint that --resume names.

    Raises:
        UserError: it cannot be used, or lies elsewhere while the run folder holds checkpoints of its own.
    """
    if problem := store.problem_with(source):
        raise UserError(
            f"--resume {source}: it {problem}. Or --resume auto, which takes the newest good checkpoint of "
            f"{checkpoints.parent}"
        )
    own = checkpoint_folder.candidates(checkpoints)
    if own and not _is_own(source, checkpoints):
        raise UserError(
            f"--resume {source} is of another run, and {checkpoints.parent} holds checkpoints of its own "
            f"({own[0].name}), which it would replace: name another folder with --run, or continue what is "
            "there with --resume auto"
        )
    return checkpoint_folder.Choice(source)


def _is_own(checkpoint: Path, checkpoints: Path) -> bool:
    """Return whether a checkpoint lies in this run's folder of them."""
    return checkpoint.resolve().parent == checkpoints.resolve()


def _begin_branch(checkpoint: Path, state: dict[str, Any], folder: Path) -> None:
    """Copy the metrics of another run, up to the checkpoint from which this one continues.

    Without them its curves would begin in the middle, and its last table would have no start.
    """
    metrics, own = checkpoint.resolve().parents[1] / "metrics.jsonl", folder / "metrics.jsonl"
    if not metrics.is_file():  # a new chain begins here
        state["progress"]["rows"] = copy_metrics(metrics, own, 0)[0]
    elif not own.exists():
        copy_metrics(metrics, own, state["step"], state["progress"].get("rows"))


def _set_others_aside(choice: checkpoint_folder.Choice, step: int, checkpoints: Path) -> None:
    """Rename the checkpoints that this resume passes over."""
    passed: dict[Path, tuple[checkpoint_folder.Reason, str]] = {
        path: ("damaged", f"it {problem}") for path, problem in choice.damaged
    }
    if _is_own(choice.path, checkpoints):
        for path in checkpoint_folder.candidates(checkpoints):
            if checkpoint_folder.step_of(path) > step:
                passed.setdefault(path, ("abandoned", f"--resume {choice.path} takes an earlier one"))
    for path, (kind, why) in passed.items():
        try:
            renamed = checkpoint_folder.set_aside(path, kind)
        except OSError as error:
            raise UserError(
                f"cannot rename {path}, which must not be resumed from ({why}): {error.strerror}"
            ) from None
        print(
            f"warning: renamed {path} to {renamed.name}: {why}. This run resumes from {choice.path.name}",
            file=sys.stderr,
            flush=True,
        )


def _make_run_folder(folder: Path, tokenizer: Path) -> None:
    """Make checkpoints/, and copy the tokenizer, so that the run can be exported when its data is gone."""
    try:
        make_folder(folder / "checkpoints")
        copy_tree(tokenizer, folder / "tokenizer")
    except OSError as error:
        raise UserError(
            f"cannot write the run folder {folder}: {error.strerror}; name another with --run"
        ) from None
