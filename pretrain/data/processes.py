"""The processes that make a loader's blocks: errors, signals, deaths, and a clean end.

Each worker has a pipe of its own to the training process, and nothing is shared: no queue, no lock. One that
dies, even in the middle of a block, closes its pipe, and the training process reads that end instead of
waiting for the rest. torch's DataLoader sends all blocks through one queue, learns of a death by SIGCHLD, and
waits forever where that signal comes just before it begins to read.
"""

import atexit
import gc
import itertools
import multiprocessing
import os
import pickle
import queue
import signal
import threading
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection

import torch

from augment.core.errors import AugmentationError
from pretrain.common.errors import UserError
from pretrain.common.processes import die_with, killed_by
from pretrain.data.batch import RankBatch
from pretrain.data.worker import BlockMaker

_AHEAD = 2  # blocks that each worker makes before they are read


class WorkerProcesses:
    """The blocks of `items`, arguments of `maker.make`, in order; worker w of W makes every W-th."""

    def __init__(self, maker: BlockMaker, items: Iterable[tuple[int, int, int, int]], workers: int) -> None:
        import webdataset  # noqa: F401 - before forking: loaded once, its memory shared

        # fork: a worker shares the parent's pages and starts in milliseconds; it never touches a device.
        context = multiprocessing.get_context("fork")
        self._workers, self._pipes = [], []
        for number in range(workers):
            receiver, sender = context.Pipe(duplex=False)
            share = itertools.islice(items, number, None, workers)
            worker = context.Process(target=_work, args=(maker, share, sender, os.getpid()), daemon=True)
            worker.start()
            sender.close()  # before the next fork: then a pipe ends when its worker is gone
            self._workers.append(worker)
            self._pipes.append(receiver)
        self._turns = itertools.cycle(self._pipes)
        # multiprocessing ends its children at exit by SIGTERM, which workers ignore, and then waits for them.
        # Registered after that, so run before it.
        atexit.register(self.close)

    def __iter__(self) -> "WorkerProcesses":
        return self

    def __next__(self) -> RankBatch:
        pipe = next(self._turns)
        try:
            result = pipe.recv()
        except (EOFError, OSError):
            self._workers[self._pipes.index(pipe)].join()
            self.require_workers()
            raise
        if isinstance(result, _Failure):
            if not isinstance(result.error, (UserError, AugmentationError)):
                result.error.add_note(f"In a loader worker:\n{result.trace}")
            raise result.error
        return result

    def require_workers(self) -> None:
        """Raise UserError when a worker has died: what it was making will never come."""
        dead = next((worker for worker in self._workers if worker.exitcode), None)
        if dead is None:
            return
        assert dead.exitcode is not None
        how = killed_by(dead.exitcode) if dead.exitcode < 0 else f"ended with status {dead.exitcode}"
        count = len(self._workers)
        fewer = f"; if memory ran out, with --data.workers {count - 1} (now {count}), which changes no batch"
        raise UserError(f"loader worker {dead.pid} {how}. Go on with --resume auto{fewer}")

    def close(self) -> None:
        """End the workers, which hold nothing that would need an orderly end."""
        atexit.unregister(self.close)
        for worker in self._workers:
            worker.kill()
        for worker, pipe in zip(self._workers, self._pipes, strict=True):
            worker.join()
            pipe.close()


class _Failure:
    """An exception on its way to the training process."""

    def __init__(self, error: Exception) -> None:
        self.trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
            self.error = error
        except Exception:  # an exception class that does not survive the trip
            self.error = RuntimeError(f"{type(error).__name__}: {error}")


def _work(
    maker: BlockMaker, items: Iterable[tuple[int, int, int, int]], sender: Connection, parent: int
) -> None:
    """Make the blocks of `items` and send them; a thread waits for the pipe while the next one is made."""
    _start_worker(parent)
    room = threading.Semaphore(_AHEAD)
    made: queue.SimpleQueue[RankBatch | _Failure | None] = queue.SimpleQueue()
    sending = threading.Thread(target=_send, args=(sender, made, room), daemon=True)
    sending.start()
    for item in items:
        room.acquire()
        try:
            made.put(maker.make(*item))
        except Exception as error:
            made.put(_Failure(error))
    made.put(None)
    sending.join()


def _send(sender: Connection, made: queue.SimpleQueue, room: threading.Semaphore) -> None:
    try:
        while (block := made.get()) is not None:
            sender.send(block)
            room.release()
    except OSError:  # nobody reads any more
        os._exit(1)


def _start_worker(parent: int) -> None:
    # Signals meant for the training process reach its children too: Ctrl-C and the end of a terminal go to
    # the whole process group, Slurm sends SIGUSR1 to every process of a step, and the deepspeed launcher
    # terminates loader workers first, while the rank is still saving. A worker ends when its parent tells it
    # to, or is gone.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # the other cores are other workers' and the training process's
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # augmentations of text tokenise here: one core a worker
    gc.freeze()  # the parent's objects: a collection that looked at them would copy their pages
    signal.set_wakeup_fd(-1)  # the parent's, if it had one: this process must not write into it
    # Another worker's copy of the parent's end of the pipe may keep it open. By the kernel: this process may
    # be stopped.
    die_with(parent)
