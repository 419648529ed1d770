"""Which failures may pass when the run starts again, and which would only repeat themselves.

The texts are those of gloo and NCCL through torch.distributed (torch/csrc/distributed/c10d, NCCL's
`ncclGetErrorString`) and of CUDA's runtime (`cudaGetErrorString`): most of them come as plain RuntimeErrors.
"""

import errno
from collections.abc import Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    """A failure that a start on other nodes, or at another time, need not meet again."""

    kind: str
    what: str


PEER, SLOW, DEVICE, STORAGE = "lost peer", "time-out", "device", "storage"
FAULTS = {
    Fault(PEER, "the connection to another rank was lost"): (
        "Connection closed by peer",  # gloo: transport/tcp/pair.cc, buffer.cc
        "Connection reset by peer",
        "Broken pipe",
        "Application timeout caused pair closure",
        "remote process exited",  # NCCL
        "remote process exiting",
        "ncclRemoteError",
        "ncclSystemError",
        "NCCL communicator was aborted",
        "Connection was likely closed",  # torch's TCPStore, which rank 0 or the launcher serves
        "No route to host",
        "Network is unreachable",
    ),
    Fault(SLOW, "a collective operation did not end in time"): (
        "Timed out waiting",  # gloo: "Timed out waiting 1800000ms for recv operation to complete"
        "Watchdog caught collective operation timeout",  # NCCL's watchdog in torch
        "Some NCCL operations have failed or timed out",
        "wait timeout after",  # TCPStore
        "Socket Timeout",
        "Connection timed out",
    ),
    Fault(DEVICE, "a GPU failed"): (
        "uncorrectable ECC error",  # cudaErrorECCUncorrectable, Xid 48, 63, 64, 94, 95
        "uncorrectable NVLink error",  # cudaErrorNvlinkUncorrectable, Xid 74
        "unspecified launch failure",  # cudaErrorLaunchFailure, Xid 79: it fell off the bus
        "CUDA error: unknown error",
        "GPU is lost",  # NVML
        "CUDA-capable device(s) is/are busy or unavailable",
        "no CUDA-capable device is detected",
        "hardware stack error",
        "system not yet initialized",  # cudaErrorSystemNotReady: the fabric manager is not up
        "or a hardware error",  # cudaErrorContained
    ),
    Fault(STORAGE, "the storage failed"): (
        "Stale file handle",
        "Input/output error",
        "Transport endpoint is not connected",
    ),
}
"""Fault -> parts of the texts of errors that show it."""

NEVER = (
    "out of memory",  # the same step needs the same memory
    "illegal memory access",  # a fault of the code, as far as anybody can tell
    "device-side assert triggered",  # every CUDA error's advice speaks of device-side assertions
)
"""Parts of a text that make it no passing fault, whatever else it says."""

ERRNOS = {
    errno.EIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.ESHUTDOWN,
    errno.ETIMEDOUT,
    errno.EHOSTDOWN,
    errno.EREMOTEIO,
}
"""Errors of the operating system that a network file system, or a disk, gives and takes back."""


def fault_of(error: BaseException) -> Fault | None:
    """Return the passing fault that an error, or one of its causes, shows; None: a restart would not help.

    >>> fault_of(RuntimeError("CUDA error: uncorrectable ECC error encountered")).kind
    'device'
    >>> fault_of(ValueError("train.lr must be positive"))
    """
    chain = list(_causes(error))
    if any(isinstance(one, MemoryError) or any(text in str(one) for text in NEVER) for one in chain):
        return None
    for one in chain:
        if isinstance(one, OSError) and one.errno in ERRNOS:
            return next(fault for fault in FAULTS if fault.kind == STORAGE)
        for fault, texts in FAULTS.items():
            if any(text in str(one) for text in texts):
                return fault
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its cause, the cause of that and so on, also those that a message for users hides."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__
