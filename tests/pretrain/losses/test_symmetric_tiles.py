"""NT-Xent by tiles on and right of the diagonal: over ranks, its products, its lowest temperature."""

import pytest
import torch
from step.threaded_ranks import ThreadedRanks
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.losses import contrastive
from pretrain.losses.contrastive import nt_xent, shared_over
from pretrain.losses.exclusions import Exclusions, Guide


def with_gradient(views, temperature, exclusions=None):
    leaf = views.detach().requires_grad_()
    loss = nt_xent(leaf, temperature, *([exclusions] if exclusions else []))
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def by_rows(monkeypatch):
    """Compute it as losses without symmetry are."""
    monkeypatch.setattr(contrastive, "SMALLEST_SYMMETRIC", torch.inf)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("count,tile", [(2, 100), (37, 100), (37, 5)])
def test_ranks_share_its_tiles(ranks, count, tile, monkeypatch):
    monkeypatch.setattr(contrastive, "SMALLEST_SHARED", 0)
    monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: tile)
    views = torch.randn(2, count, 16, dtype=torch.float64)
    exclusions = Exclusions(torch.arange(count) % 3, torch.randint(0, 60, (2, count)))

    def on_rank(rank):
        with shared_over(ranks):
            return with_gradient(views, 0.1, exclusions)

    found = ThreadedRanks(ranks, monkeypatch).run(on_rank)
    by_rows(monkeypatch)
    for expected, *of_ranks in zip(with_gradient(views, 0.1, exclusions), *found, strict=True):
        assert all(torch.equal(of_ranks[0], other) for other in of_ranks[1:])
        torch.testing.assert_close(of_ranks[0], expected, rtol=1e-9, atol=1e-12)


class Products(TorchDispatchMode):
    """Multiplications of all matrix products."""

    count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.addmm_):
            first, second = arguments[-2:]
            self.count += first.shape[0] * first.shape[1] * second.shape[1]
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("tiles,share", [(1, 2 / 3), (4, 5 / 6), (32, 0.7)])
def test_it_multiplies_two_thirds(tiles, share, monkeypatch):
    monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: 256 // tiles)
    views, counts = torch.randn(2, 128, 8), []
    for _ in range(2):
        with Products() as products:
            with_gradient(views, 0.1)
        counts.append(products.count)
        by_rows(monkeypatch)
    assert counts[1] == 3 * 256 * 256 * 8 and counts[0] <= share * counts[1]


def test_its_lowest_temperature_keeps_float32s_digits():
    """Of opposite sentences: exponentials of -80, whose gradients have the fewer digits of small numbers."""
    first = torch.randn(64)
    views = torch.stack([first, -first]) + 1e-3 * torch.randn(2, 2, 64)
    for own, exact in zip(with_gradient(views, 0.025), with_gradient(views.double(), 0.025)):
        assert (own - exact).norm() < 1e-3 * exact.norm()


def test_a_guide_whose_exclusions_are_of_one_side_is_taken_by_rows(monkeypatch):
    views, guides = torch.randn(2, 2, 9, 8, dtype=torch.float64)
    guided = Exclusions(guide=Guide(*guides))
    found = with_gradient(views, 0.1, guided)
    by_rows(monkeypatch)
    assert all(map(torch.equal, found, with_gradient(views, 0.1, guided)))


def test_the_value_may_be_changed_in_place():
    views = torch.randn(2, 5, 8, requires_grad=True)
    loss = nt_xent(views, 0.1)
    loss += 1.0
    (gradient,) = torch.autograd.grad(loss, views)
    assert torch.equal(gradient, with_gradient(views, 0.1)[1])


def test_without_sequences_it_is_zero_with_a_gradient():
    loss, gradient = with_gradient(torch.zeros(2, 0, 8), 0.1)
    assert loss == 0 and gradient.shape == (2, 0, 8)


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("guided", [True, False])
def test_ranks_send_one_gradient_and_none_that_nobody_wants(guided, wanted, monkeypatch):
    monkeypatch.setattr(contrastive, "SMALLEST_SHARED", 0)
    views, sent = torch.randn(2, 9, 8, requires_grad=wanted), []
    exclusions = Exclusions(guide=Guide(*torch.randn(2, 9, 8)) if guided else None)

    def on_rank(rank):
        with shared_over(2):
            return nt_xent(views, 0.1, exclusions)

    monkeypatch.setattr(contrastive, "complete", lambda shared, *parts: sent.extend(parts))
    ThreadedRanks(2, monkeypatch).run(on_rank)
    assert sum(part is not None and part.ndim == 2 for part in sent) == 2 * wanted
