"""Run folders, where a model is asked for: their export."""

from __future__ import annotations

from pathlib import Path

from pretrain.errors import UserError


def export_of(source: str) -> str:
    """The export of a run folder (of its last step, else of its best); what is no run folder as it is.

    Raises: UserError for a run that has none yet.
    """
    folder = Path(source)
    if not (folder / "config.yaml").is_file() or (folder / "config.json").is_file():
        return source
    for part in (folder / "export", folder / "best"):
        if (part / "config.json").is_file():
            return str(part)
    raise UserError(
        f"{folder} is a run without an export yet; make one of its newest checkpoint: python -m pretrain.export {folder}"
    )
