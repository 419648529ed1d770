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


def export_of(source: str) -> str:
    """The export of a run folder; what is no run folder as it is.

    Raises: UserError for a run that has none yet. Its best weights so far are not taken for it: what a name stands for must be
    the same when a run is resumed.
    """
    if not is_run(source):
        return source
    exported = Path(source) / "export"
    if (exported / "config.json").is_file():
        return str(exported)
    best = exported.with_name("best")
    or_best = f", or name its best weights so far: {best}" if (best / "config.json").is_file() else ""
    raise UserError(
        f"{source} is a run without an export yet; make one of its newest checkpoint: python -m pretrain.export {source}{or_best}"
    )


def named_model(key: str, source: str | None) -> str | None:
    """`export_of` what a key of the configuration names. Raises: ValueError, as a validator does, with the key."""
    try:
        return source and export_of(source)
    except UserError as error:
        raise ValueError(f"{key}: {error}") from None
