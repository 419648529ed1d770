"""`Loader`: a rank's batches, made ahead of time by worker processes.

What a batch holds is decided by `lanes`, `worker` and the keys; this file only decides who makes it and when.
Each of G groups of workers serves its own share of the rank's lanes, so that a chunk is read, and kept in
memory, by one worker, and an item of work is a block of consecutive steps for such a share, some thousands of
sequences in one vectorised pass. Blocks come home through a pipe, as plain arrays of 16 to 18 bytes a source
token: that costs the training process some 10 ns a token (tests/benchmarks/bench_loader.py), and needs
nothing of /dev/shm, which is 64 MB in a default container.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from augment.core.errors import AugmentationError
from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE, BatchSpec, RankBatch, label_names
from pretrain.data.damage import known_damaged, substitution_key
from pretrain.data.lanes import Lanes
from pretrain.data.shards import ShardReader
from pretrain.data.worker import BlockMaker

# A block is this many sequences where a step of a worker's lanes has fewer (below some 2,000 the fixed cost
# of a hundred array operations shows), but no more tokens than this, which bounds memory and the wait for the
# first batch.
BLOCK_SEQUENCES = 4096
BLOCK_TOKENS = 1 << 20
_PARENT_POLL_SECONDS = 1.0


@dataclass(frozen=True)
class LoaderSettings:
    """The order of the data, and who makes the batches.

    seed: of order, masks and augmentations.
    global_batch, lanes: B and L, see `pretrain.data.lanes`.
    workers: processes; 0 makes the batches in this one.
    damaged: "refuse" raises DamagedShard; "skip" replaces a damaged chunk and lists it in `substitutions`.
    prefetch: blocks that each worker makes ahead.
    """

    seed: int
    global_batch: int
    lanes: int
    workers: int = 0
    damaged: str = "refuse"
    prefetch: int = 2

    @staticmethod
    def of(config: Config) -> LoaderSettings:
        """Return what a run's configuration says."""
        train, data = config.train, config.data
        return LoaderSettings(train.seed, train.global_batch, data.lanes, data.workers, data.damaged)


@dataclass(frozen=True)
class Position:
    """Where a process stands in the run: the steps to load, and whose share of them.

    start_step, stop_step: where to begin (any step costs the same), and to end.
    rank, world_size: of this process; world_size divides lanes.
    recorded: substitutions that the run has recorded up to start_step (in its checkpoint). Their chunks are
        replaced again unread, whatever `LoaderSettings.damaged` says, and what is recorded is not listed
        again.
    """

    start_step: int
    stop_step: int
    rank: int = 0
    world_size: int = 1
    recorded: Sequence[dict] = ()


class Loader:
    """This rank's batches for the steps start_step, ..., stop_step - 1.

    Iterating yields one `RankBatch` a step, the same whatever `workers` and, put together over ranks,
    whatever `world_size`. It may be iterated again; leaving an iteration stops its workers.

    Args:
        reader: of the split to train on.
        spec: what to make of each sequence.

    Raises:
        UserError: lanes, batch and world size do not fit; two views are labelled; there is nothing to make
            negatives of; an augmentation works on text, and the data has none; the corpus is smaller than a
            batch; its longest sequence is longer than max_length. Raised by a worker, it arrives here as it
            was.
        AugmentationError: a specification is wrong, or that of a labelled view no list of alternatives.
    """

    def __init__(
        self, reader: ShardReader, spec: BatchSpec, settings: LoaderSettings, position: Position
    ) -> None:
        _check_settings(settings, position)
        _check_views(reader, spec)
        self.settings, self.position = settings, position
        self.lanes = Lanes(reader.chunk_sizes, settings.seed, settings.global_batch, settings.lanes)
        self.groups = _split_lanes(*self.lanes.slice_of(position.rank, position.world_size), settings.workers)
        largest = max(stop - start for start, stop in self.groups)
        self.block_steps = _block_steps(
            largest * self.lanes.per_lane, reader.num_tokens / reader.num_sequences
        )
        # A lane is in one chunk at a time, and crosses into others within a block; with a little room to
        # spare.
        chunks_a_lane = 1 + self.block_steps * self.lanes.per_lane * reader.num_chunks / reader.num_sequences
        self.maker = BlockMaker(
            reader,
            self.lanes,
            spec,
            settings.damaged == "skip",
            known_damaged(position.recorded),
            slots=int(largest * chunks_a_lane * 1.1) + 2,
        )
        for view, pipeline in zip(spec.views, self.maker.pipelines):
            if view.column == NEGATIVE and NEGATIVE not in reader.columns and pipeline.is_identity:
                raise UserError(
                    f"{reader.folder} has no column 'negative' (it has {', '.join(reader.columns)}), and the "
                    "augmentation of the negative view is 'none': every text would be its own negative. "
                    "Prepare records that have one (--unit record), or give the view an augmentation that "
                    "changes the meaning"
                )

    @property
    def steps_per_epoch(self) -> int:
        return self.lanes.steps_per_epoch

    def __len__(self) -> int:
        return self.position.stop_step - self.position.start_step

    def __iter__(self) -> Iterator[RankBatch]:
        if self.settings.workers == 0:
            return self._batches(map(self._make, self._items()))
        return self._iterate_workers()

    def _make(self, item: tuple[int, int, int, int]) -> RankBatch:
        return self.maker.make(*item)

    def _items(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield what each block is of: (first step, stop step, first lane, stop lane).

        Worker w always gets the same group of lanes (round robin).
        """
        for first, stop in self._steps_of_blocks():
            for lane_start, lane_stop in self.groups:
                yield first, stop, lane_start, lane_stop

    def _steps_of_blocks(self) -> Iterator[tuple[int, int]]:
        last = self.position.stop_step
        for first in range(self.position.start_step, last, self.block_steps):
            yield first, min(first + self.block_steps, last)

    def _batches(self, blocks: Iterator[RankBatch]) -> Iterator[RankBatch]:
        listed = set(map(substitution_key, self.position.recorded))
        for first, stop in self._steps_of_blocks():
            parts = [next(blocks) for _ in self.groups]
            for step in range(first, stop):
                batch = RankBatch.concatenate([self._of_step(part, step, stop - first) for part in parts])
                new = [row for row in batch.substitutions if substitution_key(row) not in listed]
                listed.update(map(substitution_key, new))
                yield replace(batch, substitutions=new)

    def _of_step(self, block: RankBatch, step: int, steps: int) -> RankBatch:
        """Return the batch of one of the `steps` steps that a block holds; it shares the block's tokens."""
        size, number = len(block) // steps, step - block.step
        return replace(
            block.slice(number * size, (number + 1) * size),
            step=step,
            epoch=self.lanes.epoch_of(step),
            substitutions=[entry for entry in block.substitutions if entry["step"] == step],
        )

    def _iterate_workers(self) -> Iterator[RankBatch]:
        processes = _Processes(self)
        try:
            for batch in self._batches(processes):
                yield batch
                processes.require_workers()  # at every step: a block may last for minutes
        finally:
            processes.close()


class _Processes:
    """The blocks, from worker processes, in order."""

    def __init__(self, loader: Loader) -> None:
        import webdataset  # noqa: F401 - before forking: loaded once, its memory shared

        source = DataLoader(
            _Blocks(loader.maker),
            batch_size=None,
            sampler=_Items(loader),
            num_workers=loader.settings.workers,
            collate_fn=_as_it_is,
            prefetch_factor=loader.settings.prefetch,
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

    def __iter__(self) -> _Processes:
        return self

    def __next__(self) -> RankBatch:
        self._waiting = True
        try:
            self.require_workers()
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
        """Raises: UserError when a worker has died; what it had in hand will never come."""
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


class _Items:
    """The loader's items as a sampler: counted lazily, a run may have millions."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        return self._loader._items()

    def __len__(self) -> int:
        return -(-len(self._loader) // self._loader.block_steps) * len(self._loader.groups)


class _Blocks(Dataset):
    """The maker as DataLoader wants it."""

    def __init__(self, maker: BlockMaker) -> None:
        self._maker = maker

    def __getitem__(self, item: tuple[int, int, int, int]) -> RankBatch | _Failure:
        try:
            return self._maker.make(*item)
        except Exception as error:
            return _Failure(error)


class _Failure:
    """An exception on its way home. DataLoader would wrap the message in the worker's traceback and lose the
    type."""

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
    """Leave as soon as the parent is dead. DataLoader's own watchdog looks only between items, and then waits
    for its queue to be emptied by a reader that no longer exists.
    """
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_SECONDS)
    os._exit(1)


def _check_settings(settings: LoaderSettings, position: Position) -> None:
    start, stop = position.start_step, position.stop_step
    if settings.damaged not in ("refuse", "skip"):
        raise UserError(f"data.damaged={settings.damaged!r} is unknown: set it to 'refuse' or 'skip'")
    if settings.workers < 0 or settings.prefetch < 1 or not 0 <= start <= stop:
        raise UserError(
            f"data.workers={settings.workers}, prefetch={settings.prefetch} and steps {start} to {stop} must "
            "not be negative, nor prefetch below 1, nor the last step before the first"
        )


def _check_views(reader: ShardReader, spec: BatchSpec) -> None:
    longest, roles = spec.max_length, [view.role for view in spec.views]
    if len(set(roles)) < len(roles):
        raise ValueError(f"each view needs a role of its own, and the roles are {', '.join(roles)}")
    if longest is not None and reader.max_length > longest:
        raise UserError(
            f"{reader.folder} holds sequences of up to {reader.max_length} tokens, the model takes "
            f"{longest}: raise model.max_positions, or prepare the data with max_length {longest}"
        )
    labelled = [view for view in spec.views if view.labelled]
    if len(labelled) > 1:
        raise UserError(
            f"the views {', '.join(view.role for view in labelled)} are all labelled, and a batch has the "
            "labels of one: leave one of them"
        )
    for view in labelled if not reader.labels else ():
        label_names(view)  # fails now, rather than in a worker


def _split_lanes(start: int, stop: int, workers: int) -> list[tuple[int, int]]:
    """The rank's lanes in G neighbouring groups, as equal as they can be; G is the largest divisor of the
    number of workers that leaves none without a lane, so that round robin brings every group to the same
    workers each time.
    """
    groups = next(g for g in range(max(workers, 1), 0, -1) if max(workers, 1) % g == 0 and g <= stop - start)
    bounds = start + np.arange(groups + 1) * (stop - start) // groups
    return [(int(a), int(b)) for a, b in itertools.pairwise(bounds)]


def _block_steps(sequences_a_step: int, tokens_a_sequence: float) -> int:
    wanted = -(-BLOCK_SEQUENCES // sequences_a_step)
    affordable = int(BLOCK_TOKENS / (sequences_a_step * max(tokens_a_sequence, 1.0)))
    return max(1, min(wanted, affordable))
