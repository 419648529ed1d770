"""Between host and device without waiting: arrays of a step in one transfer, its numbers read a step late.

A GPU works off what the host has queued. A host that reads a number, or copies from memory that is not
pinned, waits until all of it is done, and the GPU then waits for the host. So arrays go to the device through
`send`, and numbers come back as `Numbers`, which are read when the next step has been queued. On CPU nothing
is copied.
"""

import functools
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

_ALIGNMENT = 16  # bytes; a multiple of every type's size


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors from the host to `device`, in one transfer for which the host does not wait.

    They are laid end to end into one pinned buffer, which a stream of its own copies while the device is
    still busy with what was queued before; what is queued from now on waits for the copy. On CPU they are
    returned as they are.
    """
    if device.type != "cuda" or not tensors:
        return [tensor.to(device) for tensor in tensors]
    host, sizes = laid_end_to_end(tensors, pinned=True)
    copying, current = _copy_stream(device), torch.cuda.current_stream(device)
    with torch.cuda.stream(copying):
        moved = host.to(device, non_blocking=True)
    current.wait_stream(copying)
    moved.record_stream(current)  # or its memory could be taken again before `current` has read it
    return taken_apart(moved, sizes, tensors)


def laid_end_to_end(tensors: Sequence[Tensor], pinned: bool) -> tuple[Tensor, list[int]]:
    """Return tensors as the bytes of one, uint8[B], and their sizes in it.

    tensors: on the CPU, of types that numpy has (bfloat16 is none), without gradients.
    sizes: bytes of the first tensor, and of the filler behind it, of the second tensor ...
    """
    sizes = [size for of in tensors for size in (of.nbytes, -of.nbytes % _ALIGNMENT)]
    buffer, start = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned), 0
    place = buffer.numpy()  # a few of torch's operators for each tensor would cost twice the time
    for tensor, size, filler in zip(tensors, sizes[::2], sizes[1::2], strict=True):
        place[start : start + size] = tensor.contiguous().numpy().reshape(-1).view(np.uint8)
        start += size + filler
    return buffer, sizes


def taken_apart(buffer: Tensor, sizes: Sequence[int], like: Sequence[Tensor]) -> list[Tensor]:
    """Return the parts of `buffer`, of such `sizes`, with the types and shapes of `like`: views.

    >>> given = [torch.arange(6)[::2], torch.tensor([True]), torch.ones(2, 1)]
    >>> for part in taken_apart(*laid_end_to_end(given, pinned=False), given):
    ...     print(part.tolist())
    [0, 2, 4]
    [True]
    [[1.0], [1.0]]
    """
    return [part.view(of.dtype).view(of.shape) for part, of in zip(buffer.split(sizes)[::2], like)]


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Numbers:
    """Named numbers on their way from the device; `read` waits for them alone, not for what came after.

    They are made into float64, which holds all that float32 can. What is on the host already stays there.

    Attributes:
        came: when they were on the host, by `time.monotonic`: on a GPU known after `read` alone.
    """

    def __init__(self, values: Mapping[str, Tensor | float]):
        """values: scalars, on one device or on the host."""
        self._known = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        coming = {name: value.detach() for name, value in values.items() if isinstance(value, Tensor)}
        self._names, self._order = list(coming), list(values)
        self._ready: torch.cuda.Event | None = None
        self._values: Tensor | None = None
        if coming:
            self._values = torch.stack([value.double() for value in coming.values()])
            if self._values.device.type == "cuda":
                pinned = torch.empty(len(coming), dtype=torch.float64, pin_memory=True)
                self._values = pinned.copy_(self._values, non_blocking=True)
                self._ready = torch.cuda.Event()
                self._ready.record()
        self.came = None if self._ready is not None else time.monotonic()

    def read(self) -> dict[str, float]:
        """Return name -> number, in the order given; the one place where a step's host waits."""
        if self._ready is not None:
            self._ready.synchronize()
        self.came = self.came or time.monotonic()
        read = {} if self._values is None else dict(zip(self._names, self._values.tolist()))
        return {name: read[name] if name in read else float(self._known[name]) for name in self._order}
