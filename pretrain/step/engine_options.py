"""DeepSpeed's own options: typos found before anything is built, by the keys that DeepSpeed itself looks up.

DeepSpeed reads its options from a dictionary. Some sections are models that refuse unknown keys; of the
others a key that nobody looks up is ignored. Here DeepSpeed reads a dictionary that records what is looked
up: what was given and not looked up is unknown. So nothing here lists DeepSpeed's keys, which change.
"""

from collections.abc import Iterator, KeysView
from typing import Any

from pydantic import ValidationError

from pretrain.common.errors import UserError
from pretrain.common.typed_values import faults, nearest

OFFLOAD = (
    "offload_optimizer",
    "offload_param",
    "cpu_offload",
    "cpu_offload_params",
    "cpu_offload_use_pin_memory",
    "zenflow",
)


class KeyRecorder(dict):
    """A tree of options that records, section by section, which keys were looked up.

    looked_up: dotted path of a section, with a dot at its end -> keys.
    """

    def __init__(self, tree: dict[str, Any], path: str = "", looked_up: dict[str, set[str]] | None = None):
        self.path, self.looked_up = path, {} if looked_up is None else looked_up
        self.looked_up.setdefault(path, set())
        super().__init__(
            {  # a section of a copy records already
                key: KeyRecorder(value, f"{path}{key}.", self.looked_up) if type(value) is dict else value
                for key, value in tree.items()
            }
        )

    def __contains__(self, key: object) -> bool:
        self.looked_up[self.path].add(str(key))
        return super().__contains__(key)

    def __getitem__(self, key: str) -> Any:
        self.looked_up[self.path].add(str(key))
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.looked_up[self.path].add(str(key))
        return super().get(key, default)

    # defined, it lets `f(**section)` look up every key, and not copy the table
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def keys(self) -> Any:  # a dict's own type of keys cannot be derived from
        return KeysView(self)

    def items(self) -> Any:
        return [(key, self[key]) for key in self]

    def __copy__(self) -> "KeyRecorder":
        return KeyRecorder(dict(super().items()), self.path, self.looked_up)

    def unknown(self) -> list[tuple[str, str]]:
        """Return (section's path, key) of what was given and never read.

        A section of which nothing was read was handed on whole, to a model that refuses unknown keys itself.
        """
        if self.path and not self.looked_up[self.path]:
            return []
        unknown = [(self.path, key) for key in self if key not in self.looked_up[self.path]]
        for key, value in super().items():
            if isinstance(value, KeyRecorder) and (self.path, key) not in unknown:
                unknown += value.unknown()
        return unknown


def check_options(options: dict[str, Any]) -> None:
    """Let DeepSpeed read its options, without building anything.

    Raises:
        UserError: a key is unknown, a value is not of its type, or the option is one that does not work here.
    """
    zero = options.get("zero_optimization", {})
    for key in OFFLOAD if isinstance(zero, dict) else ():
        value = zero.get(key)
        if value and not (isinstance(value, dict) and value.get("device", "none") in (None, "none")):
            raise UserError(
                f"deepspeed.zero_optimization.{key}: offload is not supported; against memory use train.zero "
                "3 or a smaller train.micro_batch_tokens"
            )
    from deepspeed.runtime.config import DeepSpeedConfig

    tree = KeyRecorder(options)
    try:
        DeepSpeedConfig(tree)
    except ValidationError as error:
        what = faults(error, lambda key: f"unknown key {key}")
        raise UserError(f"DeepSpeed refuses the options under deepspeed, {error.title}: {what}") from None
    # DeepSpeed's own checks raise what comes to hand: assertions, ValueError, KeyError, its own
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise UserError(f"DeepSpeed refuses the options under deepspeed: {what}") from None
    if unknown := tree.unknown():
        texts = [
            f"unknown key deepspeed.{path}{key}"
            + nearest(key, sorted(tree.looked_up[path] - {key}), f"deepspeed.{path}")
            for path, key in unknown
        ]
        raise UserError("; ".join(texts))
