"""What a run has recorded of its batches, and a comparison with batches that are made again."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from pretrain.commands.verify.files import Saved
from pretrain.common.errors import UserError
from pretrain.data.ledger import chain
from pretrain.data.ledger.chain import Ledger
from pretrain.telemetry.metrics_file import read_metrics


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


def read_records(run: Path, saved: Sequence[Saved]) -> tuple[list[LedgerRecord], int]:
    """Return the records of a run by step, rows before what is saved at the same step, and its last step.

    Raises:
        UserError: the run has no step yet, or records no batches.
    """
    rows = [
        (row["step"], "row", row.get("ledger"))
        for row in read_metrics(run / "metrics.jsonl")
        if "loss" in row and isinstance(row.get("step"), int)
    ]
    places = rows + [(one.step, one.name, one.progress.get("ledger")) for one in saved]
    if not places:
        raise UserError(f"{run} has no step yet: neither rows in metrics.jsonl nor checkpoints")
    records = [LedgerRecord(step, where, ledger) for step, where, ledger in places if ledger and step > 0]
    if not records:
        raise UserError(f"{run} records no hashes of its batches: an older version trained it")
    records.sort(key=lambda record: (record.step, record.where != "row"))
    return records, max(step for step, *_ in places)


def compare(
    records: list[LedgerRecord],
    start: LedgerRecord | None,
    sums: Iterable[tuple[int, tuple[int, ...]]],
    kinds: tuple[str, ...],
) -> Difference | None:
    """Chain the sums of steps, and return where the links are first not those of the records; None: nowhere.

    Args:
        records: in order of steps, all after `start`.
        start: the record to begin at, which is believed; None: the first step of the ledger.
        sums: each step, numbered from 0, and its sums.
        kinds: "sequences", "views" or both.
    """
    links = chain.begin(records[0].ledger["since"]) if start is None else dict(start.ledger)
    before = links["since"] if start is None else start.step
    by_step = {step: list(group) for step, group in groupby(records, key=lambda record: record.step)}
    for step, of_step in sums:
        links = chain.extend(links, of_step)
        at_step = by_step.get(step + 1, [])
        wrong = [record for record in at_step if any(record.ledger[kind] != links[kind] for kind in kinds)]
        if wrong:
            differing = tuple(kind for kind in kinds if any(one.ledger[kind] != links[kind] for one in wrong))
            return Difference(before + 1, step + 1, differing, tuple(record.where for record in wrong))
        if at_step:
            before = step + 1
    return None
