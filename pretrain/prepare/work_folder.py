"""What the steps of a preparation share: their base, and the files that they leave for each other.

Nothing that a step does depends on how many tasks run at once. Each output appears whole under its final
name, and a step that runs twice writes the same bytes. There is one type for each file in the work folder.

Beside these: run files in texts, signatures and sequences (`pretrain.prepare.buckets`), the tokenizer,
marks of finished tasks (logs), and what datatrove keeps (minhash). After a change of what a file of the same
name holds unfinished preparations are unreadable: raise `pretrain.data.manifest.PREPARATION` with it.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, RootModel

from pretrain.common.files import make_folder
from pretrain.config.data import DataConfig
from pretrain.data.shard_writer import write_atomically
from pretrain.prepare.buckets import TEXT_RECORD, Texts, load_texts, open_runs, text_key
from pretrain.prepare.sources.readers import ReadTask

BUCKET_BYTES = 64_000_000
"""Most text that a shard-writing task holds at a time; it needs 0.3 GB plus 8 times that."""
MOST_PAIRS = 10_000
MOST_SHOWN = 5  # pairs of a kind


class WorkFile(BaseModel):
    """A pydantic model that is kept as a JSON file; `place` is its path in the work folder."""

    place: ClassVar[str]

    def __init_subclass__(cls, place: str = "", **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls.place = place

    def write(self, work: Path, rank: int = 0) -> None:
        """Write the file of a task, whole or not at all. Raises: UserError when the disk is full."""
        path = work / self.place.format(rank=rank)
        make_folder(path.parent)
        write_atomically(path, self.model_dump_json(exclude_none=True).encode())

    @classmethod
    def exists(cls, work: Path, rank: int = 0) -> bool:
        """Return whether a task has written its file."""
        return (work / cls.place.format(rank=rank)).is_file()

    @classmethod
    def read(cls, work: Path, rank: int = 0) -> Self:
        """Read the file of a task."""
        return cls.model_validate_json((work / cls.place.format(rank=rank)).read_bytes())

    @classmethod
    def read_all(cls, work: Path) -> dict[int, Self]:
        """Read the files of all tasks, by task."""
        paths = (work / cls.place).parent.glob("*.json")
        return {rank: cls.read(work, rank) for rank in sorted(int(path.stem) for path in paths)}


class PreparationPlan(WorkFile, place="plan.json"):
    """What is made. files: size and digest of those that are read. described: the sources, in words.
    annotation: of the parser.
    """

    preparation: int = 1
    config: DataConfig
    tasks: list[ReadTask]
    files: dict[str, tuple[int, str]] = {}
    buckets: int
    described: str
    annotation: dict[str, str] | None = None


class Decision(WorkFile, place="decision.json"):
    """The document `key` is held out or not, in place of what its hash says; cut: its last sentences are."""

    key: int
    cut: bool
    heldout: bool


class _Counts(RootModel[dict[str, int]], WorkFile):
    @classmethod
    def total(cls, work: Path) -> Counter[str]:
        """Add up the counts of all tasks."""
        total: Counter[str] = Counter()
        for counts in cls.read_all(work).values():
            total.update(counts.root)
        return total


class DocumentCounts(_Counts, place="counts/reader/{rank:05d}.json"):
    """Counts of a task that reads."""


class SentenceCounts(_Counts, place="counts/read/{rank:05d}.json"):
    """Counts of a task that cleans, splits and scatters."""


class ResolveCounts(_Counts, place="counts/resolve/{rank:05d}.json"):
    """Counts of a task that looks for held-out sentences in training documents."""


class UnreadRows(WorkFile, place="counts/faults/{rank:05d}.json"):
    """named: the first rows that a task could not read, with file, line and reason."""

    named: list[str]


class ParagraphPairs(RootModel[list[tuple[str, str]]], WorkFile, place="counts/pairs/{rank:05d}.json"):
    """Of held-out paragraphs the first sentence and the others (`pretrain.prepare.stages.read.pairs_of`)."""

    @classmethod
    def each(cls, work: Path) -> Iterator[tuple[str, str]]:
        """Yield the pairs of all tasks, with one task's in memory."""
        for path in sorted((work / cls.place).parent.glob("*.json")):
            yield from cls.read(work, int(path.stem)).root


def sample_of(pairs: Iterable[tuple[str, str]], count: int = MOST_PAIRS) -> list[tuple[str, str]]:
    """Return the `count` pairs of the lowest hashes, in their order: all sources have their share."""

    def hashed(pair: tuple[str, str]) -> tuple[int, tuple[str, str]]:
        return text_key("\n".join(pair).encode("utf-8", "replace"), 0), pair

    return heapq.nsmallest(count, pairs, hashed)


class ShownPairs(RootModel[dict[str, list[tuple[str, str]]]], WorkFile, place="counts/shown/{rank:05d}.json"):
    """Kind of structure -> a few pairs of it."""

    @classmethod
    def few(cls, work: Path) -> dict[str, list[tuple[str, str]]]:
        """Return `MOST_SHOWN` pairs of each kind of all tasks."""
        found: dict[str, list[tuple[str, str]]] = {}
        for shown in cls.read_all(work).values():
            for kind, pairs in shown.root.items():
                found[kind] = sample_of([*found.get(kind, ()), *pairs], MOST_SHOWN)
        return found


class HashRange(WorkFile, place="counts/hashes/{rank:05d}.json"):
    """The smallest and the largest hash of a task's documents, each with the document's key.

    Both are None of a task without documents.
    """

    smallest: tuple[int, int] | None = None
    largest: tuple[int, int] | None = None

    def add(self, number: int, key: int) -> None:
        """Take in a document's hash and key."""
        self.smallest = min(self.smallest or (number, key), (number, key))
        self.largest = max(self.largest or (number, key), (number, key))


class TaskColumns(WorkFile, place="counts/found/{rank:05d}.json"):
    """The columns and labels that the records of a task have.

    labels: how many, 0 for none. scores: the least and the largest, or None. position: of the first record.
    """

    columns: list[str]
    labels: int
    position: int
    scores: tuple[float, float] | None = None


class Columns(WorkFile, place="counts/columns/{rank:05d}.json"):
    """The columns of the data, how many labels it has, least and largest score (None: it has none)."""

    columns: list[str]
    labels: int | None = None
    scores: tuple[float, float] | None = None


class TokenizerSize(WorkFile, place="counts/tokenizer/{rank:05d}.json"):
    """Size of the vocabulary, special tokens included. accented_letters: `accented_share` of the text."""

    vocabulary_size: int
    accented_letters: float | None = None


class ShuffledShards(WorkFile, place="counts/shuffle/{rank:05d}.json"):
    """shards: split -> the manifest's entry of the shard that a task wrote."""

    shards: dict[str, dict[str, Any]]


class BuiltShards(WorkFile, place="counts/build/{rank:05d}.json"):
    """What became of a bucket: its counts, and its shards, unless `ShuffledShards` has them."""

    counts: dict[str, int]
    shards: dict[str, dict[str, Any]] = {}


class WorkStep:
    """A step of a stage (`pretrain.prepare.jobs`) that knows its work folder. stage: its name."""

    stage: str

    def __init__(self, work: Path):
        self.work = Path(work)

    @property
    def out(self) -> Path:
        return self.work.parent


class PlannedStep(WorkStep):
    """A step of a preparation, which reads in the plan what to do."""

    @cached_property
    def plan(self) -> PreparationPlan:
        return PreparationPlan.read(self.work)

    @property
    def config(self) -> DataConfig:
        return self.plan.config

    @property
    def annotation(self) -> dict[str, str]:
        """Return what the plan says of the parser, of data that is annotated."""
        annotation = self.plan.annotation
        assert annotation is not None  # a plan with `config.annotate` has it
        return annotation

    def texts_of(self, folder: str, bucket: int) -> Iterator[Texts]:
        """Yield the texts of a bucket, in parts of which none has more text than `BUCKET_BYTES`."""
        runs = open_runs(self.work / folder, self.plan.buckets, TEXT_RECORD)
        parts = max(1, -(-sum(run.text_bytes(bucket) for run in runs) // BUCKET_BYTES))
        for part in range(parts):
            yield load_texts(runs, bucket, part, parts)

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key != "plan"}
