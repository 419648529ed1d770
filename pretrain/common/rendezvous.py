"""Join the ranks of a run: within a time limit, with progress lines, and one error when some are missing.

torch's own start waits silently for half an hour when a rank has failed before it arrived.
"""

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import _set_pg_timeout

from pretrain.common.errors import UserError

_SECONDS_BETWEEN_LINES = 30.0


def join(backend: str, patience: float, seconds: float) -> None:
    """Form the process group with the other ranks at MASTER_ADDR:MASTER_PORT.

    patience: seconds until all must have arrived, and again until all must be connected. seconds: that a
    collective of the group may take.
    """
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = os.environ["MASTER_ADDR"], _port(world)
    where, me = f"{address}:{port}", f"rank {rank} of {world}, on {socket.gethostname()}"
    longer = "Look at their output. A longer wait: --train.rendezvous_seconds"
    with _print_while_waiting(f"{me}, waits for the other ranks at {where}"):
        end = time.monotonic() + patience
        try:
            store = _connect(rank, world, address, port, end)
        except (dist.DistError, OSError) as error:
            reason = str(error).splitlines()[0]
            if "EADDRINUSE" in reason or "already in use" in reason:
                raise UserError(f"{me}: {where} is in use; choose: deepspeed --master_port 29501") from None
            what = f"rank 0 does not answer at {where} within {patience:g} s ({reason})"
            raise UserError(f"{me}: {what}. {longer}") from None
        if missing := _wait_for_all(store, rank, world, end):
            names = ", ".join(map(str, missing[:16])) + (" ..." if len(missing) > 16 else "")
            raise UserError(
                f"{me}: after {patience:g} s {world - len(missing)} of {world} ranks have reached {where}; "
                f"missing: rank{'s' * (len(missing) > 1)} {names}. {longer}"
            )
        store.set_timeout(timedelta(seconds=seconds))
        try:
            dist.init_process_group(
                backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=patience)
            )
        except (RuntimeError, dist.DistError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{me}: a rank was lost while they connected at {where} ({reason})") from None
    _set_pg_timeout(timedelta(seconds=seconds), dist.group.WORLD)


def _port(world: int) -> int:
    """Return MASTER_PORT; 0, any free port, is for a single rank."""
    text = os.environ.get("MASTER_PORT", "")
    port = int(text) if text.isdecimal() else -1
    if not (0 < port < 1 << 16 or (port == 0 and world == 1)):
        raise UserError(f"MASTER_PORT is {text!r}: it must be a port, 1 to 65535, the same for all ranks")
    return port


def _connect(rank: int, world: int, address: str, port: int, end: float) -> dist.Store:
    # Under torchrun the launcher serves the store at this address, else rank 0 does.
    serves = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    while not serves:  # until something listens: each attempt of the store would print a page of C++ frames
        try:
            socket.create_connection((address, port), timeout=5).close()
            break
        except OSError:
            if time.monotonic() > end:
                raise
        time.sleep(0.2)
    left = timedelta(seconds=max(1.0, end - time.monotonic()))
    store = dist.TCPStore(
        address, port, world, serves, timeout=left, wait_for_workers=False, multi_tenant=True
    )
    # A launcher that starts the ranks again keeps its store.
    return dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def _wait_for_all(store: dist.Store, rank: int, world: int, end: float) -> list[int]:
    """Wait until every rank has arrived; return those that have not by `end`."""
    try:
        store.set(f"here-{rank}", "")
        if store.add("count", 1) == world:
            store.set("all", "here")
        while not store.check(["all"]):
            if time.monotonic() > end:
                return [other for other in range(world) if not store.check([f"here-{other}"])]
            time.sleep(0.1)
    except dist.DistError:  # the store is gone, with rank 0 or the launcher
        return [0]
    return []


@contextmanager
def _print_while_waiting(text: str) -> Iterator[None]:
    """Print a line every half minute until the block ends."""
    done, began = threading.Event(), time.monotonic()

    def say() -> None:
        while not done.wait(_SECONDS_BETWEEN_LINES):
            print(f"{text}, for {time.monotonic() - began:.0f} s now", file=sys.stderr, flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
