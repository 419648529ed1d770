"""Recipes as mappings: reading YAML files, and the type of the field at a dotted key."""

import os
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from augment.core.errors import nearest_name
from pretrain.common.credentials import require_no_credentials
from pretrain.common.errors import UserError, naming
from pretrain.common.typed_values import parse_yaml


def read_yaml(path: Path, extended_by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the mapping in a YAML file, over that of the file beside it which its key `extends` names.

    extended_by: the files that have led to this one.
    """
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("[!.]*.y*ml")] if path.parent.is_dir() else []
        near = nearest_name(path.name, siblings)
        hint = f"did you mean {path.parent / near}?" if near else "recipes are YAML files, as in configs/"
        raise UserError(f"no recipe {path}; {hint}")
    with naming(f"{path} cannot be read as text", UnicodeDecodeError, OSError):
        text = path.read_text("utf-8")
    require_no_credentials(text, str(path))
    tree = parse_yaml(text, str(path)) or {}
    if not isinstance(tree, dict):
        raise UserError(f"{path} must hold a mapping of keys to values, not {type(tree).__name__}")
    base = tree.pop("extends", None)
    if base is None:
        return tree
    extended = path.parent / str(base)
    if not isinstance(base, str) or not os.path.isfile(extended):
        raise UserError(f"{path}: extends: {str(base)[:200]!r} is no file in this folder")
    if any(os.path.samefile(extended, other) for other in (path, *extended_by)):
        raise UserError(f"{path}: extends: {base}, which extends this file")
    return merged(read_yaml(extended, (path, *extended_by)), tree)


def merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return a tree with the values of `own` in place of those of `base`, section by section."""
    both = base.keys() & own.keys()
    sections = {key for key in both if isinstance(base[key], dict) and isinstance(own[key], dict)}
    return base | own | {key: merged(base[key], own[key]) for key in sections}


def type_at(model: type[BaseModel], dotted: str) -> Any:
    """Return the type of the field at a dotted key (below a mapping: of its values), or None."""
    kind: Any = model
    for part in dotted.split("."):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        elif getattr(kind, "__origin__", kind) is not Any:
            kind = typing.get_args(kind)[1] if typing.get_origin(kind) is dict else None
    return kind


def leaves(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of all leaves of a tree of mappings, also of `objective.options`.

    >>> dict(leaves({"train": {"lr": 0.1}, "objective": {"options": {}}}))
    {'train.lr': 0.1, 'objective.options': {}}
    """
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
