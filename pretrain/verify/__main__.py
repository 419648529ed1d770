"""Check a run against what it recorded: its files, and its batches, made again from config.yaml and its data.

    clearly verify runs/NAME                       # the sequences of every step: fast, no augmentation
    clearly verify runs/NAME --views               # what masking and augmentation made of them, too
    clearly verify runs/NAME --from 1000 --to 2000
    clearly verify runs/NAME --seen letter.txt --out seen.tsv    # which steps have read a document

No model is needed. The exit status is 1 where a file or a batch is not as recorded.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from pretrain.common import cli
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.config.recipe import flags, load_config

if TYPE_CHECKING:
    from pretrain.verify.compare import Difference
    from pretrain.verify.records import Recorded
    from pretrain.verify.replay import Replay

_BETWEEN = 5.0  # seconds between lines of progress


def _keys() -> Iterable[tuple]:
    yield "from", "int", "1", "first step to compare; the record before it is believed"
    yield "to", "int", "the last", "last step to compare"
    yield from flags()


def verify(
    run: Path,
    *,
    views: bool = False,
    seen: str = "",
    out: cli.OutFile | None = None,
    workers: cli.Natural | None = None,
    **overrides: str,
) -> int:
    """Check that every file and batch of a run is as it recorded, or say which steps have read a document.

    Args:
        run: folder of the run.
        views: augment and mask again, too, and compare that.
        seen: a document: a text, a file of one, or id:N,N of sequences (as `clearly inspect` shows them).
        out: file for every step and sequence of the answer to --seen: .tsv or .json.
        workers: processes that make views; default: one for each core.
        overrides: from, to: the first and the last step; and any key of the configuration, as --data where
            the data lies elsewhere now.

    Raises:
        UserError: the folder holds no run, or records nothing; its data is not there.
    """
    span = {name: _step(name, overrides.pop(name, None)) for name in ("from", "to")}
    if out is not None and (not seen or out.suffix not in (".tsv", ".json")):
        raise UserError(f"--out {out}: a .tsv or .json file, for the answer to --seen")
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.verify.files import verify_files
    from pretrain.verify.records import read_records
    from pretrain.verify.replay import Replay

    recorded = read_records(run)
    replay = Replay(load_config(run / "config.yaml", overrides), recorded.substitutions, recorded.jumped)
    first, last = span["from"] or 1, min(span["to"] or recorded.last_step, recorded.last_step)
    if first > last:
        raise UserError(f"--from {first} is after the last step, {last}")
    if seen:
        from pretrain.verify.seen import answer

        answer(run, replay, seen, first, last, out)
        return 0
    whole = verify_files(run)
    status = _verify(
        run, recorded, replay, first, last, views, usable_cores() if workers is None else workers
    )
    return status if whole else 1


def _verify(
    run: Path, recorded: Recorded, replay: Replay, first: int, last: int, views: bool, workers: int
) -> int:
    """Compare steps `first` to `last`, counted from 1; print what was found; return the exit status."""
    from pretrain.ledger.chain import KINDS
    from pretrain.verify.compare import compare

    if not recorded.records:
        raise UserError(
            f"{run} records no hashes of its batches: an older version trained it. --seen works all the same"
        )
    since = recorded.records[0].ledger["since"]
    start = next((r for r in reversed(recorded.records) if since < r.step < first), None)
    begin = since if start is None else start.step
    records = [record for record in recorded.records if begin < record.step <= last]
    if not records:
        raise UserError(f"no record between steps {begin + 1} and {last}; records are at " + _some(recorded))
    stop = records[-1].step
    if since and start is None:
        print(f"steps 1 to {since} have no record: an older version trained them")
    kinds = KINDS if views else KINDS[:1]
    sums = replay.sums_with_views(begin, stop, workers) if views else replay.sums(begin, stop)
    differences = compare(records, start, sums, kinds, _Progress(begin, stop))
    what = "batch, its masking and its views are" if views else "batch is"
    believed = "" if start is None else f", given the record of step {start.step}"
    rows = sum(record.where == "row" for record in records)
    others = [record.where for record in records if record.where != "row"]
    places = f"{rows} rows of metrics.jsonl" + (f" and {', '.join(others)}" if others else "")
    if not differences:
        print(f"steps {begin + 1} to {stop}: every {what} as recorded in {places}{believed}")
        return 0
    one = differences[0]
    print(
        f"{_span(one)}: the {' and '.join(one.kinds)} are not as recorded "
        f"({', '.join(one.where)} of step {one.last}), the first of {len(differences)} such places of "
        f"{len(records)}; before it every {what} as recorded{believed}"
    )
    for other in differences[1:20]:
        print(f"  {_span(other)}: {' and '.join(other.kinds)} ({', '.join(other.where)})")
    if len(differences) > 20:
        print(f"  and {len(differences) - 20} more")
    for reason in list(replay.unread.values())[:5]:
        print(f"  cannot be read now: {reason}")
    for change in recorded.changes:
        if change["key"] == "batches" or change["key"].startswith("input "):
            print(
                f"  the run was resumed at step {change['step']} with another {change['key']}: "
                f"{change['from']}, then {change['to']}"
            )
    return 1


def _span(one: Difference) -> str:
    return f"step {one.last}" if one.first == one.last else f"steps {one.first} to {one.last}"


class _Progress:
    """Say every few seconds how far the comparison is."""

    def __init__(self, begin: int, stop: int) -> None:
        self.begin, self.stop = begin, stop
        self.started = self.said = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self.said < _BETWEEN:
            return
        self.said = now
        left = (now - self.started) / (done - self.begin) * (self.stop - done)
        share = (done - self.begin) / (self.stop - self.begin)
        print(f"step {done:,} of {self.stop:,}, {share:.0%}, {left:.0f} s left", file=sys.stderr, flush=True)


def _some(recorded: Recorded) -> str:
    steps = [str(step) for step in sorted({record.step for record in recorded.records})]
    return ", ".join([*steps[:3], "...", *steps[-3:]] if len(steps) > 6 else steps)


def _step(name: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--{name} {text}: a step, counted from 1")
    return int(text)


if __name__ == "__main__":
    cli.run(verify, keys=_keys, first=("views", "from", "to", "seen", "out", "workers", "data"))
