"""Prepare a corpus: plan the tasks, run the stages, write the manifest.

    read      T tasks   documents -> clean sentences -> run files by hash        (T: fixed by the sources)
    heldout   1 task    makes sure that some text is held out, and some is not
    drop      K tasks   units sequence and document only: which held-out sentences train has too
    columns   1 task    unit record only: which columns and labels there are
    tokenizer 1 task    train on a sample fixed by hash, or adopt
    build     K tasks   one bucket: sort, drop duplicates, weigh, tokenise, pack, write shards   (K: by size)
    shuffle   K tasks   units sequence and document only: `build` scatters, and this writes the shards
    merge     1 task    counts and shard records -> manifest

The command is `clearly prepare`. What the stages leave for each other: `work_folder`.
"""

import contextlib
import hashlib
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pretrain.common.errors import UserError
from pretrain.common.files import discard, remove_durably
from pretrain.common.processes import run_module
from pretrain.config.data import DataConfig
from pretrain.data.manifest import MANIFEST, PAIRS, PREPARATION, SPLITS, outdated, read_manifest
from pretrain.data.shard_writer import write_atomically
from pretrain.prepare import work_folder
from pretrain.prepare.jobs import Job, make_folder, make_once
from pretrain.prepare.sources.planning import RECIPE, plan_tasks
from pretrain.prepare.sources.readers import ReadTask
from pretrain.prepare.sources.structure import require_known
from pretrain.prepare.sources.structured import note_tags
from pretrain.prepare.work_folder import PreparationPlan

_SMALL_BUCKET = 4 << 20  # text bytes: below this a bucket is not worth a task
_MOST_BUCKETS = 1024  # the index of a run file grows with it; beyond, a bucket is read in several parts
_LOOKED_AT = 1 << 20  # bytes of a source's beginning and of its end: whether it was written meanwhile
_OUTPUTS = ("tokenizer", *SPLITS)  # folders that a preparation makes


def prepare(
    config: DataConfig,
    out: Path | str,
    workers: int | None = None,
    progress: bool = True,
    overwrite: bool = False,
) -> dict:
    """Prepare the corpora of `config` into the folder `out`; return its manifest.

    A folder that holds the finished result of the same config is left as it is; an unfinished one is resumed.
    Shards do not depend on `workers` (None: one per core) or interruptions. overwrite: prepare a folder again
    that has another config; its data is removed when the folder is locked and every source has been found.
    """
    out = Path(out)
    ours = (out / MANIFEST).is_file() or (out / ".work").is_dir()
    if not ours and (others := [name for name in _OUTPUTS if os.path.lexists(out / name)]):
        raise UserError(f"{out} holds {'/, '.join(others)}/ of something else. Choose another --out")
    wanted = config.model_dump(mode="json")

    def plan(work: Path) -> list[Job]:
        paired = config.pairs != "none"
        require_known(config.language)
        records = config.unit == "record" and not paired
        tasks = plan_tasks(config.sources, records, structure=paired)
        note_tags(tasks, config.sources, records)
        if overwrite:
            _refuse_own_output(config, tasks, out)
            remove_durably(out / MANIFEST)  # first: from here on the folder does not pass for finished
            for path in [*(out / name for name in (*_OUTPUTS, PAIRS)), *work.iterdir()]:
                discard(path)
        return _jobs(_plan(config, tasks, work), work)

    return make_once(out, workers, lambda: None if overwrite else _finished(out, wanted), plan, progress)


def find_or_prepare(data_dir: Path | str, config: DataConfig) -> dict:
    """Return the manifest of `data_dir`, which is prepared first if it holds no prepared data yet.

    Prepared data is taken as it is, whatever `config` says. Preparation runs in a process of its own: a
    training process that has opened a GPU or a process group must not fork workers, and gets its memory
    back. Call it on one rank and let the others wait.
    """
    data_dir = Path(data_dir)
    if not (data_dir / MANIFEST).is_file():
        print(f"{data_dir} holds no prepared data yet; preparing it", file=sys.stderr, flush=True)
        make_folder(data_dir)
        recipe = data_dir / RECIPE
        write_atomically(recipe, config.model_dump_json(indent=1, exclude_unset=True).encode())
        arguments = ["--config", str(recipe), "--out", str(data_dir)]
        run_module("pretrain.prepare", arguments, f"Preparing {data_dir}")
    return read_manifest(data_dir)


def _finished(out: Path, wanted: dict) -> dict | None:
    """Return the manifest of a folder with the finished result of this config, or None."""
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out)
    _refuse_other_config(out, manifest.get("config", {}), wanted, "holds data prepared")
    if warning := outdated(out, manifest):
        print(f"WARNING: {warning}", file=sys.stderr, flush=True)
    return manifest


def _refuse_own_output(config: DataConfig, tasks: list[ReadTask], out: Path) -> None:
    """Refuse to read what is to be removed."""
    places = {task.place for task in tasks if task.kind not in ("hub", "embedded")} | {config.tokenizer or ""}
    made = [(out / name).resolve() for name in (*_OUTPUTS, ".work")]
    for place in sorted(filter(None, places)):
        path = Path(place).expanduser().resolve()
        if path.exists() and any(path.is_relative_to(folder) for folder in made):
            raise UserError(f"{place} lies in {out}, which --overwrite would remove. Choose another --out.")


def _refuse_other_config(out: Path, existing: dict, wanted: dict, what: str) -> None:
    if existing:
        with contextlib.suppress(ValidationError):  # what was prepared before a key was there has its default
            existing = DataConfig(**existing).model_dump(mode="json")
    before, now = _flat(existing), _flat(wanted)
    differing = [key for key in now | before if before.get(key) != now.get(key)]
    if differing:
        key, *others = differing
        more = f" ({len(others)} more keys differ)" if others else ""
        raise UserError(
            f"{out} {what} with another config: {key} is {before.get(key)!r} there and {now.get(key)!r} now"
            f"{more}. Choose another --out, or give --overwrite to prepare it again."
        )


def _flat(config: dict) -> dict[str, Any]:
    """Return the keys of a config, those of each source as `sources[N].KEY`, N from 1."""
    flat: dict[str, Any] = {}
    for number, source in enumerate(config.get("sources", []), 1):
        keys = source if isinstance(source, dict) else {"source": source}
        flat |= {f"sources[{number}].{key}": value for key, value in keys.items()}
    return flat | {key: value for key, value in config.items() if key != "sources"}


def _plan(config: DataConfig, tasks: list[ReadTask], work: Path) -> PreparationPlan:
    """Return the plan of an unfinished preparation, or make one and write it before any task starts."""
    if PreparationPlan.exists(work):
        try:
            return _unfinished_plan(config, tasks, work)
        except UserError:
            if any((work / "counts").rglob("*.json")):
                raise
            for path in work.iterdir():  # no task of it has ended: it has written nothing outside of here
                discard(path)
    annotation = None
    if config.annotate is not None:
        from pretrain.prepare.annotate import describe_parser

        annotation = describe_parser(config.annotate)
    # enough buckets for 16 tasks at a time if the text is worth it, more for memory
    size = sum(task.size for task in tasks)
    bucket = min(max(size / 16, _SMALL_BUCKET), work_folder.BUCKET_BYTES)
    plan = PreparationPlan(
        preparation=PREPARATION,
        config=config,
        tasks=tasks,
        files=_stamps(tasks),
        buckets=min(max(1, math.ceil(size / bucket)), _MOST_BUCKETS),
        described=", ".join(source.source for source in config.sources),
        annotation=annotation,
    )
    plan.write(work)
    return plan


def _unfinished_plan(config: DataConfig, tasks: list[ReadTask], work: Path) -> PreparationPlan:
    out = work.parent
    plan: PreparationPlan | None
    try:
        plan = PreparationPlan.read(work)
    except ValidationError:
        plan = None
    if plan is None or plan.preparation != PREPARATION:
        raise UserError(f"{out} holds an unfinished preparation of another version: give --overwrite true")
    existing, wanted = (settings.model_dump(mode="json") for settings in (plan.config, config))
    _refuse_other_config(out, existing, wanted, "holds an unfinished preparation")
    now = _stamps(tasks)
    changed = [place for place, stamp in plan.files.items() if now.get(place) != stamp]
    if plan.tasks != tasks or changed:
        restore = f", or put back {changed[0]}, whose size or content differs" if changed else ""
        raise UserError(f"The sources have changed since {out} was begun: give --overwrite true{restore}")
    return plan


def _stamps(tasks: list[ReadTask]) -> dict[str, tuple[int, str]]:
    """Return the size of each file that tasks read, and a digest of its first and last `_LOOKED_AT` bytes.

    The time of change is none of it: a copy of the same file may stand in for it.
    """
    stamps = {}
    places = (task.place for task in tasks if task.kind not in ("hub", "disk", "embedded"))
    for place in dict.fromkeys(places):
        with open(place, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(file.read(_LOOKED_AT))
            file.seek(max(file.tell(), size - _LOOKED_AT))
            digest.update(file.read(_LOOKED_AT))
        stamps[place] = size, digest.hexdigest()
    return stamps


def _jobs(plan: PreparationPlan, work: Path) -> list[Job]:
    from pretrain.prepare.stages import build, merge, read, records, running_text, tokenizer

    config, sizes, count = plan.config, [task.size for task in plan.tasks], plan.buckets
    of_records = config.unit == "record"
    documents: list = [read.ReadSource(work), read.Scatter(work)]
    reading = [records.ScatterRecords(work)] if of_records else documents
    jobs = []

    def add(title: str, step: Any, sizes: list[int], earlier_steps: Sequence[Any] = ()) -> None:
        jobs.append(Job(step.stage, title, sizes, [*earlier_steps, step]))

    if config.dedup == "minhash":
        found, left_out = _minhash(read.ReadSource(work), work, len(sizes))
        jobs += found
        reading.insert(1, left_out)
    add("read, clean, split", reading[-1], sizes, reading[:-1])
    if config.heldout:
        add("held-out text", read.EnsureSplits(work, list(reading)), [1])
    if config.keeps_documents and config.heldout:
        add("held-out sentences", running_text.Resolve(work), [1] * count)
    if of_records:
        add("columns, labels", records.AgreeOnColumns(work), [1])
    make_tokenizer = records.MakeRecordTokenizer if of_records else tokenizer.MakeTokenizer
    add("tokenizer", make_tokenizer(work), [len(sizes)])
    # encoded, and then parsed
    bucket_sizes = [max(1, sum(sizes) // count) * (1 if config.annotate is None else 2)] * count
    if config.keeps_documents:
        add("pack", running_text.ScatterSequences(work), bucket_sizes)
        add("shuffle, write shards", running_text.ShuffleSequences(work), bucket_sizes)
    else:
        building = (records.BuildRecords if of_records else build.Build)(work)
        add("write shards" if config.annotate is None else "parse, write shards", building, bucket_sizes)
    add("manifest", merge.Merge(work), [1])
    return jobs


def _minhash(reader: Any, work: Path, tasks: int) -> tuple[list[Job], Any]:
    """Return the stages that find near-duplicate documents, and the step that leaves all but one of them out.

    By datatrove's MinHash, with FineWeb's settings: 5-grams, 14 x 8 hashes, about 72% similarity.
    """
    from datatrove.pipeline.dedup import minhash
    from datatrove.utils.hashing import HashConfig

    # datatrove 0.10 hands its xxhash a str, which xxhash 4 refuses; sha1 works with every version.
    config = minhash.MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))
    folder = work / "minhash"
    signatures, pairs, remove = (str(folder / name) for name in ("signatures", "pairs", "remove"))
    sign = [reader, minhash.MinhashDedupSignature(signatures, config)]
    match = [minhash.MinhashDedupBuckets(signatures, pairs, config=config)]
    cluster = [minhash.MinhashDedupCluster(pairs, remove, config)]
    jobs = [
        Job("signatures", "near-duplicate signatures", [1] * tasks, sign),
        Job("pairs", "near-duplicate pairs", [1] * config.num_buckets, match),
        Job("clusters", "near-duplicate clusters", [1], cluster),
    ]
    return jobs, minhash.MinhashDedupFilter(remove)
