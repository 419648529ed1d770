"""Sequences arrive whole at the ranks that encode them, and their vectors come back in the batch's order."""

import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from run_helpers import finish, start

from augment.core.ragged import Ragged, offsets_of
from pretrain.data.masking import Masked
from pretrain.data.microbatches import count_micro_batches
from pretrain.step import placement
from pretrain.step.placement import Placement, from_words, place, to_words
from pretrain.step.plan import EncoderPass, StepPlan

BUDGET = 60


def sequences(lengths: np.ndarray, start: int) -> Ragged:
    """Sequences whose tokens are all different."""
    return Ragged(np.arange(start, start + lengths.sum(), dtype=np.int32), offsets_of(lengths))


def masked(tokens: Ragged) -> Masked:
    """A masking of every third token; the first label is id 0, and the first token's is one of them."""
    positions = np.arange(0, tokens.num_tokens, 3)
    return Masked(tokens, positions, (2 * positions).astype(np.int32))


def global_passes(counts: list[int]) -> dict[str, EncoderPass]:
    """Passes over a global batch: two views, one of them also by itself and without keys, and a masking."""
    rng, count = np.random.default_rng(len(counts)), sum(counts)
    rising = np.repeat(np.arange(1, len(counts) + 1) * 4, counts)  # the last rank has the longest sequences
    views = sequences(np.concatenate([rising, rising]) + rng.integers(0, 5, 2 * count), 1000)
    texts = sequences(rising + rng.integers(0, 3, count), 7)
    keys = rng.integers(0, 2**64, 3 * count, dtype=np.uint64)
    return {
        "views": EncoderPass(views, BUDGET, ("length a", "length b"), (1,), keys[: 2 * count]),
        "momentum": EncoderPass(views.slice(count, 2 * count), BUDGET, ("length b",)),
        "masking 0": EncoderPass(masked(texts), BUDGET, ("length",), (2,), keys[2 * count :]),
    }


def part_of(whole: EncoderPass, rows: np.ndarray) -> EncoderPass:
    keys = None if whole.keys is None else whole.keys[rows]
    return EncoderPass(whole.sequences.take(rows), whole.budget, whole.lengths_of, whole.seeds, keys)


def assert_equal(got: EncoderPass, expected: EncoderPass) -> None:
    assert (got.budget, got.lengths_of, got.seeds) == (expected.budget, expected.lengths_of, expected.seeds)
    assert (got.keys is None) == (expected.keys is None) and type(got.sequences) is type(expected.sequences)
    if expected.keys is not None:
        assert np.array_equal(got.keys, expected.keys)
    if isinstance(expected.sequences, Masked):
        assert got.sequences.batch == expected.sequences.batch
        assert np.array_equal(got.sequences.positions, expected.sequences.positions)
        assert np.array_equal(got.sequences.labels, expected.sequences.labels)
        assert got.sequences.positions.dtype == np.int64 and got.sequences.labels.dtype == np.int32
    else:
        assert got.sequences == expected.sequences


def drawn_by(rank: int, counts: list[int], whole: EncoderPass) -> np.ndarray:
    numbers, first = np.arange(len(whole.sequences.lengths)).reshape(-1, sum(counts)), sum(counts[:rank])
    return numbers[:, first : first + counts[rank]].ravel()


def plan_of(whole: dict[str, EncoderPass], counts: list[int]) -> StepPlan:
    lengths = {name: torch.from_numpy(part.sequences.lengths) for name, part in whole.items()}
    first, second = lengths["views"].chunk(2)
    agreed = {"length a": first, "length b": second, "length": lengths["masking 0"]}
    return StepPlan(dict.fromkeys(whole, 9), {}, [], 0, 0, counts, agreed)


def move_and_return(rank: int, counts: list[int], meeting: str) -> None:
    ranks = len(counts)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
    whole = global_passes(counts)
    plan = plan_of(whole, counts)
    mine = {name: part_of(part, drawn_by(rank, counts, part)) for name, part in whole.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(placement, "ABOVE", math.inf)
        passes, placements, placed_plan = place(mine, plan, rank, ranks)
    assert passes is mine and placed_plan is plan
    assert not any(placed.moves for placed in placements.values())
    check_order(placements, whole, ranks)

    passes, placements, placed_plan = place(mine, plan, rank, ranks)
    check_order(placements, whole, ranks)
    for name, part in passes.items():
        placed = placements[name]
        assert placed.moves
        assert_equal(part, part_of(whole[name], placed.local_indices))
        loads = np.bincount(placed.owners, whole[name].sequences.lengths, ranks)
        assert loads.max() / loads.mean() <= 1.05
        assert placed_plan.micro_batches[name] == needed(whole[name], placed, ranks)
    dist.destroy_process_group()


def needed(whole: EncoderPass, placed: Placement, ranks: int) -> int:
    parts = [whole.sequences.lengths[placed.owners == rank] for rank in range(ranks)]
    return max(count_micro_batches(lengths, BUDGET) for lengths in parts)


def check_order(placements: dict[str, Placement], whole: dict[str, EncoderPass], ranks: int) -> None:
    """Every rank gives its sequences' numbers as their vectors; all get the rising numbers."""
    for name, placed in placements.items():
        count = len(whole[name].sequences.lengths)
        vectors = torch.full((placed.max_rows_per_rank, 2), -1.0)
        vectors[: len(placed.local_indices)] = torch.from_numpy(placed.local_indices)[:, None].float()
        gathered = torch.empty(ranks, placed.max_rows_per_rank, 2)
        dist.all_gather_into_tensor(gathered.view(-1), vectors.view(-1))
        in_order = placed.in_order(gathered)
        assert torch.equal(in_order, torch.arange(count)[:, None].expand(-1, 2).float())
        assert torch.equal(placed.local_rows(in_order), vectors[: len(placed.local_indices)])


@pytest.mark.full
@pytest.mark.parametrize("counts", [[6, 6, 6], [8, 4, 6]])
def test_sequences_move_with_all_that_is_theirs_and_vectors_come_back_in_order(tmp_path: Path, counts):
    meeting = str(tmp_path / "meeting")
    code = (
        f"import os, test_placement as t; t.move_and_return(int(os.environ['RANK']), {counts}, {meeting!r})"
    )
    finish(start(["-c", code], ranks=3, PYTHONPATH=os.pathsep.join(sys.path)))


def test_on_one_rank_nothing_moves():
    whole = global_passes([6])
    passes, placements, placed_plan = place(whole, plan_of(whole, [6]), 0, 1)
    assert passes is whole and set(placed_plan.micro_batches.values()) == {9}
    for placed in placements.values():
        vectors = torch.arange(len(placed.owners)).float()[:, None]
        assert torch.equal(placed.in_order(vectors[None]), vectors)
        assert torch.equal(placed.local_rows(vectors), vectors)


@pytest.mark.parametrize("name", ["views", "momentum", "masking 0"])
def test_words_hold_all_of_a_sequence(name):
    whole = global_passes([6, 6])[name]
    assert_equal(from_words(to_words(whole), whole), whole)
    nothing = part_of(whole, np.empty(0, np.int64))
    assert_equal(from_words(to_words(nothing), nothing), nothing)
