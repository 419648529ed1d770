"""Every evaluation set: its files below the data folder, its rows as published, where to get it.

`python -m finetune.data check DIR` prints what `check` finds. Rows are counted by the evaluations' own
readers (STS pairs without a gold score do not count, nor do QQP's torn rows; a csv text may hold line ends;
an unknown label is damage), so that "complete" means comparable with published figures.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

from finetune import clustering, intents, zh_sts
from finetune.data.__main__ import senteval_folder
from finetune.nli_distance import MNLI_DEV, SIMCSE_TRIPLETS, read_jsonl, read_triplets
from finetune.senteval import tasks as senteval
from finetune.sts import OFFICIAL_PAIRS, SEVEN_TASKS, YEAR_SUBSETS, StsEvaluator
from finetune.tuning import tasks
from finetune.zh_sts import TASKS as CHINESE
from pretrain.common.errors import UserError

SENTEVAL = (
    "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/senteval.tar "
    "(its downstream/)"
)
SENTEVAL_REPOSITORY = "github.com/facebookresearch/SentEval"
CLUSTERING = "github.com/rashadulrakib/short-text-clustering-enhancement, as csv with the columns text,label"
FEW_SHOT_INTENTS = "github.com/jianguoz/Few-Shot-Intent-Detection"
GOOGLE_NEWS = "github.com/jackyin12/GSDMM, as csv with the columns text,label"
HWU64 = "github.com/xliuhw/NLU-Evaluation-Data (25,716 utterances in 64 intents)"
GLUE = "gluebenchmark.com/tasks"
ANLI = "github.com/facebookresearch/anli, anli_v1.0.zip"

Count = Callable[[Path], int]


@dataclass(frozen=True)
class Part:
    """A split of a set: its files below the data folder, its rows as published, how to count them given that
    folder."""

    files: tuple[str, ...]
    rows: int
    count: Count


@dataclass(frozen=True)
class DataSet:
    """A set and its splits."""

    name: str
    """GROUP/NAME, after the folders that it lies in."""
    parts: dict[str, Part]
    origin: str
    """Where it comes from, for those who lack it."""

    @property
    def group(self) -> str:
        return self.name.split("/")[0]


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


def locate(root: Path, file: str) -> Path:
    """A file below the data folder; SentEval's are also found in its own data/{downstream,probing} layout."""
    if not file.startswith("SentEval/"):
        return root / file
    folder, rest = senteval_folder(root), file.removeprefix("SentEval/")
    beside = folder.parent / rest
    return (
        beside
        if rest.startswith("probing/") and folder.name == "downstream" and beside.is_file()
        else folder / rest
    )


def choose(names: str) -> list[DataSet]:
    """Sets by commas: GROUP, GROUP/NAME, or NAME where one set alone has it; all when empty. Case does not
    matter.

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
            near = difflib.get_close_matches(name, [*known, *groups], n=1, cutoff=0.0)[0]
            near = known[near][0].name if near in known else groups[near][0].group
            raise UserError(
                f"unknown set {name!r}; did you mean {near!r}? `python -m finetune.data check DIR` lists all"
            )
    return list({one.name: one for one in chosen or CATALOGUE}.values())


def report(statuses: Sequence[Status], fetchable: Iterable[str], root: Path) -> str:
    """A line a set; below it what lacks, and where to get it; the number in each state last."""
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


# -- the sets
# ---------------------------------------------------------------------------------------------------------


def _single(file: str, rows: int, count: Count) -> dict[str, Part]:
    return {"all": Part((file,), rows, count)}


def _sts(task: str) -> DataSet:
    """A year's pairs, counted without those that have no gold score."""
    files = tuple(
        f"SentEval/STS/{task}-en-test/STS.{kind}.{subset}.txt"
        for subset in YEAR_SUBSETS[task]
        for kind in ("input", "gs")
    )

    def count(root: Path) -> int:
        return sum(len(pairs) for pairs in StsEvaluator(senteval_folder(root)).load(task))

    return DataSet(f"SentEval/{task}", {"pairs": Part(files, OFFICIAL_PAIRS[task], count)}, SENTEVAL)


def _senteval(task: str, name: str, origin: str = SENTEVAL) -> DataSet:
    """A supervised task, counted by its own reader."""
    files = tuple(f"SentEval/{file}" for file in senteval.TASKS[task].files)

    def count(root: Path) -> int:
        return sum(len(split) for split in senteval.load(task, root).splits.values())

    return DataSet(name, {"all": Part(files, sum(senteval.TASKS[task].sizes.values()), count)}, origin)


def _parts(sizes: dict[str, tuple[tuple[str, ...], int]], read: Callable[..., Sized]) -> dict[str, Part]:
    """Splits (files, rows) that `read` reads from their files."""

    def part(files: tuple[str, ...], rows: int) -> Part:
        return Part(files, rows, lambda root: len(read(*(locate(root, file) for file in files))))

    return {name: part(*split) for name, split in sizes.items()}


def _snli() -> DataSet:
    """Split by split: dev and test serve without the training set."""
    sizes = {
        part: (tuple(f"SentEval/SNLI/{kind}.{part}" for kind in ("s1", "s2", "labels")), rows)
        for part, rows in senteval.TASKS["SNLI"].sizes.items()
    }
    return DataSet(
        "SentEval/SNLI", _parts(sizes, senteval.read_snli), f"{SENTEVAL}; nlp.stanford.edu/projects/snli"
    )


def _glue(task: str) -> DataSet:
    """Every split but AX's labelled rows, which are not public."""
    known, folder = tasks.TASKS[task], "diagnostic" if task == "AX" else task

    def part(split: str) -> tuple[str, Part]:
        file = "diagnostic" if task == "AX" else split
        count = lambda root: len(tasks.read_split(known, split, root))  # noqa: E731
        return file, Part((f"GLUE/{folder}/{file}.tsv",), known.sizes[split], count)

    return DataSet(
        f"GLUE/{task}", dict(part(split) for split in known.sizes if task != "AX" or split == "test"), GLUE
    )


def _clustering(name: str) -> DataSet:
    file = f"clustering/{name}.csv"
    parts = _single(file, clustering.SETS[name][0], lambda root: len(clustering.read(root / file).texts))
    return DataSet(f"clustering/{name}", parts, GOOGLE_NEWS if name.startswith("google") else CLUSTERING)


def _all_intents(name: str) -> Count:
    def count(root: Path) -> int:
        found = intents.read(name, root)
        return len(found.texts) + len(found.test_texts)

    return count


def _intent_lines(name: str, sizes: dict[str, int]) -> DataSet:
    folders = {part: f"intents/{name}/{part}" for part in sizes}
    files = {part: ((f"{folder}/seq.in", f"{folder}/label"), sizes[part]) for part, folder in folders.items()}
    return DataSet(
        f"intents/{name}", _parts(files, lambda texts, _: intents.read_lines(texts.parent)), FEW_SHOT_INTENTS
    )


def _hwu64() -> DataSet:
    files = tuple(
        f"intents/HWU64/{part}/{file}" for part in ("train", "valid", "test") for file in ("seq.in", "label")
    )
    return DataSet(
        "intents/HWU64", {"all": Part(files, intents.SETS["HWU64"][0], _all_intents("HWU64"))}, HWU64
    )


def _banking() -> DataSet:
    sizes = {
        part: ((f"intents/BANKING77/{part}.csv",), rows) for part, rows in (("train", 10003), ("test", 3080))
    }
    return DataSet(
        "intents/BANKING77", _parts(sizes, intents.read_csv), "github.com/PolyAI-LDN/task-specific-datasets"
    )


def _clinc() -> DataSet:
    parts = {"in scope": Part(("intents/CLINC150/data_full.json",), 22500, _all_intents("CLINC150"))}
    return DataSet("intents/CLINC150", parts, "github.com/clinc/oos-eval, data/data_full.json")


def _anli(name: str, train: int, evaluation: int) -> DataSet:
    def read(path: Path) -> Sized:
        from finetune.anli import KEYS, read_jsonl  # brings the machinery of training with it

        return read_jsonl(path, KEYS)

    sizes = {"train": train, "dev": evaluation, "test": evaluation}
    files = {part: ((f"ANLI/{name}/{part}.jsonl",), rows) for part, rows in sizes.items()}
    return DataSet(f"ANLI/{name}", _parts(files, read), ANLI)


def _chinese() -> DataSet:
    sizes = {
        "train": ("cnsd-sts-train.txt", 5231),
        "dev": CHINESE["STS-B-zh-dev"],
        "test": CHINESE["STS-B-zh"],
    }
    files = {part: ((f"zh/STS-B/{name}",), rows) for part, (name, rows) in sizes.items()}
    return DataSet("zh/STS-B", _parts(files, zh_sts.read), "github.com/pluto-junzeng/CNSD")


CATALOGUE: tuple[DataSet, ...] = (
    *(_sts(task) for task in SEVEN_TASKS[:5]),
    _senteval("STS-B-supervised", "SentEval/STS-B"),
    _senteval("SICK-E", "SentEval/SICK"),
    *(_senteval(task, f"SentEval/{task}") for task in (*senteval.TRANSFER, "SST5")),
    _snli(),
    *(
        _senteval(task, f"probing/{task}", f"{SENTEVAL_REPOSITORY}, data/probing")
        for task in senteval.PROBING
    ),
    *(_glue(task) for task in tasks.TASKS),
    *(_clustering(name) for name in clustering.SETS),
    _intent_lines("SNIPS", {"train": 13084, "valid": 700, "test": 700}),
    _banking(),
    _clinc(),
    _hwu64(),
    _intent_lines("ATIS", {"train": 4478, "valid": 500, "test": 893}),
    _anli("R1", 16946, 1000),
    _anli("R2", 45460, 1000),
    _anli("R3", 100459, 1200),
    DataSet(
        "NLI/SimCSE",
        _parts({"all": (("NLI/nli_for_simcse.csv",), SIMCSE_TRIPLETS)}, read_triplets),
        "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/nli_for_simcse.csv",
    ),
    DataSet(
        "NLI/MNLI-dev",
        _parts({"mnli_dev": (("NLI/mnli_dev.jsonl",), MNLI_DEV)}, lambda path: read_jsonl(path, "premise")),
        "cims.nyu.edu/~sbowman/multinli",
    ),
    _chinese(),
)
GROUPS = tuple(dict.fromkeys(one.group for one in CATALOGUE))
