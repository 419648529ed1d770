"""Augment a corpus once: prepared data in, records with their augmentations and labels out, to train on like any other data.

    python -m pretrain.cache --data data/annotated --aug augcse-12-2 --out data/augcse
    python -m pretrain.cache --data data/annotated --aug 'tense|yoda|random-swap' --resample 4 --out data/augcse_resampled
    python -m pretrain.cache --data data/annotated --positive 'pi|mv|dn' --negative neg --out data/sda
    python -m pretrain.main --objective augcse --data data/augcse --aug none --augment.augmented none

--aug writes AugCSE's records (text, augmented, label): one augmentation a sentence, drawn evenly from the set and fixed by the
seed; the last label, "none", where the sentence came out as it was, white space and quotes aside. --positive and --negative
write SDA's (text, positive, negative). A column is empty where nothing has changed: its view is then the sentence itself, and a
negative is absent. Such records stay, as in both papers; --unchanged drop leaves them out, as the option of AugCSE's code that
its runs with negatives take (its published runs do not). Splits, their order and the tokenizer are those of the data; the cache
holds tokens, no text or parse.

The same bytes come out with any number of workers, and after any number of kills: run the same command again. A task holds one
chunk (64 thousand tokens) and its parse.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from augment.registry import alternatives, parse
from augment.resources import SYNONYMS, resource_hash, resources
from augment.rules import rules_digest
from pretrain import cache_stages as cs
from pretrain import command, idle
from pretrain.errors import UserError
from pretrain.executors import ExecutorOptions, Job, run_jobs
from pretrain.folder_lock import folder_lock
from pretrain.manifest import require_files
from pretrain.prepare import finish, make_folder, quiet
from pretrain.progress import Display, Stage
from pretrain.shards import MANIFEST, ShardReader, read_manifest, write_atomically
from pretrain.stages import SPLITS
from pretrain.validation import faults, nearest, rows, typed_fields


class CacheFlags(BaseModel):
    """Flags of the command, beside those of `ExecutorOptions`."""

    data: Path = Field(description="prepared data; with --annotate for augmentations of text")
    out: Path = Field(description="folder for the shards, the tokenizer and the manifest")
    aug: str | None = Field(None, description="column `augmented` and labels: alternatives 'a|b|c', or a set such as augcse-12-2")
    positive: str | None = Field(None, description="column `positive`: any specification, as 'pi|mv|dn'")
    negative: str | None = Field(None, description="column `negative`: any specification, as neg")
    seed: int = Field(42, ge=0, description="of all draws")
    resample: int = Field(1, ge=1, description="copies of every training sentence, each with draws of its own")
    unchanged: Literal["keep", "drop"] = Field("keep", description="records with a column in which nothing changed: keep "
                                               "them, as the papers do, or drop them (AugCSE's code: remove_no_augmentations)")
    synonyms: str | None = Field(None, description="synonym table, for augmentations that need one; none: the usual places")
    progress: bool = Field(True, description="show progress bars")


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
    """Augment the sentences of prepared data into the folder `out`; returns its manifest ({}: submitted to Slurm).

    columns: column -> specification; "augmented" (with labels), or "positive" and "negative", or any of them together.
    seed, copies: copy k of the training split is drawn as epoch k of a run of that seed draws. The held-out split has one
    copy. unchanged: "keep", or "drop" the records with a column in which nothing has changed. execution: fields of
    `ExecutorOptions`; they change nothing in the shards.

    A finished cache of the same data and settings is left as it is, an unfinished one is gone on with.

    Raises: UserError or AugmentationError for data that has columns already, a specification that is wrong, or cannot be made
    of this data, a folder that holds something else.
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
    cs.open_pipelines(readers["train"], made["columns"], synonyms)  # fails now, by name, rather than in a task
    began = time.time()
    work = out / ".work"
    make_folder(out)
    with folder_lock(out):
        if (manifest := _finished(out, made)) is not None:  # by another process, before the lock was ours
            return manifest
        make_folder(work)
        plan = {"data": str(data.resolve()), "synonyms": synonyms, "made": made, "tasks": _tasks(readers, copies)}
        _write_plan(out, work / "plan.json", plan)
        sizes = [task["sequences"] for task in plan["tasks"]]
        jobs = [Job("augment", [cs.AugmentShard(work)], len(sizes)), Job("manifest", [cs.MergeCache(work)], 1)]
        stages = [Stage("augment", "augment", sizes), Stage("manifest", "manifest", [1])]
        with quiet(options.executor), Display(work, stages, enabled=progress):
            if not run_jobs(jobs, work, options):
                return {}
        return finish(out, work, began, options)


def _finished(out: Path, made: dict[str, Any]) -> dict | None:
    """The manifest of a folder that holds this cache; None where nothing is finished. Raises: UserError for anything else."""
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out)
    _refuse_other(out, manifest.get("cache") or {}, made)
    return manifest


def _what_is_made(
    readers: dict[str, ShardReader], columns: dict[str, str], seed: int, copies: int, synonyms: str | None, unchanged: str
) -> tuple[dict[str, Any], str | None]:
    """All that decides what the shards are, checked, and the synonym table that every task is to read."""
    reader = readers["train"]
    if not columns or not set(columns) <= set(cs.COLUMNS):
        raise UserError("there is nothing to make: give --aug 'a|b|c' (AugCSE's records), or --positive and --negative (SDA's)")
    if reader.columns != ("text",) or reader.labels:
        found = ", ".join([*reader.columns, *["labels"] * bool(reader.labels)])
        raise UserError(f"{reader.folder} has more than texts already ({found}): a cache is made of data with texts alone")
    for column, spec in columns.items():
        if parse(spec).is_identity:
            raise UserError(f"the augmentation {spec!r} of the column {column!r} changes nothing: name one that does")
    if cs.LABELLED in columns:
        alternatives(columns[cs.LABELLED])
    if copies < 1:
        raise UserError(f"--resample {copies}: how many copies of every sentence, 1 or more")
    read = resources(columns.values(), synonyms)
    made = {
        "content": {split: reader.content_hash for split, reader in readers.items()},
        "columns": {column: str(parse(spec)) for column, spec in columns.items()},
        "seed": seed,
        "copies": copies,
        "unchanged": unchanged,
        "rules": rules_digest(),
        "resources": {name: resource_hash(where) or f"unknown: {where}" for name, where in read.items()},
    }
    return made, read.get(SYNONYMS)


def _tasks(readers: dict[str, ShardReader], copies: int) -> list[dict[str, Any]]:
    """A task for every shard of the cache, in the order of its shards: copy 0 of all shards of a split, copy 1, ..."""
    tasks = []
    for split, reader in readers.items():
        number = 0
        for copy in range(copies if split == "train" else 1):
            first = 0
            for shard in reader.manifest["splits"][split]["shards"]:
                chunks = len(shard["chunks"])
                sequences = int(reader.chunk_sizes[first : first + chunks].sum())
                tasks.append({"split": split, "number": number, "copy": copy, "first_chunk": first, "chunks": chunks,
                              "sequences": sequences})  # fmt: skip
                first, number = first + chunks, number + 1
    return tasks


def _write_plan(out: Path, path: Path, plan: dict[str, Any]) -> None:
    """The plan is written down before any task starts; that of an unfinished cache must be the same."""
    if path.is_file():
        _refuse_other(out, json.loads(path.read_text()).get("made", {}), plan["made"])
    write_atomically(path, json.dumps(plan).encode())


_MEANT = {"rules": "the digest of the augmentations' code and word lists", "resources": "the sha256 of what augmentations read"}


def _refuse_other(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        before, meant = found.get(key), _MEANT.get(key, key)
        if before == value:
            continue
        if key == "resources" and isinstance(before, dict):
            name = next(name for name in {**before, **value} if before.get(name) != value.get(name))
            before, value, meant = before.get(name), value.get(name), f"{meant} ({name})"
        raise UserError(
            f"{out} holds something else: {meant} is {before!r} there and {value!r} now. Choose another --out, or remove that "
            "folder"
        )


def summary(manifest: dict, out: Path) -> str:
    """What came out, for people."""
    if not manifest:
        return f"submitted to Slurm; progress: {out}/.work/logs, result: {out}/manifest.json"
    lines = [f"{out}: columns {', '.join(manifest['columns'])}; {manifest.get('labels', 0)} labels"]
    for split, part in manifest["splits"].items():
        size = f"{part['sequences']:>12,} records {part['tokens']:>14,} tokens in {len(part['shards'])} shards"
        lines.append(f"  {split:8s} {size}")
    lines.append(f"  {'column':10s} {'augmentation':34s} {'drawn':>10s} {'changed':>9s} {'not applicable':>15s}")
    for column, rates in manifest["cache"]["rates"].items():
        for name, found in rates.items():
            lines.append(
                f"  {column:10s} {name:34s} {found['drawn']:>10,} {found['rate']:>9.2%} "
                f"{found['not_applicable'] / max(1, found['drawn']):>15.2%}"
            )
    lines += [f"  {line}" for line in idle.of_cache(manifest)]
    if run := manifest.get("run"):
        lines.append(f"  {run['seconds']} s with {run['workers']} workers, largest task {run['peak_task_bytes'] / 1e6:.0f} MB")
    return "\n".join(lines)


def help_text() -> str:
    """Every flag with its type, default and meaning."""
    parts = [(__doc__ or "").rstrip(), "Flags:\n\n" + command.key_table(rows(CacheFlags))]
    return "\n\n".join([*parts, "Where it runs:\n\n" + command.key_table(rows(ExecutorOptions))])


def _cache(**flags: str) -> int:
    own, execution = set(CacheFlags.model_fields), set(ExecutorOptions.model_fields)
    for key in flags:
        if key not in own | execution:
            raise UserError(f"unknown flag --{key}" + nearest(key, sorted(own | execution), "--"))
    for key in ("data", "out"):
        if key not in flags:
            raise UserError(f"--{key} is missing: python -m pretrain.cache --data DATA --aug 'a|b|c' --out CACHE")
    try:
        asked = CacheFlags(**typed_fields(CacheFlags, {key: text for key, text in flags.items() if key in own}))
    except ValidationError as error:
        raise UserError(faults(error, lambda key: f"unknown flag --{key}")) from None
    options = typed_fields(ExecutorOptions, {key: text for key, text in flags.items() if key in execution})
    meant = {"augmented": asked.aug, "positive": asked.positive, "negative": asked.negative}
    columns = {column: spec for column, spec in meant.items() if spec is not None}
    try:
        manifest = cache(asked.data, asked.out, columns, asked.seed, asked.resample, asked.synonyms, asked.unchanged,
                         asked.progress, **options)
    except KeyboardInterrupt:
        print("interrupted; run the same command again to go on from here", file=sys.stderr)
        return 130
    print(summary(manifest, asked.out))
    return 0


if __name__ == "__main__":
    command.run(_cache, help_text)
