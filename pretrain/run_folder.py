"""Run folders, where a model is asked for: their export."""

from __future__ import annotations

from pathlib import Path

from pretrain.errors import UserError


def is_run(source: str) -> bool:
    """Whether a name is the folder of a run of ours, rather than of a model."""
    folder = Path(source)
    try:
        return (folder / "config.yaml").is_file() and not any(folder.glob("*config.json"))
    except OSError:  # no path at all, or one that cannot be read: who loads it says more
        return False


def export_of(source: str, or_best: bool = False) -> str:
    """The export of a run folder; what is no run folder as it is.

    or_best: a run that has none yet stands for its best weights so far. Not in a configuration: what a name stands for must be
    the same when a run is resumed. Raises: UserError where there is nothing of these.
    """
    if not is_run(source):
        return source
    exports = [part for part in (Path(source) / "export", Path(source) / "best") if (part / "config.json").is_file()]
    if exports and (or_best or exports[0].name == "export"):
        return str(exports[0])
    instead = f", or name its best weights so far: {exports[0]}" if exports else ""
    raise UserError(
        f"{source} is a run without an export yet; make one of its newest checkpoint: python -m pretrain.export {source}{instead}"
    )


def named_model(key: str, source: str | None) -> str | None:
    """`export_of` what a key of the configuration names. Raises: ValueError, as a validator does, with the key."""
    try:
        return source and export_of(source)
    except UserError as error:
        raise ValueError(f"{key}: {error}") from None
