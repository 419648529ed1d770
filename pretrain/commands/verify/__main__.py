"""Check a run against what it recorded: its files, and its batches, made again from config.yaml and its data.

    clearly verify runs/NAME                       # the sequences of every step: fast, no augmentation
    clearly verify runs/NAME --views               # what masking and augmentation made of them, too
    clearly verify runs/NAME --from 1000 --to 2000
    clearly verify runs/NAME --replay 5            # and five stretches between checkpoints, trained again

No model is needed but for --replay. The exit status is 1 if anything is not as recorded.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from pretrain.common import cli
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.common.run_folder import require_run
from pretrain.config.recipe import flags, load_config
from pretrain.config.run import Config

if TYPE_CHECKING:
    from pretrain.commands.verify.files import Saved

_SHOWN = 20


def _keys() -> Iterable[cli.Flag]:
    yield cli.Flag("from", "int", "1", "first step to compare; the record before it is believed")
    yield cli.Flag("to", "int", "the last", "last step to compare")
    yield from flags()


def verify(
    run: Path,
    *,
    views: bool = False,
    replay: cli.Natural = 0,
    replay_seed: cli.Natural | None = None,
    workers: cli.Natural | None = None,
    **overrides: str,
) -> int:
    """Check that every file and batch of a run is as it recorded.

    Args:
        run: folder of the run.
        views: augment and mask again, too, and compare that.
        replay: train N stretches between kept checkpoints again, drawn at random, and compare weights,
            optimizer, losses and evaluations; in the folder of temporary files (TMPDIR).
        replay_seed: of the choice of stretches; default: the clock's.
        workers: processes that make views; default: one for each core.
        overrides: from, to: the first and the last step; and any key of the configuration, as --data where
            the data lies elsewhere now.
    """
    first, last = (_step(name, overrides.pop(name, None)) for name in ("from", "to"))
    require_run(run)
    # these import torch and transformers: seconds, so not for --help and wrong flags
    from pretrain.commands.verify.files import check_files

    faults, saved = check_files(run)
    if faults:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        print("\n  ".join(["files that are not as the run wrote them:", *faults[:_SHOWN], *more]))
    else:
        names = ", ".join(["metrics.jsonl, config.yaml, tokenizer", *(one.name for one in saved)])
        print(f"{names}: every file as the run wrote it")
    config = load_config(run / "config.yaml", overrides)
    same = _compare_batches(run, config, saved, (first, last), views, workers)
    if replay:
        from pretrain.commands.verify import stretches

        seed = time.time_ns() // 1000 % 10**9 if replay_seed is None else replay_seed
        same = stretches.replay(run, saved, replay, seed, overrides) and same
    return 0 if same and not faults else 1


def _compare_batches(
    run: Path,
    config: Config,
    saved: "list[Saved]",
    span: tuple[int | None, int | None],
    views: bool,
    workers: int | None,
) -> bool:
    """Make the batches of some steps again and print whether they are as recorded; return that."""
    from pretrain.commands.verify.files import compare, read_records
    from pretrain.commands.verify.replay import Replay
    from pretrain.data.ledger import KINDS

    records, last_step = read_records(run, saved)
    first, last = span[0] or 1, min(span[1] or last_step, last_step)
    if first > last:
        raise UserError(f"--from {first} is after the last step, {last}")
    since = records[0].ledger["since"]
    start = next((record for record in reversed(records) if since < record.step < first), None)
    begin = since if start is None else start.step
    records = [record for record in records if begin < record.step <= last]
    if not records:
        raise UserError(f"{run} has no record of its batches between steps {begin + 1} and {last}")
    if since and start is None:
        print(f"steps 1 to {since} have no record: an older version trained them")
    progress = max(saved, key=lambda one: one.step).progress if saved else {}
    jumped = [(step, stop) for step, stop in progress.get("jumped", [])]
    replay = Replay(config, progress.get("substitutions", []), jumped)
    stop, kinds = records[-1].step, KINDS if views else KINDS[:1]
    workers = usable_cores() if workers is None else workers
    sums = replay.sums_with_views(begin, stop, workers) if views else replay.sums(begin, stop)
    tracked = track(sums, "comparing", total=stop - begin, console=Console(stderr=True), transient=True)
    difference = compare(records, start, tracked, kinds)
    what = "batch, its masking and its views are" if views else "batch is"
    believed = "" if start is None else f", given the record of step {start.step}"
    if difference is None:
        rows = sum(record.where == "row" for record in records)
        others = [record.where for record in records if record.where != "row"]
        places = f"{rows} rows of metrics.jsonl" + (f" and {', '.join(others)}" if others else "")
        print(f"steps {begin + 1} to {stop}: every {what} as recorded in {places}{believed}")
        return True
    steps = f"steps {difference.first} to {difference.last}"
    if difference.first == difference.last:
        steps = f"step {difference.last}"
    differing, where = " and ".join(difference.kinds), ", ".join(difference.where)
    print(
        f"{steps}: the {differing} are not as recorded ({where} of step {difference.last}); before it every "
        f"{what} as recorded{believed}. Steps behind it are not compared: --from {difference.last + 1}"
    )
    for reason in list(replay.unread.values())[:5]:
        print(f"  cannot be read now: {reason}")
    for change in progress.get("changes", []):
        if change["key"] == "batches" or change["key"].startswith("input "):
            print(
                f"  another {change['key']} from step {change['step']} on: {change['from']}, {change['to']}"
            )
    return False


def _step(name: str, text: str | None) -> int | None:
    if text is not None and (not text.isdecimal() or int(text) < 1):
        raise UserError(f"--{name} {text}: a step, counted from 1")
    return None if text is None else int(text)


if __name__ == "__main__":
    cli.run(verify, keys=_keys, first=("views", "replay", "replay_seed", "from", "to", "workers", "data"))
