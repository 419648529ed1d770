"""DeepSpeed's own options: typos found before anything is built, by the keys that DeepSpeed itself looks up.

DeepSpeed reads its options from a dictionary. Some sections are models that refuse unknown keys, each with a
page of traceback; of the others a key that nobody asks for is ignored. Here DeepSpeed reads a dictionary that
notes what it is asked for: what was given and not asked for is unknown, and what was asked for is what the
key may have meant. So nothing here lists DeepSpeed's keys, which change from version to version.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, KeysView
from typing import Any

from pydantic import BaseModel, ValidationError

from augment.core.errors import shown
from pretrain.common.errors import UserError
from pretrain.common.typed_values import nearest

OFFLOAD = (
    "offload_optimizer",
    "offload_param",
    "cpu_offload",
    "cpu_offload_params",
    "cpu_offload_use_pin_memory",
    "zenflow",
)


class AskedFor(dict):
    """A tree of options that notes, section by section, which keys were looked up.

    asked: dotted path of a section, with a dot at its end -> keys.
    """

    def __init__(self, tree: dict[str, Any], path: str = "", asked: dict[str, set[str]] | None = None):
        self.path, self.asked = path, {} if asked is None else asked
        self.asked.setdefault(path, set())
        # a section of a copy is noted already
        wrap = {key: type(value) is dict for key, value in tree.items()}
        super().__init__(
            {
                key: AskedFor(value, f"{path}{key}.", self.asked) if wrap[key] else value
                for key, value in tree.items()
            }
        )

    def __contains__(self, key: object) -> bool:
        self.asked[self.path].add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.asked[self.path].add(str(key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.asked[self.path].add(str(key))
        return super().get(key, default)

    # its being here lets `f(**section)` ask for every key, and not copy the table
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def keys(self) -> Any:  # a dict's own type of keys cannot be derived from
        return KeysView(self)

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __copy__(self) -> AskedFor:
        return AskedFor(dict(super().items()), self.path, self.asked)

    def unknown(self) -> list[tuple[str, str]]:
        """Return (section's path, key) of what was given and never read.

        A section of which nothing was read was handed on whole, to a model that refuses unknown keys itself.
        """
        if self.path and not self.asked[self.path]:
            return []
        unknown = [(self.path, key) for key in self if key not in self.asked[self.path]]
        for key, value in super().items():
            if isinstance(value, AskedFor) and (self.path, key) not in unknown:
                unknown += value.unknown()
        return unknown


def check_options(options: dict[str, Any]) -> None:
    """Let DeepSpeed read its options, without building anything.

    Raises:
        UserError: a key is unknown (the nearest is named), a value is not of its type, or the option is one
            that does not work here.
    """
    _refuse_offload(options.get("zero_optimization", {}))
    from deepspeed.runtime.config import DeepSpeedConfig

    tree = AskedFor(options)
    try:
        DeepSpeedConfig(tree)
    except ValidationError as error:
        raise UserError("; ".join(_fault(fault, error.title, options) for fault in error.errors())) from None
    # DeepSpeed's own checks raise what comes to hand: assertions, ValueError, KeyError, its own
    except Exception as error:
        raise UserError(
            f"DeepSpeed refuses the options under deepspeed: {type(error).__name__}: {error}"
        ) from None
    if unknown := tree.unknown():
        raise UserError(
            "; ".join(
                f"unknown key deepspeed.{path}{key}" + _nearest(key, path, tree.asked[path])
                for path, key in unknown
            )
        )


def _refuse_offload(zero: Any) -> None:
    for key in OFFLOAD if isinstance(zero, dict) else ():
        value = zero.get(key)
        if value and not (isinstance(value, dict) and value.get("device", "none") in (None, "none")):
            raise UserError(
                f"deepspeed.zero_optimization.{key}: offload to the CPU or to NVMe is not supported: "
                "optimizers and "
                "checkpoints here keep their state on the training device. Against memory: train.zero "
                "3, which "
                "spreads parameters, gradients and optimizer over the ranks, or a smaller "
                "train.micro_batch_tokens"
            )


def _fault(fault: Any, model: str, options: dict[str, Any]) -> str:
    """Word a fault that one of DeepSpeed's models found, with the option's full name."""
    path = [str(part) for part in fault["loc"]]
    prefix = next((section for section in _sections(options) if _has(options, [*section, *path])), [])
    section = ".".join([*prefix, *path[:-1], ""]) if prefix or path[1:] else ""
    if fault["type"] == "extra_forbidden":
        return f"unknown key deepspeed.{section}{path[-1]}" + _nearest(
            path[-1], section, _fields(model, path[:-1])
        )
    what = fault["msg"].removeprefix("Value error, ")
    return f"deepspeed.{section}{path[-1] if path else ''}: {what} (got {shown(fault['input'])})"


def _nearest(key: str, section: str, known: set[str]) -> str:
    hint = nearest(key, sorted(known - {key}), f"deepspeed.{section}")
    return hint or "; DeepSpeed's documentation lists its options"


def _fields(name: str, path: list[str]) -> set[str]:
    """Return the fields of the section at a path below DeepSpeed's model of that name."""
    from deepspeed.runtime.config_utils import DeepSpeedConfigModel

    def below(model: Any) -> Iterator[Any]:
        yield model
        for other in model.__subclasses__():
            yield from below(other)

    model = next((model for model in below(DeepSpeedConfigModel) if model.__name__ == name), None)
    for part in path:
        kind = (
            model.model_fields[part].annotation if model is not None and part in model.model_fields else None
        )
        parts = [kind, *typing.get_args(kind)]
        model = next((part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)), None)
    return set() if model is None else set(model.model_fields)


def _sections(tree: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[list[str]]:
    """Paths of all sections, outermost first."""
    yield list(path)
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _sections(value, (*path, key))


def _has(tree: Any, path: list[str]) -> bool:
    for part in path:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True
