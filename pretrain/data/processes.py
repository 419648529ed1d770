"""The processes that make a loader's blocks, on torch's DataLoader: errors, signals, and a clean end."""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from augment.core.errors import AugmentationError
from pretrain.common.errors import UserError
from pretrain.data.batch import RankBatch
from pretrain.data.worker import BlockMaker

_PARENT_POLL_SECONDS = 1.0


class WorkerProcesses:
    """The blocks of `items`, from worker processes, in order.

    Args:
        maker: what each worker runs.
        items: arguments of `BlockMaker.make`, of one block each; worker w of W makes every W-th.
        prefetch: blocks that each worker makes ahead.
    """

    def __init__(
        self, maker: BlockMaker, items: Iterable[tuple[int, int, int, int]], workers: int, prefetch: int
    ) -> None:
        import webdataset  # noqa: F401 - before forking: loaded once, its memory shared

        source = DataLoader(
            _Blocks(maker),
            batch_size=None,
            sampler=items,
            num_workers=workers,
            collate_fn=_as_it_is,
            prefetch_factor=prefetch,
            worker_init_fn=partial(_start_worker, os.getpid()),
            # fork: a worker shares the parent's pages and starts in milliseconds; it never touches a device.
            multiprocessing_context="fork",
            # DataLoader draws a base seed. From the global generator that would shift every dropout mask
            # after it, and by how much would depend on the number of workers and restarts.
            generator=torch.Generator(),
        )
        self._iterator: Iterator[Any] | None = iter(source)
        self._workers = list(self._iterator._workers)
        self._waiting = False
        # At a worker's death DataLoader's handler of SIGCHLD raises wherever the training process stands, in
        # the middle of a step too. This one raises only while a block is waited for. It is needed then: a
        # worker that dies while it writes leaves half a block in the pipe, for whose other half the parent
        # would wait for ever.
        self._theirs = None
        if threading.current_thread() is threading.main_thread():
            self._theirs = signal.signal(signal.SIGCHLD, self._child_ended)
        # Workers ignore SIGTERM, with which multiprocessing ends its children at exit and then waits for
        # them. Registered after DataLoader's own clean-up, so run before it.
        atexit.register(self.close)

    def __iter__(self) -> WorkerProcesses:
        return self

    def __next__(self) -> RankBatch:
        self._waiting = True
        try:
            self.require_workers()
            assert self._iterator is not None  # until `close`
            result = next(self._iterator)
        except RuntimeError:
            self.require_workers()
            raise
        finally:
            self._waiting = False
        if isinstance(result, _Failure):
            result.reraise()
        return result

    def _child_ended(self, number: int, frame: object) -> None:
        if self._waiting:
            self.require_workers()

    def require_workers(self) -> None:
        """Raise UserError when a worker has died: what it was making will never come."""
        dead = next((worker for worker in self._workers if worker.exitcode), None)
        if dead is None:
            return
        if dead.exitcode < 0:
            name = signal.Signals(-dead.exitcode).name
            how = f"was killed by {name}" + (
                ", as the kernel does when memory runs out" if name == "SIGKILL" else ""
            )
        else:
            how = f"ended with status {dead.exitcode}"
        count = len(self._workers)
        fewer = f"; if memory ran out, with --data.workers {count - 1} (now {count}), which changes no batch"
        raise UserError(
            f"loader worker {dead.pid} {how}. Go on with the same command and --resume auto{fewer}"
        )

    def close(self) -> None:
        """Tell the workers to stop, and wait for them: a fraction of a second, at most the block in hand."""
        atexit.unregister(self.close)
        self._iterator = None  # DataLoader's iterator shuts its workers down when it is dropped
        for worker in self._workers:  # one that waits for a lock that a dead one holds
            if worker.is_alive():
                worker.kill()
        if self._theirs is not None and signal.getsignal(signal.SIGCHLD) == self._child_ended:
            signal.signal(signal.SIGCHLD, self._theirs)
        self._theirs = None


class _Blocks(Dataset):
    """The maker as DataLoader wants it: an item is the arguments of one block."""

    def __init__(self, maker: BlockMaker) -> None:
        self._maker = maker

    def __getitem__(self, item: tuple[int, int, int, int]) -> RankBatch | _Failure:
        try:
            return self._maker.make(*item)
        except Exception as error:
            return _Failure(error)


class _Failure:
    """An exception on its way to the training process.

    DataLoader would wrap the message in the worker's traceback and lose the type.
    """

    def __init__(self, error: Exception) -> None:
        self.trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
            self.error = error
        except Exception:  # an exception class that does not survive the trip
            self.error = RuntimeError(f"{type(error).__name__}: {error}")

    def reraise(self) -> None:
        if not isinstance(self.error, (UserError, AugmentationError)):
            self.error.add_note(f"In a loader worker:\n{self.trace}")
        raise self.error


def _as_it_is(block: RankBatch | _Failure) -> RankBatch | _Failure:
    return block


def _start_worker(parent: int, worker: int) -> None:
    # Signals meant for the training process reach its children too: Ctrl-C goes to the whole process group,
    # Slurm sends SIGUSR1 to every process of a step, and the deepspeed launcher terminates loader workers
    # first, while the rank is still saving. A worker ends when its parent tells it to, or is gone.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # augmentations of text tokenise here: one core a worker
    gc.freeze()  # the parent's objects: a collection that looked at them would copy their pages
    signal.set_wakeup_fd(-1)  # the parent's, if it had one: this process must not write into it
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """Exit as soon as the parent is dead.

    DataLoader's own watchdog looks only between items, and then waits for its queue to be emptied by a
    reader that no longer exists.
    """
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    os._exit(1)
