"""Read the configuration of a run: a recipe in YAML, overridden by flags; unknown keys are refused.

`describe` lists every key with its type, default and meaning for `--help`.
"""

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from augment.core.errors import excerpt, shortened
from pretrain.common.credentials import require_no_credentials
from pretrain.common.errors import UserError
from pretrain.common.typed_values import Flag, faults, nearest, parse_value
from pretrain.config.objectives import readers, unused
from pretrain.config.run import SIZES, Config, TrainConfig
from pretrain.config.validation import read_yaml, type_at

SHORT_FLAGS = {
    "aug": "augment.spec",
    "data": "data.folder",
    "init": "model.init",
    "objective": "objective.name",
    "resume": "checkpoint.resume",
    "run": "folder",
    "eval_data": "evaluate.sts",
    "steps": "train.steps",
}
"""Flags that stand for a key: those that a command line names most often."""

_BESIDE = Path(__file__).resolve().parents[2] / "configs"
RECIPES = _BESIDE if (_BESIDE / "clear_micro.yaml").is_file() else _BESIDE.parent / "pretrain" / "recipes"
"""The project's own recipes: `configs` of a checkout; an installation has them in a package."""

DEFAULT_RECIPE = RECIPES / "clear_micro.yaml"
"""The recipe of a command without --config: one that any machine can train, on text that any machine has."""


def load_config(recipe: str | Path | None, overrides: dict[str, Any]) -> Config:
    """Read a YAML recipe, apply overrides, validate.

    An override that changes nothing, of an objective that is not in the sum for instance, is refused. (A
    recipe may have such settings: the config.yaml of a run has all.)

    Args:
        recipe: path of a YAML file, or name of one of ours (`find_recipe`), or None for the defaults.
        overrides: dotted key or short flag -> raw value (`{"train.lr": "1e-4", "aug": "del-word"}`). Strings
            are read by the type of their field (`typed_values.parse_value`).
    """
    tree: dict[str, Any] = {}
    where = "flags"
    if recipe is not None:
        tree = read_yaml(find_recipe(Path(recipe)))
        if "rows" in tree:
            raise UserError(f"{recipe} is a sweep: clearly sweep {recipe} trains its runs")
        where = where if recipe == DEFAULT_RECIPE else str(recipe)  # nobody named the default's file
    recipes_own = dict(tree.get("train") or {}) if isinstance(tree.get("train"), dict | None) else {}
    for key, value in overrides.items():
        _set(tree, SHORT_FLAGS.get(key, key), value)
    flags = {SHORT_FLAGS.get(key, key) for key in overrides}
    if "model.init" in flags and tree["model"]["init"] is not None:
        for key in SIZES:  # a recipe's are those of the random model that it describes
            if f"model.{key}" not in flags:
                tree["model"].pop(key, None)
    _fit_warmup(tree, recipes_own, flags)
    config = validate_config(tree, where)
    if "model.init" in flags and "model.pooling" not in flags:  # nor does it know that start's pooling
        config.model.model_fields_set.discard("pooling")
    if idle := unused(config.objective.name, overrides):
        raise UserError(
            f"{', '.join(idle)} would change nothing: the objective in force is {config.objective.name}. "
            f"Leave it out, or name {readers(idle)} with --objective"
        )
    _refuse_idle(config, flags)
    return config


def _refuse_idle(config: Config, flags: set[str]) -> None:
    """Raise UserError if a flag changes nothing without a setting that is not there."""
    negatives, mlm = config.objective.false_negatives, config.objective.mlm
    unguided = negatives.margin and negatives.guide == "none"
    unmasked = mlm.later_rates and not config.objective.masked_copies
    for key, changes_nothing, needed in (
        ("objective.false_negatives.margin", unguided, "objective.false_negatives.guide, as self"),
        ("objective.mlm.later_rates", unmasked, "objective.mlm.weight and objective.mlm.copies"),
    ):
        # a flag may be the key, a section that holds it, or an entry of it
        given = any(f"{key}.".startswith(f"{flag}.") or flag.startswith(f"{key}.") for flag in flags)
        if changes_nothing and given:
            raise UserError(f"{key} changes nothing by itself: set {needed}, or leave it out")


def find_recipe(path: Path) -> Path:
    """Return the path, or that of the recipe or sweep of ours which it names if there is no such file.

    An installation has no folder `configs`: there configs/simcse_bert.yaml is ours, and so is simcse_bert.
    Of a recipe and a sweep of one name the recipe is meant.
    """
    if path.is_file() or path.is_absolute():
        return path
    within = path.relative_to("configs") if path.parts[:1] == ("configs",) else path
    named = [RECIPES / within, RECIPES / f"{within}.yaml", RECIPES / "sweeps" / f"{within}.yaml"]
    recipe = next((ours for ours in named if ours.is_file()), path)
    bare = recipe is path and path.name == str(path) and not path.suffix
    if bare and (hint := nearest(path.name, sorted(ours.stem for ours in RECIPES.rglob("*.yaml")))):
        raise UserError(f"no recipe {path}{hint}")
    return recipe


def _fit_warmup(tree: dict[str, Any], recipes_own: dict[str, Any], flags: set[str]) -> None:
    """Shorten a warm-up for which --train.steps leaves no room: it keeps its share of the steps.

    recipes_own: the recipe's section `train`.
    """
    if "train.steps" not in flags or "train.warmup_steps" in flags:
        return
    fields = TrainConfig.model_fields
    before, warmup = (recipes_own.get(key, fields[key].default) for key in ("steps", "warmup_steps"))
    text = str(tree["train"]["steps"]).replace("_", "")
    if not (isinstance(before, int) and isinstance(warmup, int) and text.isdecimal() and len(text) < 20):
        return  # validation says what is wrong
    if before > warmup >= int(text):
        tree["train"]["warmup_steps"] = warmup * int(text) // before


def validate_config(tree: dict[str, Any], where: str) -> Config:
    """Validate a nested mapping; every fault of it is named in one UserError."""
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"configuration ({where}): {faults(error, unknown_key)}") from None
    except UnicodeEncodeError as error:
        text = excerpt(error.object)
        raise UserError(f"configuration ({where}): {text} has half of a surrogate pair, no Unicode") from None
    require_no_credentials(str(config.model_dump()), f"configuration ({where})")
    return config


def unknown_key(key: str) -> str:
    """Return the message for a key that the tree does not have, naming the nearest that it has."""
    return f"unknown key {shortened(key)}" + nearest(key, [name for name, *_ in describe()])


def _set(tree: dict[str, Any], dotted: str, value: Any) -> None:
    if type_at(Config, dotted) is None:
        hint = nearest(dotted, [name for name, *_ in flags()], "--")
        raise UserError(f"unknown flag --{shortened(dotted)}{hint}")
    parts = dotted.split(".")
    node = tree
    for depth, part in enumerate(parts[:-1]):
        if not isinstance(node.setdefault(part, {}), dict):
            raise UserError(f"flag --{dotted}: {'.'.join(parts[: depth + 1])!r} is a value, without keys")
        node = node[part]
    if isinstance(value, str):
        value = parse_value(value, type_at(Config, dotted), f"--{dotted}")
    node[parts[-1]] = value


def describe(model: type[BaseModel] = Config, prefix: str = "") -> list[Flag]:
    """Return a flag for every key of the tree, by its dotted name."""
    rows: list[Flag] = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows += describe(kind, f"{prefix}{name}.")
        else:
            rows.append(Flag.of_field(prefix + name, field))
    return rows


def flags() -> list[Flag]:
    """Return every flag that names a key, short ones first."""
    keys = {flag.name: flag for flag in describe()}
    short = [keys[key]._replace(name=name) for name, key in SHORT_FLAGS.items()]
    own = [flag._replace(meaning=flag.meaning.removesuffix(f". Flag {flag.typed_as}")) for flag in short]
    return [*own, *keys.values()]


def to_yaml(config: Config) -> str:
    """Return the resolved tree as YAML, every key written out."""
    return as_yaml(config.model_dump(mode="json"))


def as_yaml(tree: dict[str, Any]) -> str:
    """Return a resolved tree, as a checkpoint has it too, as the text of config.yaml."""
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    if any(separator in text for separator in "\x85\u2028\u2029"):  # as they are, PyYAML reads them as spaces
        text = yaml.safe_dump(tree, sort_keys=False)
    return text
