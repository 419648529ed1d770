"""Augment the sentences of prepared data once, into a folder of shards: one task a shard and copy.

The command is `clearly cache`. Each chunk becomes a chunk, and a record of the cache has the place
that its sentence has in the data. Nothing is sorted, and the result depends on data, specifications and seed
alone.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from augment.core.identity import equal_sequences, normalise
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import alternatives, parse
from augment.spec.pipeline import Pipeline
from augment.spec.resources import SYNONYMS, resource_hash, resources, rules_digest
from pretrain.common.errors import UserError
from pretrain.common.files import copy_tree
from pretrain.data.annotation import Annotation
from pretrain.data.batch import ViewSpec, label_names
from pretrain.data.manifest import MANIFEST, SPLITS, preparation_of, read_manifest, require_files
from pretrain.data.shard_writer import ShardWriter, split_summary, write_manifest
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.data.worker import build_for, clip, labels_of, synonyms_for
from pretrain.prepare.jobs import Job, make_once
from pretrain.prepare.work_folder import WorkFile, WorkStep

LABELLED = "augmented"
COLUMNS = ("positive", "negative", LABELLED)
OUTCOMES = ("not_applicable", "same", "changed")
NOT_APPLICABLE, SAME, CHANGED = range(len(OUTCOMES))
Rates = dict[str, dict[str, Counter[str]]]
"""Column -> augmentation -> how often it was drawn, and with what outcome."""


# -- the sentences of a chunk: augmented, with marks on those that have changed -------------


@dataclass(frozen=True)
class Augmented:
    """What N sentences became.

    outcome: int64[N], a number of `OUTCOMES`: changed; same, if the text differs in white space and quotes
    only, or in nothing that the tokens show; not_applicable, if the rule gave nothing else than the
    sentence. rows: int64[K], those that changed; tokens: Ragged of K. names: str of each augmentation; taken:
    int64[N], which of them each sentence drew.
    """

    outcome: np.ndarray
    rows: np.ndarray
    tokens: Ragged
    names: list[str]
    taken: np.ndarray

    def counts(self) -> dict[str, Counter[str]]:
        """Count how often each augmentation was drawn, and with what outcome."""
        # an augmentation that is named twice is counted once
        counts: dict[str, Counter[str]] = {name: Counter() for name in self.names}
        for number, name in enumerate(self.names):
            outcome = np.bincount(self.outcome[self.taken == number], minlength=len(OUTCOMES)).tolist()
            counts[name].update({"drawn": sum(outcome), **dict(zip(OUTCOMES, outcome))})
        return counts


def augment(
    pipeline: Pipeline, source: Ragged, keys: np.ndarray, sentences: Annotation | None, max_length: int
) -> Augmented:
    """Augment N sentences (tokens, keys uint64[N], parses for `needs_text`) and mark which have changed.

    Texts are compared after `normalise`, and by their tokens; if augmentations of tokens come after those
    of text, by their tokens alone.
    """
    texts: dict[int, str] = {}
    normalised: set[int] = set()
    if pipeline.needs_text:
        assert sentences is not None  # opening the pipeline refused data without parses
        texts = pipeline.texts(keys, sentences)
        normalised = {row for row, text in texts.items() if normalise(text) == normalise(sentences.text(row))}
    tokens = clip(pipeline.tokens(source, keys, texts), max_length)
    outcome = np.where(equal_sequences(source, tokens), NOT_APPLICABLE, CHANGED)
    one_stage = len(pipeline.stages) == 1
    compares_texts = one_stage or not pipeline.works_on_tokens
    for row in texts:
        unseen = not pipeline.works_on_tokens and outcome[row] != CHANGED
        if unseen or (compares_texts and row in normalised):
            outcome[row] = SAME
    rows = np.flatnonzero(outcome == CHANGED)
    taken = pipeline.choices(keys) if one_stage else np.zeros(len(source), dtype=np.int64)
    specification = parse(pipeline.name)
    # rates are of the alternatives of one stage, or of the whole of several
    names = list(map(str, specification.stages[0])) if one_stage else [str(specification)]
    return Augmented(outcome, rows, tokens.take(rows), names, taken)


def merge_columns(source: Ragged, columns: Sequence[Augmented]) -> Ragged:
    """Return the stored sequences of N records: text, then each column, empty if unchanged."""
    count = len(source)
    place_of_nothing = count + sum(len(column.rows) for column in columns)
    order = np.full((count, 1 + len(columns)), place_of_nothing, dtype=np.int64)
    order[:, 0] = np.arange(count)
    begin = count
    for number, column in enumerate(columns, 1):
        order[column.rows, number] = begin + np.arange(len(column.rows))
        begin += len(column.rows)
    nothing = Ragged(np.empty(0, np.int32), np.zeros(2, np.int64))
    return Ragged.concatenate([source, *(column.tokens for column in columns), nothing]).take(order.ravel())


def open_pipelines(reader: ShardReader, columns: dict[str, str], synonyms: str | None) -> dict[str, Pipeline]:
    """Build each column's augmentation for this data."""
    tokenizer = load_tokenizer(reader.tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    table = synonyms_for(columns.values(), synonyms, tokenizer, vocabulary)
    return {column: build_for(reader, spec, vocabulary, table) for column, spec in columns.items()}


def view_number(column: str, columns: Iterable[str]) -> int:
    """Return the number that a column's view draws with, a different one for each of a cache's `columns`.

    It is the view's number on-line in augcse (anchor 0, positive 1, augmented 2), in sda (anchor, positive,
    negative) and in sda+augcse, with all four: there, a cache's copy k is what a run of the same seed draws
    in its epoch k. Under a name in another order (augcse+sda) the on-line views are numbered otherwise and
    draw otherwise.
    """
    return {"positive": 1, "negative": 2, LABELLED: 3 if "negative" in columns else 2}[column]


# -- a folder of such chunks -------------


class Contents(BaseModel):
    """All that decides what the shards of a cache are.

    content: split -> hash of the data. columns: column -> specification. rules: digest of the augmentations'
    code. resources: name -> sha256 of what they read.
    """

    content: dict[str, str]
    columns: dict[str, str]
    seed: int
    copies: int
    rules: str
    resources: dict[str, str]

    @property
    def labelled_view(self) -> ViewSpec | None:
        """Return the view whose augmentations are the labels; None if there are no labels."""
        spec = self.columns.get(LABELLED)
        return None if spec is None else ViewSpec(LABELLED, spec, labelled=True)


@dataclass(frozen=True)
class ShardTask:
    """Shard `number` of a split of the cache: copy `copy` of some chunks, which have `sequences` records."""

    split: str
    number: int
    copy: int
    first_chunk: int
    chunks: int
    sequences: int


class CachePlan(WorkFile, place="plan.json"):
    """What is made, of which data."""

    data: str
    synonyms: str | None = None
    made: Contents
    tasks: list[ShardTask]


class AugmentedShard(WorkFile, place="counts/augment/{rank:05d}.json"):
    """What came out of a task. shard: its entry in the manifest."""

    counts: Rates
    shard: dict[str, Any]


class _CacheStep(WorkStep):
    @cached_property
    def plan(self) -> CachePlan:
        return CachePlan.read(self.work)


class AugmentShard(_CacheStep):
    """Augment one shard of the data, in one of its copies."""

    stage = "augment"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tasks run side by side: one core each
        task, made = self.plan.tasks[rank], self.plan.made
        reader = ShardReader(self.plan.data, task.split)
        pipelines = open_pipelines(reader, made.columns, self.plan.synonyms)
        views = {column: view_number(column, made.columns) for column in made.columns}
        counts: Rates = {column: defaultdict(Counter) for column in made.columns}
        path = self.out / task.split / f"shard-{task.number:05d}.tar"
        with ShardWriter(path, reader.manifest["token_dtype"], self.work / "partial") as writer:
            for number in range(task.first_chunk, task.first_chunk + task.chunks):
                chunk = reader.read(number)
                columns: dict[str, Augmented] = {}
                for column, pipeline in pipelines.items():
                    keys = sequence_keys(made.seed, task.copy, chunk.sequence_ids, views[column], "augment")
                    columns[column] = augment(
                        pipeline, chunk.sequences, keys, chunk.annotation, max_length=reader.max_length
                    )
                    for name, outcomes in columns[column].counts().items():
                        counts[column][name].update(outcomes)
                stored = merge_columns(chunk.sequences, list(columns.values()))
                labels = None
                if (view := made.labelled_view) is not None:
                    labelled = columns[LABELLED]
                    labels = labels_of(view, labelled.taken, labelled.outcome == CHANGED)
                starts = stored.offsets[:-1][stored.lengths > 0] + 1
                writer.write(stored, starts, columns=1 + len(columns), labels=labels)
        AugmentedShard(counts=counts, shard=writer.record).write(self.work, rank)


class MergeCache(_CacheStep):
    """Copy the tokenizer and write the manifest: from then on the folder is prepared data."""

    stage = "manifest"

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        made = self.plan.made
        shards: dict[str, list] = {split: [] for split in SPLITS}
        counts: Rates = {column: defaultdict(Counter) for column in made.columns}
        for number, task in enumerate(self.plan.tasks):
            done = AugmentedShard.read(self.work, number)
            shards[task.split].append(done.shard)
            for column, outcomes in done.counts.items():
                for name, more in outcomes.items():
                    counts[column][name].update(more)
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
                    column: {
                        name: {**found, "rate": round(found["changed"] / max(1, found["drawn"]), 6)}
                        for name, found in of_column.items()
                    }
                    for column, of_column in counts.items()
                },
            },
        }
        write_manifest(self.out, manifest)


class CacheFlags(BaseModel, use_attribute_docstrings=True):
    """What to augment, and how."""

    data: Path = Field(description="prepared data; with --annotate for augmentations of text")
    out: Path = Field(description="folder for the shards, the tokenizer and the manifest")
    aug: str | None = None
    """column `augmented` and labels: alternatives 'a|b|c', or a set such as augcse-12-2"""
    positive: str | None = Field(None, description="column `positive`: any specification, as 'pi|mv|dn'")
    negative: str | None = Field(None, description="column `negative`: any specification, as neg")
    seed: int = Field(42, ge=0, description="of all draws")
    resample: int = Field(1, ge=1, description="copies of a training sentence, each with its own draws")
    synonyms: str | None = None
    """synonym table, for augmentations that need one; none: the usual places"""
    workers: int | None = Field(None, ge=1, description="tasks at a time; none: the cores of this machine")
    progress: bool = Field(True, description="show progress bars")

    @property
    def columns(self) -> dict[str, str]:
        """Column -> specification, of those that are made."""
        meant = {LABELLED: self.aug, "positive": self.positive, "negative": self.negative}
        return {column: spec for column, spec in meant.items() if spec is not None}


def cache(flags: CacheFlags) -> dict:
    """Augment the sentences of prepared data into a folder; return its manifest.

    A finished cache of the same data and settings is left as it is, an unfinished one is resumed. Copy k of
    the training split is drawn as epoch k of a run of that seed draws; the held-out split has one copy.
    """
    data, out = flags.data, flags.out
    readers = {split: ShardReader(data, split) for split in SPLITS}
    require_files(data, readers["train"].manifest)
    made, synonyms = _contents(readers, flags)
    if not (out / MANIFEST).is_file():
        open_pipelines(readers["train"], made.columns, synonyms)  # fails now, by name, not in a task

    def find() -> dict | None:
        if not (out / MANIFEST).is_file():
            return None
        manifest = read_manifest(out)
        _refuse_other(out, manifest.get("cache") or {}, made)
        return manifest

    def plan(work: Path) -> list[Job]:
        tasks = _tasks(readers, flags.resample)
        if CachePlan.exists(work):
            _refuse_other(out, CachePlan.read(work).made.model_dump(), made)
        CachePlan(data=str(data.resolve()), synonyms=synonyms, made=made, tasks=tasks).write(work)
        sizes = [task.sequences for task in tasks]
        return [
            Job(AugmentShard.stage, "augment", sizes, [AugmentShard(work)]),
            Job(MergeCache.stage, "manifest", [1], [MergeCache(work)]),
        ]

    return make_once(out, flags.workers, find, plan, flags.progress)


def _contents(readers: dict[str, ShardReader], flags: CacheFlags) -> tuple[Contents, str | None]:
    """Check the settings; return what decides the shards, and the synonym table that every task reads."""
    reader, columns = readers["train"], flags.columns
    if not columns:
        raise UserError("nothing to make: give --aug 'a|b|c', or --positive and --negative")
    if reader.columns != ("text",) or reader.labels:
        fields = ", ".join([*reader.columns, *["labels"] * bool(reader.labels)])
        raise UserError(f"{reader.folder} has {fields}: a cache needs data with texts alone")
    for column, spec in columns.items():
        if parse(spec).is_identity:
            raise UserError(f"the augmentation {spec!r} of {column!r} changes nothing: name another")
    if LABELLED in columns:
        alternatives(columns[LABELLED])
    columns = {column: str(parse(spec)) for column, spec in columns.items()}
    read = resources(columns.values(), flags.synonyms)
    hashes = {name: resource_hash(where) for name, where in read.items()}
    if None in hashes.values():  # models of the hub that were never loaded here: loading fetches them
        open_pipelines(reader, columns, flags.synonyms)
        hashes = {name: resource_hash(where) for name, where in read.items()}
    made = Contents(
        content={split: reader.content_hash for split, reader in readers.items()},
        columns=columns,
        seed=flags.seed,
        copies=flags.resample,
        rules=rules_digest(),
        resources={name: hashes[name] or f"unknown: {where}" for name, where in read.items()},
    )
    return made, read.get(SYNONYMS)


def _tasks(readers: dict[str, ShardReader], copies: int) -> list[ShardTask]:
    """Return a task for every shard of the cache: copy 0 of all shards of a split, then copy 1, ..."""
    tasks = []
    for split, reader in readers.items():
        number = 0
        for copy in range(copies if split == "train" else 1):
            first = 0
            for shard in reader.manifest["splits"][split]["shards"]:
                chunks = len(shard["chunks"])
                sequences = int(reader.chunk_sizes[first : first + chunks].sum())
                tasks.append(ShardTask(split, number, copy, first, chunks, sequences))
                first, number = first + chunks, number + 1
    return tasks


def _refuse_other(out: Path, existing: dict[str, Any], made: Contents) -> None:
    """Refuse a folder whose cache, finished or not, is another one."""
    meanings = {
        "rules": "the digest of the augmentations' code and word lists",
        "resources": "the sha256 of what augmentations read",
    }
    for key, value in made.model_dump().items():
        before, meaning = existing.get(key), meanings.get(key, key)
        if before == value:
            continue
        if key == "resources" and isinstance(before, dict):
            name = next(name for name in {**before, **value} if before.get(name) != value.get(name))
            before, value, meaning = before.get(name), value.get(name), f"{meaning} ({name})"
        raise UserError(f"{out}: {meaning} is {before!r} there and {value!r} now. Choose another --out")
