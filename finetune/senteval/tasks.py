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

from pretrain.benchmarks.files import DATA_SETS, BenchmarkSet, data_root, known_name, lines, require
from pretrain.common.errors import UserError

TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
ENTAILMENT = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
SNLI_CLASSES = {"entailment": 0, "neutral": 1, "contradiction": 2}


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
    """A task: how it is evaluated, and by what its files are read."""

    name: str
    scheme: str
    """nested, cross_validated, split (see `protocol`), snli (split, no regularisation) or relatedness."""
    read: Callable[..., TaskSplits]
    set_name: str = ""
    """Of its data, if that is not SentEval/NAME."""

    @property
    def data(self) -> BenchmarkSet:
        return DATA_SETS[self.set_name or f"SentEval/{self.name}"]


def load(name: str, data: str | Path | None = None) -> TaskSplits:
    """Read the examples of a task, sorted as the official code sorts them."""
    task, root = TASKS[check_name(name)], data_root(data)
    return task.read(*require(files(task.name, root), root))


def check_name(name: str, others: Iterable[str] = ()) -> str:
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


def _binary(positive: Path, negative: Path) -> TaskSplits:
    """Read one sentence a line, one file a class; the class that the official code calls positive first."""
    examples = [
        (line, label) for path, label in ((positive, 1), (negative, 0)) for line in lines(path, "latin-1")
    ]
    return TaskSplits({"all": _sorted(examples, (0,))}, 2)


def _reader(
    pattern: str,
    label: Callable[[str], float],
    expected: str,
    classes: int,
    header: bool = False,
    encoding: str = "utf-8",
) -> Callable[..., TaskSplits]:
    """Return a reader of train, perhaps dev, and test, a file each, one example a line.

    pattern: of a line, with the groups first, perhaps second, and label; label: what the last one says, or
    KeyError, ValueError. expected: the pattern in words.
    """
    form = re.compile(pattern)
    texts = [name for name in ("first", "second") if name in form.groupindex]

    def read_split(path: Path) -> Split:
        examples = []
        for number, line in enumerate(lines(path, encoding), 1):
            if header and number == 1:
                continue
            try:
                if (found := form.fullmatch(line.strip())) is None:
                    raise ValueError
                examples.append((*found.group(*texts, "label")[:-1], label(found["label"])))
            except (KeyError, ValueError):
                raise _bad(path, number, expected) from None
        return _sorted(examples, range(len(texts)))

    def read(*paths: Path) -> TaskSplits:
        names = ("train", "dev", "test") if len(paths) == 3 else ("train", "test")
        return TaskSplits(dict(zip(names, map(read_split, paths), strict=True)), classes)

    return read


def _cells(names: str) -> str:
    """Return the pattern of a line of cells between tabs, "." for one that is not read; more may follow."""
    cells = "\t".join("[^\t]*" if name == "." else rf"(?P<{name}>[^\t]*)" for name in names.split())
    return rf"{cells}(?:\t.*)?"


def _sick(label: str, convert: Callable[[str], float]) -> Callable[..., TaskSplits]:
    expected = "pair_ID, two sentences, relatedness, entailment"
    return _reader(_cells(f". first second {label}"), convert, expected, 3, header=True)


_mrpc = _reader(
    _cells("label . . first second"),
    ("0", "1").index,
    "a label, two numbers and two sentences between tabs",
    2,
    header=True,
)
_trec = _reader(
    "(?P<label>[^:]*):[^ ]* (?P<first>.+)",
    TREC_CLASSES.index,
    "CLASS:subclass question",
    len(TREC_CLASSES),
    encoding="latin-1",
)
_sst2 = _reader(r"(?P<first>[^\t]*)\t(?P<label>[^\t]*)", ("0", "1").index, "a sentence, a tab and 0 or 1", 2)
_sst5 = _reader(
    "(?P<label>[^ ]*) (?P<first>.*)", list("01234").index, "a class from 0 to 4 and a sentence", 5
)
_sts_benchmark = _reader(
    _cells(". . . . label first second"), float, "seven columns: score fifth, sentences sixth and seventh", 5
)


def read_snli(first: Path, second: Path, labels: Path) -> Split:
    """Read one split of SNLI, from its three files."""
    columns = [list(lines(first, "latin-1")), list(lines(second, "latin-1")), list(lines(labels))]
    if len({len(column) for column in columns}) != 1:
        counts = ", ".join(f"{len(column):,}" for column in columns)
        raise UserError(f"{first}, {second} and {labels} have {counts} lines; they must have as many")
    unknown = sorted(set(columns[2]) - set(SNLI_CLASSES))
    if unknown:
        raise UserError(f"{labels}: the label {unknown[0]!r} is none of {', '.join(SNLI_CLASSES)}")
    # sorted by the label's name, as there
    examples = zip(columns[0], columns[1], (SNLI_CLASSES[label] for label in columns[2]), strict=True)
    return _sorted(examples, (1, 0), lambda label: list(SNLI_CLASSES)[label])


def _snli(*paths: Path) -> TaskSplits:
    return TaskSplits(
        {part: read_snli(*paths[3 * n : 3 * n + 3]) for n, part in enumerate(("train", "dev", "test"))}, 3
    )


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
_TASKS = (
    *(SentEvalTask(name, "nested", _binary) for name in ("MR", "CR", "SUBJ", "MPQA")),
    SentEvalTask("SST2", "split", _sst2),
    SentEvalTask("TREC", "cross_validated", _trec),
    SentEvalTask("MRPC", "cross_validated", _mrpc),
    SentEvalTask("SST5", "split", _sst5),
    SentEvalTask("SICK-E", "split", _sick(". label", ENTAILMENT.__getitem__), "SentEval/SICK"),
    SentEvalTask("SNLI", "snli", _snli),
    SentEvalTask("SICK-R-supervised", "relatedness", _sick("label", float), "SentEval/SICK"),
    SentEvalTask("STS-B-supervised", "relatedness", _sts_benchmark, "SentEval/STS-B"),
    *(SentEvalTask(name, "split", _probing, f"probing/{name}") for name in PROBING),
)
TASKS: dict[str, SentEvalTask] = {task.name: task for task in _TASKS}
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
"""The seven whose mean papers print."""
