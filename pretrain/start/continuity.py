"""What must be the same when a run is resumed: its inputs, and which of its settings may change.

A resumed run is the same run: what decides its batches, its model or its schedule must be the same. What an
error or an alarm advises may change, so that the advice can be followed. Such a change is recorded with its
step in the checkpoints (`progress.changes`) and in metrics.jsonl (`changed`); earlier records stay.

Inputs are what decides a batch: shards, tokenizer, parser, rules, synonyms, word vectors, models, own code.
Their hashes go into every checkpoint: a resume must find the same, or the run's data would change silently.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.own_code import OWN
from augment.spec.grammar import needs_text
from augment.spec.resources import resource_hash, resources, rules_digest
from pretrain.common.errors import UserError
from pretrain.config.objectives import DISTILLING, unused
from pretrain.config.run import DROPOUTS, SIZES, Config, TrainConfig
from pretrain.config.terms import MaskedLanguageConfig
from pretrain.config.validation import leaves, merged
from pretrain.data.batch import ViewSpec
from pretrain.data.masking import Masking
from pretrain.data.shards import ShardReader
from pretrain.telemetry.run import Telemetry

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
    """Hash everything that decides a batch of what the loader reads (`prepare.cache.views.trains_on`)."""
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
    parts = reader.manifest["splits"].items()
    splits = {split: [shard["chunks"] for shard in part["shards"]] for split, part in parts}
    return _json_hash([{key: reader.manifest.get(key) for key in _DECIDING}, splits])


def _json_hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def require_same(source: object, old: Inputs, new: Inputs, accept: str | None = None) -> list[dict[str, str]]:
    """Compare a checkpoint's inputs with this start's; return the differences, which `accept` must name."""
    differ = [name for name in old if name in new and old[name]["sha256"] != new[name]["sha256"]]
    accepted = [name for name in accepted_names(accept) if name != BATCHES]
    if unknown := [name for name in accepted if name not in new]:
        names = ", ".join(unknown)
        raise UserError(f"checkpoint.accept: this run has no input {names}; it has {', '.join(new)}")
    if fixed := [name for name in accepted if name in FIXED]:
        names = ", ".join(fixed)
        raise UserError(f"checkpoint.accept: {names} cannot change within a run; start a new one with --init")
    if refused := [name for name in differ if name not in accepted]:
        lines = [f"{source} was trained with other inputs than this start has:"]
        lines += [f"  {name} was {_short(old[name])}, is {_short(new[name])}" for name in refused]
        lines.append(
            "Put them back (data by --data or --data.sets, others by the recipe or the environment; rules "
            "are of the code's version), or start a new run from the export with --init."
        )
        if free := [name for name in refused if name not in FIXED]:
            names = ",".join([*accepted, *free])
            lines.append(f"To continue with the present ones: --checkpoint.accept '{names}'.")
        raise UserError("\n".join(lines))
    return [{"key": f"input {name}", "from": _short(old[name]), "to": _short(new[name])} for name in differ]


def accepted_names(accept: str | None) -> list[str]:
    """Return the names in `checkpoint.accept`."""
    return [name.strip() for name in (accept or "").split(",") if name.strip()]


def _short(value: dict[str, str]) -> str:
    return f"{value['sha256'][:12]} ({value['where']})"


# -- settings ------------------------------------------------------------------------

COMPARED = ("data", "model", "augment", "objective", "train")
"""Sections that define a run. Evaluations, checkpoints and the engine's own options may differ."""

FREE = (
    # data, and shares of several sets, are identified by hashes; what is replaced of damaged data is recorded
    *("data.folder", "data.sets", "data.temperature", "data.prepare", "data.workers", "data.damaged"),
    # change no gradient, but for rounding
    *("train.micro_batch_tokens", "train.activation_checkpointing", "train.graphs"),
    *("train.deterministic", "train.tf32", "train.optimizer_code", "train.zero", "train.threads"),
    *("train.rendezvous_seconds", "train.step_deadline"),
    "objective.mlm.initial_bias",  # a checkpoint has the bias
)
"""Keys that may differ without being a change of the run."""

MAY_CHANGE = (
    *("train.lr", "train.head_lr_scale", "train.clip", "train.precision", "train.warmup_steps"),
    *(f"train.faults.{key}" for key in ("skip", "rollbacks", "spikes", "spike_factor", "jump")),
    *("train.faults.dead_loss", "train.log_every", "train.steps", "train.patience"),
)
"""Keys that may change when a run is resumed (docs/runs.md says what a change does); also an objective's
`steadier` settings."""

SCHEDULE = ("train.schedule", "train.decay_steps", "train.decay_shape")
"""Keys that may change from `constant` or `wsd` to either, while the learning rate is stable in both."""
GUIDE_KEY = "objective.false_negatives.guide"
MASKING = "objective.mlm.rate", "objective.mlm.later_rates", "objective.mlm.rate_change"
"""Keys that may change if the steps done were masked at the same rates."""
BEGINNING = "objective.start_step", "objective.warmup_steps"
"""Keys that may change if the losses had the same share of their weights in the steps done."""


def record_changes(config: Config, state: dict[str, Any], source: Path) -> None:
    """Compare the settings with those of the checkpoint to resume; add what changed to its progress."""
    state["config"], step = Config.renewed(state["config"]), state["step"]
    if config.train.steps < step:
        raise UserError(f"train.steps={config.train.steps}, and {source} has done {step}: give those or more")
    # a key that the checkpoint is too old to have has its default
    before = _settings(merged(Config().model_dump(mode="json"), state["config"]))
    now = _settings(config.model_dump(mode="json"))
    allowed = set(MAY_CHANGE) | set(config.objective.steadier) | _stable(config, step, before, source)
    if _masked_alike(config, state["config"], step):
        allowed |= {key for key in {**before, **now} if key.startswith(MASKING)}
    made = config.objective.model_copy(update={key.split(".")[1]: before[key] for key in BEGINNING})
    if all(made.rise(done) == config.objective.rise(done) for done in range(step)):
        allowed |= set(BEGINNING)
    ignored = set(unused(config.objective.name, {**now, **before}))  # sections are recorded of all objectives
    if config.model.init is not None:  # what is not given is the starting model's, as before
        given = {key for key in config.model.model_fields_set if getattr(config.model, key) is not None}
        ignored |= {f"model.{key}" for key in (*SIZES, *DROPOUTS) if key not in given}
    if now["train.precision"] == "auto":
        ignored.add("train.precision")  # means what the run used before
    # an encoder, wherever it lies, is identified by its hash
    if not {before.get(GUIDE_KEY), now.get(GUIDE_KEY)} & {"none", "self"}:
        ignored.add(GUIDE_KEY)
    teachers = [f"objective.{part}.model" for part in DISTILLING]
    ignored |= {key for key in teachers if before.get(key) and now.get(key)}
    changes = []
    for key in {**now, **before}:
        free = key.split(".")[0] not in COMPARED or any(f"{key}.".startswith(f"{name}.") for name in FREE)
        if free or key in ignored or now.get(key) == before.get(key):
            continue
        if key not in allowed:
            raise UserError(
                f"{source} was made with {key}={before.get(key)}, this command has {now.get(key)}: that is "
                "another run. Set it back, or start a new run from the export with --init. With --resume "
                f"there may change: {', '.join(sorted(allowed))}"
            )
        changes.append({"step": step, "key": key, "from": before.get(key), "to": now.get(key)})
    state["progress"]["changes"] = [*state["progress"].get("changes", []), *changes]


def _stable(config: Config, step: int, old: dict[str, Any], source: Path) -> set[str]:
    """Return the keys of the schedule that may change, because the rates of the steps done stay as they are.

    A decay may begin at any checkpoint of the stable phase, and a run with one may be longer or shorter.
    """
    names = [key.removeprefix("train.") for key in (*SCHEDULE, "train.steps")]
    warmup = old["train.warmup_steps"]
    made = TrainConfig(warmup_steps=warmup, **{name: old[f"train.{name}"] for name in names})
    changed = [f"train.{name}" for name in names if getattr(made, name) != getattr(config.train, name)]
    schedules = {made.schedule, config.train.schedule}
    if not changed or not schedules <= {"constant", "wsd"} or schedules == {"constant"}:
        return set()
    falls = min(made.decay_begins, config.train.decay_begins)
    if step > falls:
        raise UserError(
            f"{source} is of step {step}, and the learning rate falls from step {falls} (train.schedule wsd, "
            f"before or now): {', '.join(sorted(changed))} may change only while it is stable. Take a "
            f"checkpoint of step {falls} or before, with --resume PATH and a --run of its own"
        )
    return set(SCHEDULE)


def _masked_alike(config: Config, made_with: dict[str, Any], step: int) -> bool:
    """Return whether the steps done were masked at the rates that the present settings give them."""
    made = config.objective.model_copy(update={"mlm": MaskedLanguageConfig(**made_with["objective"]["mlm"])})
    before, now = (Masking.of(objective).rate_at(np.arange(step)) for objective in (made, config.objective))
    return bool((before == now).all())


def print_changes(changes: list[dict[str, Any]], step: int, telemetry: Telemetry) -> None:
    """Print the changes made at this start, at `step`, and record them in metrics.jsonl."""
    now = [change for change in changes if change["step"] == step]
    for change in now:
        telemetry.say("changed    {key}: {from} until step {step}, {to} from now on".format_map(change))
    if now:
        telemetry.log(step, {"changed": now})


def _settings(tree: dict[str, Any]) -> dict[str, Any]:
    """Return dotted key -> value, without mappings that are empty: their keys are those of others."""
    return {key: value for key, value in leaves(tree) if value != {}}
