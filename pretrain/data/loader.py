"""`Loader`: a rank's batches, made ahead of time by worker processes.

What a batch holds is decided by `lanes`, `worker` and the keys; this file only decides who makes it and when.
Each of G groups of workers serves its own share of the rank's lanes, so that a chunk is read, and kept in
memory, by one worker, and an item of work is a block of consecutive steps for such a share, some thousands of
sequences in one vectorised pass. Blocks arrive through a pipe, as plain arrays of 16 to 18 bytes a source
token: that costs the training process some 10 ns a token (tests/benchmarks/bench_loader.py), and needs
nothing of /dev/shm, which is 64 MB in a default container.
"""

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np

from augment.core.identity import sequence_identities
from augment.spec.grammar import parse
from pretrain.common.errors import UserError
from pretrain.config.run import Config
from pretrain.data.batch import NEGATIVE, BatchSpec, RankBatch, ViewSpec, column_of, label_names
from pretrain.data.damage import substitution_key
from pretrain.data.lanes import DistinctLanes, Lanes, MixedLanes
from pretrain.data.processes import WorkerProcesses
from pretrain.data.shards import MixedShardReader, ShardReader
from pretrain.data.worker import BlockMaker

# A block is this many sequences where a step of a worker's lanes has fewer (below some 2,000 the fixed cost
# of a hundred array operations shows), but no more tokens than this, which bounds memory and the wait for the
# first batch.
BLOCK_SEQUENCES = 4096
BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True)
class LoaderSettings:
    """The order of the data, and who makes the batches.

    seed: of order, masks and augmentations. global_batch, lanes: B and L of `pretrain.data.lanes`.
    workers: processes; 0 makes the batches in this one.
    damaged: "refuse" raises DamagedShard; "skip" replaces a damaged chunk and lists it in `substitutions`.
    start_batch, growth_steps: of a batch that grows to B at first.
    no_duplicates: no text of a batch is the anchor or a positive of two of its records (`DistinctLanes`).
    """

    seed: int
    global_batch: int
    lanes: int
    workers: int = 0
    damaged: str = "refuse"
    start_batch: int | None = None
    growth_steps: int = 0
    no_duplicates: bool = False

    @staticmethod
    def of(config: Config) -> "LoaderSettings":
        """Return what a run's configuration says."""
        train, data, sizes = config.train, config.data, config.batch_sizes
        return LoaderSettings(
            train.seed,
            train.global_batch,
            data.lanes,
            data.workers,
            data.damaged,
            start_batch=sizes.start,
            growth_steps=sizes.growth_steps,
            no_duplicates=data.no_duplicates,
        )


@dataclass(frozen=True)
class Position:
    """Where a process stands in the run: the steps to load, and whose share of them.

    start_step, stop_step: where to begin (any step costs the same), and to end.
    recorded: substitutions that the run has recorded up to start_step (in its checkpoint). Their chunks are
        replaced again unread, whatever `LoaderSettings.damaged` says, so that a run resumed after a repair
        stays the same run; and what is recorded is not listed again.
    replaying: make batches that the run has read already: each recorded substitution holds from its own step
        on, and no other is made.
    jumps: (first step, stop step) of steps that are not loaded (`train.faults.jump`), in order.
    """

    start_step: int
    stop_step: int
    rank: int = 0
    world_size: int = 1
    recorded: Sequence[dict] = ()
    replaying: bool = False
    jumps: Sequence[tuple[int, int]] = ()

    @property
    def spans(self) -> list[tuple[int, int]]:
        """The steps to load, as (first step, stop step).

        >>> Position(4, 20, jumps=[(2, 6), (9, 12)]).spans
        [(6, 9), (12, 20)]
        """
        ends = [self.start_step, *itertools.chain.from_iterable(self.jumps), self.stop_step]
        clipped = [min(max(step, self.start_step), self.stop_step) for step in ends]
        return [(first, stop) for first, stop in zip(clipped[::2], clipped[1::2]) if first < stop]


def require_negatives(reader: ShardReader, views: Sequence[ViewSpec]) -> None:
    """Raise UserError if a negative view would be the text itself, in every record."""
    for view in views:
        itself = view.column == NEGATIVE and parse(view.augmentation).is_identity
        if itself and NEGATIVE not in reader.columns:
            raise UserError(
                f"{reader.folder} has no column 'negative': give records a field `negative` (clearly mine "
                "finds hard negatives), or set augment.negative to an augmentation that makes them"
            )


class Loader:
    """This rank's batches for the steps start_step, ..., stop_step - 1, but for those that are jumped over.

    Iterating yields one `RankBatch` a step, the same whatever `workers` and, put together over ranks,
    whatever `world_size`. It may be iterated again; leaving an iteration stops its workers. An error of a
    worker arrives here as it was.
    """

    def __init__(
        self, reader: ShardReader, spec: BatchSpec, settings: LoaderSettings, position: Position
    ) -> None:
        _check_views(reader, spec)
        self.reader, self.settings, self.position = reader, settings, position
        self.lanes = lanes_of(reader, settings)
        self.groups = _split_lanes(*self.lanes.slice_of(position.rank, position.world_size), settings.workers)
        largest = max(stop - start for start, stop in self.groups)
        a_step, length = largest * self.lanes.per_lane, max(reader.num_tokens / reader.num_sequences, 1.0)
        self.block_steps = max(1, min(-(-BLOCK_SEQUENCES // a_step), int(BLOCK_TOKENS / (a_step * length))))
        # A lane is in one chunk at a time, and crosses into others within a block; with room to spare.
        chunks_a_lane = 1 + self.block_steps * self.lanes.per_lane * reader.num_chunks / reader.num_sequences
        self.maker = BlockMaker(
            reader,
            self.lanes,
            spec,
            settings.damaged == "skip",
            position.recorded,
            int(largest * chunks_a_lane * 1.1) + 2,
            position.replaying,
        )

    def counts(self, step: int) -> dict[str, dict[str, int]]:
        """Return, as `sets`, how many sequences of each set `step` steps have had; nothing of one set."""
        if not isinstance(self.lanes, MixedLanes):
            return {}
        folders = [part.folder for part in self.reader.parts]
        unique = len({folder.name for folder in folders}) == len(folders)
        names = [folder.name if unique else str(folder) for folder in folders]
        sequences = self.lanes.taken(step) * self.settings.global_batch
        return {"sets": dict(zip(names, sequences.tolist(), strict=True))}

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.position.spans)

    def __iter__(self) -> Generator[RankBatch, None, None]:
        if self.settings.workers == 0:
            return self._batches(itertools.starmap(self.maker.make, self.items()))
        return self._iterate_workers()

    def _steps(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the stop step of the blocks, of equally many sequences per step each."""
        for start, end in self.position.spans:
            for begin, stop in itertools.pairwise([start, *self.lanes.sizes.changes(start, end), end]):
                for first in range(begin, stop, self.block_steps):
                    yield first, min(first + self.block_steps, stop)

    def items(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first step, stop step, first lane, stop lane) of each block: they may be millions.

        The groups of lanes take turns, and so do the workers: a worker always gets the same group.
        """
        return (steps + lanes for steps in self._steps() for lanes in self.groups)

    def _batches(self, blocks: Iterator[RankBatch]) -> Generator[RankBatch, None, None]:
        listed = set(map(substitution_key, self.position.recorded))
        for first, stop in self._steps():
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

    def _iterate_workers(self) -> Generator[RankBatch, None, None]:
        with closing(WorkerProcesses(self.maker, self.items(), self.settings.workers)) as processes:
            for batch in self._batches(processes):
                yield batch
                processes.require_workers()  # at every step: a block may last for minutes


def lanes_of(reader: ShardReader, settings: LoaderSettings) -> Lanes:
    """Return the order of a split's data."""
    order = settings.seed, settings.global_batch, settings.lanes
    if isinstance(reader, MixedShardReader):
        return MixedLanes([part.chunk_sizes for part in reader.parts], reader.shares, *order)
    growth = settings.start_batch, settings.growth_steps
    if settings.no_duplicates:
        return DistinctLanes(identities_of(reader), reader.chunk_sizes, *order, *growth)
    return Lanes(reader.chunk_sizes, *order, *growth)


def identities_of(reader: ShardReader) -> np.ndarray:
    """Return the identities of the anchor and the positives of every record, int64[T, M]; reads all data.

    A positive that a record lacks counts as its anchor.
    """
    names = [name for name in reader.columns if name == "text" or column_of(name) == "positive"]
    found = np.empty((len(names), reader.num_sequences), np.int64)
    stops = np.cumsum(reader.chunk_sizes)
    for chunk, (size, stop) in enumerate(zip(reader.chunk_sizes, stops)):
        rows, content = found[:, stop - size : stop], reader.read(chunk)
        for row, name in zip(rows, names):
            column = content.column(name)
            row[:] = np.where(column.lengths > 0, sequence_identities(column), rows[0])
    return found


def _check_views(reader: ShardReader, spec: BatchSpec) -> None:
    longest, roles = spec.max_length, [view.role for view in spec.views]
    assert len(set(roles)) == len(roles)
    if longest is not None and reader.max_length > longest:
        raise UserError(
            f"{reader.folder} has {reader.max_length} tokens per sequence: raise model.max_positions, or "
            f"prepare the data with max_length {longest}"
        )
    labelled = [view for view in spec.views if view.labelled]
    if len(labelled) > 1:
        raise UserError(f"the views {', '.join(view.role for view in labelled)} are all labelled: leave one")
    for view in labelled if not reader.labels else ():
        label_names(view)  # fails now, rather than in a worker


def _split_lanes(start: int, stop: int, workers: int) -> list[tuple[int, int]]:
    """Split the rank's lanes into G neighbouring groups, as equal as they can be.

    G is the largest divisor of the number of workers that leaves none without a lane, so that round robin
    brings every group to the same workers each time.
    """
    groups = next(g for g in range(max(workers, 1), 0, -1) if max(workers, 1) % g == 0 and g <= stop - start)
    bounds = start + np.arange(groups + 1) * (stop - start) // groups
    return [(int(a), int(b)) for a, b in itertools.pairwise(bounds)]
