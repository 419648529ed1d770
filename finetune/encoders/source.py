"""Resolve a model's name once; everything that loads a part of the model carries the result."""

import contextlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from augment.core.errors import CannotLoad
from augment.core.pretrained import hub_fault, require_source
from pretrain.common.errors import UserError, naming
from pretrain.common.run_folder import describe_export, export_of
from pretrain.export.sums import weights_identity

if TYPE_CHECKING:
    from pretrain.export.sentence_transformers import Modules


OWN_MODULES = "own modules"
"""The pooling of a model of sentence-transformers, which has one way to make vectors, as reports call it."""


_KINDS = {"clear.json": "ours", "modules.json": "sentence-transformers", "config.json": "hugging face"}


@dataclass(frozen=True)
class ModelSource:
    """A model's name, resolved by `resolve`."""

    name: str
    """As the user gave it; what reports call the model."""
    location: str
    """Folder or hub name to load; of a run, its best/ or else its export/."""
    run: Path | None = None
    """The run folder that it comes from, if any: reports go to its report/."""
    policy: Mapping[str, Any] | None = None
    """What an export of ours says of itself (`pretrain.export.folder.read_policy`)."""

    @property
    def folder(self) -> Path | None:
        """Where its weights and tokenizer lie; None for hub names."""
        return Path(self.location) if Path(self.location).is_dir() else None

    @property
    def trained_pooling(self) -> str | None:
        """The pooling that it was trained with, if the model says so."""
        return self.policy["pooling"] if self.policy else None

    @cached_property
    def modules(self) -> "Modules | None":
        """What its modules.json says of it; None: it has none."""
        from pretrain.export.sentence_transformers import read_modules  # imports torch

        return read_modules(self.location)

    @property
    def identity(self) -> str:
        """What tells these weights from others of the same name: the folder, its files' sizes and times."""
        if self.folder is None:
            return self.name
        return weights_identity(self.folder)


def names_function(text: str) -> bool:
    """Return whether a model's name names a function: module:function or file.py:function."""
    return ":" in text and not Path(text).exists()


def require_model(name: str) -> str:
    """Return a model's name; refuse that of a folder that is not there, before torch is loaded."""
    with naming(name, CannotLoad):
        if not names_function(name):
            require_source(name)
    return name


def resolve(model: str | Path) -> ModelSource:
    """Resolve a model folder, hub name, export or run folder (its best/, else its export/, as it says)."""
    name = require_model(str(model))
    from pretrain.export.folder import read_policy  # imports transformers

    source = os.path.expanduser(name)
    folder, location = Path(source), export_of(source)
    policy = read_policy(location)
    if location != source:
        print(f"{source}: weights from {location} ({describe_export(policy) or 'a model'})", file=sys.stderr)
        return ModelSource(name, location, folder, policy)
    parent = folder.resolve().parent
    in_run = folder.name in ("export", "best") and (parent / "config.yaml").is_file()
    return ModelSource(name, source, parent if in_run else None, policy)


def kind_of(location: str) -> str:
    """Return how a model is loaded: "ours", "sentence-transformers", "hugging face" or "hub"; refuse none."""
    folder = Path(location)
    for mark, kind in _KINDS.items():
        if (folder / mark).is_file():
            return kind
    if folder.exists():
        raise UserError(f"{location}: no model there; a model folder has a config.json or modules.json")
    # asked once: the hub's own library tries for half a minute for each file
    if cached_folder(location) is None and (fault := hub_fault()):
        raise not_on_hub(location, fault)
    return "sentence-transformers" if _file(location, "modules.json") else "hub"


def not_on_hub(name: str, reason: str) -> UserError:
    """Return the error for a name that is neither here nor, for this reason, on the hub."""
    return UserError(
        f"there is no run or folder {name} here, and as a model of the hub it cannot be loaded: {reason}"
    )


def reach_hub(source: str, otherwise: str) -> None:
    """Raise UserError with what to do `otherwise`, before a library tries a silent hub for half a minute."""
    if fault := hub_fault():
        offline = "HF_HUB_OFFLINE=1 takes what the hub's cache on this machine holds"
        raise UserError(f"cannot load {source}: {fault}. Without network, {otherwise}; {offline}")


def cached_folder(name: str) -> Path | None:
    """Return the folder of a hub model's files in the hub's cache on this machine; None: it holds none."""
    paths = (_file(name, file, local_files_only=True) for file in ("modules.json", "config.json"))
    return next((Path(path).parent for path in paths if path), None)


def _file(name: str, file: str, **how: bool) -> str | None:
    """Return the path of a hub model's file, in the cache or fetched into it; None: it has none."""
    from transformers.utils import cached_file

    with contextlib.suppress(OSError, ValueError):
        return cached_file(name, file, _raise_exceptions_for_missing_entries=False, **how)
    return None
