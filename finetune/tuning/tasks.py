"""Read GLUE: the official tsv files under DATA/GLUE.

The files have no quoting: a quotation mark is part of the text. CoLA's train and dev have no header, MRPC's
files begin with a byte order mark. Test rows are known to the leaderboard by their place in the file, from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import yaml

from pretrain.benchmarks.files import DATA_SETS, data_root, known_name, lines, locate
from pretrain.common.errors import UserError

ZERO_ONE = ("0", "1")
NLI = ("entailment", "neutral", "contradiction")


@dataclass(frozen=True)
class GlueTask:
    """A task, as glue.yaml describes it.

    columns: titles of the first text, the second (None: single sentences) and the label.
    labels: words of the classes, in their order, for the leaderboard too; () for STS-B's scores.
    metrics: of the dev sets; () for AX, which has none.
    recipe: learning rate, batch, warm-up updates, total updates; () for AX, which nothing is trained on.
    headerless: columns of text and label if train and dev have no header.
    """

    name: str
    columns: tuple[str, str | None, str]
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    recipe: tuple[float, int, int, int] | tuple[()]
    headerless: tuple[int, int] | None = None

    @property
    def sizes(self) -> Mapping[str, int]:
        """Rows as published, by split: train, dev..., test..."""
        return DATA_SETS[f"GLUE/{self.name}"].rows

    @property
    def headline(self) -> str:
        return "mean" if len(self.metrics) > 1 else self.metrics[0]

    def dev_splits(self) -> list[str]:
        return [split for split in self.sizes if split.startswith("dev")]

    def file(self, split: str) -> str:
        """Return the place of a split's file below the data folder."""
        return "GLUE/diagnostic/diagnostic.tsv" if self.name == "AX" else f"GLUE/{self.name}/{split}.tsv"

    def submission(self, split: str) -> str:
        """Return the name of the leaderboard's file for a test split."""
        ending = {"test_matched": "-m", "test_mismatched": "-mm"}.get(split, "")
        return f"{self.name}{ending}.tsv"


TASKS: dict[str, GlueTask] = {
    name: GlueTask(name, **{key: tuple(values) for key, values in fields.items()})
    for name, fields in yaml.safe_load(Path(__file__).with_name("glue.yaml").read_text("utf-8")).items()
}
TABLE_1 = ("MNLI", "QNLI", "QQP", "RTE", "SST-2", "MRPC", "CoLA", "STS-B")


@dataclass(frozen=True)
class LabelledExamples:
    """N rows of a split: texts, second ones of pairs, int64 classes or float32 scores 0-5 if known."""

    first: list[str]
    second: list[str] | None
    targets: np.ndarray | None

    def __len__(self) -> int:
        return len(self.first)

    def limited(self, count: int) -> "LabelledExamples":
        """Return `count` of the rows, always the same ones, in their order; all, if that is 0 or more."""
        if not 0 < count < len(self):
            return self
        rows = np.sort(np.random.default_rng(0).permutation(len(self))[:count])
        second = None if self.second is None else [self.second[n] for n in rows]
        targets = None if self.targets is None else self.targets[rows]
        return LabelledExamples([self.first[n] for n in rows], second, targets)


@dataclass
class GlueData:
    """A task's splits as found, and what is to be said about them."""

    task: GlueTask
    splits: dict[str, LabelledExamples]
    notes: list[str] = field(default_factory=list)
    """Training or dev rows missing or too many, beside what was published: figures are not comparable."""

    def limited(self, count: int) -> "GlueData":
        """Return the same with at most `count` training rows; 0: all."""
        train = {name: rows.limited(count) for name, rows in self.splits.items() if name == "train"}
        return replace(self, splits=self.splits | train)


def task_named(name: str) -> GlueTask:
    """Return the task, or raise a UserError with the nearest name; case does not matter."""
    return TASKS[known_name(name, TASKS, "GLUE task")]


def load(name: str, data: str = "") -> GlueData:
    """Read all splits of a task that are there, from DATA/GLUE or DATA."""
    task = task_named(name)
    loaded = GlueData(task, {})
    for split, published in task.sizes.items():
        rows = read_split(task, split, data)
        if rows is not None:
            loaded.splits[split] = rows
        if split.startswith("test"):
            continue
        if rows is None:
            loaded.notes.append(f"{task.name}: no {split} set here ({published:,} rows as published)")
        elif len(rows) != published:
            loaded.notes.append(
                f"{task.name}: {split} has {len(rows):,} rows here, {published:,} as published"
            )
    return loaded


def read_split(task: GlueTask, split: str, data: str | Path = "") -> LabelledExamples | None:
    """Read a split from DATA/GLUE, or DATA if that is the GLUE folder; None: its file is not there."""
    path = locate(data_root(data), task.file(split))
    if not path.is_file():
        return None
    first, second, label = task.columns
    labelled = not split.startswith("test")
    rows = lines(path)
    number = 0
    if labelled and task.headerless is not None:
        at = [task.headerless[0], task.headerless[1]]
    else:
        header, number = next(rows, "").split("\t"), 1
        wanted = [column for column in (first, second, label if labelled else None) if column is not None]
        absent = [column for column in wanted if column not in header]
        if absent:
            there = ", ".join(header)[:200]
            raise UserError(f"{path}, line 1: no column {absent[0]!r}; GLUE's file has it, this has {there}")
        at = [header.index(column) for column in wanted]
    texts: tuple[list[str], list[str]] = ([], [])
    targets: list[float] = []
    for row in rows:
        number += 1
        if not row:
            continue
        cells = row.split("\t")
        if len(cells) <= max(at) or (labelled and not cells[at[-1]]):
            if task.name == "QQP" and labelled:
                # Three questions of the official file hold line breaks, which tear their rows; every reader
                # drops the pieces.
                continue
            columns = f"{len(cells)} tab-separated columns, need {max(at) + 1}"
            raise UserError(f"{path}, line {number}: {columns}; the file is damaged")
        texts[0].append(cells[at[0]])
        if second is not None:
            texts[1].append(cells[at[1]])
        if labelled:
            targets.append(_target(task, cells[at[-1]], f"{path}, line {number}"))
    if not texts[0]:
        raise UserError(f"{path} has no rows; fetch it again")
    kind = np.int64 if task.labels else np.float32
    return LabelledExamples(
        texts[0], texts[1] if second is not None else None, np.asarray(targets, kind) if labelled else None
    )


def _target(task: GlueTask, label: str, where: str) -> float:
    if not task.labels:
        try:
            score = float(label)
        except ValueError:
            score = -1.0
        if not 0 <= score <= 5:
            raise UserError(f"{where}: {label!r} is not a score from 0 to 5")
        return score
    if label not in task.labels:
        raise UserError(f"{where}: unknown label {label!r}; {task.name} has {', '.join(task.labels)}")
    return task.labels.index(label)


def files(name: str, root: Path) -> list[Path]:
    """Return the files that fine-tuning reads: train, and the dev sets that are there, or else the first."""
    task = TASKS[name]
    train, *dev = (locate(root, task.file(split)) for split in ("train", *task.dev_splits()))
    return [train, *([path for path in dev if path.is_file()] or dev[:1])]


def prediction_lines(task: GlueTask, logits: np.ndarray) -> list[str]:
    """Return the leaderboard's file for test logits float[N, C]: a header, then index and label or score."""
    if task.labels:
        words = [task.labels[label] for label in logits.argmax(1)]
    else:
        words = [f"{score:.3f}" for score in np.clip(5 * logits[:, 0], 0, 5)]
    return ["index\tprediction", *(f"{number}\t{word}" for number, word in enumerate(words))]
