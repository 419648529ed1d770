"""Check a run against what it recorded: its files, and its batches, made again from config.yaml and its data.

    clearly verify runs/NAME                       # the sequences of every step: fast, no augmentation
    clearly verify runs/NAME --views               # what masking and augmentation made of them, too
    clearly verify runs/NAME --from 1000 --to 2000
    clearly verify runs/NAME --seen letter.txt --out seen.tsv    # which steps have read a document

No model is needed. The exit status is 1 where a file or a batch is not as recorded.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from pretrain.common import cli
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.config.recipe import flags, load_config

if TYPE_CHECKING:
    from pretrain.commands.verify.records import Recorded
    from pretrain.commands.verify.replay import Replay


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
        out: TSV file for every step and sequence of the answer to --seen.
        workers: processes that make views; default: one for each core.
        overrides: from, to: the first and the last step; and any key of the configuration, as --data where
            the data lies elsewhere now.

    Raises:
        UserError: the folder holds no run, or records nothing; its data is not there.
    """
    span = {name: _step(name, overrides.pop(name, None)) for name in ("from", "to")}
    if out is not None and not seen:
        raise UserError(f"--out {out}: a file for the answer to --seen")
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.commands.verify.files import verify_files
    from pretrain.commands.verify.records import read_records
    from pretrain.commands.verify.replay import Replay

    recorded = read_records(run)
    config = load_config(run / "config.yaml", overrides)
    replay = Replay(config, recorded.progress.get("substitutions", []), recorded.jumped)
    first, last = span["from"] or 1, min(span["to"] or recorded.last_step, recorded.last_step)
    if first > last:
        raise UserError(f"--from {first} is after the last step, {last}")
    if seen:
        from pretrain.commands.verify.seen import answer

        answer(run, replay, seen, first, last, out)
        return 0
    whole = verify_files(run)
    workers = usable_cores() if workers is None else workers
    status = _verify_batches(run, recorded, replay, first, last, views, workers)
    return status if whole else 1


def _verify_batches(
    run: Path, recorded: Recorded, replay: Replay, first: int, last: int, views: bool, workers: int
) -> int:
    """Compare steps `first` to `last`, counted from 1; print what was found; return the exit status."""
    from pretrain.commands.verify.records import compare
    from pretrain.ledger.chain import KINDS

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


def _step(name: str, text: str | None) -> int | None:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"--{name} {text}: a step, counted from 1")
    return None if text is None else int(text)


if __name__ == "__main__":
    cli.run(verify, keys=_keys, first=("views", "from", "to", "seen", "out", "workers", "data"))
