"""Bring the sequences of a step's passes to the ranks that are to encode them, and their vectors into order.

`pretrain.step.balance` decides which rank that is. Tokens, keys, and positions and labels of a masking travel
together, in one all-to-all for all passes of the step.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from augment.core.ragged import Ragged, offsets_of
from pretrain.common.transfer import send
from pretrain.config.run import Balance
from pretrain.data.masking import Masked
from pretrain.data.microbatches import count_micro_batches
from pretrain.step.balance import ABOVE, balance, initial_owners
from pretrain.step.plan import EncoderPass, StepPlan

_KEY_WORDS = 2  # int32 words of a key


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
    how: Balance,
    rank: int,
    ranks: int,
    group: dist.ProcessGroup | None = None,
) -> tuple[dict[str, EncoderPass], dict[str, Placement], dict[str, int]]:
    """Move sequences between ranks where that balances a pass; collective.

    plan: merged, of all ranks. group: of all ranks, for tensors on the CPU; None: the default one.

    Returns:
        The passes over what this rank is to encode, their placements, and how many micro-batches each has on
        every rank.
    """
    assigned: dict[tuple[str, ...], Placement] = {}  # passes over the same lengths go the same way
    for part in passes.values():
        if part.lengths_of not in assigned:
            roles = len(part.lengths_of)
            lengths = torch.cat([plan.sequences[name] for name in part.lengths_of])
            drawn = owners = initial_owners(plan.drawn, roles)
            if ranks > 1 and how != "off":
                owners = balance(lengths.numpy(), drawn, ranks, ABOVE[how])
            assigned[part.lengths_of] = Placement(rank, ranks, roles, drawn, owners, lengths)
    placements = {name: assigned[part.lengths_of] for name, part in passes.items()}
    moving = {name: part for name, part in passes.items() if placements[name].moves}
    if not moving:
        return passes, placements, plan.micro_batches
    moved = exchange(moving, [placements[name] for name in moving], group)
    counts = torch.tensor(
        [count_micro_batches(part.sequences.lengths, part.budget) for part in moved.values()]
    )
    dist.all_reduce(counts, dist.ReduceOp.MAX, group=group)
    return passes | moved, placements, plan.micro_batches | dict(zip(moved, counts.tolist()))


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
    places = np.empty_like(arriving)
    places[arriving] = np.arange(len(arriving))
    arrived = Ragged(words.numpy(), offsets_of(coming[arriving])).take(places)
    ends = np.cumsum([len(placed.local_indices) for placed in placements])
    return {
        name: from_words(arrived.slice(end - len(placed.local_indices), end), part)
        for (name, part), placed, end in zip(passes.items(), placements, ends)
    }


def words_of(part: EncoderPass, lengths: np.ndarray) -> np.ndarray:
    """Return how many words `to_words` makes of sequences of so many tokens, int64[n]."""
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
