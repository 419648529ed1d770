"""A device that is none: it finds, on the CPU, where a host would wait for a GPU.

Inside `PretendedDevice` every tensor counts as one of the device, but for those that are made on the host:
from numpy, by `torch.tensor`, or by a factory that is not told a device; and what is made of such tensors
alone. A wait is what CUDA makes the host wait for: a number that is read, a result whose shape depends on
values, a copy to the device that does not go through `pretrain.common.transfer`, or a copy back.
`Numbers.read` is the one place that may wait; it is counted apart.
"""

from __future__ import annotations

import collections
import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pretrain.common import transfer

ROOT = Path(__file__).resolve().parents[3]
aten = torch.ops.aten

READS = {
    aten._local_scalar_dense,  # item, float, int, bool, if
    aten.equal,
    aten.is_nonzero,
    aten.nonzero,
    aten.masked_select,
    aten._unique2,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.linalg_eigh,  # they look at their own success
    aten._linalg_eigh,
    aten.linalg_svd,
}
"""Operations that read values of the device."""
HOST_MADE = {"tensor", "as_tensor", "frombuffer"}
FACTORIES = {"arange", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "linspace", "randperm"}
COPIES = {"to", "cpu", "cuda", "tolist", "numpy"}


class PretendedDevice:
    """Count waits while inside: `waits` is where -> how often, `read` how often `Numbers` were read."""

    def __init__(self) -> None:
        self.waits: collections.Counter[str] = collections.Counter()
        self.read = 0
        self._host: set[int] = set()
        self._kept: list[Tensor] = []  # an id may be taken again by another tensor

    @contextlib.contextmanager
    def __call__(self) -> Iterator[PretendedDevice]:
        send, read, from_numpy = transfer.send, transfer.Numbers.read, torch.from_numpy
        modules = [
            module
            for module in list(sys.modules.values())
            if getattr(module, "send", None) is send and module is not transfer
        ]

        def sent(tensors, device):
            with self._paused():
                return [tensor.clone() for tensor in tensors]

        def counted(numbers):
            self.read += 1
            with self._paused():
                return read(numbers)

        def of_numpy(array):  # no mode sees this function
            made = from_numpy(array)
            self.make_host(made)
            return made

        self._on = True
        transfer.Numbers.read, torch.from_numpy = counted, of_numpy
        for module in [*modules, transfer]:
            module.send = sent
        try:
            with _Functions(self), _Operations(self):
                yield self
        finally:
            self._on = False
            transfer.Numbers.read, torch.from_numpy = read, from_numpy
            for module in [*modules, transfer]:
                module.send = send

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        before, self._on = self._on, False
        try:
            yield
        finally:
            self._on = before

    def wait(self, what: str) -> None:
        self.waits[f"{what} at {_place()}"] += 1

    def on_host(self, tensor: Tensor) -> bool:
        return id(tensor) in self._host

    def make_host(self, made) -> None:
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor) and id(leaf) not in self._host:
                self._host.add(id(leaf))
                self._kept.append(leaf)


class _Operations(TorchDispatchMode):
    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, device = kwargs or {}, self.device
        if not device._on or function.namespace != "aten":
            return function(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        of_host = bool(given) and all(device.on_host(tensor) for tensor in given)
        if not of_host:
            packet = function._overloadpacket
            if packet in READS:
                device.wait(str(packet))
            elif packet in (aten.index, aten.index_put_, aten.index_put):
                indices = [index for index in args[1] if index is not None]
                if any(index.dtype == torch.bool for index in indices):
                    device.wait("boolean index")
                if any(device.on_host(index) and index.ndim for index in indices):
                    device.wait("index on the host")
            elif packet is aten.repeat_interleave and kwargs.get("output_size") is None:
                device.wait("repeat_interleave without a size")
            elif packet is aten.segment_reduce and not kwargs.get("unsafe", False):
                device.wait("segment_reduce that checks")
            elif function is aten.masked_fill_.Tensor and not device.on_host(args[2]):
                device.wait("masked_fill with a value of the device")
            elif any(device.on_host(tensor) and tensor.ndim for tensor in given) and packet is not aten.copy_:
                device.wait(f"host and device in one operation, {packet}")
            elif packet is aten.copy_ and device.on_host(args[0]) != device.on_host(args[1]):
                device.wait("copy_")
        result = function(*args, **kwargs)
        if of_host:
            device.make_host(result)
        return result


class _Functions(TorchFunctionMode):
    def __init__(self, device: PretendedDevice) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, device = kwargs or {}, self.device
        name = getattr(function, "__name__", "")
        if not device._on:
            return function(*args, **kwargs)
        if name in COPIES and args and isinstance(args[0], Tensor):
            return self._copied(function, name, args, kwargs)
        result = function(*args, **kwargs)
        if name in HOST_MADE or name in FACTORIES:
            if kwargs.get("device") is None:
                device.make_host(result)
            elif name in HOST_MADE:
                device.wait(f"torch.{name} with a device")
        return result

    def _copied(self, function, name, args, kwargs):
        device, tensor = self.device, args[0]
        targets = [*args[1:], *kwargs.values()]
        moves = name in ("cpu", "cuda") or any(isinstance(to, (torch.device, str)) for to in targets)
        result = function(*args, **kwargs)
        if name in ("tolist", "numpy", "cpu"):
            if not device.on_host(tensor):
                device.wait(name)
            device.make_host(result)
        elif moves and device.on_host(tensor):
            device.wait("to a device, from memory that is not pinned")
            return tensor.clone() if result is tensor else result
        elif device.on_host(tensor):
            device.make_host(result)
        return result


def _place() -> str:
    """Return the innermost line that is no library's, or DeepSpeed's."""
    for frame in reversed(traceback.extract_stack()):
        path = Path(frame.filename)
        if path.name in ("pretended_device.py", "_python_dispatch.py", "overrides.py"):
            continue
        if path.is_relative_to(ROOT) and ".venv" not in path.parts:
            return f"{path.relative_to(ROOT)}:{frame.name}"
        if "deepspeed" in path.parts:
            return f"deepspeed {path.name}:{frame.name}"
    return "?"
