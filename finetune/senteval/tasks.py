"""SentEval's supervised tasks, read from its own files, in the order that its folds depend on.

The official code sorts examples by length to save padding before it makes folds, so the order decides which
examples share a fold, and is reproduced: by (words of the sentence, label), for pairs by (words of the first,
of the second, label; SNLI the second first). Files are latin-1 if the official code reads them so.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from pretrain.benchmarks.files import DATA_SETS, BenchmarkSet, data_root, known_name, lines, require
from pretrain.common.errors import UserError


@dataclass(frozen=True)
class Split:
    """N examples: sentences, for pairs the second ones, and int64 classes or float64 scores."""

    first: list[str]
    second: list[str] | None
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.first)

    def sentences(self) -> list[str]:
        return self.first + (self.second or [])


@dataclass(frozen=True)
class TaskSplits:
    """A task's splits ("all", or "train", "test" and perhaps "dev") and its number of classes."""

    splits: dict[str, Split]
    classes: int


@dataclass(frozen=True)
class SentEvalTask:
    """A task, as tasks.yaml describes it."""

    name: str
    scheme: str
    line: str = ""
    cells: str = ""
    labels: tuple[str, ...] = ()
    expected: str = ""
    header: bool = False
    encoding: str = "utf-8"
    data_name: str = ""

    @property
    def data(self) -> BenchmarkSet:
        return DATA_SETS[self.data_name or f"SentEval/{self.name}"]

    @property
    def pattern(self) -> str:
        cells = ("[^\t]*" if name == "." else rf"(?P<{name}>[^\t]*)" for name in self.cells.split())
        return self.line or "\t".join(cells) + r"(?:\t.*)?"

    def read(self, *paths: Path) -> TaskSplits:
        """Read the files of all splits: of most tasks train, perhaps dev, and test, one example a line."""
        if self.scheme == "nested":  # a file a class; the one that the official code calls positive first
            both = [(line, 1 - n) for n, path in enumerate(paths) for line in lines(path, "latin-1")]
            return TaskSplits({"all": _sorted(both, (0,))}, 2)
        if self.scheme == "snli":
            parts = {name: paths[3 * n : 3 * n + 3] for n, name in enumerate(("train", "dev", "test"))}
            return TaskSplits({name: self._read_snli(*files) for name, files in parts.items()}, 3)
        if not self.expected:
            return _probing(*paths)
        names = ("train", "dev", "test") if len(paths) == 3 else ("train", "test")
        return TaskSplits(dict(zip(names, map(self._read_split, paths), strict=True)), len(self.labels))

    def _read_split(self, path: Path) -> Split:
        form, convert = re.compile(self.pattern), self.labels.index if self.labels else float
        texts = [name for name in ("first", "second") if name in form.groupindex]
        examples = []
        for number, line in enumerate(lines(path, self.encoding), 1):
            if self.header and number == 1:
                continue
            try:
                if (found := form.fullmatch(line.strip())) is None:
                    raise ValueError
                examples.append((*(found[name] for name in texts), convert(found["label"])))
            except ValueError:
                raise _bad(path, number, self.expected) from None
        return _sorted(examples, range(len(texts)))

    def _read_snli(self, first: Path, second: Path, labels: Path) -> Split:
        """Read one split of SNLI, from its three files."""
        columns = [list(lines(first, "latin-1")), list(lines(second, "latin-1")), list(lines(labels))]
        if len({len(column) for column in columns}) != 1:
            counts = ", ".join(f"{len(column):,}" for column in columns)
            raise UserError(f"{first}, {second} and {labels} have {counts} lines; they must have as many")
        unknown = sorted(set(columns[2]) - set(self.labels))
        if unknown:
            raise UserError(f"{labels}: the label {unknown[0]!r} is none of {', '.join(self.labels)}")
        # sorted by the label's name, as there
        examples = zip(columns[0], columns[1], map(self.labels.index, columns[2]), strict=True)
        return _sorted(examples, (1, 0), self.labels.__getitem__)


def load(name: str, data: str | Path | None = None) -> TaskSplits:
    """Read the examples of a task, sorted as the official code sorts them."""
    task, root = TASKS[task_name(name)], data_root(data)
    return task.read(*require(files(task.name, root), root))


def task_name(name: str, others: Iterable[str] = ()) -> str:
    """Return the task's name as TASKS (or `others`) has it; case, hyphens and underscores do not matter."""
    return known_name(name, (*others, *TASKS), "SentEval task", lambda one: re.sub("[-_]", "", one.lower()))


def files(name: str, root: Path) -> list[Path]:
    """Return the files of a task, which may be absent."""
    return TASKS[name].data.paths(root)


def _sorted(examples: Iterable[tuple], order: Sequence[int], key: Callable = lambda label: label) -> Split:
    """Sort (text, label) or (text, text, label) by words of the texts `order`, then by the label's `key`."""
    rows = [([text.split() for text in texts], label) for *texts, label in examples]
    rows.sort(key=lambda row: (*(len(row[0][side]) for side in order), key(row[1])))
    sides = [[" ".join(texts[side]) for texts, _ in rows] for side in range(len(order))]
    return Split(sides[0], sides[1] if len(sides) > 1 else None, np.array([label for _, label in rows]))


def _bad(path: Path, number: int, expected: str) -> UserError:
    return UserError(f"{path}, line {number}: expected {expected}; the file is damaged or not SentEval's")


def _probing(path: Path) -> TaskSplits:
    """Read `tr|va|te`, label, sentence between tabs; classes in the order of their sorted names."""
    found: dict[str, list[tuple[str, str]]] = {"tr": [], "va": [], "te": []}
    for number, line in enumerate(lines(path), 1):
        cells = line.rstrip().split("\t")
        if len(cells) < 3 or cells[0] not in found:
            raise _bad(path, number, "tr, va or te, a label and a sentence between tabs")
        found[cells[0]].append((cells[-1], cells[1]))
    classes = sorted({label for _, label in found["tr"]})
    number_of = {label: number for number, label in enumerate(classes)}
    strange = sorted({label for part in ("va", "te") for _, label in found[part]} - set(classes))
    if strange or not all(found.values()):
        what = f"{strange[0]!r} is not among the training labels" if strange else "no line of tr, va or te"
        raise UserError(f"{path}: {what}; the file is damaged or not SentEval's")
    splits = {
        name: _sorted(((text, number_of[label]) for text, label in found[part]), (0,))
        for name, part in (("train", "tr"), ("dev", "va"), ("test", "te"))
    }
    return TaskSplits(splits, len(classes))


PROBING = tuple(one.name.removeprefix("probing/") for one in DATA_SETS.values() if one.group == "probing")
_YAML = yaml.safe_load(Path(__file__).with_name("tasks.yaml").read_text("utf-8"))
_TASKS = (
    *(SentEvalTask(name, **keys | {"labels": tuple(keys.get("labels", ()))}) for name, keys in _YAML.items()),
    *(SentEvalTask(name, "split", data_name=f"probing/{name}") for name in PROBING),
)
TASKS: dict[str, SentEvalTask] = {task.name: task for task in _TASKS}
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
"""The seven whose mean papers print."""
