"""`data.cache`: views that are made once, before training, and read from a folder beside the data.

What AugCSE and SDA do: the sentences are augmented before training, and every epoch sees the same. The run's
positive, negative and labelled views become columns of data that `clearly cache` makes of the prepared data,
in FOLDER.cache-DIGEST, one for each set of specifications, number of copies, synonym table, models that the
environment names, and version of the rules; the run then trains on that folder as on any other, and the views
take their columns as they are.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from augment.core.errors import AugmentationError
from augment.spec.grammar import from_environment, loads_models, needs_synonyms, needs_text, parse
from augment.spec.resources import resource_hash, resources, rules_digest
from pretrain.common.errors import UserError
from pretrain.common.processes import run_module
from pretrain.config.run import Config
from pretrain.data.batch import ViewSpec
from pretrain.data.manifest import MANIFEST, SPLITS, read_manifest
from pretrain.data.shards import ShardReader
from pretrain.prepare.cache.run import COLUMNS, LABELLED


def columns_of(views: Sequence[ViewSpec]) -> dict[str, str]:
    """Return what to make once: column -> specification."""
    columns: dict[str, str] = {}
    for view in views:
        if view.role == "anchor":
            if needs_text(view.augmentation):
                raise UserError(f"data.cache keeps an anchor's text ({view.augmentation}): set data.cache=0")
        elif not parse(view.augmentation).is_identity:
            if view.column in columns or view.column not in COLUMNS:
                raise UserError(f"data.cache makes {', '.join(COLUMNS)}, and not {view.role}: set it to 0")
            columns[view.column] = view.augmentation
    if not columns:
        raise UserError("data.cache: no view but the anchor is augmented; set data.cache=0")
    return columns


def cache_folder(config: Config, columns: dict[str, str]) -> Path:
    """Return the folder of the views: beside the data, named by a digest of what decides them."""
    made: dict[str, Any] = {
        "columns": {name: str(parse(spec)) for name, spec in columns.items()},
        "copies": config.data.cache,
        "environment": from_environment(columns.values()),
        "rules": rules_digest(),
    }
    if config.augment.synonyms is not None and any(map(needs_synonyms, columns.values())):
        made["synonyms"] = str(config.augment.synonyms)
    digest = hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:8]
    return config.data_folder.with_name(f"{config.data_folder.name}.cache-{digest}")


def make(config: Config, views: Sequence[ViewSpec]) -> None:
    """Make the cache if it is not there; call it on one rank, when the data is prepared."""
    columns = columns_of(views)
    folder = cache_folder(config, columns)
    readers = {split: ShardReader(config.data_folder, split) for split in SPLITS}
    if readers["train"].columns != ("text",) or readers["train"].labels:
        nothing = ", ".join(f"augment.{column}=none" for column in columns)
        raise UserError(
            f"data.cache makes views of texts, and {config.data_folder} has columns or labels: to train on "
            f"them, set data.cache=0 and {nothing}"
        )
    if (folder / MANIFEST).is_file():
        content = {split: reader.content_hash for split, reader in readers.items()}
        made = read_manifest(folder).get("cache") or {}
        if made.get("content") != content:
            raise UserError(f"{folder} has views of other data than {config.data_folder}: remove that folder")
        _require_same_resources(config, columns, folder, made.get("resources", {}))
        return
    words = ["--data", str(config.data_folder), "--out", str(folder), "--resample", str(config.data.cache)]
    for column, spec in columns.items():
        words += ["--aug" if column == LABELLED else f"--{column}", spec]
    if config.augment.synonyms is not None:
        words += ["--synonyms", str(config.augment.synonyms)]
    if any(map(loads_models, columns.values())):
        words += ["--workers", "1"]  # every worker would load the models, and move them to the one GPU
    print(f"making the views {', '.join(columns)} once, in {folder}", file=sys.stderr, flush=True)
    run_module("pretrain.prepare.cache", words, f"Making {folder}")


def _require_same_resources(
    config: Config, columns: dict[str, str], folder: Path, made: dict[str, str]
) -> None:
    """Refuse views that were made with another synonym table, model or file of the same name.

    What this machine lacks is not compared: views that are made need none of it.
    """
    try:
        read = resources(columns.values(), config.augment.synonyms)
    except AugmentationError:  # no synonym table or WordNet on this machine
        return
    for name, where in read.items():
        now = resource_hash(where)
        if now is not None and made.get(name, now) != now:
            what = f"{folder} was made with another {name} than {where}"
            raise UserError(f"{what}: restore it, or remove the folder")


def trains_on(config: Config, views: Sequence[ViewSpec]) -> Config:
    """Return the loader's configuration; with `data.cache`, the run's `views` are the cache's columns."""
    if not config.data.cache:
        return config
    columns = columns_of(views)
    specs = {"excerpt": "none", "anchor": config.augment.of_role("anchor"), **dict.fromkeys(columns, "none")}
    data = config.data.model_copy(update={"folder": cache_folder(config, columns), "cache": 0})
    return config.model_copy(update={"data": data, "augment": config.augment.model_copy(update=specs)})
