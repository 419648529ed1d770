"""Declare a data set: its files, its rows as published, how they are counted, and where to get them.

Every evaluation declares its own sets beside the code that reads them, as a tuple `DATA_SETS`;
`finetune.data.catalogue` gathers them, and `python -m finetune.data check DIR` checks them.

    DATA_SETS = (
        DataSet("zh/STS-B", parts({"dev": (("zh/STS-B/cnsd-sts-dev.txt",), 1458)}, read), "github.com/..."),
    )
"""

from collections.abc import Callable, Iterable, Mapping, Sized
from dataclasses import dataclass
from pathlib import Path

from pretrain.benchmarks.files import locate

SENTEVAL = (
    "https://huggingface.co/datasets/princeton-nlp/datasets-for-simcse/resolve/main/senteval.tar "
    "(its downstream/)"
)
"""Where most of SentEval's files come from."""


@dataclass(frozen=True)
class Part:
    """A split of a set: its files below the data folder and its rows as published."""

    files: tuple[str, ...]
    rows: int
    count: Callable[[Path], int]
    """Count the rows that are there, given the data folder."""


@dataclass(frozen=True)
class DataSet:
    """A set and its splits."""

    name: str
    """GROUP/NAME, after the folders that it lies in."""
    parts: dict[str, Part]
    origin: str
    """Where it comes from, for users who lack it."""

    @property
    def group(self) -> str:
        return self.name.split("/")[0]


def files_of(data_sets: Iterable[DataSet], name: str, root: Path) -> list[Path]:
    """Return the files of the set of this name below the data folder, which may be absent."""
    splits = [part for one in data_sets if one.name == name for part in one.parts.values()]
    return [locate(root, file) for part in splits for file in part.files]


def parts(sizes: Mapping[str, tuple[tuple[str, ...], int]], read: Callable[..., Sized]) -> dict[str, Part]:
    """Return the splits of `sizes`, name -> (files, rows), whose rows `read` returns given their paths."""

    def part(files: tuple[str, ...], rows: int) -> Part:
        return Part(files, rows, lambda root: len(read(*(locate(root, file) for file in files))))

    return {name: part(*split) for name, split in sizes.items()}
