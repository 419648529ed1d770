"""Every data set that an evaluation declares, and which of its files a data folder holds."""

from pathlib import Path

from finetune import anli, clustering, nli_distance, zh_sts
from finetune.data.fetch import HUB
from finetune.intents import sets as intents
from finetune.senteval import tasks as senteval
from finetune.tuning import tasks as glue
from pretrain.benchmarks import sts_tasks as sts
from pretrain.benchmarks.files import known_name, locate
from pretrain.benchmarks.sets import DataSet

CATALOGUE: tuple[DataSet, ...] = tuple(
    one
    for evaluation in (sts, senteval, glue, clustering, intents, anli, nli_distance, zh_sts)
    for one in evaluation.DATA_SETS
)
GROUPS = tuple(dict.fromkeys(one.group for one in CATALOGUE))


def check(data_set: DataSet, root: Path) -> tuple[str, list[str]]:
    """Return what is there of a set below `root`, "complete", "incomplete" or "missing", and what is not."""
    absent = [file for file in data_set.files if not locate(root, file).is_file()]
    state = "complete" if not absent else "missing" if len(absent) == len(data_set.files) else "incomplete"
    return state, absent


def choose(names: str) -> list[DataSet]:
    """Return the sets of a comma-separated list (GROUP, GROUP/NAME or a unique NAME); all of an empty one."""
    short = [one.name.split("/")[-1].lower() for one in CATALOGUE]
    aliases = {key: one.name for key, one in zip(short, CATALOGUE) if short.count(key) == 1}
    known = (*GROUPS, *(one.name for one in CATALOGUE))
    words = [word.strip() for word in names.split(",") if word.strip()]
    wanted = [known_name(word, known, "set", aliases=aliases) for word in words]
    chosen = [one for name in wanted for one in CATALOGUE if name in (one.group, one.name)]
    return list({one.name: one for one in chosen or CATALOGUE}.values())


def report(one: DataSet, root: Path, width: int) -> str:
    """Return a line on a set; below it the files that lack, and where to get them."""
    state, absent = check(one, root)
    lines = [f"{one.name:{width}}  {state}"]
    if absent:
        others = f" and {len(absent) - 1} more" if len(absent) > 1 else ""
        fetch = f"clearly benchmarks fetch {one.name} {root}, or " if one.name in HUB else ""
        lines += [
            f"{'':{width}}    {absent[0]}{others} missing",
            f"{'':{width}}    get it: {fetch}{one.origin}",
        ]
    return "\n".join(lines)
