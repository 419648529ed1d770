"""Augment the sentences of prepared data once, into a folder of shards.

The command is `clearly cache`.
"""

from pathlib import Path
from typing import Any

from augment.spec.grammar import alternatives, parse
from augment.spec.resources import SYNONYMS, resource_hash, resources, rules_digest
from pretrain.cache.augmenting import COLUMNS, LABELLED, open_pipelines
from pretrain.cache.stages import AugmentShard, CachePlan, Contents, MergeCache, ShardTask
from pretrain.common.errors import UserError
from pretrain.data.manifest import MANIFEST, SPLITS, read_manifest, require_files
from pretrain.data.shards import ShardReader
from pretrain.prepare.executors import ExecutorOptions, Job
from pretrain.prepare.output import make_once


def cache(
    data: Path | str,
    out: Path | str,
    columns: dict[str, str],
    seed: int = 42,
    copies: int = 1,
    synonyms: str | None = None,
    unchanged: str = "keep",
    progress: bool = True,
    **execution: Any,
) -> dict:
    """Augment the sentences of prepared data into the folder `out`; return its manifest.

    The manifest is {} where the jobs were submitted to Slurm and are not waited for.

    A finished cache of the same data and settings is left as it is, an unfinished one is resumed.

    Args:
        columns: column -> specification; "augmented" (with labels), or "positive" and "negative", or any of
            them together.
        seed, copies: copy k of the training split is drawn as epoch k of a run of that seed draws. The
            held-out split has one copy.
        unchanged: "keep", or "drop" the records with a column in which nothing has changed.
        execution: fields of `ExecutorOptions`; they change nothing in the shards.

    Raises: UserError or AugmentationError for data that has columns already, a specification that is wrong,
    or cannot be made of this data, a folder that holds something else.
    """
    data, out = Path(data), Path(out)
    options = ExecutorOptions.checked(**execution)
    readers = {split: ShardReader(data, split) for split in SPLITS}
    require_files(data, readers["train"].manifest)
    made, synonyms = _contents(readers, columns, seed, copies, synonyms, unchanged)
    if not (out / MANIFEST).is_file():
        open_pipelines(readers["train"], made.columns, synonyms)  # fails now, by name, not in a task

    def find() -> dict | None:
        return _finished(out, made)

    def plan(work: Path) -> list[Job]:
        tasks = _tasks(readers, copies)
        _write_plan(CachePlan(data=str(data.resolve()), synonyms=synonyms, made=made, tasks=tasks), work)
        sizes = [task.sequences for task in tasks]
        return [
            Job(AugmentShard.stage, "augment", sizes, [AugmentShard(work)]),
            Job(MergeCache.stage, "manifest", [1], [MergeCache(work)]),
        ]

    return make_once(out, options, find, plan, progress)


def _finished(out: Path, made: Contents) -> dict | None:
    """Return the manifest of a folder that holds this cache; None where nothing is finished.

    Raises: UserError for a folder that holds anything else.
    """
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out)
    _refuse_other(out, manifest.get("cache") or {}, made)
    return manifest


def _contents(
    readers: dict[str, ShardReader],
    columns: dict[str, str],
    seed: int,
    copies: int,
    synonyms: str | None,
    unchanged: str,
) -> tuple[Contents, str | None]:
    """Check the settings; return what decides the shards, and the synonym table that every task reads."""
    reader = readers["train"]
    if not columns or not set(columns) <= set(COLUMNS):
        raise UserError(
            "there is nothing to make: give --aug 'a|b|c' (AugCSE's records), or --positive and "
            "--negative (SDA's)"
        )
    if reader.columns != ("text",) or reader.labels:
        fields = ", ".join([*reader.columns, *["labels"] * bool(reader.labels)])
        raise UserError(
            f"{reader.folder} has more than texts already ({fields}): a cache needs data with texts alone"
        )
    for column, spec in columns.items():
        if parse(spec).is_identity:
            raise UserError(
                f"the augmentation {spec!r} of the column {column!r} changes nothing: name one that does"
            )
    if LABELLED in columns:
        alternatives(columns[LABELLED])
    if copies < 1:
        raise UserError(f"--resample {copies}: how many copies of every sentence, 1 or more")
    columns = {column: str(parse(spec)) for column, spec in columns.items()}
    read = resources(columns.values(), synonyms)
    hashes = {name: resource_hash(where) for name, where in read.items()}
    if None in hashes.values():  # models of the hub that were never loaded here: loading fetches them
        open_pipelines(reader, columns, synonyms)
        hashes = {name: resource_hash(where) for name, where in read.items()}
    made = Contents(
        content={split: reader.content_hash for split, reader in readers.items()},
        columns=columns,
        seed=seed,
        copies=copies,
        unchanged=unchanged,
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


def _write_plan(plan: CachePlan, work: Path) -> None:
    """Write the plan before any task starts; refuse the plan of another unfinished cache."""
    if CachePlan.exists(work):
        _refuse_other(work.parent, CachePlan.read(work).made.model_dump(), plan.made)
    plan.write(work)


_MEANING = {
    "rules": "the digest of the augmentations' code and word lists",
    "resources": "the sha256 of what augmentations read",
}


def _refuse_other(out: Path, existing: dict[str, Any], made: Contents) -> None:
    for key, value in made.model_dump().items():
        before, meaning = existing.get(key), _MEANING.get(key, key)
        if before == value:
            continue
        if key == "resources" and isinstance(before, dict):
            name = next(name for name in {**before, **value} if before.get(name) != value.get(name))
            before, value, meaning = before.get(name), value.get(name), f"{meaning} ({name})"
        raise UserError(
            f"{out} holds something else: {meaning} is {before!r} there and {value!r} now. Choose another "
            "--out, or remove that folder"
        )
