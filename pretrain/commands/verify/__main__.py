"""Check a run against what it recorded: its files, and its batches, made again from config.yaml and its data.

    clearly verify runs/NAME                       # the sequences of every step: fast, no augmentation
    clearly verify runs/NAME --views               # what masking and augmentation made of them, too
    clearly verify runs/NAME --from 1000 --to 2000
    clearly verify runs/NAME --seen letter.txt --out seen.tsv    # which steps have read a document

No model is needed. The exit status is 1 if a file or a batch is not as recorded.
"""

from collections.abc import Iterable
from pathlib import Path

from pretrain.common import cli
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.config.recipe import flags, load_config


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
    """
    span = {name: _step(name, overrides.pop(name, None)) for name in ("from", "to")}
    if out is not None and not seen:
        raise UserError(f"--out {out}: a file for the answer to --seen")
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.commands.verify.files import verify_files
    from pretrain.commands.verify.records import read_records, verify_batches
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
    status = verify_batches(run, recorded, replay, first, last, views, workers)
    return status if whole else 1


def _step(name: str, text: str | None) -> int | None:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"--{name} {text}: a step, counted from 1")
    return None if text is None else int(text)


if __name__ == "__main__":
    cli.run(verify, keys=_keys, first=("views", "from", "to", "seen", "out", "workers", "data"))
