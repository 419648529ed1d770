"""Checkpoint folders on disk: which there are, whether they are whole, and what is in them.

Needs neither DeepSpeed nor an engine: exporting, judging and inspecting read through here. The layout is
described in `pretrain.checkpoint`, which writes it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from pretrain.durable import sha256_of
from pretrain.errors import UserError

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
STEP_FOLDER = re.compile(r"step-(\d{8,})(\.replaced)?")


class CheckpointError(UserError):
    """A checkpoint could not be written, read or trusted; the message says which, why, and what to do."""


def step_of(folder: Path) -> int:
    match = STEP_FOLDER.fullmatch(folder.name)
    assert match is not None
    return int(match[1])


def candidates(root: Path) -> list[Path]:
    """Folders with a checkpoint's name, newest step first, a replaced one after its replacement."""
    if not root.is_dir():
        return []
    folders = [path for path in root.iterdir() if STEP_FOLDER.fullmatch(path.name) and path.is_dir()]
    return sorted(folders, key=lambda path: (-step_of(path), path.name))


def problem_with(path: Path) -> str | None:
    """What is wrong with a checkpoint folder (a file missing, cut, or changed), or None. Reads every byte."""
    path = Path(path)
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        files = manifest["files"]
        if manifest["format_version"] > FORMAT_VERSION:
            return f"it has format {manifest['format_version']}, this program reads up to {FORMAT_VERSION}"
        for name, expected in files.items():
            size = (path / name).stat().st_size
            if size != expected["bytes"]:
                return f"{name} has {size} bytes instead of {expected['bytes']}"
            if sha256_of(path / name) != expected["sha256"]:
                return f"{name} does not have the content that was written (sha256 differs)"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it can't be read: {error}"
    return None


def latest(root: Path) -> Path | None:
    """The newest checkpoint under `root` that verifies, or None when there is none.

    Damaged ones are named in a warning and passed over. Not collective; `resume_point` is what ranks call.
    """
    for path in candidates(Path(root)):
        problem = problem_with(path)
        if problem is None:
            return path
        logger.warning("checkpoint %s is damaged: %s. Looking for an earlier one.", path, problem)
    return None


def read_state(path: Path) -> dict[str, Any]:
    """The trainer's state in a checkpoint (step, config, tokenizer hash ...), without an engine."""
    return read_json(Path(path))["state"]


def read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads((path / "state.json").read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable checkpoint: {error}") from None


def tensor_names(path: Path, series: str = "parameters") -> list[str]:
    """Names of the tensors of a series ("parameters", "buffers", "exp_avg" ...)."""
    return list(locate(Path(path), series))


def read_tensors(path: Path, series: str = "parameters", prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """(name, tensor on the CPU) of a series, one at a time; only names that begin with `prefix`."""
    for name, file in locate(Path(path), series).items():
        if name.startswith(prefix):
            with safe_open(file, framework="pt") as tensors:
                yield name, tensors.get_tensor(name)


def locate(path: Path, series: str) -> dict[str, Path]:
    located: dict[str, Path] = {}
    for file in sorted(path.glob(f"{series}-[0-9]*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            located.update(dict.fromkeys(tensors.keys(), file))
    return located


def in_order(files: dict[str, Path], names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in the engine's order, the same on every rank, one in memory at a time."""
    opened: tuple[Path, Any] | None = None
    for name in names:
        if opened is None or opened[0] != files[name]:
            opened = files[name], safe_open(files[name], framework="pt")
        yield name, opened[1].get_tensor(name)
