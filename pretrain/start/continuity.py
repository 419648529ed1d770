"""Which settings of a resumed run must be the same, which may change, and where a change is recorded.

A resumed run is the same run: what decides its batches, its model or its schedule must be the same. What an
error or an alarm advises may change, so that the advice can be followed. Such a change is recorded with its
step in the checkpoints (`progress.changes`) and in metrics.jsonl (`changed`); earlier records stay.
"""

from pathlib import Path
from typing import Any

import numpy as np

from pretrain.common.errors import UserError
from pretrain.config.data import LoadingConfig
from pretrain.config.objectives import unused
from pretrain.config.run import DROPOUTS, SIZES, Config, TrainConfig
from pretrain.config.terms import MaskedLanguageConfig
from pretrain.config.validation import leaves, merged
from pretrain.data.masking import Masking
from pretrain.telemetry.run import Telemetry

COMPARED = ("data", "model", "augment", "objective", "train")
"""Sections that define a run. Evaluations, checkpoints and the engine's own options may differ."""

FREE = (
    # data, and shares of several sets, are identified by hashes; what is replaced of damaged data is recorded
    *("data.folder", "data.sets", "data.temperature", "data.prepare", "data.workers", "data.damaged"),
    # change no gradient, but for rounding
    *("train.micro_batch_tokens", "train.balance", "train.activation_checkpointing", "train.graphs"),
    *("train.deterministic", "train.optimizer_code", "train.zero", "train.threads"),
    *("train.rendezvous_seconds", "train.step_deadline"),
    "objective.mlm.initial_bias",  # a checkpoint has the bias
)
"""Keys that may differ without being a change of the run."""

MAY_CHANGE = (
    *("train.lr", "train.head_lr_scale", "train.clip", "train.precision", "train.warmup_steps"),
    *(f"train.faults.{key}" for key in ("skip", "within", "rollbacks", "spikes", "spike_factor", "jump")),
    *("train.faults.dead_loss", "train.log_every", "train.steps"),
)
"""Keys that may change when a run is resumed (docs/runs.md says what a change does); also an objective's
`steadier` settings."""

SCHEDULE = ("train.schedule", "train.decay_steps", "train.decay_shape")
"""Keys that may change from `constant` or `wsd` to either, while the learning rate is stable in both."""
GUIDE = "objective.false_negatives.guide"
MASKING = "objective.mlm.rate", "objective.mlm.later_rates", "objective.mlm.rate_change"
"""Keys that may change where the steps done were masked at the same rates."""
BEGINNING = "start_step", "warmup_steps"
"""Settings of a loss that may change where it had the same share of its weight in the steps done."""


def record_changes(config: Config, state: dict[str, Any], source: Path) -> None:
    """Compare the settings with those of the checkpoint to resume; add what changed to its progress.

    Raises:
        UserError: a setting differs that must not change. The message names both values, and what may change.
    """
    if state["config"]["model"].pop("layer_code", "own") == "library":
        raise UserError(f"{source} was made with transformers' layers, which this version does not have")
    for key in LoadingConfig.former:
        state["config"]["data"].pop(key, None)
    step = state["step"]
    if config.train.steps < step:
        raise UserError(
            f"train.steps={config.train.steps} is less than the {step} steps of {source}; name these or more"
        )
    # a key that the checkpoint is too old to have has its default
    before = _settings(merged(Config().model_dump(mode="json"), state["config"]))
    now = _settings(config.model_dump(mode="json"))
    allowed = set(MAY_CHANGE) | set(config.objective.steadier) | _stable(config, step, before, source)
    if _masked_alike(config, state["config"], step):
        allowed |= {key for key in {**before, **now} if key.startswith(MASKING)}
    allowed |= _begun_alike(config, before, step)
    ignored = set(unused(config.objective.name, {**now, **before}))  # sections are recorded of all objectives
    if config.model.init is not None:  # what is not given is the starting model's, as before
        given = {key for key in config.model.model_fields_set if getattr(config.model, key) is not None}
        ignored |= {f"model.{key}" for key in (*SIZES, *DROPOUTS) if key not in given}
    if now["train.precision"] == "auto":
        ignored.add("train.precision")  # means what the run used before
    if not {before.get(GUIDE), now.get(GUIDE)} & {"none", "self"}:
        ignored.add(GUIDE)  # an encoder, wherever it lies, is identified by its hash
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


def _stable(config: Config, step: int, before: dict[str, Any], source: Path) -> set[str]:
    """Return the keys of the schedule that may change, because the rates of the steps done stay as they are.

    A decay may begin at any checkpoint of the stable phase, and a run with one may be longer or shorter.

    Raises:
        UserError: they or the number of steps change where the rate falls already.
    """
    names = [key.removeprefix("train.") for key in (*SCHEDULE, "train.steps")]
    warmup = before["train.warmup_steps"]
    made = TrainConfig(warmup_steps=warmup, **{name: before[f"train.{name}"] for name in names})
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


def _begun_alike(config: Config, before: dict[str, Any], step: int) -> set[str]:
    """Return the keys of BEGINNING that changed without changing the weight of a loss in the steps done.

    A run whose sentence loss has not begun is, bitwise, one of masked language modelling alone, so when it
    begins can be decided later.
    """
    keys = set()
    for section in config.objective.sections:
        now = getattr(config.objective, section)
        own = {name: f"objective.{section}.{name}" for name in BEGINNING}
        made = now.model_copy(update={name: before[key] for name, key in own.items()})
        if made != now and all(made.rise(done) == now.rise(done) for done in range(step)):
            keys |= set(own.values())
    return keys


def print_changes(changes: list[dict[str, Any]], step: int, telemetry: Telemetry) -> None:
    """Print the changes made at this start, at `step`, and record them in metrics.jsonl."""
    now = [change for change in changes if change["step"] == step]
    for change in now:
        telemetry.say(
            f"changed    {change['key']}: {change['from']} until step {step}, {change['to']} from now on"
        )
    if now:
        telemetry.log(step, {"changed": now})


def _settings(tree: dict[str, Any]) -> dict[str, Any]:
    """Return dotted key -> value, without mappings that are empty: their keys are those of others."""
    return {key: value for key, value in leaves(tree) if value != {}}
