"""What a checkpoint of an engine consists of: tensors, of which each rank has parts, and state.json."""

import json
import math
import platform
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from pretrain.checkpoint.engine_state import EngineState, Part, parameter_shape
from pretrain.checkpoint.tensor_file import TensorEntry
from pretrain.common.program import DISTRIBUTION, own_version

PARAMETERS, BUFFERS = "parameters", "buffers"
_ALIGNED = 64  # bytes; a multiple of every dtype's size
_COUNTERS = ("global_steps", "global_samples", "skipped_steps")


@dataclass(frozen=True)
class Item:
    """One tensor of a checkpoint.

    Attributes:
        series: its series of files ("parameters", "exp_avg", "buffers" ...).
        entry: its name, dtype and whole shape. The same on every rank, as `series` and `owner` are.
        owner: the rank that is to write it if several hold as much of it.
        part: what this rank has of it for the checkpoint; None: nothing, or another rank's is taken.
    """

    series: str
    entry: TensorEntry
    owner: int
    part: Part | None

    def values(self) -> torch.Tensor:
        """Return the part's elements on the CPU, one-dimensional, of the entry's dtype."""
        assert self.part is not None
        return self.part.values.to("cpu", self.entry.dtype)


def items_of(view: EngineState, rank: int, ranks: int) -> list[Item]:
    """Return the tensors of a checkpoint in the order of its files: parameters, moments, buffers.

    Of a tensor that all ranks hold whole, its owner has the part. Ranks own runs of consecutive parameters
    of about equal bytes. Buffers are rank 0's.
    """
    named = list(view.named_parameters())
    shapes = [parameter_shape(parameter) for _, parameter in named]
    series: dict[str, list[Item]] = {PARAMETERS: []}
    for (name, parameter), shape, owner in zip(named, shapes, _owners(shapes, ranks), strict=True):
        entry = TensorEntry(name, torch.float32, shape)
        here = owner == rank or not view.is_whole(parameter)
        for key in (None, *view.moment_keys(parameter)):
            item = Item(key or PARAMETERS, entry, owner, view.part(parameter, key) if here else None)
            series.setdefault(item.series, []).append(item)
    series[BUFFERS] = [
        Item(
            BUFFERS,
            TensorEntry(name, buffer.dtype, tuple(buffer.shape)),
            0,
            Part(buffer.detach().reshape(-1), 0) if rank == 0 else None,
        )
        for name, buffer in view.named_buffers()
    ]
    return [item for items in series.values() for item in items]


def _owners(shapes: list[tuple[int, ...]], ranks: int) -> list[int]:
    """Return a rank for each of the shapes: that of its middle among all elements, cut into `ranks` runs."""
    sizes = [math.prod(shape) for shape in shapes]
    whole, before, owners = max(1, sum(sizes)), 0, []
    for size in sizes:
        owners.append(min(ranks - 1, (2 * before + size) * ranks // (2 * whole)))
        before += size
    return owners


class HostCopies:
    """Copy parts into host memory that is kept from one checkpoint to the next.

    Mapping new pages takes longer than the copy. If parts come from a GPU the memory is pinned, so that
    they come at the speed of the bus.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def reserved(self) -> int:
        """Return the bytes that are held already."""
        return self._memory.numel()

    def copy(self, items: list[Item]) -> list[Item]:
        """Return the items with parts that no later step changes; the copies before are overwritten."""
        if (need := bytes_of(items)) > self.reserved:
            pinned = any(item.part is not None and item.part.values.is_cuda for item in items)
            self._memory = torch.empty(0, dtype=torch.uint8)  # the old memory first
            self._memory = torch.empty(need, dtype=torch.uint8, pin_memory=pinned)
        copied, place = [], 0
        for item in items:
            if item.part is not None:
                count = item.part.values.numel() * item.entry.dtype.itemsize
                values = self._memory[place : place + count].view(item.entry.dtype)
                values.copy_(item.part.values, non_blocking=True)
                item = replace(item, part=Part(values, item.part.start))
                place += _aligned(count)
            copied.append(item)
        if self._memory.is_pinned():
            torch.cuda.synchronize()
        return copied


def bytes_of(items: list[Item]) -> int:
    """Return the bytes that copies of this rank's parts take."""
    return sum(
        _aligned(item.part.values.numel() * item.entry.dtype.itemsize)
        for item in items
        if item.part is not None
    )


def _aligned(count: int) -> int:
    return -(-count // _ALIGNED) * _ALIGNED


def engine_json(view: EngineState, engine, items: list[Item]) -> dict[str, Any]:
    """Return what state.json holds beside the trainer's state; `restore_engine` takes it back."""
    series = {PARAMETERS: 0} | dict.fromkeys(item.series for item in items) | {BUFFERS: 0}
    counts = {kind: sum(item.series == kind for item in items) for kind in series}
    scalars: dict[str, dict[str, float | int]] = {}
    for name, parameter in view.named_parameters():
        for key, number in view.scalars(parameter).items():
            scalars.setdefault(key, {})[name] = number
    return {
        "series": counts,
        "aliases": view.aliases(),
        "hugging_face": _hugging_face_config(view.module),
        "optimizer": {
            "class": type(view.inner).__name__,
            "moments": [kind for kind in counts if kind not in (PARAMETERS, BUFFERS)],
            "scalars": scalars,
            "learning_rates": [float(group["lr"]) for group in view.inner.param_groups],
        },
        "lr_scheduler": None,  # rates are a function of the step, and the loss scale is the trainer's
        "loss_scale": [],
        "counters": {name: int(getattr(engine, name)) for name in _COUNTERS if hasattr(engine, name)},
        "versions": dict(_versions()),
    }


@cache
def _versions() -> dict[str, str]:
    """Return what runs, by name; to read what is installed takes a while."""
    versions = {"python": platform.python_version(), DISTRIBUTION: own_version()}
    for package in ("torch", "deepspeed", "transformers", "tokenizers", "safetensors"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _hugging_face_config(module: torch.nn.Module) -> dict[str, Any] | None:
    """Return the prefix of the names of transformers' model in the module, and its config; None: it has none.

    With it a checkpoint can be exported if the recipe's `model.init` no longer exists.
    """
    for prefix, part in module.named_modules():
        if hasattr(part, "save_pretrained") and hasattr(part, "config"):
            return {
                "prefix": f"{prefix}." if prefix else "",
                "config": json.loads(part.config.to_json_string(False)),
            }
    return None


def restore_engine(engine, view: EngineState, content: dict[str, Any]) -> None:
    """Set learning rates and counters of an engine to those in a state.json."""
    rates = content["optimizer"]["learning_rates"]
    if len(rates) == len(view.inner.param_groups):
        for group, rate in zip(view.inner.param_groups, rates, strict=True):
            group["lr"] = rate
    for name, value in content["counters"].items():
        if hasattr(engine, name):
            setattr(engine, name, value)
