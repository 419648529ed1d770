"""From what people write (YAML, flags) to typed models, and back to words: one message for all that is wrong."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from pretrain.errors import UserError


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty one.

    Raises: UserError if the file is missing (naming the nearest beside it), is not YAML, or holds something else.
    """
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, siblings, 1, 0.4)
        hint = f"did you mean {path.parent / near[0]}?" if near else "recipes are YAML files, ours lie under configs/"
        raise UserError(f"no recipe {path}; {hint}")
    try:
        tree = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping of keys to values, not {type(tree).__name__}")
    return tree


def faults(error: ValidationError, unknown_key: Callable[[str], str]) -> str:
    """Every fault that pydantic found, as "key: what (got value)", with "; " between.

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
    """ "; did you mean KEY?", or that --help lists the keys."""
    near = difflib.get_close_matches(key, list(known), 1, 0.5)
    return f"; did you mean {prefix}{near[0]}?" if near else "; --help lists the keys"


def rows(model: type[BaseModel]) -> list[tuple[str, str, str, str]]:
    """The fields of a flat model as (name, type, default, meaning), for `command.key_table`."""
    return [
        (name, type_name(field.annotation), default_text(field), field.description or "")
        for name, field in model.model_fields.items()
    ]


def type_name(kind: Any) -> str:
    """A type in the words of a help text: `a|b` for a choice, `list` whatever it holds, `none` for null."""
    origin = typing.get_origin(kind)
    if origin is Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if origin in (typing.Union, types.UnionType):
        return "|".join(map(type_name, typing.get_args(kind)))
    if kind is type(None):
        return "none"
    return getattr(origin or kind, "__name__", str(kind))


def default_text(field: FieldInfo) -> str:
    """A field's default as one would write it; "required" without one."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
