"""Cutting a rank's sequences into micro-batches of about equal numbers of tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from augment.core.ragged import Ragged
from pretrain.common.errors import UserError


def count_micro_batches(lengths: np.ndarray, budget: int) -> int:
    """Fewest micro-batches of at most `budget` tokens into which sequences of these lengths (int64[R]) can be
    cut.

    The count that `cut` needs, with balanced cuts in order of length; 0 for no sequences.

    Raises:
        UserError: one sequence alone is longer than the budget.
    """
    if not len(lengths):
        return 0
    longest = int(lengths.max())
    if longest > budget:
        raise UserError(
            f"a sequence of {longest} tokens does not fit train.micro_batch_tokens={budget}; raise it to "
            f"{longest} or more"
        )
    ordered = np.sort(lengths)
    count = -(-int(lengths.sum()) // budget)
    while max(int(ordered[part].sum()) for part in _balanced(ordered, count)) > budget:
        count += 1
    return count


def cut(lengths: np.ndarray, count: int) -> list[np.ndarray]:
    """Cut sequences, sorted by length, into `count` consecutive parts of about equal numbers of tokens.

    Returns a list of int64 arrays of row numbers; with fewer sequences than parts some are empty. Sorting
    puts equal lengths together, which packed attention runs as one dense product.
    """
    order = np.argsort(lengths, kind="stable")
    return [order[part] for part in _balanced(lengths[order], count)]


def pack(batch: Ragged, part: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences `part` of `batch` as one row of ids, int64[T] on `device`, and their lengths, int64[n] on
    the CPU.

    A rank may have fewer sequences than micro-batches; an empty one runs all the same (the encoder takes it,
    with zero gradients), since collectives demand equal counts.
    """
    chosen = batch.take(part)
    return torch.from_numpy(chosen.ids).to(device, torch.long, non_blocking=True), torch.from_numpy(
        chosen.lengths
    )


def select_positions(
    batch: Ragged, part: np.ndarray, positions: np.ndarray, labels: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Select the masked positions (sorted int64[P]) of `batch` in the sequences `part`, numbered as packed.

    Returns int64[p] positions into `batch.take(part).ids` and int64[p] labels.
    """
    first = np.searchsorted(positions, batch.offsets[part])
    stop = np.searchsorted(positions, batch.offsets[part + 1])
    counts = stop - first
    starts = np.cumsum(batch.lengths[part]) - batch.lengths[part]
    offsets = np.cumsum(counts) - counts
    chosen = np.repeat(first - offsets, counts) + np.arange(int(counts.sum()))
    shift = np.repeat(starts - batch.offsets[part], counts)
    return torch.from_numpy(positions[chosen] + shift), torch.from_numpy(labels[chosen].astype(np.int64))


def _balanced(ordered: np.ndarray, count: int) -> list[slice]:
    ends = np.cumsum(ordered)
    total = int(ends[-1]) if len(ends) else 0
    # A part ends with the last sequence whose middle lies before the part's share of the tokens.
    bounds = np.searchsorted(ends - ordered / 2, total * np.arange(1, count) / max(count, 1))
    edges = [0, *bounds.tolist(), len(ordered)]
    return [slice(start, stop) for start, stop in pairwise(edges)] if count else []
