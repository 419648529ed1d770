"""Prepare a corpus: plan the tasks, run the stages, write the manifest; the command is `python -m
pretrain.prepare`."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pretrain.common.errors import UserError
from pretrain.common.folder_lock import folder_lock
from pretrain.config.data import DataConfig
from pretrain.config.validation import faults
from pretrain.data.manifest import PREPARATION, outdated
from pretrain.data.shards import MANIFEST, raise_if_disk_full, read_manifest, write_atomically, write_manifest
from pretrain.prepare.executors import ExecutorOptions, Job, run_jobs
from pretrain.prepare.progress import Display, Stage, peak_memory
from pretrain.prepare.sources.planning import RECIPE, plan_tasks
from pretrain.prepare.tasks import Task

_SMALL_BUCKET = 4 << 20  # text bytes: below this a bucket is not worth a task
_MOST_BUCKETS = 1024  # the index of a run file grows with it; beyond, a bucket is read in several parts


def prepare(
    config: DataConfig, out: Path | str, executor: str = "local", workers: int | None = None, **options: Any
) -> dict:
    """Prepare `config`'s corpora into the folder `out`; returns its manifest.

    A folder that holds the finished result of the same config is left as it is; an unfinished one is resumed.
    Shards do not depend on `executor` (local, slurm, ray), `workers` or interruptions. `options`: fields of
    `ExecutorOptions`, `progress` (bool, default True) and `overwrite` (bool, default False: refuse a folder
    made with another config). What `overwrite` removes is removed when the folder is ours alone and every
    source has been found.

    Raises: UserError for bad input, a full disk, a folder that is taken, or failed tasks.
    """
    out = Path(out)
    show, overwrite = options.pop("progress", True), options.pop("overwrite", False)
    try:
        execution = ExecutorOptions(executor=executor, workers=workers, **options)
    except ValidationError as error:
        raise UserError("execution: " + faults(error, lambda key: f"there is no option {key}")) from error
    wanted = config.model_dump(mode="json")
    work = out / ".work"
    if not overwrite and (manifest := _finished(out, wanted)) is not None:
        if work.is_dir():  # left by a kill after the last stage, or by Slurm
            with contextlib.suppress(UserError), folder_lock(out):  # if it is held: its owner tidies up
                if (out / MANIFEST).is_file():
                    shutil.rmtree(work, ignore_errors=True)
        return manifest
    began = time.time()
    make_folder(out)
    with folder_lock(out):
        # by another process, before the lock was ours
        if not overwrite and (manifest := _finished(out, wanted)) is not None:
            return manifest
        make_folder(work)
        tasks = plan_tasks(config.sources, records=config.unit == "record")
        if overwrite:
            _refuse_own_output(config, tasks, out)
            _clear(out)
        plan = _plan(config, tasks, work, wanted, out)
        jobs, stages = _jobs(config, work, plan)
        with quiet(execution.executor), Display(work, stages, enabled=show):
            try:
                finished = run_jobs(jobs, work, execution)
            except OSError as error:  # of a file that datatrove keeps: its logs, its completion marks
                raise_if_disk_full(error, work)
                raise
        if not finished:
            return {}
        manifest = finish(out, work, began, execution)
    return manifest


def _finished(out: Path, wanted: dict) -> dict | None:
    """The manifest of a folder that holds the finished result of this config; None where nothing is finished.

    Raises: UserError for the result of another config.
    """
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_manifest(out)
    _refuse_other_config(out, manifest.get("config", {}), wanted, "holds data prepared")
    if said := outdated(out, manifest):
        print(f"WARNING: {said}", file=sys.stderr, flush=True)
    return manifest


def finish(out: Path, work: Path, began: float, execution: ExecutorOptions) -> dict:
    """Write down how the folder was made, and remove the work folder; returns the manifest. began: seconds
    since the epoch."""
    manifest = read_manifest(out)
    manifest["run"] = {
        "seconds": round(time.time() - began, 1),
        "workers": execution.parallel,
        "executor": execution.executor,
        "peak_task_bytes": peak_memory(work),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    write_manifest(out, manifest)
    shutil.rmtree(work, ignore_errors=True)
    return manifest


def find_or_prepare(data_dir: Path | str, config: DataConfig) -> dict:
    """The manifest of `data_dir`, which is prepared first if it holds no prepared data yet.

    Prepared data is taken as it is, whatever `config` says. Preparation runs in a process of its own: a
    training process that has opened a GPU or a process group must not fork workers, and gets its memory
    back. Call it on one rank and let the others wait.

    Raises: UserError if preparation fails; it has said why.
    """
    data_dir = Path(data_dir)
    if not (data_dir / MANIFEST).is_file():
        print(f"{data_dir} holds no prepared data yet; preparing it", file=sys.stderr, flush=True)
        make_folder(data_dir)
        recipe = data_dir / RECIPE
        write_atomically(recipe, config.model_dump_json(indent=1).encode())
        in_own_process(
            "pretrain.prepare", ["--config", str(recipe), "--out", str(data_dir)], f"Preparing {data_dir}"
        )
    return read_manifest(data_dir)


def in_own_process(module: str, words: Sequence[str], what: str) -> None:
    """Run `python -m module words...`, without the launcher's variables, which would make it take itself for
    a rank.

    Raises: UserError if it fails; it has said why.
    """
    import subprocess

    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run([sys.executable, "-m", module, *words], env={**environment, "PYTHONPATH": path})
    if done.returncode:
        raise UserError(f"{what} failed (exit {done.returncode}); the reason is above.")


def make_folder(folder: Path) -> None:
    """Make a folder for output. Raises: UserError if that cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise_if_disk_full(error, folder)
        raise UserError(f"--out {folder} cannot be made: {error.strerror}. Choose another folder.") from error


def _clear(out: Path) -> None:
    """Remove what a preparation made, and nothing else."""
    (out / MANIFEST).unlink(missing_ok=True)  # first: from here on the folder is not taken for whole
    made = [out / name for name in ("tokenizer", "train", "heldout")]
    for path in [*made, *(out / ".work").iterdir()]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _refuse_own_output(config: DataConfig, tasks: list[Task], out: Path) -> None:
    """What is to be read must not be what is to be removed."""
    places = {task.place for task in tasks if task.kind not in ("hub", "embedded")} | {config.tokenizer or ""}
    made = [(out / name).resolve() for name in ("tokenizer", "train", "heldout", ".work")]
    for place in sorted(filter(None, places)):
        path = Path(place).expanduser().resolve()
        if path.exists() and any(path.is_relative_to(folder) for folder in made):
            raise UserError(
                f"{place} lies in {out}, which --overwrite would remove. Copy it elsewhere, or choose "
                "another --out."
            )


def _refuse_other_config(out: Path, found: dict, wanted: dict, what: str) -> None:
    if found:
        with contextlib.suppress(ValidationError):  # what was prepared before a key was there has its default
            found = DataConfig(**found).model_dump(mode="json")
    differing = [key for key in wanted if found.get(key) != wanted[key]]
    if differing:
        key = differing[0]
        raise UserError(
            f"{out} {what} with another config: {key} is {found.get(key)!r} there and {wanted[key]!r} now"
            + (f" ({len(differing) - 1} more keys differ)" if len(differing) > 1 else "")
            + ". Choose another --out, or give --overwrite true to make it anew."
        )


@contextlib.contextmanager
def quiet(executor: str) -> Iterator[None]:
    """Keep datatrove's per-task log lines out of the terminal of a local run (errors reach us as exceptions).

    Through the environment, because the worker processes set up their own logging; see
    `pretrain.prepare.stages.texts`.
    """
    from loguru import logger

    if executor == "slurm":
        yield
        return
    os.environ["CLEAR_PREPARE_QUIET"] = "1"
    logger.disable("datatrove")
    try:
        yield
    finally:
        os.environ.pop("CLEAR_PREPARE_QUIET")
        logger.enable("datatrove")


def _plan(config: DataConfig, tasks: list[Task], work: Path, wanted: dict, out: Path) -> dict:
    """The plan of an unfinished preparation if there is one, else a new one, written down before any task
    starts."""
    path = work / "plan.json"
    if path.is_file():
        plan = json.loads(path.read_text())
        if plan.get("preparation", 1) != PREPARATION:
            raise UserError(
                f"{out} holds an unfinished preparation by another version of this program, which cannot go "
                "on with it. Give "
                "--overwrite true to begin anew, choose another --out, or finish it with that version."
            )
        _refuse_other_config(out, plan["config"], wanted, "holds an unfinished preparation")
        if [asdict(task) for task in tasks] != plan["tasks"]:
            raise UserError(
                f"The sources have changed since the unfinished preparation in {out} began. Give "
                "--overwrite true to begin anew."
            )
        return plan
    plan = {
        "preparation": PREPARATION,
        "config": wanted,
        "tasks": [asdict(task) for task in tasks],
        "buckets": _bucket_count(tasks, config),
        "described": ", ".join(source.source for source in config.sources),
    }
    if config.annotate is not None:
        from pretrain.data.annotate import describe_parser

        plan["annotation"] = describe_parser(config.annotate)
    write_atomically(path, json.dumps(plan).encode())
    return plan


def _bucket_count(tasks: list[Task], config: DataConfig) -> int:
    """K: enough for 16 tasks side by side where the text is worth it, and for the memory bound where there is
    more."""
    size = sum(task.size for task in tasks)
    bucket = min(max(size / 16, _SMALL_BUCKET), config.bucket_megabytes * 1e6)
    return min(max(1, math.ceil(size / bucket)), _MOST_BUCKETS)


def _jobs(config: DataConfig, work: Path, plan: dict) -> tuple[list[Job], list[Stage]]:
    from pretrain.prepare.stages import documents as ds
    from pretrain.prepare.stages import records as rs
    from pretrain.prepare.stages import texts as st
    from pretrain.prepare.stages.merge import Merge
    from pretrain.prepare.stages.split import EnsureSplits

    sizes, count = [task["size"] for task in plan["tasks"]], plan["buckets"]
    of_records = config.unit == "record"
    reading: list = (
        [rs.ReadRecords(work), rs.ScatterRecords(work)]
        if of_records
        else [st.ReadSource(work), st.Scatter(work)]
    )
    jobs, bars = [], []

    def stage(name: str, title: str, steps: list, sizes: list[int]) -> None:
        jobs.append(Job(name, steps, len(sizes)))
        bars.append(Stage(name, title, sizes))

    if config.dedup == "minhash":
        from pretrain.prepare.stages.near_duplicates import minhash_filter, minhash_stages

        for name, title, steps, tasks in minhash_stages(st.ReadSource(work), work, len(sizes)):
            stage(name, title, steps, [1] * tasks)
        reading.insert(1, minhash_filter(work))
    stage("read", "read, clean, split", reading, sizes)
    if config.heldout:
        stage("heldout", "held-out text", [EnsureSplits(work, list(reading))], [1])
    if config.keeps_documents and config.heldout:
        stage("resolve", "held-out sentences", [ds.Resolve(work)], [1] * count)
    if of_records:
        stage("columns", "columns, labels", [rs.AgreeOnColumns(work)], [1])
    stage(
        "tokenizer",
        "tokenizer",
        [(rs.MakeRecordTokenizer if of_records else st.MakeTokenizer)(work)],
        [len(sizes)],
    )
    building: Any = (rs.BuildRecords if of_records else st.Build)(work)
    title = "write shards" if config.annotate is None else "parse, write shards"
    if config.keeps_documents:
        building, title = ds.ScatterSequences(work), "pack"
    # encoded, and then parsed
    work_a_bucket = max(1, sum(sizes) // count) * (1 if config.annotate is None else 2)
    stage("build", title, [building], [work_a_bucket] * count)
    if config.keeps_documents:
        stage("shuffle", "shuffle, write shards", [ds.ShuffleSequences(work)], [work_a_bucket] * count)
    stage("merge", "manifest", [Merge(work)], [1])
    return jobs, bars
