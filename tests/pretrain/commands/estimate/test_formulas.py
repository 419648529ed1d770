"""The formulas of a plan, against cases computed by hand."""

from dataclasses import replace

import pytest

from pretrain.start import estimate
from pretrain.start.estimate import BatchSize, Layout, ModelSize

MODEL = ModelSize(
    trained=1_000_000,
    frozen=0,
    moments=2_000_000,
    small=10_000,
    largest=400_000,
    width=64,
    vocabulary=1000,
    copies=2e6,
    token_bytes=5000.0,
    masked_bytes=1000.0,
    token_flops=2e6,
    masked_flops=1e5,
)
BATCH = BatchSize(
    sequences=100, longest=64, masked_tokens=2000.0, predicted=300.0, views=2, view_tokens=4000.0
)
FOUR = Layout(ranks=4, zero=0, micro_batch_tokens=500)


@pytest.mark.parametrize(
    "zero, weights, gradients, optimizer, master",
    [(0, 4.0, 4.0, 8.0, 0.0), (1, 4.0, 4.0, 2.0, 1.0), (2, 4.0, 4.0, 2.0, 1.0), (3, 1.04, 6.0, 2.0, 0.0)],
)
def test_states_of_four_ranks(zero, weights, gradients, optimizer, master):
    """A million parameters, 4 bytes each: MB of a rank."""
    found = estimate.memory(MODEL, BATCH, replace(FOUR, zero=zero))
    expected = {"weights": weights, "gradients": gradients, "optimizer": optimizer, "master": master}
    assert {name: found[name] for name in expected} == {name: 1e6 * mb for name, mb in expected.items()}


def test_the_pass_that_needs_most_decides():
    """500 tokens of 4000 / 4 a rank; a masked one of them with 15% predicted and their 1000 logits each."""
    many = replace(BATCH, predicted=1800.0)
    assert estimate.micro_batch_bytes(MODEL, many, FOUR) == (5000 * 500 + 1000 * 450, 4 * 450 * 1000)
    # of few predicted tokens the logits are fewer: the pass over 500 tokens of views needs more
    assert estimate.micro_batch_bytes(MODEL, BATCH, FOUR) == (2.5e6, 6 * 4 * 200 * 64 + 12 * 200**2)
    # with all at once, 1000 tokens of views, whose 200 vectors need 6 copies and their pairs a tile
    whole = replace(FOUR, micro_batch_tokens=9000)
    assert estimate.micro_batch_bytes(MODEL, BATCH, whole) == (5e6, 6 * 4 * 200 * 64 + 12 * 200**2)


def test_reduction_counts_where_it_needs_more_than_a_micro_batch():
    """A bucket of 500 million elements is reserved on a GPU at stages 2 and 3, and at 1 with apex."""
    found = estimate.memory(MODEL, BATCH, replace(FOUR, zero=2))
    assert found["reduction"] == 4e6 + 2e9 + 1e6  # gradients in one piece, the bucket, the reduced share
    assert estimate.peak(found) == 4e6 + 4e6 + 2e6 + 1e6 + 2e6 + found["reduction"]  # and the copies
    assert estimate.memory(MODEL, BATCH, replace(FOUR, zero=0))["reduction"] == 4e6
    small = replace(FOUR, zero=1, bucket=100_000)
    assert estimate.memory(MODEL, BATCH, small)["reduction"] == 4 * 4e5  # four buckets under way
    # in bfloat16: three, and the largest tensor, which is in float32, too
    in_half = estimate.memory(MODEL, BATCH, replace(small, wire=2))["reduction"]
    assert in_half == 3 * 2e5 + 8e5 + 1.6e6
    # with apex DeepSpeed's bucket and the reduced share
    apex = replace(small, apex=True)
    assert estimate.memory(MODEL, BATCH, apex)["reduction"] == 4 * 4e5 + 4e5 + 1e6
    assert estimate.memory(MODEL, BATCH, replace(apex, ranks=1))["reduction"] == 4e5 + 4e6
    assert estimate.memory(MODEL, BATCH, replace(small, ranks=1))["reduction"] == 0


def test_gradients_of_working_copies_count_where_they_need_more_than_a_micro_batch():
    """They lie beside copies (2 MB) and states (16 MB); at stages 2 and 3 autograd adds one by one."""
    model = replace(MODEL, leaves=6e6)
    one = Layout(ranks=1, zero=0, micro_batch_tokens=500)
    of_micro_batch = sum(estimate.micro_batch_bytes(model, BATCH, one))
    assert of_micro_batch < 6e6 == estimate.memory(model, BATCH, one)["leaves"]
    assert estimate.peak(estimate.memory(model, BATCH, one)) == 16e6 + 2e6 + 6e6
    assert estimate.peak(estimate.memory(MODEL, BATCH, one)) == 16e6 + 2e6 + of_micro_batch
    assert [estimate.memory(model, BATCH, replace(one, zero=zero))["leaves"] for zero in (1, 2, 3)] == [
        6e6,
        0,
        0,
    ]


def test_the_largest_micro_batch_fits_and_one_more_step_does_not():
    big = replace(BATCH, view_tokens=4e6, masked_tokens=2e6, predicted=3e5)
    one = Layout(ranks=1, zero=0, micro_batch_tokens=1)
    available = estimate.peak(estimate.memory(MODEL, big, replace(one, micro_batch_tokens=10 * 1024)))
    assert estimate.largest_micro_batch(MODEL, big, one, available) == 10 * 1024
    assert estimate.largest_micro_batch(MODEL, big, one, available - 1) == 9 * 1024
    assert estimate.largest_micro_batch(MODEL, big, one, 1e6) is None


def test_a_replay_costs_one_more_forward_of_the_views():
    needed = 3 * (2e6 * 6000 + 1e5 * 300)
    assert estimate.step_flops(MODEL, BATCH, FOUR) == needed + 2e6 * 4000
    whole = replace(FOUR, micro_batch_tokens=1000)  # a rank's views at once: their graph is kept
    assert estimate.step_flops(MODEL, BATCH, whole) == needed


def test_one_moment_of_some_parameters_is_less_to_hold_and_save():
    """Of a million parameters, 600,000 with one moment."""
    muon = replace(MODEL, moments=1_400_000)
    assert estimate.memory(muon, BATCH, FOUR)["optimizer"] == 4 * 1.4e6
    assert estimate.checkpoint_bytes(muon) == 4e6 + 4 * 1.4e6
