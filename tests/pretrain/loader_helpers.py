"""What loader tests and the processes that they start share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from augment.ragged import Ragged
from augment.vocabulary import Vocabulary
from pretrain.loader import Loader, ViewSpec
from pretrain.shards import ShardReader

SIZE = 300
PAD, CLS, SEP, MASK, DEL = range(5)
_special = np.arange(SIZE) < 5
VOCABULARY = Vocabulary(SIZE, PAD, CLS, SEP, MASK, DEL, _special, np.ones(SIZE, bool), np.where(_special, 0, 1).astype(np.uint8))


def some_sequences(count: int, seed: int = 0) -> Ragged:
    random = np.random.default_rng(seed)
    lengths = random.integers(2, 38, count)
    return Ragged.from_sequences([[CLS, *random.integers(5, SIZE, length), SEP] for length in lengths])


def views(*augmentations: str) -> list[ViewSpec]:
    """An anchor, a positive and a negative, or as many of them as there are augmentations."""
    return [ViewSpec(role, augmentation) for role, augmentation in zip(("anchor", "positive", "negative"), augmentations)]


def make_loader(folder: str | Path, **changes: Any) -> Loader:
    """A loader of 25 steps of 48 sequences from 8 lanes, save for `changes`."""
    arguments = {
        "seed": 3,
        "global_batch": 48,
        "lanes": 8,
        "rank": 0,
        "world_size": 1,
        "views": views("del-span,reorder", "del-span,reorder"),
        "mask_rate": 0.15,
        "mask_copies": 1,
        "workers": 0,
        "start_step": 0,
        "stop_step": 25,
    }
    return Loader(ShardReader(folder), VOCABULARY, **(arguments | changes))


def children() -> set[int]:
    """Process numbers of this process's children."""
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in listed.split()}
