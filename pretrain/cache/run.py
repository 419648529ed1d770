"""Augment the sentences of prepared data once, into a folder of shards; the command is `python -m
pretrain.cache`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from augment.spec.digest import rules_digest
from augment.spec.grammar import alternatives, parse
from augment.spec.resources import SYNONYMS, resource_hash, resources
from pretrain.cache import stages as cs
from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.validation import faults
from pretrain.data.manifest import require_files
from pretrain.data.shards import MANIFEST, ShardReader, read_manifest, write_atomically
from pretrain.prepare.executors import ExecutorOptions, Job, run_jobs
from pretrain.prepare.progress import Display, Stage
from pretrain.prepare.run import finish, make_folder, quiet
from pretrain.prepare.stages.texts import SPLITS


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
    """Augment the sentences of prepared data into the folder `out`; returns its manifest ({}: submitted to
    Slurm).

    columns: column -> specification; "augmented" (with labels), or "positive" and "negative", or any of them
    together.
    seed, copies: copy k of the training split is drawn as epoch k of a run of that seed draws. The held-out
    split has one copy. unchanged: "keep", or "drop" the records with a column in which nothing has changed.
    execution: fields of `ExecutorOptions`; they change nothing in the shards.

    A finished cache of the same data and settings is left as it is, an unfinished one is gone on with.

    Raises: UserError or AugmentationError for data that has columns already, a specification that is wrong,
    or cannot be made of this data, a folder that holds something else.
    """
    data, out = Path(data), Path(out)
    try:
        options = ExecutorOptions(**execution)
    except ValidationError as error:
        raise UserError("execution: " + faults(error, lambda key: f"there is no option {key}")) from None
    readers = {split: ShardReader(data, split) for split in SPLITS}
    require_files(data, readers["train"].manifest)
    made, synonyms = _what_is_made(readers, columns, seed, copies, synonyms, unchanged)
    if (manifest := _finished(out, made)) is not None:
        return manifest
    # fails now, by name, rather than in a task
    cs.open_pipelines(readers["train"], made["columns"], synonyms)
    began = time.time()
    work = out / ".work"
    make_folder(out)
    with folder_lock(out):
        if (manifest := _finished(out, made)) is not None:  # by another process, before the lock was ours
            return manifest
        make_folder(work)
        plan = {
            "data": str(data.resolve()),
            "synonyms": synonyms,
            "made": made,
            "tasks": _tasks(readers, copies),
        }
        _write_plan(out, work / "plan.json", plan)
        sizes = [task["sequences"] for task in plan["tasks"]]
        jobs = [
            Job("augment", [cs.AugmentShard(work)], len(sizes)),
            Job("manifest", [cs.MergeCache(work)], 1),
        ]
        stages = [Stage("augment", "augment", sizes), Stage("manifest", "manifest", [1])]
        with quiet(options.executor), Display(work, stages, enabled=progress):
            if not run_jobs(jobs, work, options):
                return {}
        return finish(out, work, began, options)


def _finished(out: Path, made: dict[str, Any]) -> dict | None:
    """The manifest of a folder that holds this cache; None where nothing is finished. Raises: UserError for
    anything else."""
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out)
    _refuse_other(out, manifest.get("cache") or {}, made)
    return manifest


def _what_is_made(
    readers: dict[str, ShardReader],
    columns: dict[str, str],
    seed: int,
    copies: int,
    synonyms: str | None,
    unchanged: str,
) -> tuple[dict[str, Any], str | None]:
    """All that decides what the shards are, checked, and the synonym table that every task is to read."""
    reader = readers["train"]
    if not columns or not set(columns) <= set(cs.COLUMNS):
        raise UserError(
            "there is nothing to make: give --aug 'a|b|c' (AugCSE's records), or --positive and "
            "--negative (SDA's)"
        )
    if reader.columns != ("text",) or reader.labels:
        found = ", ".join([*reader.columns, *["labels"] * bool(reader.labels)])
        raise UserError(
            f"{reader.folder} has more than texts already ({found}): a cache is made of data with texts alone"
        )
    for column, spec in columns.items():
        if parse(spec).is_identity:
            raise UserError(
                f"the augmentation {spec!r} of the column {column!r} changes nothing: name one that does"
            )
    if cs.LABELLED in columns:
        alternatives(columns[cs.LABELLED])
    if copies < 1:
        raise UserError(f"--resample {copies}: how many copies of every sentence, 1 or more")
    columns = {column: str(parse(spec)) for column, spec in columns.items()}
    read = resources(columns.values(), synonyms)
    hashes = {name: resource_hash(where) for name, where in read.items()}
    if None in hashes.values():  # models of the hub that were never loaded here: loading fetches them
        cs.open_pipelines(readers["train"], columns, synonyms)
        hashes = {name: resource_hash(where) for name, where in read.items()}
    made = {
        "content": {split: reader.content_hash for split, reader in readers.items()},
        "columns": columns,
        "seed": seed,
        "copies": copies,
        "unchanged": unchanged,
        "rules": rules_digest(),
        "resources": {name: hashes[name] or f"unknown: {where}" for name, where in read.items()},
    }
    return made, read.get(SYNONYMS)


def _tasks(readers: dict[str, ShardReader], copies: int) -> list[dict[str, Any]]:
    """A task for every shard of the cache, in the order of its shards: copy 0 of all shards of a split, copy
    1, ..."""
    tasks = []
    for split, reader in readers.items():
        number = 0
        for copy in range(copies if split == "train" else 1):
            first = 0
            for shard in reader.manifest["splits"][split]["shards"]:
                chunks = len(shard["chunks"])
                sequences = int(reader.chunk_sizes[first : first + chunks].sum())
                tasks.append({"split": split, "number": number, "copy": copy, "first_chunk": first,
                "chunks": chunks,
                              "sequences": sequences})  # fmt: skip
                first, number = first + chunks, number + 1
    return tasks


def _write_plan(out: Path, path: Path, plan: dict[str, Any]) -> None:
    """The plan is written down before any task starts; that of an unfinished cache must be the same."""
    if path.is_file():
        _refuse_other(out, json.loads(path.read_text()).get("made", {}), plan["made"])
    write_atomically(path, json.dumps(plan).encode())


_MEANT = {
    "rules": "the digest of the augmentations' code and word lists",
    "resources": "the sha256 of what augmentations read",
}


def _refuse_other(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        before, meant = found.get(key), _MEANT.get(key, key)
        if before == value:
            continue
        if key == "resources" and isinstance(before, dict):
            name = next(name for name in {**before, **value} if before.get(name) != value.get(name))
            before, value, meant = before.get(name), value.get(name), f"{meant} ({name})"
        raise UserError(
            f"{out} holds something else: {meant} is {before!r} there and {value!r} now. Choose another "
            "--out, or remove that "
            "folder"
        )
