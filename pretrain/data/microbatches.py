"""Micro-batches: a rank's sequences, cut into packed rows of about equal numbers of tokens.

A step's micro-batches are made once, here; every pass over them runs the same objects.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError
from pretrain.common.transfer import send
from pretrain.data.masking import Masked


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """A packed row: sequences end to end, without padding, for one forward pass of the encoder.

    ids: int64[T], on the device.
    lengths: int64[n], tokens of each sequence, on the CPU.
    rows: int64[n], on the device: the number of each sequence among those that were cut.
    positions, labels: int64[P], on the device, of a masking: the places in `ids` of the tokens to predict,
        and the tokens; else None.
    keys: uint64[n], one for each sequence, for dropout and other draws that depend on nothing else
        (`augment.core.keys`).
    seed: of torch's random state in which every pass over it runs; None: as the state happens to be.
    """

    ids: Tensor
    lengths: Tensor
    rows: Tensor
    positions: Tensor | None = None
    labels: Tensor | None = None
    keys: np.ndarray | None = None
    seed: int | None = None

    @property
    def moving(self) -> list[Tensor]:
        """Return the tensors that are to lie on the device."""
        return [part for part in (self.ids, self.rows, self.positions, self.labels) if part is not None]

    def moved(self, tensors: Iterator[Tensor]) -> "MicroBatch":
        """Return this micro-batch with the next tensors in the place of those of `moving`."""
        places = ("ids", "rows", "positions", "labels")
        return replace(self, **{name: next(tensors) for name in places if getattr(self, name) is not None})


def count_micro_batches(lengths: np.ndarray, budget: int) -> int:
    """Return the fewest micro-batches of at most `budget` tokens that `cut` needs for lengths int64[R]."""
    if not len(lengths):
        return 0
    longest = int(lengths.max())
    if longest > budget:
        raise UserError(f"a sequence has {longest} tokens, train.micro_batch_tokens is {budget}: raise it")
    ordered = np.sort(lengths)
    count = -(-int(lengths.sum()) // budget)
    while max(int(ordered[part].sum()) for part in _balanced(ordered, count)) > budget:
        count += 1
    return count


def cut(lengths: np.ndarray, count: int) -> list[np.ndarray]:
    """Cut sequences, sorted by length, into `count` consecutive parts of about equal numbers of tokens.

    Returns a list of int64 arrays of row numbers; with fewer sequences than parts some are empty. Sorting
    puts equal lengths together, which packed attention runs as one dense product.

    >>> [part.tolist() for part in cut(np.array([9, 2, 4, 3]), 2)]
    [[1, 3, 2], [0]]
    """
    order = np.argsort(lengths, kind="stable")
    return [order[part] for part in _balanced(lengths[order], count)]


def pack(
    sequences: Ragged | Masked,
    rows: np.ndarray,
    device: torch.device,
    keys: np.ndarray | None = None,
    seed: int | None = None,
) -> MicroBatch:
    """Pack the sequences numbered by `rows` (int64[n]) into one row; keys: uint64, of all sequences.

    A rank may have fewer sequences than micro-batches; an empty one runs all the same (the encoder takes it,
    with zero gradients), since collectives demand equal counts.

    >>> tokens = Ragged.from_sequences([[1, 7, 8, 2], [1, 9, 2]])
    >>> row = pack(tokens, np.array([1, 0]), torch.device("cpu"))
    >>> row.ids.tolist(), row.lengths.tolist(), row.rows.tolist()
    ([1, 9, 2, 1, 7, 8, 2], [3, 4], [1, 0])
    """

    def wide(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).long()

    chosen = sequences.take(rows)
    masked = chosen if isinstance(chosen, Masked) else None
    tokens = chosen.batch if isinstance(chosen, Masked) else chosen
    packed = MicroBatch(
        wide(tokens.ids),
        torch.from_numpy(tokens.lengths),
        wide(rows),
        None if masked is None else wide(masked.positions),
        None if masked is None else wide(masked.labels),
        None if keys is None else keys[rows],
        seed,
    )
    return packed.moved(iter(send(packed.moving, device)))


def cut_and_pack(
    sequences: Ragged | Masked,
    count: int,
    device: torch.device,
    keys: np.ndarray | None = None,
    seeds: Sequence[int] | None = None,
) -> list[MicroBatch]:
    """Cut sequences into `count` micro-batches, and pack each.

    seeds: seed of the run, step, rank and number of the pass, if each runs in a random state of its own. That
    is derived, not stored: neither a second pass nor a resumed run has any to restore.
    """
    packed, seed = [], None
    for index, rows in enumerate(cut(sequences.lengths, count)):
        if seeds is not None:
            seed = int(np.random.SeedSequence([*seeds, index]).generate_state(1, np.uint64)[0] >> 1)
        packed.append(pack(sequences, rows, device, keys, seed))
    return packed


def send_all(
    rows: dict[str, list[MicroBatch]], more: dict[str, Tensor], device: torch.device
) -> tuple[dict[str, list[MicroBatch]], dict[str, Tensor]]:
    """Bring the micro-batches of all passes, and more tensors, to the device in one transfer."""
    every = [part for of_pass in rows.values() for row in of_pass for part in row.moving]
    sent = iter(send([*every, *more.values()], device))
    moved = {name: [row.moved(sent) for row in of_pass] for name, of_pass in rows.items()}
    return moved, dict(zip(more, sent))


def _balanced(ordered: np.ndarray, count: int) -> list[slice]:
    ends = np.cumsum(ordered)
    total = int(ends[-1]) if len(ends) else 0
    # A part ends with the last sequence whose middle lies before the part's share of the tokens.
    bounds = np.searchsorted(ends - ordered / 2, total * np.arange(1, count) / max(count, 1))
    edges = [0, *bounds.tolist(), len(ordered)]
    return [slice(start, stop) for start, stop in pairwise(edges)] if count else []
