"""Every data set that an evaluation declares, and what a data folder holds of them.

Rows are counted by the evaluations' own readers (STS pairs without a gold score do not count, nor do QQP's
torn rows; a csv text may hold line ends; an unknown label is damage), so that "complete" means comparable
with published figures.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from augment.core.errors import nearest_name
from finetune import anli, clustering, nli_distance, zh_sts
from finetune.files import locate
from finetune.intents import sets as intents
from finetune.senteval import tasks as senteval
from finetune.sets import DataSet
from finetune.sts import tasks as sts
from finetune.tuning import tasks as glue
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
    """Return the sets of a comma-separated list; all when it is empty.

    A name is GROUP, GROUP/NAME, or NAME where one set alone has it. Case does not matter.

    Raises:
        UserError: no such set (the message names the nearest), or several of that name.
    """
    known: dict[str, list[DataSet]] = {}
    for one in CATALOGUE:
        for key in {one.name.lower(), one.name.lower().split("/")[-1]}:
            known.setdefault(key, []).append(one)
    groups = {group.lower(): [one for one in CATALOGUE if one.group == group] for group in GROUPS}
    chosen: list[DataSet] = []
    for name in (name.strip().lower() for name in names.split(",") if name.strip()):
        if name in groups:
            chosen += groups[name]
        elif len(known.get(name, ())) > 1:
            raise UserError(
                f"several sets are called {name!r}: {', '.join(one.name for one in known[name])}; give one "
                "of these"
            )
        elif name in known:
            chosen += known[name]
        else:
            near = nearest_name(name, [*known, *groups])
            meant = known[near][0].name if near in known else groups[near][0].group if near else ""
            hint = f"; did you mean {meant!r}?" if meant else "."
            raise UserError(f"unknown set {name!r}{hint} `python -m finetune.data check DIR` lists all")
    return list({one.name: one for one in chosen or CATALOGUE}.values())


def report(statuses: Sequence[Status], fetchable: Iterable[str], root: Path) -> str:
    """Return a line a set; below it what lacks, and where to get it; the number in each state last."""
    fetchable, width, text = set(fetchable), max(len(one.data_set.name) for one in statuses), []
    for status in statuses:
        one = status.data_set
        rows = sum(part.rows for part in one.parts.values())
        text.append(
            f"{one.name.ljust(width)}  {status.state}"
            + (f", {rows:,} rows" if status.state == "complete" else "")
        )
        text += [f"{'':{width}}    {detail}" for detail in status.details]
        if status.state != "complete":
            fetch = f"python -m finetune.data fetch {one.name} {root}, or " if one.name in fetchable else ""
            text.append(f"{'':{width}}    get it: {fetch}{one.origin}")
    states = [status.state for status in statuses]
    text.append(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)))
    return "\n".join(text)
