"""Turn what people write (YAML, flags) into typed models; all faults become one message."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pretrain.common.errors import UserError

NONE_IS_A_VALUE = "none is a value"
"""Marks a field, by `Annotated[str, NONE_IS_A_VALUE]`, in which `none` is a text like any other (`--aug
none`)."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty file is an empty one.

    Raises: UserError if the file is missing (naming the nearest beside it), is not YAML, or holds something
    else.
    """
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, 1, 0.4)
        hint = (
            f"did you mean {path.parent / near[0]}?"
            if near
            else "recipes are YAML files, ours lie under configs/"
        )
        raise UserError(f"no recipe {path}; {hint}")
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is not a text file (byte {error.start} is not UTF-8); recipes are YAML files"
        ) from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    tree = parse_yaml(text, str(path)) or {}
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping of keys to values, not {type(tree).__name__}")
    return tree


def parse_yaml(text: str, where: str) -> Any:
    """Return the value of a YAML text. `where`: what the error calls it.

    Raises: UserError if it is not YAML, or is nested deeper than the parser can follow.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{where} is not a recipe: its YAML is nested too deeply") from None
    except ValueError as error:  # a number or date of the right shape that is none: 2026-13-45
        raise UserError(f"{where} is not YAML: {error}") from None


def typed(text: str, kind: Any, flag: str) -> Any:
    """Return what `text`, typed behind a flag, means for a field of type `kind` (None: the field is unknown).

        mlp|none    none        -> "none"               int|none    none     -> None
        str         [draft]     -> "[draft]"            list        [a, b]   -> ["a", "b"]
        tuple       0.9,0.98    -> ["0.9", "0.98"]      Any         5e8      -> 500000000

    What is not decided here stays text; pydantic converts it. A field of any type is YAML.

    Raises: UserError for a field of any type whose text is not YAML.
    """
    members = _members(kind)
    own = {
        value
        for member in members
        if typing.get_origin(member) is Literal
        for value in typing.get_args(member)
    }
    own |= (
        {"none", "None"}
        if any(NONE_IS_A_VALUE in getattr(member, "__metadata__", ()) for member in members)
        else set()
    )
    if any(getattr(member, "__origin__", member) is Any for member in members):
        return None if text in {"none", "None"} - own else _any_value(text, flag)
    if type(None) in members and text in {"none", "None", "null"} - own:
        return None
    origins = {typing.get_origin(member) or member for member in members}
    nested = bool(origins & {list, tuple, dict}) or any(
        isinstance(o, type) and issubclass(o, BaseModel) for o in origins
    )
    if nested and text[:1] in ("[", "{"):
        try:
            return parse_yaml(text, flag)
        except UserError:
            return text  # a glob that begins with a bracket; or pydantic says what the field wants
    if tuple in origins:
        return [part.strip() for part in text.strip("()").split(",")]
    return text


def typed_fields(model: type[BaseModel], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a flat model's fields, from what was typed behind flags of the same names."""
    return {key: typed(text, model.model_fields[key].annotation, f"--{key}") for key, text in texts.items()}


def type_at(model: type[BaseModel], dotted: str) -> Any:
    """Return the type of the field at a dotted key (below a mapping: of its values), or None."""
    kind: Any = model
    for part in dotted.split("."):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        elif getattr(kind, "__origin__", kind) is not Any:
            kind = typing.get_args(kind)[1] if typing.get_origin(kind) is dict else None
    return kind


def _members(kind: Any) -> list[Any]:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return [member for part in typing.get_args(kind) for member in _members(part)]
    return [kind]


def _any_value(text: str, flag: str) -> Any:
    """Return a YAML value; YAML 1.1 would read 5e8 as a string."""
    value = parse_yaml(text, f"{flag} {text}")
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() else number
    return value


def faults(error: ValidationError, unknown_key: Callable[[str], str]) -> str:
    """Return every fault that pydantic found, as "key: what (got value)", separated by "; ".

    unknown_key: the message for a dotted key that the model does not have.
    """

    def text(fault: Any) -> str:
        key = ".".join(map(str, fault["loc"]))
        if fault["type"] == "extra_forbidden":
            return unknown_key(key)
        what = fault["msg"].removeprefix("Value error, ")
        if fault["type"] == "value_error":  # our own words: they say which key
            return what
        return f"{key}: {what} (got {fault['input']!r})"

    return "; ".join(map(text, error.errors()))


def nearest(key: str, known: Iterable[str], prefix: str = "") -> str:
    """Return "; did you mean KEY?", or that --help lists the keys."""
    near = difflib.get_close_matches(key, list(known), 1, 0.5)
    return f"; did you mean {prefix}{near[0]}?" if near else "; --help lists the keys"


def rows(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """Return the fields of a flat model as (name, type, default, meaning), for `cli.key_table`."""
    return [
        (name, type_name(field.annotation), default_text(field), field.description or "")
        for name, field in model.model_fields.items()
    ]


def type_name(kind: Any) -> str:
    """Return a type in the words of a help text: `a|b` for a choice, `list` for any list, `none` for null."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if origin in (typing.Union, types.UnionType):
        return "|".join(map(type_name, typing.get_args(kind)))
    if origin is Annotated:
        return type_name(kind.__origin__)
    if kind is type(None):
        return "none"
    return getattr(origin or kind, "__name__", str(kind))


def default_text(field: FieldInfo) -> str:
    """Return a field's default as one would write it; "required" without one."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
