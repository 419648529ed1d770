"""Train the seeds of a record against the clock, and score them; what is done is kept."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pretrain.api import prepare
from pretrain.commands.record.scores import evaluate, make_retrieval
from pretrain.commands.record.tracks import (
    TRACKS,
    Track,
    code_here,
    corpus_of,
    digest_of,
    outside_help,
    settings_of,
    use_machine,
    words_of,
)
from pretrain.common.errors import UserError
from pretrain.common.files import discard, make_folder, replace, replace_durably, sha256_of, to_json
from pretrain.common.processes import failure_line, python_path, run_to_end, start_logged, wait_for_end
from pretrain.common.shutdown import STOP_FILE
from pretrain.config.data import Source, data_config
from pretrain.data.manifest import MANIFEST, read_manifest
from pretrain.export.sums import WEIGHTS
from pretrain.telemetry.formats import format_seconds
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import read_all

ABOUT, RECIPE = "start.json", "recipe.yaml"


def begin(track: str, recipe: Path, data: Path, out: Path, text: str) -> dict[str, Any]:
    """Check the rules before anything is trained, prepare the data if it is not there, and note all of it.

    Raises:
        UserError: a rule is broken, or `out` holds something else.
    """
    config = settings_of(recipe, 0, data, out)
    machine = use_machine(TRACKS[track])
    if not (data / MANIFEST).is_file():
        if not text:
            raise UserError(f"{data} holds no prepared data: name the corpus by --text, to prepare it there")
        settings = config.data.prepare.model_dump(exclude_unset=True) | {"sources": text.split(",")}
        corpus_of(data_config(settings).sources, data)
        prepare(out=data, **settings)
    manifest = read_manifest(data)
    if broken := list(outside_help(config, manifest)):
        raise UserError(f"{recipe} breaks a rule of the board: {'; '.join(broken)}")
    named = [Source(source=file) for file in text.split(",")] if text else None
    code, commit = code_here()
    about = {
        "track": track,
        "recipe": sha256_of(recipe),
        "code": code,
        "commit": commit,
        "machine": machine,
        "text": corpus_of(named or data_config(manifest["config"]).sources, data),
        "data": digest_of(manifest),
        "preparation": manifest["run"]["seconds"],
    }
    path = out / ABOUT
    if path.is_file() and json.loads(path.read_text("utf-8")) != about:
        before = json.loads(path.read_text("utf-8"))
        differing = [key for key in about if before.get(key) != about[key]]
        raise UserError(f"{out} was begun with another {' and '.join(differing)}: choose another --out")
    make_folder(out)
    replace_durably(out / RECIPE, recipe.read_bytes())
    replace_durably(path, to_json(about))
    return about


def do_seeds(track: Track, seeds: Sequence[int], data: Path, eval_data: Path, out: Path) -> None:
    """Train and score each seed that is not done yet."""
    make_retrieval(eval_data, out / "retrieval")
    for number, seed in enumerate(seeds, 1):
        run, kept = out / f"seed-{seed}", out / f"seed-{seed}.json"
        found = json.loads(kept.read_text("utf-8")) if kept.is_file() else {}
        if not found:
            discard(run)  # a run that was interrupted has no clock: it begins anew
            print(f"[{number}/{len(seeds)}] seed {seed}: at most {format_seconds(track.seconds)}", flush=True)
            found = {"seconds": round(_train(track, seed, data, eval_data, run), 1)}
            found["weights"] = sha256_of(model_of(track, run) / WEIGHTS)
            replace_durably(kept, to_json(found))
        if "scores" not in found:
            pooling = "" if track.table_bytes else settings_of(out / RECIPE, seed, data, run).model.pooling
            report = run / "report"
            found["scores"] = evaluate(model_of(track, run), pooling, report, eval_data, out / "retrieval")
            replace_durably(kept, to_json(found))
        scores = ", ".join(f"{leg} {score:.2f}" for leg, score in found["scores"].items())
        print(f"[{number}/{len(seeds)}] seed {seed}: {found['seconds']:.0f} s; {scores}", flush=True)


def model_of(track: Track, run: Path) -> Path:
    """Return the folder of what a run enters: its best encoder, or the table made of that."""
    return run / ("static" if track.table_bytes else "best")


def _train(track: Track, seed: int, data: Path, eval_data: Path, run: Path) -> float:
    """Train a run, stop it when the time is over, and make its static table if the track is of those.

    Returns: the seconds from the start of the process until what is entered was written.
    """
    make_folder(run)
    words = {"config": str(run.parent / RECIPE), **words_of(seed, data, run), "evaluate.sts": str(eval_data)}
    command = [sys.executable, "-m", "pretrain.main", *(f"--{key}={value}" for key, value in words.items())]
    columns = (
        TextColumn("seed {task.fields[seed]}, step {task.fields[step]}"),
        BarColumn(),
        TimeRemainingColumn(),
    )
    log, began, stopped = run / "log.txt", time.time(), False
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=track.seconds, seed=seed, step=0)

        def look() -> None:
            nonlocal stopped
            passed = time.time() - began
            step = max((beat.step for beat in read_all(run / FOLDER).values()), default=0)
            bar.update(task, completed=passed, step=step)
            if passed > track.seconds and not stopped:
                replace(run / STOP_FILE, b"")
                stopped = True

        environment = os.environ | {"PYTHONPATH": python_path()}
        code = wait_for_end(start_logged(command, log, environment), look)
    if code or not (run / "best" / WEIGHTS).is_file():
        raise UserError(f"seed {seed} gave no best/ ({failure_line(log)}); the whole log: {log}")
    if track.table_bytes:
        flags = [f"--out={model_of(track, run)}", "--static=encoded", f"--text={data}"]
        run_to_end("pretrain.commands.export", [str(run / "best"), *flags], "The same command continues")
    written = max(path.stat().st_mtime for path in model_of(track, run).iterdir())
    if (seconds := written - began) > track.seconds:
        raise UserError(
            f"the encoder of seed {seed} was there after {seconds:.0f} s, and the track gives "
            f"{track.seconds:.0f}: lower train.steps, or evaluate.every"
        )
    return seconds
