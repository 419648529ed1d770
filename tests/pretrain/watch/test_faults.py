"""Which failures are worth another start: texts as torch, NCCL, gloo, CUDA and the kernel write them."""

import errno
import os
import pickle

import pytest

from pretrain.checkpoint.store import CheckpointError
from pretrain.common.errors import UserError
from pretrain.common.passing_faults import DEVICE, PEER, SLOW, STORAGE, fault_of
from pretrain.start.resume import NotFinite

CUDA_TAIL = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with "
    "`TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
TEXTS = [
    # gloo, of torch 2.13: a rank was killed in an all-reduce; a rank was stopped
    (
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer "
        "[127.0.0.1]:3716",
        PEER,
    ),
    (
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Read error [10.0.0.7]:29512: Connection reset "
        "by peer",
        PEER,
    ),
    ("[../third_party/gloo/gloo/transport/tcp/pair.cc:446] Application timeout caused pair closure", PEER),
    (
        "[../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
        "operation to complete",
        SLOW,
    ),
    # NCCL, through ProcessGroupNCCL
    (
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, "
        "NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before "
        "timing out.",
        SLOW,
    ),
    (
        "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1333, remote process exited or "
        "there was a network error, NCCL version 2.14.3\nncclRemoteError: A call failed possibly due to a "
        "network error or a remote process exiting prematurely.",
        PEER,
    ),
    (
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, unhandled system error (run with "
        "NCCL_DEBUG=INFO for details), NCCL version 2.14.3\nncclSystemError: System call (e.g. socket, "
        "malloc) or external library call failed or device error.",
        PEER,
    ),
    ("NCCL communicator was aborted on rank 3.", PEER),
    # the store
    (
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?",
        PEER,
    ),
    ("wait timeout after 300000ms, keys: /default_pg/0//cpu//0/1", SLOW),
    # CUDA
    ("CUDA error: uncorrectable ECC error encountered" + CUDA_TAIL, DEVICE),
    ("CUDA error: unspecified launch failure" + CUDA_TAIL, DEVICE),
    ("CUDA error: an illegal memory access was encountered" + CUDA_TAIL, None),
    ("CUDA error: device-side assert triggered" + CUDA_TAIL, None),
    ("CUDA error: out of memory" + CUDA_TAIL, None),
    ("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", None),
]


@pytest.mark.parametrize("text,kind", TEXTS)
def test_runtime_errors_are_told_apart_by_their_text(text, kind):
    fault = fault_of(RuntimeError(text))
    assert (fault.kind if fault else None) == kind


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOTCONN])
def test_storage_that_fails_may_come_back(number):
    plain = OSError(number, os.strerror(number), "/data/train-0001.tar")
    assert fault_of(plain).kind == STORAGE
    assert fault_of(pickle.loads(pickle.dumps(plain))).kind == STORAGE  # as from a loader worker
    try:
        try:
            raise plain
        except OSError as error:
            raise CheckpointError(f"checkpoint step-7 could not be written: {error.strerror}") from None
    except CheckpointError as error:
        assert fault_of(error).kind == STORAGE


@pytest.mark.parametrize(
    "error",
    [
        NotFinite("the loss is not finite at step 3 (total nan)"),
        UserError("train.lr must be positive"),
        UserError("loader worker 7 was killed by SIGKILL, as the kernel does when memory runs out"),
        ValueError("shape"),
        MemoryError(),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EACCES, os.strerror(errno.EACCES)),
        FileNotFoundError(errno.ENOENT, "no such file"),
    ],
)
def test_what_would_end_the_same_is_no_passing_fault(error):
    assert fault_of(error) is None


def test_memory_that_runs_out_counts_as_that_whatever_it_caused():
    try:
        try:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        except RuntimeError:
            raise RuntimeError("NCCL communicator was aborted on rank 0.")  # noqa: B904
    except RuntimeError as error:
        assert fault_of(error) is None
