"""Gradients reduced during the last backward pass are the mean over ranks, with the same bits as after it."""

from pathlib import Path

import pytest
import torch
from run_helpers import finish, start

from pretrain.common.memory import cut_by_size
from pretrain.step.reduction import leaves

WORKER = Path(__file__).with_name("reduction_worker.py")
BF16 = 2.0**-8  # unit roundoff


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request, tmp_path_factory) -> list[dict]:
    out = tmp_path_factory.mktemp("reduced") / "out"
    finish(start([str(WORKER), str(out)], request.param))
    return [torch.load(f"{out}.{rank}.pt", weights_only=True) for rank in range(request.param)]


def expected(ranks: list[dict], case) -> dict[str, torch.Tensor]:
    """The mean over ranks in float64; a gradient that a rank has not is zero."""
    own = [found[case]["own"] for found in ranks]
    shapes = ranks[0][case]["mean"]
    return {
        name: sum(torch.zeros_like(like).double() if of[name] is None else of[name].double() for of in own)
        / len(own)
        for name, like in shapes.items()
    }


@pytest.mark.parametrize("case", ["plain", "idle", "shallow"])
def test_the_mean_over_ranks_whichever_pass_reaches_a_parameter(ranks, case):
    mean = expected(ranks, (case, True))
    for found in ranks:
        for name, gradient in found[case, True]["mean"].items():
            torch.testing.assert_close(gradient.double(), mean[name], rtol=1e-6, atol=1e-6, msg=name)
        assert found[case, True]["frozen"] is None
        assert not found[case, True]["mean"]["unused.weight"].any()


@pytest.mark.parametrize("case", ["plain", "idle", "shallow"])
@pytest.mark.parametrize("other", [False, "again"])
def test_overlap_changes_no_bit_and_neither_does_another_run(ranks, case, other):
    for found in ranks:
        for name, gradient in found[case, True]["mean"].items():
            assert torch.equal(gradient, found[case, other]["mean"][name]), name
            assert torch.equal(gradient, ranks[0][case, True]["mean"][name]), name


def test_buckets_leave_while_the_last_pass_runs(ranks):
    for found in ranks:
        overlapped, after = found["plain", True], found["plain", False]
        assert overlapped["buckets"] >= 5
        # all: heads were final before it, and words, the last, are when it ends
        assert overlapped["during"] == overlapped["buckets"]
        assert after["during"] == 0
        assert found["one bucket"]["during"] == found["one bucket"]["buckets"] == 1


def test_no_more_buckets_are_under_way_than_may_be(ranks):
    """However many there are: else all gradients would be there twice."""
    for found in ranks:
        assert found["plain", False]["together"] == found["most"] < found["plain", False]["buckets"]
        assert found["plain", True]["together"] <= found["most"]


def test_bfloat16_on_the_wire_is_off_by_no_more_than_its_roundings(ranks):
    mean, world = expected(ranks, "bf16"), len(ranks)
    sizes = {
        name: sum(found["bf16"]["own"][name].double().abs() for found in ranks) / world
        for name in mean
        if ranks[0]["bf16"]["own"][name] is not None
    }
    off = 0.0
    for found in ranks:
        for name, size in sizes.items():
            error = (found["bf16"]["mean"][name].double() - mean[name]).abs()
            assert (error <= ((1 + BF16) ** world - 1) * size + 1e-6).all(), name
            off = max(off, float(error.max()))
            assert torch.equal(found["bf16"]["mean"][name], ranks[0]["bf16"]["mean"][name])
    assert off > 1e-5  # it was rounded


def test_a_use_that_the_graph_does_not_show_is_refused(ranks):
    assert all("hidden from the graph" in found["hidden"] for found in ranks)


def test_a_parameter_larger_than_a_bucket_has_its_own():
    sizes = [3, 20, 4, 4, 1]
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    assert [[p.numel() for p in bucket] for bucket in cut_by_size(parameters, torch.Tensor.numel, 8)] == [
        [3],
        [20],
        [4, 4],
        [1],
    ]


def test_leaves_are_those_that_the_loss_depends_on():
    used, twice, unused, frozen = (torch.ones(2, requires_grad=number < 3) for number in range(4))
    loss = (used * twice + twice.exp() * frozen + unused.detach()).sum()
    assert leaves(loss) == {id(used), id(twice)}
