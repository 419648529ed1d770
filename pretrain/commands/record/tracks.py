"""The tracks of the board, its frozen texts, and what a recipe and its data may not hold."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from augment.spec.resources import resources
from pretrain.common.cores import physical_cores, usable_cores
from pretrain.common.errors import UserError
from pretrain.config.data import DataConfig, Source
from pretrain.config.recipe import load_config
from pretrain.config.run import Config

ROOT = Path(__file__).resolve().parents[3]


class Track(NamedTuple):
    """seconds: from prepared shards to the export. table_bytes: of a static table; 0: an encoder."""

    seconds: float
    gpu: bool = False
    table_bytes: int = 0
    target: float = 0.0  # over seven STS, for every seed, in the fewest seconds; 0: the best scores win


TRACKS = {
    "cpu2-1m": Track(60),
    "cpu2-10m": Track(600),
    "cpu2-60m": Track(3600),
    "gpu-1m": Track(60, gpu=True),
    "gpu-10m": Track(600, gpu=True),
    "static": Track(600, table_bytes=8_000_000),
    "cpu2-speed": Track(600, target=60.0),
}
CORES = 2
"""That a track without a GPU uses."""
CORPUS = {
    "98f47d7341379fcfc25c0e6db142c1248a826d53dbe241ae7ff1b059a9f70493": "enwiki.txt.gz",
    "433fb49edcf25c575be9f2a791db4c211b229ac910ded484dd284009c01324b7": "books.txt.gz",
}
"""sha256 of the texts that may be trained on -> their names."""
HELD_OUT = "text/enwiki_recent.txt.gz", "5a5e5779bed30512910430f8f2a3632444be57d5c0411a9b0eed9e2aa553c7ad"
"""Below the folder of benchmarks: the text that retrieval is tested on, and its sha256."""


def settings_of(recipe: Path, seed: int, data: Path, folder: Path) -> Config:
    """Return the settings of the run of a recipe and a seed."""
    return load_config(recipe, dict(words_of(seed, data, folder)))


def words_of(seed: int, data: Path, folder: Path) -> dict[str, str]:
    """Return the settings that the board adds to a recipe. All checkpoints stay, to be trained between."""
    return {
        "train.seed": str(seed),
        "data.folder": str(data),
        "folder": str(folder),
        "evaluate.best_by": "stsb-dev",
        "checkpoint.keep": "1000",
    }


def use_machine(track: Track) -> dict[str, Any]:
    """Keep this process and its children to what a track may use; return what that is."""
    if not track.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.sched_setaffinity(0, physical_cores()[:CORES])
    else:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    import torch  # reads the variable

    from pretrain.start.devices import device_name

    if track.gpu and not torch.cuda.is_available():
        raise UserError("this track needs a GPU, and torch finds none: `clearly doctor` says why")
    return {"device": device_name(), "cores": usable_cores(), "torch": version("torch")}


def outside_help(config: Config, manifest: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a recipe and its data have beside the text: weights, labels, a teacher, other knowledge."""
    objective, augment = config.objective, config.augment
    specs = [augment.spec, augment.excerpt, augment.anchor, augment.positive, augment.negative]
    read = resources([spec for spec in [*specs, augment.augmented] if spec], augment.synonyms)
    resume = config.checkpoint.resume
    named = {"model.init": config.model.init, **objective.frozen, **read}
    named["checkpoint.resume"] = None if resume in ("never", "auto") else resume
    if "diffcse" in objective.parts:
        named["objective.diffcse.generator"] = objective.diffcse.generator or "a published model"
    yield from (f"{key} names {value}" for key, value in named.items() if value)
    if config.data.sets:
        yield "data.sets names other data"
    if config.data.cache:
        yield "data.cache reads views that were made before the clock ran"
    if not config.checkpoint.every:
        yield "checkpoint.every is 0: a check trains again between checkpoints"
    if any(":" in part for part in objective.parts):
        yield f"objective.name is {config.objective.name}, which no commit of the project holds"
    prepared = manifest.get("config")
    if not prepared or "run" not in manifest or manifest.get("cache") or manifest.get("annotation"):
        yield "the data are not what `clearly prepare` makes of text alone, but hold views or parses"
        return
    if manifest["run"].get("resumed"):
        yield "the preparation was interrupted, so its time is not known: prepare into another folder"
    if prepared["tokenizer"] is not None:
        yield f"the data has the tokenizer {prepared['tokenizer']}, which was trained on other text"
    old, new = (
        DataConfig(**{**keys, "sources": ["embedded"]}).model_dump()
        for keys in (prepared, config.data.prepare.model_dump())
    )
    for key in (key for key in old if old[key] != new[key]):
        yield f"the data was prepared with {key} {old[key]}, and the recipe says {new[key]}"


def corpus_of(sources: list[Source], data: Path, prepared_from: Sequence[Source] = ()) -> dict[str, str]:
    """Return the names of the texts in `sources`, in order, and their sha256; they must be the board's.

    prepared_from: what the data was prepared from, if `sources` are the same files in another folder.
    """
    from finetune.judge.heldout import contents_of

    for one in (*sources, *prepared_from):
        if one != Source(source=one.source):
            raise UserError(f"{one.source}: a text of the board has no weight, layout or keys of its own")
    found = contents_of(sources, data)
    if len(found) < len(sources):
        names = ", ".join(source.source for source in sources)
        raise UserError(f"{data} was prepared from {names}, which is not there now: name the files by --text")
    if others := [file for file, digest in found.items() if digest not in CORPUS]:
        raise UserError(
            f"{others[0]} is none of the board's texts, {' and '.join(CORPUS.values())} as their sha256 has "
            "them: prepare those alone"
        )
    now, then = ([Path(one.source).name for one in group] for group in (sources, prepared_from or sources))
    if now != then or not set(contents_of(prepared_from, data).values()) <= set(found.values()):
        names = ", ".join(map(str, prepared_from))
        raise UserError(f"{data} was prepared from {names}: name those files by --text, in this order")
    return {CORPUS[digest]: digest for digest in found.values()}


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the sha256 of prepared data: of its tokenizer and of every shard."""
    parts = [manifest["tokenizer_hash"]]
    parts += [shard["sha256"] for split in manifest["splits"].values() for shard in split["shards"]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def code_here() -> tuple[str, str]:
    """Return the sha256 of the project's sources, and the commit that holds them; "": none does."""
    digest, folders = hashlib.sha256(), ("augment", "finetune", "pretrain")
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.*")):
        if path.suffix in (".py", ".cpp", ".h", ".tsv", ".txt", ".yaml", ".mplstyle"):
            digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        return digest.hexdigest(), ""
    changed, commit = (
        subprocess.run(["git", "--no-optional-locks", "-C", ROOT, *words], capture_output=True, text=True)
        for words in (("status", "--porcelain", "--", *folders), ("rev-parse", "HEAD"))
    )
    return digest.hexdigest(), "" if changed.stdout or commit.returncode else commit.stdout.strip()
