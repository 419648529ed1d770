"""Train the seeds of a record against the clock, and score them; what is done is kept."""

import contextlib
import hashlib
import re
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from pretrain.api import prepare
from pretrain.commands.record import tracks
from pretrain.commands.record.scores import evaluate, make_retrieval
from pretrain.commands.record.tracks import CORES, TRACKS, Track, code_here, corpus_of, settings_of, words_of
from pretrain.common import files
from pretrain.common.errors import UserError
from pretrain.common.processes import failure_line, no_rank, run_to_end, start_logged, wait_for_end
from pretrain.common.run_folder import read_json_file
from pretrain.common.shutdown import STOP_FILE
from pretrain.config.data import data_config
from pretrain.config.recipe import as_yaml
from pretrain.config.validation import read_yaml
from pretrain.data.manifest import MANIFEST, read_manifest
from pretrain.export.sums import WEIGHTS, changed_files
from pretrain.telemetry.formats import format_seconds
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import read_all

ABOUT, RECIPE, SCORES = "start.json", "recipe.yaml", "scores"


def begin(
    track: str, recipe: Path, data: Path, out: Path, text: str, derive: str, seeds: Sequence[int], score: bool
) -> None:
    """Check the rules before anything is trained, prepare the data if it is not there, and note all of it.

    The text of data that are there need not be where seeds are trained alone, but where they are scored.
    """
    config, path = settings_of(recipe, 0, data, out), out / ABOUT
    before, gpu, content = read_json(path), TRACKS[track].gpu, recipe.read_bytes()
    if not before and any(out.glob("seed-*")):
        raise UserError(f"{out} holds runs that `clearly record start` has not made: choose another --out")
    if b"extends" in content:  # a record has one file
        content = as_yaml(read_yaml(recipe)).encode()
    trained = all((out / f"seed-{seed}.json").is_file() for seed in seeds)
    # what is trained may be scored on another machine
    machine = before["machine"] if before and trained else tracks.use_machine(TRACKS[track])
    if not (data / MANIFEST).is_file():
        if not text:
            raise UserError(f"{data} holds no prepared data: name the corpus by --text, to prepare it there")
        if (data / ".work").exists():
            how = f"rm -r {shlex.quote(str(data))}; the same command then prepares it from the beginning"
            raise UserError(f"{data} holds a preparation without its end, whose clock is lost: {how}")
        settings = config.data.prepare.model_dump(exclude_unset=True) | {"sources": text.split(",")}
        corpus_of(data_config(settings).sources, data)
        prepare(out=data, workers=None if gpu else CORES, **settings)
    manifest = read_manifest(data)
    if broken := list(tracks.outside_help(config, manifest)):
        raise UserError(f"{recipe} breaks a rule of the board: {'; '.join(broken)}")
    made = manifest["run"]
    if not gpu and made["workers"] > CORES:
        raise UserError(f"{data} was prepared by {made['workers']} workers, and {track} has {CORES} cores")
    own = data_config({"sources": manifest["config"]["sources"]}).sources
    named = data_config({"sources": text.split(",")}).sources if text else own
    code, commit = code_here()
    about = {
        "track": track,
        "recipe": hashlib.sha256(content).hexdigest(),
        "text": corpus_of(named, data, own if text else ()) if text or score else before.get("text", {}),
        "data": tracks.digest_of(manifest),
        "derive": _flags_of(derive, TRACKS[track]),
        "code": code,
        "machine": machine,
    }
    if differing := [key for key in about if key in before and before[key] not in ({}, about[key])]:
        raise UserError(f"{out} was begun with another {' and '.join(differing)}: choose another --out")
    files.replace_durably(out / RECIPE, content)
    about |= {"commit": commit, "preparation": made["seconds"], "workers": made["workers"]}
    files.replace_durably(path, files.to_json(about | before | {"text": about["text"]}))


def _flags_of(derive: str, track: Track) -> str:
    if derive and track.target:
        raise UserError("--derive: the track makes an encoder by training alone, and nothing else")
    whiten = r"whiten=\d+(,power=(0?\.\d*[1-9]\d*|1))?"
    allowed = rf"(({whiten}|remove=\d+)(,sentences=\d+)?|pooling=(sif|idf))?"
    said = "whiten=N (and ,power=P) or remove=N (and ,sentences=N), or pooling=sif or idf"
    if track.table_bytes:
        derive = derive or "static=encoded"
        allowed = rf"static=(encoded|input)(,pooling=(sif|idf))?(,{whiten}(,sentences=\d+)?)?"
        said = (
            "static=encoded or static=input, and then ,pooling=sif or idf, and ,whiten=N (and ,power=P, "
            ",sentences=N)"
        )
    if not re.fullmatch(allowed, derive):
        raise UserError(f"--derive {derive}: give {said}")
    return derive


def read_json(path: Path) -> dict[str, Any]:
    """Return what a file of a record holds; nothing if it is not there."""
    return read_json_file(path, "restore it from a copy") if path.is_file() else {}


def do_seeds(track: Track, seeds: Sequence[int], data: Path, eval_data: Path, out: Path, score: bool) -> None:
    """Train each seed that is not trained, and score it if that is asked for."""
    derive = read_json(out / ABOUT)["derive"]
    if score:
        make_retrieval(eval_data, out / "retrieval")
    for number, seed in enumerate(seeds, 1):
        run, kept = out / f"seed-{seed}", out / f"seed-{seed}.json"
        what, model, found = f"[{number}/{len(seeds)}] seed {seed}", model_of(derive, run), read_json(kept)
        if not found:
            files.discard(run)  # a run that was interrupted has no clock: it begins anew
            print(f"{what}: at most {format_seconds(track.seconds)}", flush=True)
            seconds = _train(track, derive, seed, data, eval_data, run)
            found = {"seconds": round(seconds, 1), "weights": weights_digest(model)}
            files.replace_durably(kept, files.to_json(found))
        if score and "scores" not in found:
            found["scores"] = evaluate(model, out / SCORES / run.name, eval_data, out / "retrieval")
            files.replace_durably(kept, files.to_json(found))
        scores = "".join(f", {leg} {score:.2f}" for leg, score in found.get("scores", {}).items())
        print(f"{what}: {found['seconds']:.0f} s{scores}", flush=True)


def model_of(derive: str, run: Path) -> Path:
    """Return the folder of what a run enters: its best encoder, or what is derived from that."""
    return run / ("derived" if derive else "best")


def make_derived(derive: str, best: Path, data: Path, out: Path) -> None:
    """Make what a run enters of its best encoder, by flags of `clearly export`, fitted on its data."""
    flags = [f"--out={out}", f"--text={data}", *(f"--{flag}" for flag in derive.split(","))]
    run_to_end("pretrain.commands.export", [str(best), *flags], "The same command continues")


def weights_digest(folder: Path) -> str:
    """Return the sha256 of the weights in a folder: of the encoder, and of each module behind it."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")):
        digest.update(f"{path.relative_to(folder).as_posix()} {files.sha256_of(path)}\n".encode())
    return digest.hexdigest()


def _train(track: Track, derive: str, seed: int, data: Path, eval_data: Path, run: Path) -> float:
    """Train a run, stop it when the time is over, and derive what is entered from its best encoder.

    Returns: the seconds from the start of the process until what is entered was written.
    """
    files.make_folder(run)
    words = {"config": str(run.parent / RECIPE), **words_of(seed, data, run), "evaluate.sts": str(eval_data)}
    command = [sys.executable, "-m", "pretrain.main", *(f"--{key}={value}" for key, value in words.items())]
    best, in_time, log = run / "best", run / ".best-in-time", run / "log.txt"
    stamp, began = 0, time.time()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, stopped = bar.add_task("", total=track.seconds), False

        def look() -> None:
            nonlocal stopped, stamp
            passed = time.time() - began
            step = max((beat.step for beat in read_all(run / FOLDER).values()), default=0)
            bar.update(task, completed=passed, description=f"seed {seed}, step {step}")
            if passed <= track.seconds:
                with contextlib.suppress(OSError):  # none yet, or being replaced: the next look has it
                    if (now := best.stat().st_mtime_ns) != stamp:
                        files.copy_tree(best, in_time)
                        stamp = now
            elif not stopped:
                stopped = True
                files.replace(run / STOP_FILE, b"")

        # seldom: the run has the same cores
        code = wait_for_end(start_logged(command, log, no_rank()), look, every=1.0)
    if code or not (best / WEIGHTS).is_file():
        raise UserError(f"seed {seed} gave no best/ ({failure_line(log, code)}); the whole log: {log}")
    if _written(best) - began > track.seconds and in_time.is_dir() and not changed_files(in_time):
        files.copy_tree(in_time, best)  # an evaluation has passed the limit, and found a better one
    files.discard(in_time)
    if derive:
        make_derived(derive, best, data, model_of(derive, run))
    if (seconds := _written(model_of(derive, run)) - began) > track.seconds:
        raise UserError(
            f"the encoder of seed {seed} was there after {seconds:.1f} s, and the track gives "
            f"{track.seconds:.0f}: lower train.steps, or evaluate.every"
        )
    return seconds


def _written(folder: Path) -> float:
    """Return when the last file of a folder was written."""
    return max(path.stat().st_mtime for path in folder.iterdir())
