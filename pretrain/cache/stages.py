"""The stages of `pretrain.cache`, as datatrove pipeline steps: one task a shard and copy, then the manifest.

Each chunk becomes a chunk, and a record of the cache has the place that its sentence has in the data.
Nothing is sorted, and the result depends on data, specifications and seed alone.
"""

import os
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from augment.core.keys import sequence_keys
from pretrain.cache.augmenting import (
    CHANGED,
    LABELLED,
    Augmented,
    augment,
    merge_columns,
    names_of,
    open_pipelines,
    view_number,
)
from pretrain.common.errors import UserError
from pretrain.common.files import copy_tree
from pretrain.data.batch import ViewSpec, label_names
from pretrain.data.manifest import SPLITS, preparation_of
from pretrain.data.shard_writer import ShardWriter, split_summary, write_manifest
from pretrain.data.shards import ShardReader
from pretrain.prepare.stages.step import Step
from pretrain.prepare.work_folder import WorkFile

Rates = dict[str, dict[str, Counter[str]]]
"""Column -> augmentation -> how often it was drawn, and with what outcome."""


class Contents(BaseModel):
    """All that decides what the shards of a cache are.

    content: split -> hash of the data. columns: column -> specification. rules: digest of the augmentations'
    code. resources: name -> sha256 of what they read.
    """

    content: dict[str, str]
    columns: dict[str, str]
    seed: int
    copies: int
    unchanged: str
    rules: str
    resources: dict[str, str]

    @property
    def labelled_view(self) -> ViewSpec | None:
        """Return the view whose augmentations are the labels; None where there are no labels."""
        spec = self.columns.get(LABELLED)
        return None if spec is None else ViewSpec(LABELLED, spec, labelled=True)

    def no_counts(self) -> Rates:
        """Return a counter for each augmentation of each column."""
        return {column: {name: Counter() for name in names_of(spec)} for column, spec in self.columns.items()}


@dataclass(frozen=True)
class ShardTask:
    """Shard `number` of a split of the cache: copy `copy` of some chunks, which have `sequences` records."""

    split: str
    number: int
    copy: int
    first_chunk: int
    chunks: int
    sequences: int


class CachePlan(WorkFile):
    """What is made, of which data."""

    place: ClassVar[str] = "plan.json"

    data: str
    synonyms: str | None = None
    made: Contents
    tasks: list[ShardTask]


class AugmentedShard(WorkFile):
    """What came out of a task. shard: its entry in the manifest."""

    place: ClassVar[str] = "counts/augment/{rank:05d}.json"

    counts: Rates
    shard: dict[str, Any]


class _CacheStep(Step):
    @cached_property
    def plan(self) -> CachePlan:
        return CachePlan.read(self.work)


class AugmentShard(_CacheStep):
    """Augment one shard of the data, in one of its copies."""

    name, stage = "augment a shard", "augment"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tasks run side by side: one core each
        task, made = self.plan.tasks[rank], self.plan.made
        reader = ShardReader(self.plan.data, task.split)
        pipelines = open_pipelines(reader, made.columns, self.plan.synonyms)
        views = {column: view_number(column, made.columns) for column in made.columns}
        counts = made.no_counts()
        path = self.out / task.split / f"shard-{task.number:05d}.tar"
        with ShardWriter(path, reader.manifest["token_dtype"], self.work / "partial") as writer:
            for number in range(task.first_chunk, task.first_chunk + task.chunks):
                chunk = reader.read(number)
                columns: dict[str, Augmented] = {}
                for column, pipeline in pipelines.items():
                    keys = sequence_keys(made.seed, task.copy, chunk.sequence_ids, views[column], "augment")
                    columns[column] = augment(
                        pipeline, chunk.sequences, keys, chunk.annotation, reader.max_length
                    )
                    for name, outcomes in columns[column].counts().items():
                        counts[column][name].update(outcomes)
                stored = merge_columns(chunk.sequences, list(columns.values()))
                view = made.labelled_view
                labels = None if view is None else columns[LABELLED].labels(view)
                if made.unchanged == "drop":
                    kept = np.logical_and.reduce([column.outcome == CHANGED for column in columns.values()])
                    stored = stored.take(np.flatnonzero(np.repeat(kept, 1 + len(columns))))
                    labels = None if labels is None else labels[kept]
                if len(stored):
                    starts = stored.offsets[:-1][stored.lengths > 0] + 1
                    writer.write(stored, starts, columns=1 + len(columns), labels=labels)
        AugmentedShard(counts=counts, shard=writer.record).write(self.work, rank)


class MergeCache(_CacheStep):
    """Copy the tokenizer and write the manifest: from then on the folder is prepared data."""

    name = stage = "manifest"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        made = self.plan.made
        shards: dict[str, list] = {split: [] for split in SPLITS}
        counts = made.no_counts()
        for number, task in enumerate(self.plan.tasks):
            done = AugmentedShard.read(self.work, number)
            shards[task.split].append(done.shard)
            for column, outcomes in done.counts.items():
                for name, more in outcomes.items():
                    counts[column][name].update(more)
        if not any(shard["chunks"] for shard in shards["train"]):
            raise UserError(
                "no sentence was changed in every column, so --unchanged drop leaves nothing; name other "
                "augmentations, or --unchanged keep"
            )
        reader = ShardReader(self.plan.data)
        source = reader.manifest
        copy_tree(reader.tokenizer_path, self.out / "tokenizer")
        names = [] if made.labelled_view is None else label_names(made.labelled_view)
        copied = ("format", "max_length", "vocabulary_size", "token_dtype", "tokenizer_hash")
        manifest = {
            **{key: source[key] for key in copied},
            "preparation": preparation_of(source),
            "unit": "record",
            "tokenizer": "tokenizer",
            "columns": ["text", *made.columns],
            **({"labels": len(names), "label_names": names} if names else {}),
            "splits": {split: split_summary(records) for split, records in shards.items()},
            "cache": {
                **made.model_dump(),
                "parser": source.get("annotation"),
                "rates": {
                    column: {name: _rate(outcomes) for name, outcomes in of_column.items()}
                    for column, of_column in counts.items()
                },
            },
        }
        write_manifest(self.out, manifest)


def _rate(outcomes: dict[str, int]) -> dict[str, float | int]:
    """Return an augmentation's counts and its rate of change, a share of the sentences that drew it."""
    return {**outcomes, "rate": round(outcomes["changed"] / max(1, outcomes["drawn"]), 6)}
