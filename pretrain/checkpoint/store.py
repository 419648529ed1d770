"""Checkpoints: whole, by name, verified, and atomic.

A checkpoint is a folder that knows nothing of ranks and holds no pickles:

    step-00001234/
      parameters-00000.safetensors   fp32 parameters by name (tied weights once)
      exp_avg-00000.safetensors      the optimizer's moments by parameter name, one series of files a moment
      exp_avg_sq-00000.safetensors
      buffers-00000.safetensors      batch-norm statistics and the like
      state.json                     the trainer's state, step counts, loss scale, library versions
      manifest.json                  size and sha256 of every file above

It loads at any world size and ZeRO stage. All ranks save together (`pretrain.checkpoint.saver`), each some of
the tensors, into a hidden folder; their number decides how many files a series has, which no reader needs to
know. Every file is fsynced, the folder is renamed to its name, the parent is fsynced, and only then `latest`
is replaced. So a folder with the name of a checkpoint is whole, whenever a process dies. The hashes find what
happens to it on the disk afterwards, and a resume takes the newest checkpoint that verifies. Damaged ones are
renamed (`step-00001234.damaged`), never removed.

A checkpoint that does not verify is one of three things. Damaged: it will never be readable, so an older one
takes its place. Unreadable now: the disk, the network or the permissions are at fault, and it may be whole.
Of a newer format: another version of this program reads it. Only damage leads to an older checkpoint; the
other two are errors. Exports and evaluations read through here, too, without an engine.
"""

import json
import logging
import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open

from augment.core.errors import shortened
from pretrain.checkpoint.engine_state import engine_state, parameter_shape
from pretrain.common.cores import usable_cores
from pretrain.common.errors import UserError
from pretrain.common.files import rename_durably, sha256_of

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
STEP_FOLDER = re.compile(r"step-(\d{8,})(\.replaced)?")
QUARANTINED = re.compile(r"step-\d{8,}(\.replaced)?\.(damaged|abandoned)(-\d+)?")
TENSOR_FILE = re.compile(r"(?P<series>.+)-\d{5,}\.safetensors")
FILE_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
SHA256 = re.compile(r"[0-9a-f]{64}")

Reason = Literal["damaged", "abandoned"]
"""Why a checkpoint or an export must not be used any more; the end of its new name."""


class CheckpointError(UserError):
    """A checkpoint could not be written, read or trusted; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Problem:
    """Why a checkpoint cannot be used: `str` continues a sentence that begins with its name."""

    kind: Literal["damaged", "unreadable", "newer"]
    what: str

    def __str__(self) -> str:
        kinds = {"damaged": "is damaged", "unreadable": "cannot be read now", "newer": "is of a newer format"}
        return f"{kinds[self.kind]}: {shortened(self.what, 400)}"

    @property
    def remedy(self) -> str:
        """What to do about it, if another checkpoint must not take its place by itself."""
        whole = "It may be whole: check the disk and the permissions, then give the same command again"
        newer = "Use the version of this program that wrote it, or a newer one"
        way = {"damaged": "", "unreadable": f"{whole}. ", "newer": f"{newer}. "}[self.kind]
        return f"{way}To continue without it, name an earlier one with --resume PATH"


# -- which there are ---------------------------------------------------------


def step_of(folder: Path) -> int:
    match = STEP_FOLDER.fullmatch(folder.name)
    assert match is not None
    return int(match[1])


def candidates(root: Path) -> list[Path]:
    """Return the folders with a checkpoint's name, newest step first, a replaced one after its replacement.

    Raises:
        CheckpointError: the folder is there and cannot be read.
    """
    return sorted(_named(root, STEP_FOLDER), key=lambda path: (-step_of(path), path.name))


def quarantined_folders(root: Path) -> list[Path]:
    """Return the checkpoints that `quarantine` has renamed."""
    return sorted(_named(root, QUARANTINED))


def _named(root: Path, pattern: re.Pattern[str]) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(entry.path) for entry in entries if pattern.fullmatch(entry.name) and entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CheckpointError(
            f"{root} cannot be read now: {error.strerror or error}; check the disk and the permissions"
        ) from None


def quarantine(path: Path, why: Reason) -> Path:
    """Rename a checkpoint that must not be resumed from, and keep it; return its new path."""
    renamed, number = path.with_name(f"{path.name}.{why}"), 1
    while renamed.exists():
        number += 1
        renamed = path.with_name(f"{path.name}.{why}-{number}")
    rename_durably(path, renamed)
    return renamed


# -- whether they are whole -----------------------------------------------------


def problem_with(path: Path) -> Problem | None:
    """Return what is wrong with a checkpoint folder; None: it is good. Reads every byte.

    It is good if every file that the manifest lists is there as it was written, and together they hold all
    that the checkpoint needs.
    """
    path = Path(path)
    try:
        manifest = _parse_manifest((path / "manifest.json").read_bytes())
        if isinstance(manifest, Problem):
            return manifest
        with ThreadPoolExecutor(usable_cores()) as pool:  # hashing leaves other threads their turn
            for problem in pool.map(lambda name: _changed(path, name, manifest[name]), manifest):
                if problem is not None:
                    return problem
        return _lacking(path, list(manifest))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return Problem("damaged", f"{Path(error.filename).name} is missing")
    except OSError as error:
        where = f" ({Path(error.filename).name})" if error.filename else ""
        return Problem("unreadable", f"{error.strerror or error}{where}")


def _changed(path: Path, name: str, expected: dict[str, Any]) -> Problem | None:
    """Return a problem if a file is not what the manifest says of it. Raises OSError."""
    size = (path / name).stat().st_size
    if size != expected["bytes"]:
        return Problem("damaged", f"{name} has {size} bytes instead of {expected['bytes']}")
    if sha256_of(path / name) != expected["sha256"]:
        return Problem("damaged", f"{name} does not have the content that was written (sha256 differs)")
    return None


def _parse_manifest(data: bytes) -> dict[str, dict[str, Any]] | Problem:
    """Return file name -> its {"bytes", "sha256"}; or what is wrong with the manifest."""
    try:
        manifest = json.loads(data)
        version, files = manifest["format_version"], manifest.get("files")
        if isinstance(version, int) and version > FORMAT_VERSION:
            return Problem("newer", f"it has format {version}, this program reads up to {FORMAT_VERSION}")
        if not isinstance(version, int) or "state.json" not in files:
            return Problem("damaged", "manifest.json is not a checkpoint's manifest")
        for name, expected in files.items():
            whole = isinstance(expected["bytes"], int) and SHA256.fullmatch(expected["sha256"])
            if not FILE_NAME.fullmatch(name) or not whole:
                return Problem(
                    "damaged", f"manifest.json lists {shortened(name)} without name, size or sha256"
                )
        return files
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"{type(error).__name__}: {shortened(str(error))}"
        return Problem("damaged", f"manifest.json can't be read ({what})")


def _lacking(path: Path, names: list[str]) -> Problem | None:
    """Return a problem if the listed files hold fewer tensors than the checkpoint's state counts."""
    wrong = (ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError)
    try:
        content = json.loads((path / "state.json").read_bytes())
        series, state = content["series"], content["state"]
        if not isinstance(state, dict):
            return Problem("damaged", "state.json holds no state of a run")
        for kind, count in series.items():
            listed = sum(len(_names_in(path / name)) for name in _files_of(names, kind))
            if listed != count:
                what = f"{listed} of the {count} tensors of {kind}"
                return Problem("damaged", f"manifest.json lists files with {what}")
    except wrong as error:
        what = f"{type(error).__name__}: {shortened(str(error))}"
        return Problem("damaged", f"its files are not those of a checkpoint ({what})")
    return None


@dataclass(frozen=True)
class Choice:
    """The checkpoint to resume from, and the newer ones that are damaged, each with what is wrong."""

    path: Path
    damaged: tuple[tuple[Path, Problem], ...] = ()


def choose(root: Path) -> Choice | None:
    """Return the newest checkpoint under `root` that verifies; None: there never was one. Changes nothing.

    Raises:
        CheckpointError: one that is newer than any good one cannot be read now or has a newer format; or
            there are checkpoints and none is good. All are named, with what is wrong.
    """
    root = Path(root)
    damaged: list[tuple[Path, Problem]] = []
    for path in candidates(root):
        problem = problem_with(path)
        if problem is None:
            return Choice(path, tuple(damaged))
        damaged.append((path, problem))
        if problem.kind != "damaged":
            raise CheckpointError(f"checkpoint {path} {problem}. {problem.remedy}")
    aside = quarantined_folders(root)
    if not damaged and not aside:
        return None
    listed = [f"\n  {path.name} {problem}" for path, problem in damaged] + [
        f"\n  {path.name} was set aside" for path in aside
    ]
    raise CheckpointError(
        f"there are checkpoints in {root}, and none can be used:{''.join(listed)}\nRestore one from a copy, "
        "or start from the beginning in another folder with --run"
    )


def latest(root: Path) -> Path | None:
    """Return the newest checkpoint under `root` that verifies; None: there never was one (`choose`).

    Warns of the damaged ones that it passes over.
    """
    choice = choose(root)
    for path, problem in choice.damaged if choice else ():
        logger.warning("checkpoint %s %s. Using an earlier one.", path, problem)
    return choice.path if choice else None


# -- what is in them --------------------------------------------------------


def read_state(path: Path) -> dict[str, Any]:
    """Return the trainer's state in a checkpoint (step, config, tokenizer hash ...), without an engine."""
    return read_json(Path(path))["state"]


def read_json(path: Path) -> dict[str, Any]:
    """Return what a checkpoint's state.json holds."""
    try:
        return json.loads((path / "state.json").read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from None


def read_tensors(path: Path, series: str = "parameters") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield (name, tensor on the CPU) of a series, one at a time."""
    for name, file in locate(Path(path), series).items():
        with safe_open(file, framework="pt") as tensors:
            yield name, tensors.get_tensor(name)


def locate(path: Path, series: str) -> dict[str, Path]:
    """Return the name of each tensor of a series -> its file; only files that the manifest lists count."""
    try:
        manifest = _parse_manifest((path / "manifest.json").read_bytes())
        if isinstance(manifest, Problem):
            raise CheckpointError(f"checkpoint {path} {manifest}. {manifest.remedy}")
        return {
            name: path / file for file in _files_of(list(manifest), series) for name in _names_in(path / file)
        }
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from None


def _files_of(names: list[str], series: str) -> list[str]:
    return sorted(
        name for name in names if (match := TENSOR_FILE.fullmatch(name)) and match["series"] == series
    )


def _names_in(file: Path) -> list[str]:
    with safe_open(file, framework="pt") as tensors:
        return list(tensors.keys())


class TensorReader:
    """Read elements of tensors; files stay open from one to the next."""

    def __init__(self) -> None:
        self._opened: dict[Path, Any] = {}

    def elements(self, file: Path, name: str, wanted: slice) -> torch.Tensor:
        """Return `wanted` of the flattened tensor, one-dimensional; no more than its rows are read."""
        if file not in self._opened:
            self._opened[file] = safe_open(file, framework="pt")
        if wanted.start == wanted.stop:
            return torch.empty(0)
        tensor = self._opened[file].get_slice(name)
        shape = tensor.get_shape()
        if wanted == slice(0, math.prod(shape)):
            return self._opened[file].get_tensor(name).reshape(-1)
        row = math.prod(shape[1:])
        first = wanted.start // row
        rows = tensor[first : -(-wanted.stop // row)].reshape(-1)
        return rows[wanted.start - first * row : wanted.stop - first * row]


# -- into an engine --------------------------------------------------------


def load(path: Path, engine) -> dict[str, Any]:
    """Put a checkpoint into `engine`, of any world size and stage; return the trainer's state. Collective.

    Each rank reads from the disk only what its stage keeps on it.

    Parameters, moments, step counts, learning rates, loss scale and the engine's counters become exactly
    those that were saved; an engine that has never stepped gets an optimizer state first.

    Args:
        path: of one that has been verified, as by `choose`: no hash is compared here.

    Raises:
        CheckpointError: it is of another model: names or shapes differ, and are listed.
    """
    path = Path(path)
    content = read_json(path)
    view = engine_state(engine)
    parameters = dict(view.named_parameters())
    moments = content["optimizer"]["moments"]
    files = {series: locate(path, series) for series in ("parameters", "buffers", *moments)}
    buffers = dict(view.named_buffers())
    shapes = {name: parameter_shape(parameter) for name, parameter in parameters.items()}
    shapes |= {name: tuple(buffer.shape) for name, buffer in buffers.items()}
    _check_same_model(path, shapes, files["parameters"] | files["buffers"])

    view.prepare({id(p): [key for key in moments if n in files[key]] for n, p in parameters.items()})
    reader = TensorReader()
    with torch.no_grad():
        for name, parameter in parameters.items():
            wanted = view.wanted(parameter, None)
            view.set(parameter, None, reader.elements(files["parameters"][name], name, wanted))
            if id(parameter) in view.holders:
                for key in moments:
                    if name in files[key]:
                        wanted = view.wanted(parameter, key)
                        view.set(parameter, key, reader.elements(files[key][name], name, wanted))
        for name, buffer in buffers.items():
            every = slice(0, buffer.numel())
            buffer.copy_(reader.elements(files["buffers"][name], name, every).reshape(buffer.shape))
    numbers: dict[int, dict[str, float | int]] = {}
    for key, by_name in content["optimizer"]["scalars"].items():
        for name, number in by_name.items():
            numbers.setdefault(id(parameters[name]), {})[key] = number
    view.set_scalars(numbers)
    view.finish()
    rates = content["optimizer"]["learning_rates"]
    if len(rates) == len(view.inner.param_groups):
        for group, rate in zip(view.inner.param_groups, rates, strict=True):
            group["lr"] = rate
    for name, value in content["counters"].items():
        if hasattr(engine, name):
            setattr(engine, name, value)
    return content["state"]


def _check_same_model(path: Path, shapes: dict[str, tuple[int, ...]], files: dict[str, Path]) -> None:
    saved: dict[str, tuple[int, ...]] = {}
    for name, file in files.items():
        with safe_open(file, framework="pt") as tensors:
            saved[name] = tuple(tensors.get_slice(name).get_shape())
    differences = [
        f"{name} is {saved.get(name, 'not')} in the checkpoint, {shapes.get(name, 'not')} in the model"
        for name in {**shapes, **saved}
        if saved.get(name) != shapes.get(name)
    ]
    if differences:
        more = f"; and {len(differences) - 8} more" if len(differences) > 8 else ""
        raise CheckpointError(
            f"{path} is of another model than the config builds: {'; '.join(differences[:8])}{more}"
            ". Resume with the run folder's own config.yaml, or start a new run folder"
        )
