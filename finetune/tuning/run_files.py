"""Write and read the files of a fine-tuning: tensors, and the result of a run."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, remove_file, replace_durably, to_json


def write_tensors(path: Path, state: Mapping[str, Any]) -> None:
    """Save a state of tensors and plain values, whole or not at all."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    make_folder(path.parent)
    replace_durably(path, buffer.getvalue())


def read_tensors(path: Path) -> dict[str, Any]:
    """Read what `write_tensors` saved, on the CPU."""
    try:
        with zipfile.ZipFile(path) as file:  # torch itself does not look at the checksums that it writes
            if damaged := file.testzip():
                raise ValueError(f"the checksum of {damaged} differs")
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError, UnpicklingError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error}); remove it, to compute it again") from error


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Return a digest of all that a run's result depends on, for the file's name."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]


def checkpoint_of(path: Path) -> Path:
    """Return the file of the state that a run is continued from, by the file of its result."""
    return path.with_suffix(".checkpoint")


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of a run, then remove its checkpoint: a kill between the two costs no training."""
    make_folder(path.parent)
    replace_durably(path, to_json(result))
    remove_file(checkpoint_of(path))


def read_result(path: Path) -> dict[str, Any] | None:
    """Read the result of a run (JSON); None where there is none yet."""
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); remove it, to compute the run again") from error
    if not isinstance(result, dict):
        raise UserError(f"{path} is not a run's result; remove it, to compute the run again")
    return result
