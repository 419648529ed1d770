"""Choose the texts of a bucket: each once, as often as its source's weight says, in shuffled order."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from augment.core.ragged import segment_indices
from pretrain.config.data import DataConfig
from pretrain.data.manifest import SPLITS
from pretrain.prepare import buckets as bk


@dataclass(frozen=True)
class Chosen:
    """The R texts of a bucket that stay, sorted by key.

    rows: int64[R], into the bucket's texts. records: TEXT_RECORD[R]. copies: int64[R], how often an epoch
    shows each. place: int64[R], the number of each among its duplicates.
    """

    rows: np.ndarray
    records: np.ndarray
    copies: np.ndarray
    place: np.ndarray

    def shuffled(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each split with its texts, copies included, in their final order: int64[...] below R."""
        repeated = np.repeat(np.arange(len(self.records)), self.copies)
        copy = segment_indices(np.zeros(len(self.records), np.int64), self.copies)
        keys = bk.mixed(self.records["key"][repeated], bk.ORDER_SALT)
        # The number of the copy (of the duplicate too, where those stay) takes each to another place.
        keys = bk.mixed(keys + (copy + (self.place[repeated] << 20)).astype(np.uint64), 0)
        shuffled = repeated[np.argsort(keys, kind="stable")]
        for number, split in enumerate(SPLITS):
            yield split, shuffled[self.records["heldout"][shuffled] == number]


def choose(records: np.ndarray, config: DataConfig, counts: Counter[str]) -> Chosen:
    """Drop the duplicates among a bucket's texts, of which held-out ones stay, and weigh the rest.

    records: TEXT_RECORD[n]. counts: what is dropped and repeated is added.
    """
    order = np.lexsort((1 - records["heldout"].astype(np.int64), records["key"]))
    records = records[order]
    first = np.ones(len(order), bool)
    first[1:] = records["key"][1:] != records["key"][:-1]
    group = np.flatnonzero(first)[np.cumsum(first) - 1]  # the first duplicate of each
    place = np.arange(len(order)) - group
    keep = first.copy()
    if config.dedup == "none":
        keep |= records["heldout"][group] == 0
    unit = "documents" if config.keeps_documents else f"{config.unit}s"
    counts[f"{unit}_duplicate"] += int((~keep).sum())
    weights = np.array([source.weight for source in config.sources])[records["source"]]
    coin = bk.fraction(records["key"] + place.astype(np.uint64), bk.WEIGHT_SALT)
    copies = np.floor(weights).astype(np.int64) + (coin < weights % 1)
    copies = np.where(records["heldout"] == 1, np.minimum(copies, 1), copies)
    counts[f"{unit}_left_out_by_weight"] += int((keep & (copies == 0)).sum())
    counts[f"{unit}_repeated_by_weight"] += int((copies[keep] - 1).clip(0).sum())
    keep &= copies > 0
    return Chosen(order[keep], records[keep], copies[keep], place[keep])
