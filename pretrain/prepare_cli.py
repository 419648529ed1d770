"""The command line of `python -m pretrain.prepare`, made from the typed configuration."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from pretrain.corpora import DataConfig
from pretrain.errors import UserError
from pretrain.executors import ExecutorOptions

_OWN = {
    "out": ("folder", "required", "folder for the tokenizer, the shards and the manifest"),
    "config": ("file", "none", "YAML with any of the data keys, or a training recipe; flags win over it"),
    "overwrite": ("bool", "False", "make the folder anew if it was prepared with another config"),
    "progress": ("bool", "True", "show progress bars"),
}
_SHORT = {"source": "sources"}


def run(arguments: list[str]) -> int:
    """Parse the arguments (Fire), prepare, print what came out. Returns the exit status, 2 for bad input."""
    if not arguments or {"--help", "-h", "help"} & set(arguments):
        print(help_text())
        return 0 if arguments else 2
    try:
        _prepare(_flags(arguments))
    except UserError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare: interrupted; run the same command again to go on from here.", file=sys.stderr)
        return 130
    return 0


def _flags(arguments: list[str]) -> dict[str, str]:
    import fire

    flags: dict[str, str] = {}

    def collect(*places: str, **given: str) -> None:  # Fire prints what a command returns, so it returns nothing
        if places:
            raise UserError(f"unexpected argument {places[0]!r}; corpora are given as --source {','.join(places)}")
        flags.update(given)

    # Raw strings: Fire would turn `a,b` into a tuple and 2026_11 into a number.
    fire.Fire(fire.decorators.SetParseFn(str)(collect), command=arguments)
    return flags


def _prepare(flags: dict[str, str]) -> None:
    from pretrain.prepare import prepare

    flags = {_SHORT.get(key, key): value for key, value in flags.items()}
    data_keys, run_keys = set(DataConfig.model_fields), set(ExecutorOptions.model_fields)
    for key in flags:
        if key not in data_keys | run_keys | set(_OWN):
            near = difflib.get_close_matches(key, [*data_keys, *run_keys, *_OWN, *_SHORT], 1, 0.5)
            raise UserError(f"unknown flag --{key}" + (f"; did you mean --{near[0]}?" if near else "; see --help"))
    if "out" not in flags:
        raise UserError("--out is missing: the folder to prepare into, as --out data/NAME")
    tree = _read_yaml(Path(flags["config"])) if "config" in flags else {}
    tree.update({key: _value(value) for key, value in flags.items() if key in data_keys})
    config = _validate(DataConfig, tree)
    options = _validate(ExecutorOptions, {key: value for key, value in flags.items() if key in run_keys})
    switches = {
        key: _boolean(key, flags.get(key, default)) for key, (_, default, _) in _OWN.items() if default in ("True", "False")
    }
    manifest = prepare(config, Path(flags["out"]), **options.model_dump(), **switches)
    print(summary(manifest, Path(flags["out"])))


def _value(text: str) -> Any:
    if text in ("none", "None", "null"):
        return None
    if text[:1] in "[{":
        return yaml.safe_load(text)
    return text


def _boolean(key: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no"):
        raise UserError(f"--{key} is true or false, not {text!r}")
    return text.lower() in ("true", "1", "yes")


def _read_yaml(path: Path) -> dict:
    if not path.is_file():
        raise UserError(f"--config {path}: no such file; recipes lie under configs/data_*.yaml")
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise UserError(f"--config {path} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"--config {path} must hold a mapping of keys to values")
    if isinstance(tree.get("data"), dict):  # a training recipe: its data.prepare section
        return tree["data"].get("prepare", {})
    return tree


def _validate(model: type[BaseModel], tree: dict) -> Any:
    try:
        return model(**tree)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            key = ".".join(map(str, fault["loc"]))
            if fault["type"] == "extra_forbidden":
                near = difflib.get_close_matches(str(fault["loc"][-1]), list(model.model_fields), 1, 0.5)
                faults.append(f"unknown key {key}" + (f", did you mean {near[0]}?" if near else ""))
            else:
                faults.append(f"{key}: {fault['msg'].removeprefix('Value error, ')} (got {fault['input']!r})")
        raise UserError("; ".join(faults)) from error


def summary(manifest: dict, out: Path) -> str:
    """What came out, for people."""
    if not manifest:
        return f"submitted to Slurm; progress: {out}/.work/logs, result: {out}/manifest.json"
    lines = [f"{out}: unit {manifest['unit']}, up to {manifest['max_length']} tokens, vocabulary {manifest['vocabulary_size']}"]
    for split, part in manifest["splits"].items():
        lines.append(
            f"  {split:8s} {part['sequences']:>12,} sequences {part['tokens']:>14,} tokens in {len(part['shards'])} shards"
        )
    lines += [f"  {name.replace('_', ' '):32s} {count:>12,}" for name, count in manifest.get("counts", {}).items() if count]
    if run := manifest.get("run"):
        peak = run["peak_task_bytes"] / 1e6
        lines.append(f"  {run['seconds']} s with {run['workers']} workers, largest task {peak:.0f} MB")
    return "\n".join(lines)


def help_text() -> str:
    """Every flag with its type, default and meaning, from the models."""
    from pretrain import prepare
    from pretrain.corpora import Source

    lines = [prepare.__doc__ or "", "Flags (--name value):", ""]
    lines += [_flag(f"--{name}", kind, default, text) for name, (kind, default, text) in _OWN.items()]
    lines += ["", "What the data is:", ""]
    for name, field in DataConfig.model_fields.items():
        shown = "--source" if name == "sources" else f"--{name}"
        default = "embedded" if name == "sources" else field.get_default(call_default_factory=True)
        lines.append(_flag(shown, _kind(field.annotation), default, field.description))
    lines += ["", "Keys of a source, in YAML (sources: [{source: ..., weight: ...}]):", ""]
    for name, field in Source.model_fields.items():
        lines.append(
            _flag(name, _kind(field.annotation), "required" if field.is_required() else field.default, field.description)
        )
    lines += ["", "Where it runs:", ""]
    for name, field in ExecutorOptions.model_fields.items():
        lines.append(_flag(f"--{name}", _kind(field.annotation), field.default, field.description))
    return "\n".join(lines)


def _kind(annotation: Any) -> str:
    if "Literal" in str(annotation):
        return "|".join(map(str, annotation.__args__))
    return getattr(annotation, "__name__", None) if isinstance(annotation, type) else str(annotation).replace(" | None", "")


def _flag(name: str, kind: str, default: Any, text: str | None) -> str:
    import textwrap

    body = textwrap.fill(text or "", 100, initial_indent="      ", subsequent_indent="      ")
    return f"  {name}  ({kind}; default: {default})\n{body}"
