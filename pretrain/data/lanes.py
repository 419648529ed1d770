"""Who reads what, when: the order of the data as a pure function of (seed, step).

An epoch's order is a seeded permutation of all chunks, with a seeded order inside each chunk. Of its M
sequences, lane l of L takes the l-th equal slice of that order and gives B / L sequences per step, so an
epoch is the same floor(M / B) steps for every lane, and the fewer than B sequences left over differ from
epoch to epoch. A rank of a world of W serves L / W neighbouring lanes, rounded up or down if W does not
divide L: the global batch of a step is the same whatever W is, and the step number alone says where every
lane stands, so resuming costs nothing and no rank can run out before another.

A batch that grows at first (`pretrain.config.run.BatchSizes`) takes smaller shares of the same slices, one
after the other; a step whose share does not fit into what is left of a slice begins the next epoch.

Nothing here is drawn from a generator object: every number is a hash of (seed, epoch, chunk, index), so the
order does not change with NumPy's version (NumPy freezes no stream but RandomState's) and any step is reached
in O(B).
"""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from augment.core.keys import derive
from pretrain.common.errors import UserError
from pretrain.config.run import BatchSizes

_ROUNDS = 4
# Domains of the hash, so that two uses of one (seed, epoch, chunk) never share random bits.
_ORDER_OF_CHUNKS, _ORDER_IN_CHUNK, _REPLACEMENT, _ORDER_OF_SETS = 1, 2, 3, 4
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_AT_ONCE = 1 << 20  # steps whose sets are counted at once


def hash_words(*words: int | np.ndarray) -> np.ndarray:
    """Return a uint64 hash of integers, broadcast against each other and taken modulo 2^64."""
    return derive(np.zeros(1, dtype=np.uint64), *words)


def permute(index: np.ndarray, size: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Map `index` by keyed permutations of [0, size), one permutation per key, without building any.

    A bijection of [0, 2^b), 2^b >= size, made of the invertible steps "plus key, xor-shift, times odd,
    xor-shift", walked until it lands below size (Kensler, "Correlated Multi-Jittered Sampling", 2013, section
    on `permute`; the walk takes fewer than two turns on average because 2^b < 2 size). O(1) memory and time
    an element: a stored permutation would cost one argsort of a whole chunk for the few sequences that a step
    draws from it.

    index, size: int64[n], 0 <= index < size. key: uint64[n], equal for elements of the same permutation.
    """
    if index.size == 0:
        return index.astype(np.int64)
    top = np.maximum(size - 1, 1).astype(np.uint64)
    # Smear the highest bit downwards: the smallest 2^b - 1 that is >= size - 1.
    mask = top.copy()
    for shift in (1, 2, 4, 8, 16, 32):
        mask |= mask >> np.uint64(shift)
    bits = np.log2(mask.astype(np.float64) + 1.0).round().astype(np.uint64)
    half = np.maximum(bits >> np.uint64(1), np.uint64(1))
    less = np.maximum(half, np.uint64(2)) - np.uint64(1)
    rounds = [hash_words(key, np.array([r], dtype=np.uint64)) for r in range(_ROUNDS)]
    out = np.empty(index.size, dtype=np.int64)
    todo = np.arange(index.size)
    x = index.astype(np.uint64)
    while todo.size:
        for word in rounds:
            x = (x + (word >> np.uint64(32))) & mask
            x ^= x >> half
            x = (x * (word | np.uint64(1))) & mask
            x ^= x >> less
        landed = x < size.astype(np.uint64)
        out[todo[landed]] = x[landed].astype(np.int64)
        stay = ~landed
        if not stay.any():
            break
        todo, x, size = todo[stay], x[stay], size[stay]
        mask, half, less = mask[stay], half[stay], less[stay]
        rounds = [word[stay] for word in rounds]
    return out


def lanes_of_rank(lanes: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the lanes [start, stop) that a rank serves: numbers that differ by one at most.

    >>> [lanes_of_rank(16, rank, 3) for rank in range(3)]
    [(0, 5), (5, 10), (10, 16)]
    """
    return rank * lanes // world_size, (rank + 1) * lanes // world_size


def require_lanes(lanes: int, world_size: int, equal: bool = False) -> None:
    """Check that each rank has a lane; equal: all equally many, for losses of one rank (`scope: local`)."""
    if equal and lanes % world_size:
        raise UserError(f"data.lanes={lanes} is no multiple of {world_size} ranks, which scope: local needs")
    if lanes < world_size:
        raise UserError(f"data.lanes={lanes}: start at most {lanes} ranks; in a new run raise data.lanes")


class Lanes:
    """The order of the data, a pure function of (seed, step).

    chunk_sizes: int64[C], sequences in each chunk of the split. global_batch: B, sequences per step over all
    ranks. lanes: L; every world size up to it sees the same global batches. start_batch, growth_steps: of a
    batch that grows to B (`BatchSizes`); None, 0: it is always B.
    """

    def __init__(
        self,
        chunk_sizes: np.ndarray,
        seed: int,
        global_batch: int,
        lanes: int,
        start_batch: int | None = None,
        growth_steps: int = 0,
    ) -> None:
        self.chunk_sizes = np.asarray(chunk_sizes, dtype=np.int64)
        self.seed, self.global_batch, self.lanes = int(seed), int(global_batch), int(lanes)
        self.num_sequences = int(self.chunk_sizes.sum())
        assert not self.global_batch % self.lanes  # `Config` refuses other numbers
        if self.num_sequences < self.global_batch:
            raise UserError(f"lower train.global_batch: there are only {self.num_sequences:,} sequences")
        self.per_lane = self.global_batch // self.lanes
        self.steps_per_epoch = self.num_sequences // self.global_batch
        self.sizes = BatchSizes(global_batch, lanes, start_batch or global_batch, growth_steps)
        self._early = self._places_of_growth()
        # Two epochs: a block of steps may cross from one into the next.
        self._epoch_order = functools.lru_cache(maxsize=2)(self._order_of_epoch)

    def slice_of(self, rank: int, world_size: int) -> tuple[int, int]:
        """Return the lanes [start, stop) that a rank serves; raises as `require_lanes`."""
        require_lanes(self.lanes, world_size)
        return lanes_of_rank(self.lanes, rank, world_size)

    def epoch_of(self, step: int) -> int:
        """Return the epoch that a step belongs to, counted from 0."""
        return int(self.epochs_of(np.array([step]))[0])

    def epochs_of(self, steps: np.ndarray) -> np.ndarray:
        """Return the epoch that each step belongs to: int64[n]."""
        return self._places(steps)[0]

    def _places_of_growth(self) -> np.ndarray:
        """Return where a lane stands at each step of the growth, and behind it: int64[2, growth_steps + 1].

        That is the epoch, and how many sequences the lane gave before in it.
        """
        epoch = offset = 0
        places = []
        for share in (self.sizes.at(np.arange(self.sizes.growth_steps)) // self.lanes).tolist():
            if offset + share > self.num_sequences // self.lanes:
                epoch, offset = epoch + 1, 0
            places.append((epoch, offset))
            offset += share
        return np.array([*places, (epoch, offset)], dtype=np.int64).T

    def _places(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the epoch of each step, and how many sequences a lane gave before in it: int64[n] each."""
        epoch, offset = self._early[:, -1]
        full = steps - self.sizes.growth_steps  # steps of the full batch before this one
        # that the growth's last epoch has
        left = (self.num_sequences // self.lanes - offset) // self.per_lane
        later, number = np.divmod(full - left, self.steps_per_epoch)
        epochs = np.where(full < left, epoch, epoch + 1 + later)
        offsets = np.where(full < left, offset + full * self.per_lane, number * self.per_lane)
        early = np.flatnonzero(full < 0)
        epochs[early], offsets[early] = self._early.take(steps[early], axis=1)
        return epochs, offsets

    def draw_steps(
        self, first: int, stop: int, lane_start: int, lane_stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draw the sequences that lanes [lane_start, lane_stop) give at steps [first, stop).

        Returns (chunk, index), int64[n] each: step after step, and in it lane after lane, the step's own
        B / L sequences of a lane; a sequence is number `index` of chunk `chunk`.
        """
        steps = np.arange(first, stop)
        if not steps.size:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        (epochs, offsets), shares = self._places(steps), self.sizes.at(steps) // self.lanes
        slice_starts = np.arange(lane_start, lane_stop) * self.num_sequences // self.lanes
        # Steps of one epoch and of equal size are drawn together.
        cuts = np.flatnonzero((np.diff(epochs) != 0) | (np.diff(shares) != 0)) + 1
        drawn = []
        for part in np.split(np.arange(len(steps)), cuts):
            positions = offsets[part, None, None] + slice_starts[:, None] + np.arange(shares[part[0]])
            drawn.append(self._at(int(epochs[part[0]]), positions.ravel()))
        chunks, indices = zip(*drawn)
        return np.concatenate(chunks), np.concatenate(indices)

    def replacements(self, epoch: int, chunk: int, attempts: int) -> np.ndarray:
        """Return the chunks to try, in order, in place of a damaged one: int64[attempts]."""
        words = hash_words(self.seed, _REPLACEMENT, epoch, chunk, np.arange(attempts, dtype=np.uint64))
        return (words % np.uint64(self.chunk_sizes.size)).astype(np.int64)

    def _at(self, epoch: int, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (chunk, index) of what stands at the positions, int64[n], of an epoch's order."""
        order, ends = self._epoch_order(epoch)
        place = np.searchsorted(ends, position, side="right")
        chunk = order[place]
        size = self.chunk_sizes[chunk]
        inside = position - (ends[place] - size)
        return chunk, permute(inside, size, hash_words(self.seed, _ORDER_IN_CHUNK, epoch, chunk))

    def _order_of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the chunks in an epoch's order, and where each ends in it: int64[C] each."""
        chunks = np.arange(self.chunk_sizes.size, dtype=np.uint64)
        order = np.argsort(hash_words(self.seed, _ORDER_OF_CHUNKS, epoch, chunks), kind="stable")
        return order, np.cumsum(self.chunk_sizes[order])


class DistinctLanes(Lanes):
    """The order of records, so changed that no global batch has a text twice: a function of (seed, step).

    An epoch's order is made from its beginning. Each lane gives the first records of its slice that have no
    text of the batch so far; what it passes over comes first at its next step. A lane without such a record
    among the next `LOOK_AHEAD` times its share (at the end of its slice, or where one text fills much of the
    data) gives those that it passed over. So every record keeps its lane and its epoch, and a batch its size.

    texts: int64[T, M], of each record the identities of texts that a batch must not repeat.
    """

    LOOK_AHEAD = 16

    def __init__(self, texts: np.ndarray, *others: Any) -> None:
        super().__init__(*others)
        self.texts = np.ascontiguousarray(texts.T)  # [M, T]
        self._first = np.cumsum([0, *self.chunk_sizes[:-1]])
        self._arranged = functools.lru_cache(maxsize=2)(self._arrange)

    def _at(self, epoch: int, position: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return super()._at(epoch, self._arranged(epoch).take(position))

    def _arrange(self, epoch: int) -> np.ndarray:
        """Return which position of the plain order stands at each: int64[M], those that are drawn."""
        chunk, index = super()._at(epoch, np.arange(self.num_sequences))
        texts = self.texts.take(self._first[chunk] + index, axis=0)
        arranged = np.arange(self.num_sequences)
        starts = np.arange(self.lanes + 1) * self.num_sequences // self.lanes
        ahead = starts[:-1].copy()
        passed: list[list[int]] = [[] for _ in range(self.lanes)]
        for offset, share in self._steps_of(epoch):
            drawn = starts[:-1, None] + offset + np.arange(share)
            if not any(passed):  # mostly no text repeats, and nothing waits
                own = texts.take(ahead[:, None] + np.arange(share), axis=0)
                if _are_distinct(own.reshape(-1, own.shape[-1])):
                    arranged[drawn] = ahead[:, None] + np.arange(share)
                    ahead += share
                    continue
            seen: set[int] = set()
            for lane, stop in enumerate(starts[1:]):
                limit = min(stop, ahead[lane] + self.LOOK_AHEAD * share)
                waiting = itertools.chain(passed[lane], range(ahead[lane], limit))
                chosen, left = [], []
                for position in waiting:
                    own = set(texts[position].tolist())
                    if seen.isdisjoint(own):
                        chosen.append(position)
                        seen |= own
                        if len(chosen) == share:
                            break
                    else:
                        left.append(position)
                else:  # texts of the batch are all there is
                    chosen, left = [*chosen, *left[: share - len(chosen)]], left[share - len(chosen) :]
                seen.update(*texts.take(chosen, axis=0).tolist())
                arranged[drawn[lane]] = chosen
                ahead[lane] = max([ahead[lane] - 1, *chosen, *left]) + 1
                passed[lane] = [*left, *(position for position in waiting if position < ahead[lane])]
        return arranged

    def _steps_of(self, epoch: int) -> Iterator[tuple[int, int]]:
        """Yield of an epoch's steps how many sequences a lane gave before in it, and how many it gives."""
        grown, offset = self._early[:, -1]
        shares = self.sizes.at(np.arange(self.sizes.growth_steps)) // self.lanes
        early = self._early[:, :-1].T.tolist()
        yield from ((before, share) for (of, before), share in zip(early, shares.tolist()) if of == epoch)
        if epoch >= grown:
            begin, end = offset if epoch == grown else 0, self.num_sequences // self.lanes
            for before in range(begin, end - self.per_lane + 1, self.per_lane):
                yield before, self.per_lane


def _are_distinct(texts: np.ndarray) -> bool:
    """Return whether no two records, int64[n, T], share a text; of one record texts may be equal."""
    ordered = np.sort(texts, axis=1)
    unlike = np.ones(texts.shape, dtype=bool)
    unlike[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    every = ordered[unlike]
    return len(np.unique(every)) == len(every)


class MixedLanes(Lanes):
    """The order of several sets of data, of which each step reads one: a pure function of (seed, step).

    Set k has its own `Lanes`, of which it gives one step after the other, at the steps of the run that are
    its own; chunks are numbered through, set after set. Which set a step reads is where the step's point of
    a Weyl sequence, (start + step / golden ratio) mod 1, lies among intervals as long as the sets' shares:
    after any number of steps, each set has had its share of them but for a few.

    sets: int64[C_k] each, sequences in each chunk. shares: of the steps, adding up to 1.
    """

    def __init__(
        self, sets: Sequence[np.ndarray], shares: Sequence[float], seed: int, global_batch: int, lanes: int
    ) -> None:
        for number, sizes in enumerate(sets, 1):
            if sizes.sum() < global_batch:
                few = f"set {number} of data.sets has {sizes.sum():,} sequences"
                raise UserError(f"lower train.global_batch: {few}")
        self.sets = [Lanes(sizes, seed, global_batch, lanes) for sizes in sets]
        self.seed, self.global_batch, self.lanes = int(seed), int(global_batch), int(lanes)
        self.per_lane, self.sizes = self.sets[0].per_lane, self.sets[0].sizes
        self.chunk_sizes = np.concatenate([one.chunk_sizes for one in self.sets])
        self.num_sequences = sum(one.num_sequences for one in self.sets)
        self._first_chunk = np.cumsum([0, *(len(one.chunk_sizes) for one in self.sets)])
        self._ends = (np.cumsum(shares)[:-1] * 2.0**64).astype(np.uint64)
        self._start = hash_words(seed, _ORDER_OF_SETS)
        self._counted = (0, np.zeros(len(self.sets), dtype=np.int64))

    def set_of(self, steps: np.ndarray) -> np.ndarray:
        """Return the number of the set that each of the steps int64[n] reads: int64[n]."""
        points = self._start + steps.astype(np.uint64) * np.uint64(_GOLDEN)
        return np.searchsorted(self._ends, points, side="right")

    def taken(self, step: int) -> np.ndarray:
        """Return how many steps before `step` read each set: int64[K]."""
        last, counts = self._counted
        if step < last:
            last, counts = 0, np.zeros_like(counts)
        while last < step:
            stop = min(step, last + _AT_ONCE)
            counts = counts + np.bincount(self.set_of(np.arange(last, stop)), minlength=len(self.sets))
            last = stop
        self._counted = (last, counts)
        return counts

    def epochs_of(self, steps: np.ndarray) -> np.ndarray:
        """Return the epoch, of the set that it reads, that each step belongs to; steps rise by 1."""
        epochs = np.empty(len(steps), dtype=np.int64)
        for number, rows, own in self._own_steps(int(steps[0]), int(steps[-1]) + 1):
            epochs[rows] = self.sets[number].epochs_of(own + np.arange(len(rows)))
        return epochs

    def draw_steps(
        self, first: int, stop: int, lane_start: int, lane_stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `Lanes.draw_steps`."""
        shape = (max(stop - first, 0), (lane_stop - lane_start) * self.per_lane)
        chunks, indices = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for number, rows, own in self._own_steps(first, stop):
            drawn = self.sets[number].draw_steps(own, own + len(rows), lane_start, lane_stop)
            chunks[rows] = drawn[0].reshape(len(rows), -1) + self._first_chunk[number]
            indices[rows] = drawn[1].reshape(len(rows), -1)
        return chunks.ravel(), indices.ravel()

    def replacements(self, epoch: int, chunk: int, attempts: int) -> np.ndarray:
        """As `Lanes.replacements`: chunks of the same set."""
        number = int(np.searchsorted(self._first_chunk, chunk, side="right")) - 1
        first = int(self._first_chunk[number])
        return self.sets[number].replacements(epoch, chunk - first, attempts) + first

    def _own_steps(self, first: int, stop: int) -> list[tuple[int, np.ndarray, int]]:
        """Return (set, its steps minus `first`, int64[n], how many it gave before) of the steps' sets."""
        before, sets = self.taken(first), self.set_of(np.arange(first, stop))
        return [(int(k), np.flatnonzero(sets == k), int(before[k])) for k in np.unique(sets)]
