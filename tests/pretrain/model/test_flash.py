"""The variable-length branch: its operator in plain torch, against attention by length."""

import numpy as np
import pytest
import torch
from encoder_helpers import MAX_POSITIONS, make_encoder, random_ids
from flash_reference import flash_on_cpu

from pretrain.model import attention as flash
from pretrain.model.attention import PackedLayout
from pretrain.model.rows import PackedRow

LENGTHS = torch.tensor([5, 1, 2, MAX_POSITIONS, 7, 7, 1, 19, MAX_POSITIONS, 5])
FAMILIES = ["bert", "roberta", "modernbert", "xlm-roberta", "camembert", "distilbert", "electra"]
KEYS = np.arange(100, 110, dtype=np.uint64)


def gradients(encoder) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in encoder.named_parameters() if p.grad is not None}
    encoder.zero_grad()
    return found


def backpropagate(encoder, ids, lengths, **more) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    hidden = encoder.states(ids, lengths, None, **more).last
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2), dtype=hidden.dtype)
    (hidden * weights).sum().backward()
    return hidden.detach(), gradients(encoder)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_attention_by_length_forward_and_backward(family):
    encoder = make_encoder(family).double()
    ids = random_ids(LENGTHS)
    dense, expected = backpropagate(encoder, ids, LENGTHS)
    with flash_on_cpu() as calls:
        hidden, found = backpropagate(encoder, ids, LENGTHS)
    assert len(calls) == 3 and {call["longest"] for call in calls} == {64}
    windows = {(-1, -1), (4, 4)} if family == "modernbert" else {(-1, -1)}
    assert {call["window"] for call in calls} == windows
    torch.testing.assert_close(hidden, dense, rtol=0, atol=1e-10)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10, msg=name)


def test_an_empty_batch_reaches_every_parameter_with_a_zero_gradient():
    encoder = make_encoder("bert")
    none = torch.zeros(0, dtype=torch.long)
    with flash_on_cpu() as calls:
        encoder.embed(none, none).sum().backward()
    assert [call["longest"] for call in calls] == [16, 16, 16]
    base = dict(encoder.lm.base_model.named_parameters())
    assert base and all(p.grad is not None and not p.grad.any() for p in base.values())


def test_attention_dropout_is_the_kernels_and_replays_with_the_seed():
    encoder = make_encoder("bert", attention_dropout=0.5).train()
    ids = random_ids(LENGTHS)

    def run(seed, keys=KEYS):
        torch.manual_seed(seed)
        return encoder.embed(ids, LENGTHS, keys=keys)

    with flash_on_cpu() as calls:
        assert torch.equal(run(1), run(1))
        assert not torch.allclose(run(1), run(2), atol=1e-4)
        assert {call["dropout"] for call in calls} == {0.5}
        encoder.eval()
        assert torch.equal(run(1), run(2))
    assert calls[-1]["dropout"] == 0.0


def test_hashed_dropout_does_not_depend_on_the_kernel_of_attention():
    encoder = make_encoder("bert", dropout=0.2).double().train()
    ids = random_ids(LENGTHS)
    dense, expected = backpropagate(encoder, ids, LENGTHS, keys=KEYS)
    with flash_on_cpu():
        hidden, found = backpropagate(encoder, ids, LENGTHS, keys=KEYS)
    torch.testing.assert_close(hidden, dense, rtol=0, atol=1e-10)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-10, atol=1e-10, msg=name)


@pytest.mark.parametrize(
    "lengths,filler,boundaries,longest",
    [
        ([3, 5, 5], 0, [0, 3, 8, 13], 16),
        ([3, 17], 5, [0, 3, 20, 25], 32),
        ([3, 5], 40, [0, 3, 8, 24, 40, 48], 16),
        ([3, 129], 300, [0, 3, 132, 388, 432], 256),
        ([], 4, [0, 4], 16),
        ([], 0, [0], 16),
    ],
)
def test_filler_is_sequences_of_its_own_and_empty_ones_behind_them(lengths, filler, boundaries, longest):
    layout = PackedLayout.build(torch.tensor(lengths, dtype=torch.long), torch.device("cpu"), filler)
    assert layout.longest == longest and layout.boundaries.dtype == torch.int32
    assert layout.cumulative.tolist() == boundaries[: len(lengths) + 1]
    found = layout.boundaries.tolist()
    assert found[: len(boundaries)] == boundaries
    assert len(found) > len(boundaries) and set(found[len(boundaries) :]) == {boundaries[-1]}


def test_rows_of_about_equal_lengths_have_one_layout():
    """But for what is on the device: so that they can be one CUDA graph."""
    random, shapes = torch.Generator().manual_seed(0), set()
    for _ in range(50):
        lengths = torch.randint(5, 33, (128,), generator=random).sort().values
        row = PackedRow.build(
            torch.zeros(int(lengths.sum()), dtype=torch.long), lengths, torch.device("cpu"), 0, 0
        )
        shapes.add(row.shape)
        every, layout = sorted(row.layout.boundaries.diff().tolist()), row.layout
        assert sorted(layout.slots[:, 1].tolist())[-len(every) :] == every[-len(layout.slots) :]
        first = 0
        for most, count in layout.buckets:
            assert layout.slots[first : first + count, 1].max() <= most
            first += count
        assert first == len(layout.slots)
    assert len(shapes) < 15
    long = [PackedLayout.build(torch.tensor([1, 300 - n, n]), torch.device("cpu"), 19) for n in (150, 171)]
    assert len({(of.longest, *of.boundaries.shape, *of.slots.shape) for of in long}) == 1


@pytest.mark.parametrize(
    "lengths,filler,slots,buckets",
    [
        (
            [40, 3, 16, 70],
            2,
            [[40, 3, 0], [43, 16, 0], [0, 40, 0], [59, 70, 0], [129, 2, 0]],
            ((16, 8), (64, 8), (128, 9)),
        ),
        ([5, 300], 0, [[5, 300, 256], [5, 300, 128], [5, 300, 0], [0, 5, 0]], ()),
        ([], 0, [], ((16, 4),)),
    ],
)
def test_slots_are_short_sequences_by_bucket_or_pieces_of_long_ones(lengths, filler, slots, buckets):
    layout = PackedLayout.build(torch.tensor(lengths, dtype=torch.long), torch.device("cpu"), filler)
    assert [slot for slot in layout.slots.tolist() if slot[1]] == slots and layout.buckets == buckets
    assert layout.slots.dtype == torch.int32 and layout.slots.shape[1] == 3


def test_the_kernel_takes_what_it_can():
    half = torch.zeros(2, 3, 4, 64, dtype=torch.bfloat16)
    with flash_on_cpu():
        assert flash.takes_flash(half)
        for size in (257, 264, 60):
            assert not flash.takes_flash(torch.zeros(2, 3, 1, size, dtype=torch.bfloat16))
    assert not flash.takes_flash(half)  # on a CPU
