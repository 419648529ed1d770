"""Bring the sequences of a step's passes to the ranks that are to encode them, and their vectors into order.

The ranks wait for each other at every step, so the one with the most tokens sets the pace. Which sequences a
rank draws is decided by its lanes; which it encodes is decided here (`balance`), from the lengths of all,
which every rank knows: all compute the same answer, and nothing more has to be agreed. Ranks exchange
sequences one for one, long against short, so each keeps its number of them if that suffices, and gathers
of vectors keep their shape. Few sequences move: with 32 a rank, one in twenty.

Tokens, keys, and positions and labels of a masking travel together, in one all-to-all for all passes of the
step.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from augment.core.ragged import Ragged, offsets_of
from pretrain.common.transfer import send
from pretrain.data.masking import Masked
from pretrain.step.plan import EncoderPass, StepPlan, initial_owners

_KEY_WORDS = 2  # int32 words of a key
UNTIL = 1.02
"""Exchanges end when no rank has more than this share of the mean number of tokens."""
ABOVE = 1.05
"""The share of the mean from which on sequences move: an exchange costs two collectives a step, which a few
percent of the encoder's time do not always earn."""

_CANDIDATES = 64  # sequences of the lighter rank that are tried against all of the heavier one
_ROUNDS = 32  # random lengths take 3 to 8; this bounds the time for lengths that nobody can balance
_NOTHING = (1 << 32) - 1  # the key of an empty place; that of a sequence is its length << 32 | its number


@dataclass(frozen=True, eq=False)
class Placement:
    """Which rank draws, and which encodes, each sequence of a pass.

    The sequences of all ranks are numbered role by role, and in a role rank by rank: 0 to S - 1.

    rank, ranks: this one, and how many there are. roles: how many the pass is over.
    drawn, owners: int64[S], the ranks that draw and encode each.
    lengths: int64[S], in tokens; on the CPU.
    """

    rank: int
    ranks: int
    roles: int
    drawn: np.ndarray
    owners: np.ndarray
    lengths: Tensor

    @cached_property
    def moves(self) -> bool:
        """Return whether any sequence is encoded by another rank than draws it: the same on all ranks."""
        return not np.array_equal(self.owners, self.drawn)

    @cached_property
    def _is_even(self) -> bool:
        """Return whether every rank encodes what it draws, and all draw equally many."""
        return not self.moves and len(set(np.bincount(self.drawn, minlength=self.ranks).tolist())) == 1

    @cached_property
    def local_indices(self) -> np.ndarray:
        """Return the numbers of the sequences that this rank encodes, rising: int64[n]."""
        return np.flatnonzero(self.owners == self.rank)

    @cached_property
    def max_rows_per_rank(self) -> int:
        """Return the most sequences that a rank encodes."""
        return int(np.bincount(self.owners, minlength=self.ranks).max())

    def local_rows(self, whole: Tensor) -> Tensor:
        """Return this rank's rows, [n, ...], of [S, ...]."""
        if self._is_even:
            return whole.unflatten(0, (self.roles, self.ranks, -1))[:, self.rank].flatten(0, 1)
        return whole[send([torch.from_numpy(self.local_indices)], whole.device)[0]]

    def in_order(self, gathered: Tensor) -> Tensor:
        """Put rows that were gathered over ranks, [W, max_rows_per_rank, ...], in order: [S, ...].

        A rank's rows are those of `local_indices`, and then filler.
        """
        if self._is_even:
            return gathered.unflatten(1, (self.roles, -1)).transpose(0, 1).flatten(0, 2)
        return gathered.flatten(0, 1)[send([torch.from_numpy(self._gathered_at)], gathered.device)[0]]

    @cached_property
    def _gathered_at(self) -> np.ndarray:
        """Return where each sequence's row is among those gathered: int64[S]."""
        order = np.argsort(self.owners, kind="stable")  # rank by rank, as `local_indices` on each
        ranks = self.owners[order]
        first = np.searchsorted(ranks, np.arange(self.ranks))
        places = np.empty_like(order)
        places[order] = ranks * self.max_rows_per_rank + np.arange(len(order)) - first[ranks]
        return places


def place(
    passes: dict[str, EncoderPass],
    plan: StepPlan,
    rank: int,
    ranks: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[dict[str, EncoderPass], dict[str, Placement], StepPlan]:
    """Move sequences between ranks if that balances a pass; collective.

    plan: merged, of all ranks. group: of all ranks, for tensors on the CPU; None: the default one.

    Returns:
        The passes over what this rank is to encode, their placements, and the plan, with how many
        micro-batches each has then on every rank.
    """
    assigned: dict[tuple[str, ...], Placement] = {}  # passes over the same lengths go the same way
    for part in passes.values():
        if part.lengths_of not in assigned:
            roles = len(part.lengths_of)
            lengths = torch.cat([plan.sequences[name] for name in part.lengths_of])
            drawn = owners = initial_owners(plan.drawn, roles)
            if ranks > 1:
                owners = balance(lengths.numpy(), drawn, ranks, ABOVE)
            assigned[part.lengths_of] = Placement(rank, ranks, roles, drawn, owners, lengths)
    placements = {name: assigned[part.lengths_of] for name, part in passes.items()}
    moving = {name: part for name, part in passes.items() if placements[name].moves}
    if not moving:
        return passes, placements, plan
    moved = exchange(moving, [placements[name] for name in moving], group)
    counts = torch.tensor([part.smallest_count for part in moved.values()])
    dist.all_reduce(counts, dist.ReduceOp.MAX, group=group)
    counted = plan.micro_batches | dict(zip(moved, counts.tolist()))
    return passes | moved, placements, replace(plan, micro_batches=counted)


def exchange(
    passes: dict[str, EncoderPass], placements: list[Placement], group: dist.ProcessGroup | None = None
) -> dict[str, EncoderPass]:
    """Send every sequence to its owner; return the passes over those that came; collective.

    placements: of the passes, in their order. group: as for `place`.
    """
    sent = Ragged.concatenate([to_words(part) for part in passes.values()])
    to = np.concatenate([placed.owners[placed.drawn == placed.rank] for placed in placements])
    source = np.concatenate([placed.drawn[placed.local_indices] for placed in placements])
    coming = np.concatenate(
        [
            words_of(part, placed.lengths.numpy()[placed.local_indices])
            for part, placed in zip(passes.values(), placements)
        ]
    )
    leaving = np.argsort(to, kind="stable")  # by rank, then pass, then number; so they arrive
    arriving = np.argsort(source, kind="stable")
    ranks = placements[0].ranks
    words = torch.empty(int(coming.sum()), dtype=torch.int32)
    dist.all_to_all_single(
        words,
        torch.from_numpy(sent.take(leaving).ids),
        np.bincount(source, coming, ranks).astype(int).tolist(),
        np.bincount(to, sent.lengths, ranks).astype(int).tolist(),
        group=group,
    )
    arrived = Ragged(words.numpy(), offsets_of(coming[arriving])).take(np.argsort(arriving))
    ends = np.cumsum([len(placed.local_indices) for placed in placements])
    return {
        name: from_words(arrived.slice(end - len(placed.local_indices), end), part)
        for (name, part), placed, end in zip(passes.items(), placements, ends)
    }


def words_of(part: EncoderPass, lengths: np.ndarray) -> np.ndarray:
    """Return how many words `to_words` makes of sequences of these lengths, int64[n]."""
    return lengths * (2 if isinstance(part.sequences, Masked) else 1) + _words_of_key(part)


def to_words(part: EncoderPass) -> Ragged:
    """Return each sequence with all that belongs to it as one row of int32.

    Its key, its tokens and, of a masking, for every token the one to predict, or -1.
    """
    pieces = []
    if part.keys is not None:
        ends = _KEY_WORDS * np.arange(len(part.keys) + 1)
        pieces.append(Ragged(np.ascontiguousarray(part.keys).view(np.int32), ends))
    if isinstance(part.sequences, Masked):
        tokens = part.sequences.batch
        targets = np.full(tokens.num_tokens, -1, dtype=np.int32)
        targets[part.sequences.positions] = part.sequences.labels
        pieces += [tokens, Ragged(targets, tokens.offsets)]
    else:
        pieces.append(part.sequences)
    count, kinds = len(part.sequences.lengths), len(pieces)
    woven = Ragged.concatenate(pieces).take(np.arange(kinds * count).reshape(kinds, count).T.ravel())
    return Ragged(woven.ids, woven.offsets[::kinds])


def from_words(rows: Ragged, like: EncoderPass) -> EncoderPass:
    """Return the pass over the sequences of which `to_words` made the rows, else as `like`."""
    masked, key = isinstance(like.sequences, Masked), _words_of_key(like)
    lengths = (rows.lengths - key) // (2 if masked else 1)
    kinds = [np.full(len(rows), key), lengths] + [lengths] * masked
    woven = Ragged(rows.ids, offsets_of(np.stack(kinds, axis=1).ravel()))
    pieces = [woven.take(np.arange(kind, len(woven), len(kinds))) for kind in range(len(kinds))]
    keys = pieces[0].ids.view(np.uint64) if key else None
    if not masked:
        return replace(like, sequences=pieces[1], keys=keys)
    positions = np.flatnonzero(pieces[2].ids >= 0)
    return replace(like, sequences=Masked(pieces[1], positions, pieces[2].ids[positions]), keys=keys)


def _words_of_key(part: EncoderPass) -> int:
    return 0 if part.keys is None else _KEY_WORDS


# -- which rank encodes a sequence -------------------------------------------------


def imbalance(lengths: np.ndarray, owners: np.ndarray, ranks: int) -> float:
    """Return the tokens of the most loaded rank over their mean; 1 for no tokens. Arguments as `balance`."""
    loads = np.bincount(owners, lengths, ranks)
    return float(loads.max() / loads.mean()) if loads.any() else 1.0


def balance(lengths: np.ndarray, owners: np.ndarray, ranks: int, above: float = ABOVE) -> np.ndarray:
    """Return which rank is to encode each sequence: int64[N].

    In every round the most loaded rank exchanges with the least loaded, the second with the second and so on:
    as many of its longest sequences for the other's shortest as fit into half the difference of their loads,
    then the one pair that comes nearest to what is left of it. Where that does not suffice (few sequences a
    rank, of which one is very long), a rank may also give a sequence for none.

    Args:
        lengths: int64[N], tokens of each sequence, below 2^31.
        owners: int64[N], the rank that has each.
        above: `owners` itself is returned if no rank has more than this many times the mean.

    >>> lengths = np.array([9, 8, 7, 2, 1, 3])
    >>> balance(lengths, owners=np.array([0, 0, 0, 1, 1, 1]), ranks=2)
    array([1, 0, 0, 1, 1, 1])
    """
    if imbalance(lengths, owners, ranks) <= above:
        return owners
    has = np.argsort(owners, kind="stable")
    counts = np.bincount(owners, minlength=ranks)
    keys = np.full((ranks, counts.max()), _NOTHING)
    keys[np.arange(counts.max()) < counts[:, None]] = lengths[has] << 32 | has
    longest = int(lengths.max())  # some rank has it, whatever is exchanged
    most = max(UNTIL * float(lengths.sum()) / ranks, longest)
    keys = _exchanged(np.sort(keys, axis=1), most)
    if _loads(keys).max() > most:
        empty = np.full_like(keys, _NOTHING)
        keys = _exchanged(np.sort(np.concatenate([empty, keys], axis=1), axis=1), most)
    return _owners(keys)


def _loads(keys: np.ndarray) -> np.ndarray:
    """Return the tokens of each row: int64[W]."""
    return (keys >> 32).sum(1)


def _owners(keys: np.ndarray) -> np.ndarray:
    """Return the row that each sequence's key is in: int64[N]."""
    rows = np.repeat(np.arange(len(keys)), keys.shape[1])
    keys = keys.ravel()
    real = keys != _NOTHING
    owners = np.empty(np.count_nonzero(real), dtype=np.int64)
    owners[keys[real] & _NOTHING] = rows[real]
    return owners


def _exchanged(keys: np.ndarray, max_tokens: float) -> np.ndarray:
    """Return keys int64[W, m], each row rising, after exchanges that give no row more than `max_tokens`."""
    loads = _loads(keys)
    for _ in range(_ROUNDS):
        order = np.argsort(loads, kind="stable")
        heavy = order[::-1][: len(order) // 2]
        heavy = heavy[loads[heavy] > max_tokens]
        light = order[: len(heavy)]
        rows, others = _exchange_one(*_exchange_extremes(keys[heavy], keys[light]))
        if np.array_equal(rows, keys[heavy]):
            break
        keys[heavy], keys[light] = rows, others
        loads[heavy], loads[light] = _loads(rows), _loads(others)
    return keys


def _excess(heavy: np.ndarray, light: np.ndarray) -> np.ndarray:
    """Return the difference of loads of pairs of ranks: int64[K, 1]."""
    return (_loads(heavy) - _loads(light))[:, None]


def _exchange_extremes(heavy: np.ndarray, light: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exchange longest for shortest sequences while no more than half the difference of loads moves.

    heavy, light: keys int64[K, m] of pairs of ranks, each row rising; so are those returned.
    """
    longest = heavy[:, ::-1]
    gains = (longest >> 32) - (light >> 32)  # falling
    fits = (gains > 0) & (2 * np.cumsum(gains, axis=1) <= _excess(heavy, light))
    if not fits.any():
        return heavy, light
    kept, taken = np.where(fits, light, longest), np.where(fits, longest, light)
    return np.sort(kept, axis=1), np.sort(taken, axis=1)


def _exchange_one(heavy: np.ndarray, light: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exchange the one pair of sequences that makes loads most alike, the shortest of equally good ones.

    Arguments and result as `_exchange_extremes`; rows that no pair improves stay.
    """
    pairs, size = heavy.shape
    if not pairs:
        return heavy, light
    every = -(-size // _CANDIDATES)
    long, short, excess = heavy >> 32, light[:, ::every] >> 32, _excess(heavy, light)
    # One search for all pairs of ranks: each row is shifted into a range of its own.
    pair = np.arange(pairs)[:, None]
    span = long.max() + 1
    wanted = np.minimum(short + (excess + 1) // 2, span - 1)
    place = np.searchsorted((long + pair * span).ravel(), wanted + pair * span) - pair * size
    nearest = np.stack([np.minimum(place, size - 1), np.maximum(place - 1, 0)], axis=2)
    left = np.abs(excess[:, :, None] - 2 * (long[pair[:, :, None], nearest] - short[:, :, None]))
    left = left.reshape(pairs, -1)
    best = left.argmin(1)
    better = np.flatnonzero(left.min(1) < excess[:, 0])
    column, side = np.divmod(best[better], 2)
    gives, gets = nearest[better, column, side], column * every
    heavy, light = heavy.copy(), light.copy()
    heavy[better, gives], light[better, gets] = light[better, gets], heavy[better, gives]
    return np.sort(heavy, axis=1), np.sort(light, axis=1)
