"""Every data set that an evaluation declares, and what a data folder holds of them.

Rows are counted by the evaluations' own readers (STS pairs without a gold score do not count, nor do QQP's
torn rows; a csv text may hold line ends; an unknown label is damage), so that "complete" means comparable
with published figures.
"""

from dataclasses import dataclass
from pathlib import Path

from finetune import anli, clustering, nli_distance, zh_sts
from finetune.data.fetch import HUB
from finetune.intents import sets as intents
from finetune.senteval import tasks as senteval
from finetune.tuning import tasks as glue
from pretrain.benchmarks import sts_tasks as sts
from pretrain.benchmarks.files import known_name, locate
from pretrain.benchmarks.sets import DataSet
from pretrain.common.errors import UserError

CATALOGUE: tuple[DataSet, ...] = tuple(
    one
    for evaluation in (sts, senteval, glue, clustering, intents, anli, nli_distance, zh_sts)
    for one in evaluation.DATA_SETS
)
GROUPS = tuple(dict.fromkeys(one.group for one in CATALOGUE))


@dataclass(frozen=True)
class Status:
    """What is there of a set."""

    data_set: DataSet
    state: str
    """complete, incomplete, missing or damaged."""
    details: tuple[str, ...]
    """What lacks, split by split; empty when complete."""


def check(data_set: DataSet, root: Path) -> Status:
    """Count a set's rows below the data folder `root`."""
    details, counted, damaged = [], 0, False
    for name, part in data_set.parts.items():
        absent = [file for file in part.files if not locate(root, file).is_file()]
        if absent:
            others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
            details.append(f"{name}: {absent[0]}{others} missing")
            continue
        counted += 1
        try:
            rows = part.count(root)
        except UserError as error:
            details.append(f"{name}: {error}")
            damaged = True
            continue
        if rows != part.rows:
            details.append(f"{name}: {rows:,} rows, {part.rows:,} as published")
    state = "damaged" if damaged else "missing" if not counted else "incomplete" if details else "complete"
    return Status(data_set, state, tuple(details))


def choose(names: str) -> list[DataSet]:
    """Return the sets of a comma-separated list (GROUP, GROUP/NAME or a unique NAME); all of an empty one."""
    short = [one.name.split("/")[-1].lower() for one in CATALOGUE]
    aliases = {key: one.name for key, one in zip(short, CATALOGUE) if short.count(key) == 1}
    known = (*GROUPS, *(one.name for one in CATALOGUE))
    words = [word.strip() for word in names.split(",") if word.strip()]
    wanted = [known_name(word, known, "set", aliases=aliases) for word in words]
    chosen = [one for name in wanted for one in CATALOGUE if name in (one.group, one.name)]
    return list({one.name: one for one in chosen or CATALOGUE}.values())


def report(status: Status, root: Path, width: int) -> str:
    """Return a line on a set; below it what lacks, and where to get it."""
    one = status.data_set
    rows = sum(part.rows for part in one.parts.values())
    complete = status.state == "complete"
    lines = [f"{one.name:{width}}  {status.state}" + f", {rows:,} rows" * complete]
    lines += [f"{'':{width}}    {detail}" for detail in status.details]
    if not complete:
        fetch = f"clearly benchmarks fetch {one.name} {root}, or " if one.name in HUB else ""
        lines.append(f"{'':{width}}    get it: {fetch}{one.origin}")
    return "\n".join(lines)
