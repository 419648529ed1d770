"""Read what a run has recorded of its batches: in rows of metrics.jsonl, checkpoints and exports."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.checkpoint.folder import CheckpointError, candidates, read_state
from pretrain.common.errors import UserError
from pretrain.common.run_folder import require_run
from pretrain.export.folder import read_policy
from pretrain.telemetry.metrics_file import read_metrics

EXPORTS = ("best", "export")


@dataclass(frozen=True)
class Record:
    """What one place says of the batches of steps since + 1, ..., step.

    where: "row", or the name of a checkpoint or export. ledger: as `pretrain.ledger.chain` describes it.
    """

    step: int
    where: str
    ledger: dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """All that a run folder says.

    records: in order of steps; rows before checkpoints and exports of the same step.
    last_step: of all rows and checkpoints, with hashes or without.
    progress: of the newest of them that has one, {} without any.
    """

    records: list[Record]
    last_step: int
    progress: dict[str, Any]

    @property
    def substitutions(self) -> list[dict]:
        """Damaged chunks, and what the run has read in their place."""
        return self.progress.get("substitutions", [])

    @property
    def jumped(self) -> list[tuple[int, int]]:
        """The steps that were not read: (first step, stop step), from 0."""
        return [(first, stop) for first, stop in self.progress.get("jumped", [])]

    @property
    def changes(self) -> list[dict]:
        """What was changed at resumes."""
        return self.progress.get("changes", [])


def read_records(run: Path) -> Recorded:
    """Read the records of a run.

    Raises:
        UserError: the folder holds no run, or none of its places can be read.
    """
    require_run(run)
    rows = [
        (row["step"], "row", row.get("ledger"))
        for row in read_metrics(run / "metrics.jsonl")
        if "loss" in row and isinstance(row.get("step"), int)
    ]
    kept = list(_kept(run))
    places = rows + [(step, name, progress.get("ledger")) for step, name, progress in kept]
    if not places:
        raise UserError(f"{run} has no step yet: neither rows in metrics.jsonl nor checkpoints")
    records = [Record(step, where, ledger) for step, where, ledger in places if ledger and step > 0]
    records.sort(key=lambda record: (record.step, record.where != "row"))
    newest = max(kept, key=lambda place: place[0], default=(0, "", {}))
    return Recorded(records, max(step for step, *_ in places), newest[2])


def _kept(run: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield step, name and progress of every checkpoint and export that can be read."""
    for path in candidates(run / "checkpoints"):
        with suppress(CheckpointError, KeyError, TypeError, ValueError):
            state = read_state(path)
            yield int(state["step"]), path.name, state.get("progress", {})
    for name in EXPORTS:
        with suppress(UserError):
            if (policy := read_policy(run / name)) is not None:
                yield int(policy["step"]), name, policy.get("progress", {})
