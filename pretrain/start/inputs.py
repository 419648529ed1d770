"""Hashes of what decides a run: shards, tokenizer, parser, rules, synonyms, word vectors, models, own code.

The record goes into every checkpoint. A resume must find the same, or the run's data would change silently.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from augment.core.own_code import OWN
from augment.spec.grammar import needs_text
from augment.spec.resources import resource_hash, resources, rules_digest
from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data.batch import ViewSpec
from pretrain.data.shards import ShardReader

Inputs = dict[str, dict[str, str]]
"""Name -> {"sha256": ..., "where": where it was found}."""

_DECIDING = ("unit", "max_length", "columns", "labels", "label_names", "vocabulary_size", "token_dtype")
BATCHES = "batches"
"""What `checkpoint.accept` calls a last batch that is not as recorded (`verify_resumed_batch`)."""
GUIDE = "guide"
"""The encoder that says which negatives are false, if it is not the trained one."""
FIXED = ("shards", "manifest", "tokenizer")
"""Inputs that cannot change within a run: they decide what a position in the data, or an id, means."""


def collect(config: Config, views: Sequence[ViewSpec], train: ShardReader, heldout: ShardReader) -> Inputs:
    """Hash everything that decides a batch of the run.

    Args:
        config, views: of what the loader reads (`pretrain.cache.views.trains_on`).
    """
    folder = str(train.folder.resolve())
    folders = ", ".join(str(part.folder.resolve()) for part in train.parts)
    collected: Inputs = {}

    def note(name: str, digest: str | None, where: object) -> None:
        collected[name] = {"sha256": digest or "unknown", "where": str(where)}

    note("shards", train.content_hash, folders)
    note("held-out shards", heldout.content_hash, folder)
    note("manifest", _manifest_hash(train), folders)
    note("tokenizer", train.tokenizer_hash, folder)
    cached = train.manifest.get("cache") or {}
    if parser := train.annotation or cached.get("parser"):
        described = {key: parser.get(key) for key in ("name", "version", "language")}
        note("parser", _json_hash(described), parser.get("parser"))
    for name, digest in cached.get("resources", {}).items():
        note(f"{name} (of the cached views)", digest, folder)
    if "rules" in cached:
        note("rules (of the cached views)", cached["rules"], folder)
    specs = [view.augmentation for view in views]
    if any(map(needs_text, specs)):
        note("rules", rules_digest(), "augment/")
    for name in config.objective.parts:
        if own := OWN.match(name):
            note(name, resource_hash(own["file"]), own["file"])
    for name, where in resources(specs, config.augment.synonyms).items():
        note(name, resource_hash(where), where)
    guide = config.objective.guide
    # one that the hub has not given yet is recorded from the next start on
    if guide is not None and (digest := resource_hash(guide)) is not None:
        note(GUIDE, digest, guide)
    return collected


def _manifest_hash(reader: ShardReader) -> str:
    """Hash how the manifest says that shards are read, which the shards' own hashes do not cover."""
    if len(reader.parts) > 1:
        return _json_hash([_manifest_hash(part) for part in reader.parts])
    splits = {
        split: [shard["chunks"] for shard in part["shards"]]
        for split, part in reader.manifest["splits"].items()
    }
    return _json_hash([{key: reader.manifest.get(key) for key in _DECIDING}, splits])


def _json_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def require_same(
    source: object, before: Inputs, now: Inputs, accept: str | None = None
) -> list[dict[str, str]]:
    """Compare the inputs of a checkpoint with those of this start; return the accepted differences.

    Args:
        source: the checkpoint, for the message.
        accept: names, comma-separated, of inputs that may differ.

    Raises:
        UserError: some differ; one message names all of them, with both hashes, and what to do.
    """
    differ = [name for name in before if name in now and before[name]["sha256"] != now[name]["sha256"]]
    accepted = [name for name in accepted_names(accept) if name != BATCHES]
    if unknown := [name for name in accepted if name not in now]:
        names = ", ".join(unknown)
        raise UserError(f"checkpoint.accept: this run has no input {names}; it has {', '.join(now)}")
    if fixed := [name for name in accepted if name in FIXED]:
        names = ", ".join(fixed)
        raise UserError(f"checkpoint.accept: {names} cannot change within a run; start a new one with --init")
    if refused := [name for name in differ if name not in accepted]:
        lines = [f"{source} was trained with other inputs than this start has:"]
        lines += [f"  {name} was {_short(before[name])}, is {_short(now[name])}" for name in refused]
        lines.append(
            "Put them back (data is named by --data or --data.sets, others by the recipe or the environment; "
            "rules are of the code's version), or start a new run from its export with --init."
        )
        if free := [name for name in refused if name not in FIXED]:
            names = ",".join([*accepted, *free])
            lines.append(f"To continue with the present ones: --checkpoint.accept '{names}'.")
        raise UserError("\n".join(lines))
    return [
        {"key": f"input {name}", "from": _short(before[name]), "to": _short(now[name])} for name in differ
    ]


def accepted_names(accept: str | None) -> list[str]:
    """Return the names in `checkpoint.accept`."""
    return [name.strip() for name in (accept or "").split(",") if name.strip()]


def _short(value: dict[str, str]) -> str:
    return f"{value['sha256'][:12]} ({value['where']})"
