"""What a run has recorded of its batches, and a comparison with batches that are made again."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from pretrain.checkpoint.folder import CheckpointError, candidates, read_state
from pretrain.common.errors import UserError
from pretrain.common.run_folder import require_run
from pretrain.export.folder import read_policy
from pretrain.ledger import chain
from pretrain.ledger.chain import Ledger
from pretrain.telemetry.metrics_file import read_metrics

EXPORTS = ("best", "export")


class Record(NamedTuple):
    """What one place says of the batches of steps since + 1, ..., step.

    where: "row", or the name of a checkpoint or export. ledger: as `pretrain.ledger.chain` describes it.
    """

    step: int
    where: str
    ledger: Ledger


class Difference(NamedTuple):
    """Steps first to last, counted from 1, of which one or more differ from the records at the last.

    kinds: what of them. where: the records.
    """

    first: int
    last: int
    kinds: tuple[str, ...]
    where: tuple[str, ...]


@dataclass(frozen=True)
class Recorded:
    """All that a run folder says.

    records: in order of steps; rows before checkpoints and exports of the same step.
    last_step: of all rows and checkpoints, with hashes or without.
    progress: of the newest checkpoint or export, {} without any.
    """

    records: list[Record]
    last_step: int
    progress: dict[str, Any]

    @property
    def jumped(self) -> list[tuple[int, int]]:
        """The steps that were not read: (first step, stop step), from 0."""
        return [(first, stop) for first, stop in self.progress.get("jumped", [])]


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
    saved = list(_saved(run))
    places = rows + [(step, name, progress.get("ledger")) for step, name, progress in saved]
    if not places:
        raise UserError(f"{run} has no step yet: neither rows in metrics.jsonl nor checkpoints")
    records = [Record(step, where, ledger) for step, where, ledger in places if ledger and step > 0]
    records.sort(key=lambda record: (record.step, record.where != "row"))
    newest = max(saved, key=lambda place: place[0], default=(0, "", {}))
    return Recorded(records, max(step for step, *_ in places), newest[2])


def _saved(run: Path) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield step, name and progress of every checkpoint and export that can be read."""
    for path in candidates(run / "checkpoints"):
        with suppress(CheckpointError, KeyError, TypeError, ValueError):
            state = read_state(path)
            yield int(state["step"]), path.name, state.get("progress", {})
    for name in EXPORTS:
        with suppress(UserError):
            if (policy := read_policy(run / name)) is not None:
                yield int(policy["step"]), name, policy.get("progress", {})


def compare(
    records: list[Record],
    start: Record | None,
    sums: Iterable[tuple[int, tuple[int, ...]]],
    kinds: tuple[str, ...],
) -> list[Difference]:
    """Chain the sums of steps, and compare the links with the records at their steps.

    After a record that differs a second chain goes on from that record, so that a later one is right if its
    own steps are.

    Args:
        records: in order of steps, all after `start`.
        start: the record to begin at, which is believed; None: the first step of the ledger.
        sums: each step, numbered from 0, and its sums.
        kinds: "sequences", "views" or both.
    """

    def agree(ledger: Ledger, other: Ledger, kinds: tuple[str, ...] = kinds) -> bool:
        return all(ledger[kind] == other[kind] for kind in kinds)

    begin = chain.begin(records[0].ledger["since"]) if start is None else dict(start.ledger)
    before = begin["since"] if start is None else start.step
    by_step = {step: list(group) for step, group in groupby(records, key=lambda record: record.step)}
    chains = [begin]  # that of all steps and, after a record that differs, that which goes on from it
    differences = []
    for step, of_step in sums:
        chains = [chain.extend(links, of_step) for links in chains]
        if (at_step := by_step.get(step + 1)) is None:
            continue
        right = [links for links in chains if any(agree(record.ledger, links) for record in at_step)]
        wrong = [record for record in at_step if not any(agree(record.ledger, links) for links in chains)]
        if wrong:
            differing = tuple(kind for kind in kinds if not agree(wrong[0].ledger, chains[0], (kind,)))
            where = tuple(record.where for record in wrong)
            differences.append(Difference(before + 1, step + 1, differing, where))
        chains = right[:1] or [chains[0], dict(at_step[0].ledger)]
        before = step + 1
    return differences
