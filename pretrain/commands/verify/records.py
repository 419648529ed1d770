"""What a run has recorded of its batches, and a comparison with batches that are made again."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import track

from pretrain.checkpoint.store import CheckpointError, candidates, read_state
from pretrain.commands.verify.replay import Replay
from pretrain.common.errors import UserError
from pretrain.common.run_folder import require_run
from pretrain.data.ledger import chain
from pretrain.data.ledger.chain import KINDS, Ledger
from pretrain.export.folder import read_policy
from pretrain.telemetry.metrics_file import read_metrics

EXPORTS = ("best", "export")


class LedgerRecord(NamedTuple):
    """What one place says of the batches of steps since + 1, ..., step.

    where: "row", or the name of a checkpoint or export. ledger: as `ledger.chain` describes it.
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

    records: list[LedgerRecord]
    last_step: int
    progress: dict[str, Any]

    @property
    def jumped(self) -> list[tuple[int, int]]:
        """The steps that were not read: (first step, stop step), from 0."""
        return [(first, stop) for first, stop in self.progress.get("jumped", [])]


def read_records(run: Path) -> Recorded:
    """Read the records of a run."""
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
    records = [LedgerRecord(step, where, ledger) for step, where, ledger in places if ledger and step > 0]
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
    records: list[LedgerRecord],
    start: LedgerRecord | None,
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


def verify_batches(
    run: Path, recorded: Recorded, replay: Replay, first: int, last: int, views: bool, workers: int
) -> int:
    """Compare steps `first` to `last`, counted from 1; print what was found; return the exit status."""
    if not recorded.records:
        raise UserError(f"{run} records no hashes of its batches; --seen works all the same")
    since = recorded.records[0].ledger["since"]
    start = next((r for r in reversed(recorded.records) if since < r.step < first), None)
    begin = since if start is None else start.step
    records = [record for record in recorded.records if begin < record.step <= last]
    if not records:
        raise UserError(f"{run} has no record of its batches between steps {begin + 1} and {last}")
    stop = records[-1].step
    if since and start is None:
        print(f"steps 1 to {since} have no record: an older version trained them")
    kinds = KINDS if views else KINDS[:1]
    sums = replay.sums_with_views(begin, stop, workers) if views else replay.sums(begin, stop)
    progress = track(sums, "comparing", total=stop - begin, console=Console(stderr=True), transient=True)
    differences = compare(records, start, progress, kinds)
    what = "batch, its masking and its views are" if views else "batch is"
    believed = "" if start is None else f", given the record of step {start.step}"
    rows = sum(record.where == "row" for record in records)
    others = [record.where for record in records if record.where != "row"]
    places = f"{rows} rows of metrics.jsonl" + (f" and {', '.join(others)}" if others else "")
    if not differences:
        print(f"steps {begin + 1} to {stop}: every {what} as recorded in {places}{believed}")
        return 0
    for number, (begin, end, differing, where) in enumerate(differences[:20]):
        steps = f"step {end}" if begin == end else f"steps {begin} to {end}"
        said = (
            f"{steps}: the {' and '.join(differing)} are not as recorded ({', '.join(where)} of step {end})"
        )
        count = f", the first of {len(differences)} such places of {len(records)}"
        print(f"  {said}" if number else f"{said}{count}; before it every {what} as recorded{believed}")
    for reason in list(replay.unread.values())[:5]:
        print(f"  cannot be read now: {reason}")
    for change in recorded.progress.get("changes", []):
        if change["key"] == "batches" or change["key"].startswith("input "):
            print(
                f"  another {change['key']} from step {change['step']} on: {change['from']}, {change['to']}"
            )
    return 1
