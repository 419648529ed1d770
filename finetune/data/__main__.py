"""Check and complete the folder of evaluation data: `--data DIR`, or the environment's CLEAR_DATA.

    python -m finetune.data check DIR                               which sets are there and complete
    python -m finetune.data fetch GLUE/RTE DIR [--source FOLDER]    get one from the hub, or a copy of it

    SentEval/   SentEval's data/downstream (STS, SICK, MR, CR, SUBJ, MPQA, SST, TREC, MRPC, SNLI) and probing/
    GLUE/       one folder a task, the official tsv files
    clustering/ VaSCL's csv files (text,label)
    intents/    SNIPS, ATIS, HWU64 (seq.in, label), BANKING77 (csv), CLINC150 (json)
    ANLI/       R1, R2, R3 (jsonl)
    NLI/        SNLI and MultiNLI (jsonl)
    zh/STS-B/   cnsd-sts-{train,dev,test}.txt

Each evaluation declares its own sets; `finetune.data.catalogue` gathers them.
"""

from __future__ import annotations

import sys
from pathlib import Path

from finetune.files import data_root
from pretrain.common.cli import as_bool, require_writable, run
from pretrain.common.errors import UserError


def main(*words: str, sets: str = "", source: str = "", replace: bool | str = False) -> int:
    """Which evaluation sets a data folder holds, and getting what it lacks.

    check DIR        print for every set whether it is complete, incomplete, missing or damaged, and where to
                     get it. The exit status is 0 when all are complete, 1 otherwise.
    fetch SET DIR    write a set of the hub in the folder's layout.

    Args:
        sets: with check, only these: groups (SentEval, probing, GLUE, clustering, intents, ANLI, NLI, zh) or
            sets (GLUE/RTE), by commas.
        source: with fetch, another name on the hub, or a folder with the set's parquet, jsonl or csv files.
        replace: with fetch, also write files that are there; they stay otherwise.
    """
    action, *words = words or ("",)
    if action not in ("check", "fetch"):
        raise UserError(
            f"say check DIR or fetch SET DIR{f', not {action!r}' if action else ''}; --help says more"
        )
    if action == "check":
        if len(words) > 1 or source or replace:
            raise UserError("write python -m finetune.data check DIR [--sets GROUP,GROUP/SET]")
        return _check(data_root(*words), sets)
    if len(words) != 2 or sets:
        raise UserError("write python -m finetune.data fetch SET DIR [--source FOLDER] [--replace]")
    require_writable(words[1], "DIR")
    return _fetch(words[0], Path(words[1]), source, as_bool(replace, "replace"))


def _check(root: Path, sets: str) -> int:
    from finetune.data.catalogue import check, choose, report
    from finetune.data.fetch import HUB

    statuses = []
    for one in choose(sets):
        _progress(one.name)
        statuses.append(check(one, root))
    _progress("")
    print(report(statuses, HUB, root))
    return 0 if all(status.state == "complete" for status in statuses) else 1


def _progress(name: str) -> None:
    """What is being counted, on a terminal only."""
    if sys.stderr.isatty():
        print(f"\r{name:<40}\r", end="", file=sys.stderr, flush=True)


def _fetch(name: str, root: Path, source: str, replace: bool) -> int:
    from finetune.data.catalogue import check, choose, report
    from finetune.data.fetch import HUB, fetch

    chosen = choose(name)
    if len(chosen) != 1:
        raise UserError(
            f"{name!r} is {len(chosen)} sets; fetch them one by one: {', '.join(one.name for one in chosen)}"
        )
    for line in fetch(chosen[0].name, root, source, replace):
        print(line, file=sys.stderr)
    print(report([check(chosen[0], root)], HUB, root))
    return 0


if __name__ == "__main__":
    run(main, positional=3)
