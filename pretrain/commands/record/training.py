"""Train the seeds of a record against the clock, and score them; what is done is kept."""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

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
from pretrain.config.data import data_config
from pretrain.data.manifest import MANIFEST, read_manifest
from pretrain.export.sums import WEIGHTS
from pretrain.telemetry.formats import format_seconds
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import read_all

ABOUT, RECIPE = "start.json", "recipe.yaml"


def begin(
    track: str, recipe: Path, data: Path, out: Path, text: str, seeds: Sequence[int], score: bool
) -> None:
    """Check the rules before anything is trained, prepare the data if it is not there, and note all of it.

    The text of data that are there need not be where seeds are trained alone, but where they are scored.

    Raises:
        UserError: a rule is broken, or `out` was begun with something else.
    """
    config, path = settings_of(recipe, 0, data, out), out / ABOUT
    before = read_json(path)
    trained = all((out / f"seed-{seed}.json").is_file() for seed in seeds)
    # what is trained may be scored on another machine
    machine = before["machine"] if before and trained else use_machine(TRACKS[track])
    if not (data / MANIFEST).is_file():
        if not text:
            raise UserError(f"{data} holds no prepared data: name the corpus by --text, to prepare it there")
        settings = config.data.prepare.model_dump(exclude_unset=True) | {"sources": text.split(",")}
        corpus_of(data_config(settings).sources, data)
        prepare(out=data, **settings)
    manifest = read_manifest(data)
    if broken := list(outside_help(config, manifest)):
        raise UserError(f"{recipe} breaks a rule of the board: {'; '.join(broken)}")
    named = {"sources": text.split(",")} if text else manifest["config"]
    code, commit = code_here()
    about = {
        "track": track,
        "recipe": sha256_of(recipe),
        "text": corpus_of(data_config(named).sources, data) if text or score else before.get("text", {}),
        "data": digest_of(manifest),
        "code": code,
        "machine": machine,
    }
    if differing := [key for key in about if before.get(key) and before[key] != about[key]]:
        raise UserError(f"{out} was begun with another {' and '.join(differing)}: choose another --out")
    make_folder(out)
    replace_durably(out / RECIPE, recipe.read_bytes())
    about |= {"commit": commit, "preparation": manifest["run"]["seconds"]}
    replace_durably(path, to_json(about | before | {"text": about["text"]}))


def read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a record holds; nothing where it is not there."""
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def do_seeds(track: Track, seeds: Sequence[int], data: Path, eval_data: Path, out: Path, score: bool) -> None:
    """Train each seed that is not trained, and score it if that is asked for."""
    if score:
        make_retrieval(eval_data, out / "retrieval")
    for number, seed in enumerate(seeds, 1):
        run, kept = out / f"seed-{seed}", out / f"seed-{seed}.json"
        what, model, found = f"[{number}/{len(seeds)}] seed {seed}", model_of(track, run), read_json(kept)
        if not found:
            discard(run)  # a run that was interrupted has no clock: it begins anew
            print(f"{what}: at most {format_seconds(track.seconds)}", flush=True)
            seconds = _train(track, seed, data, eval_data, run)
            found = {"seconds": round(seconds, 1), "weights": sha256_of(model / WEIGHTS)}
            replace_durably(kept, to_json(found))
        if score and "scores" not in found:
            pooling = "" if track.table_bytes else settings_of(out / RECIPE, seed, data, run).model.pooling
            found["scores"] = evaluate(model, pooling, run / "report", eval_data, out / "retrieval")
            replace_durably(kept, to_json(found))
        scores = "".join(f", {leg} {score:.2f}" for leg, score in found.get("scores", {}).items())
        print(f"{what}: {found['seconds']:.0f} s{scores}", flush=True)


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
    environment, log, began = os.environ | {"PYTHONPATH": python_path()}, run / "log.txt", time.time()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, stopped = bar.add_task("", total=track.seconds), False

        def look() -> None:
            nonlocal stopped
            passed = time.time() - began
            step = max((beat.step for beat in read_all(run / FOLDER).values()), default=0)
            bar.update(task, completed=passed, description=f"seed {seed}, step {step}")
            if passed > track.seconds and not stopped:
                stopped = True
                replace(run / STOP_FILE, b"")

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
