"""Compare batches that were made again with the records of a run."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from pretrain.ledger import chain
from pretrain.ledger.chain import Ledger
from pretrain.verify.records import Record


@dataclass(frozen=True)
class Difference:
    """Records whose batches are not those made again.

    first, last: the steps of which one or more differ, counted from 1. kinds: what of them. where: the
    records that differ at the last.
    """

    first: int
    last: int
    kinds: tuple[str, ...]
    where: tuple[str, ...]


def compare(
    records: list[Record],
    start: Record | None,
    sums: Iterable[tuple[int, tuple[int, ...]]],
    kinds: tuple[str, ...],
    advance: Callable[[int], None],
) -> list[Difference]:
    """Chain the sums of steps, and compare the links with the records at their steps.

    After a record that differs a second chain goes on from that record, so that a later one is right if its
    own steps are.

    Args:
        records: in order of steps, all after `start`.
        start: the record to begin at, which is believed; None: the first step of the ledger.
        sums: each step, numbered from 0, and its sums.
        kinds: "sequences", "views" or both.
        advance: called with the number of steps done.
    """
    begin = chain.begin(records[0].ledger["since"]) if start is None else dict(start.ledger)
    before = begin["since"] if start is None else start.step
    by_step = {step: list(there) for step, there in groupby(records, key=lambda record: record.step)}
    chains = [begin]  # that of all steps and, after a record that differs, that which goes on from it
    found = []
    for step, of_step in sums:
        chains = [chain.extend(links, of_step) for links in chains]
        advance(step + 1)
        there = by_step.get(step + 1)
        if there is None:
            continue
        right = [links for links in chains if any(_agree(record.ledger, links, kinds) for record in there)]
        wrong = [
            record for record in there if not any(_agree(record.ledger, links, kinds) for links in chains)
        ]
        if wrong:
            differing = tuple(kind for kind in kinds if not _agree(wrong[0].ledger, chains[0], (kind,)))
            names = tuple(record.where for record in wrong)
            found.append(Difference(before + 1, step + 1, differing, names))
        chains = right[:1] or [chains[0], dict(there[0].ledger)]
        before = step + 1
    return found


def _agree(ledger: Ledger, other: Ledger, kinds: tuple[str, ...]) -> bool:
    return all(ledger[kind] == other[kind] for kind in kinds)
