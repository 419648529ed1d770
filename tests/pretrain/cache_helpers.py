"""Caches of small data, and what they hold."""

from pathlib import Path

import numpy as np

from augment.core.ragged import Ragged
from pretrain.data.shards import ShardReader
from pretrain.prepare.cache.run import CacheFlags, cache

TOKENS = "del-word:rate=0.5|crop:rate=1.0|reorder"  # the second changes nothing


def make(data: Path, out: Path, columns: dict[str, str], copies: int = 1, workers: int = 1, **flags) -> dict:
    """Make a cache; columns: name -> specification."""
    specifications = {"aug" if name == "augmented" else name: spec for name, spec in columns.items()}
    settings = {"seed": 3, "progress": False, "resample": copies} | specifications | flags
    return cache(CacheFlags(data=data, out=out, workers=workers, **settings))


def records_of(folder: Path, split: str = "train") -> tuple[dict[str, list[list[int]]], np.ndarray]:
    """(columns of a cache, labels) in the order of records."""
    reader = ShardReader(folder, split)
    chunks = [reader.read(number) for number in range(reader.num_chunks)]
    columns = {}
    for name in reader.columns:
        stored = Ragged.concatenate([chunk.column(name) for chunk in chunks])
        columns[name] = [stored[row].tolist() for row in range(len(stored))]
    return columns, np.concatenate([chunk.labels for chunk in chunks]) if reader.labels else np.empty(0)
