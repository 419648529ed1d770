"""VaSCL: neighbours, virtual augmentation and neighbourhood loss against the formulas, in float64."""

import pytest
import torch
from test_contrastive import TILES, same_with_gradients, vectors
from test_contrastive_memory import Largest, peak_memory, restart_peak
from torch.nn.functional import cross_entropy, normalize

from pretrain.losses.exclusions import Exclusions
from pretrain.model.heads import vascl_head
from pretrain.objectives import vascl
from pretrain.objectives.vascl import (
    NONE,
    nearest_neighbours,
    neighbourhood_loss,
    random_directions,
    softmax_over_listed,
    virtual_augmentation,
)


def cut(monkeypatch, tile, listed=1):
    """Let that many anchors be a tile, each with so many numbers of listed candidates; None: as it is."""
    if tile:
        monkeypatch.setattr(vascl, "tile_rows", lambda device, candidates: tile)
        monkeypatch.setitem(vascl.GATHERED, "cpu", tile * listed)


@pytest.mark.parametrize("tile", TILES)
def test_neighbours_are_the_largest_dot_products_of_others(tile, monkeypatch):
    cut(monkeypatch, tile)
    x = torch.randn(37, 6, requires_grad=True)
    products = (x @ x.T).masked_fill(torch.eye(37, dtype=torch.bool), -torch.inf)
    expected = products.argsort(dim=1, descending=True)[:, :5]
    ours = nearest_neighbours(x, 5)
    assert ours.dtype == torch.int64 and torch.equal(ours, expected)


def test_neighbours_are_by_length_too_not_by_angle_alone():
    x = torch.tensor([[1.0, 0.0], [1.0, 0.1], [50.0, 50.0]])
    assert nearest_neighbours(x, 1)[0].item() == 2


@pytest.mark.parametrize("texts", [20, 2, 1])
@pytest.mark.parametrize("tile", [7, None])
def test_duplicates_and_other_groups_are_no_neighbours(tile, texts, monkeypatch):
    """Where one text fills most of the batch, its rows have fewer neighbours, or none."""
    cut(monkeypatch, tile)
    x = torch.randn(60, 6)
    identities, groups = torch.randint(0, texts, (60,)), torch.randint(0, 3, (60,))
    identities[:3] += 100
    neighbours = nearest_neighbours(x, 4, Exclusions(groups, identities.repeat(2, 1)))
    products = x @ x.T
    for i in range(60):
        allowed = [j for j in range(60) if identities[j] != identities[i] and groups[j] == groups[i]]
        expected = sorted(allowed, key=lambda j: -products[i, j])[:4]
        assert neighbours[i].tolist() == expected + [NONE] * (4 - len(expected))


def test_fewer_others_than_neighbours():
    x = torch.randn(5, 3)
    assert (nearest_neighbours(x, 4) != NONE).all()
    assert (nearest_neighbours(x, 7) != NONE).sum(1).tolist() == [4] * 5
    identities = torch.tensor([0, 0, 1, 2, 3]).repeat(2, 1)
    some = nearest_neighbours(x, 4, Exclusions(identities=identities))
    assert (some != NONE).sum(1).tolist() == [3, 3, 4, 4, 4]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("kept", [[5] * 37, [5, 4, 3, 2, 1, 0] * 2], ids=["all", "fewer"])
def test_neighbourhood_loss_equals_equation_4(tile, kept, monkeypatch):
    """Beside a reference that knows of no empty places: the rows' own lists of neighbours, one at a time."""
    cut(monkeypatch, tile, listed=11 * 8)
    clean, augmented = vectors(len(kept), 8), vectors(len(kept), 8)
    neighbours = nearest_neighbours(torch.randn(len(kept), 8), 5)
    for row, count in enumerate(kept):
        neighbours[row, count:] = NONE
    z, s = normalize(clean, dim=1), normalize(augmented, dim=1)
    losses = []
    for i, count in enumerate(kept):
        own = neighbours[i, :count]
        for anchor, positive in ((z[i], s[i]), (s[i], z[i])):
            candidates = torch.cat([positive[None], z[own], s[own]])
            losses.append(cross_entropy(candidates @ anchor / 0.05, torch.tensor(0)))
    same_with_gradients(
        neighbourhood_loss(clean, augmented, neighbours, 0.05),
        torch.stack(losses).mean(),
        clean,
        augmented,
    )


def test_neighbourhood_loss_is_the_authors():
    """amazon-science/sentence-representations, contrastive_utils.py, VaSCL_NBiDir: raw exponentials and
    boolean masks."""
    n, k = 12, 3
    clean, augmented = vectors(n, 8), vectors(n, 8)
    embeddings = torch.randn(n, 6, dtype=torch.float64)
    off_diagonal = ~torch.eye(n, dtype=torch.bool)
    hard = (embeddings @ embeddings.T).masked_select(off_diagonal).view(n, -1).topk(k).indices
    f1, f2 = normalize(clean, dim=1), normalize(augmented, dim=1)
    features = torch.cat([f1, f2])
    positive = ((f1 * f2).sum(-1) / 0.05).exp().repeat(2)
    negative = (features @ features.T / 0.05).exp().masked_select(off_diagonal.repeat(2, 2)).view(2 * n, -1)
    chosen = torch.zeros(n, n - 1).scatter(1, hard, 1).bool().repeat(2, 2)
    sums = negative.masked_select(chosen).view(2 * n, -1).sum(-1)
    expected = (-(positive / (sums + positive)).log()).mean()
    same_with_gradients(
        neighbourhood_loss(clean, augmented, nearest_neighbours(embeddings, k), 0.05),
        expected,
        clean,
        augmented,
    )


def test_neighbourhood_loss_without_gradient_to_the_clean_vectors():
    clean, augmented = vectors(12, 8), vectors(12, 8)
    neighbours = nearest_neighbours(clean, 3)
    (alone,) = torch.autograd.grad(neighbourhood_loss(clean.detach(), augmented, neighbours, 0.1), augmented)
    (expected,) = torch.autograd.grad(neighbourhood_loss(clean, augmented, neighbours, 0.1), augmented)
    torch.testing.assert_close(alone, expected)


def test_gradients_in_float32_keep_their_digits_where_nothing_is_near():
    anchors = torch.randn(20, 128)
    listed = torch.arange(60).view(20, 3)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        table = torch.cat(
            [anchors + 0.1, torch.randn(60, 128, generator=torch.Generator().manual_seed(0))]
        ).to(dtype)
        x = normalize(anchors.to(dtype), dim=1).requires_grad_()
        loss = softmax_over_listed(x, normalize(table, dim=1), torch.arange(20), listed + 20, 0.05)
        gradients.append(torch.autograd.grad(loss, x)[0].double())
    assert (gradients[0] - gradients[1]).norm() / gradients[1].norm() < 1e-4


def reference_ascent_losses(head, e, noise, neighbours, temperature):
    """Equation 2 for every row, at e + noise: float64[N]."""
    with torch.no_grad():
        z = normalize(head(e), dim=1)
    moved = normalize(head(e + noise), dim=1)
    candidates = torch.cat([z[:, None], z[neighbours]], 1)
    return -(torch.einsum("nd,nkd->nk", moved, candidates) / temperature).log_softmax(1)[:, 0]


@pytest.fixture
def setting():
    torch.manual_seed(3)
    head = vascl_head(10, 6, initializer_range=0.4).double()
    e = torch.randn(20, 10, dtype=torch.float64)
    return head, e, nearest_neighbours(e, 4)


def generator(seed=1):
    return torch.Generator().manual_seed(seed)


def begin(seed=1, **more):
    """The start of an ascent from 20 vectors of 10 numbers."""
    return random_directions(torch.zeros(20, 10, dtype=torch.float64), generator(seed), **more)


@pytest.mark.parametrize("radius", [1e-3, 1.0, 15.0])
def test_virtual_augmentation_follows_the_formula_and_has_the_radius(setting, radius):
    head, e, neighbours = setting
    delta = virtual_augmentation(head, e, neighbours, 0.05, radius, begin())
    start = torch.rand(20, 10, generator=generator()).double() - 0.5
    noise = normalize(start, dim=1).requires_grad_()
    (gradient,) = torch.autograd.grad(
        reference_ascent_losses(head, e, radius * noise, neighbours, 0.05).mean(), noise
    )
    torch.testing.assert_close(
        delta, radius * normalize(gradient, dim=1, eps=0), rtol=1e-7, atol=1e-9 * radius
    )
    torch.testing.assert_close(delta.norm(dim=1), torch.full((20,), radius, dtype=torch.float64))
    assert not delta.requires_grad


def test_virtual_augmentation_among_fewer_neighbours(setting):
    """A row's direction comes from the neighbours that it has; without any it is the start."""
    head, e, neighbours = setting
    whole = virtual_augmentation(head, e, neighbours, 0.05, 2.0, begin())
    fewer = neighbours.clone()
    fewer[0], fewer[1, 2:] = NONE, NONE
    delta = virtual_augmentation(head, e, fewer, 0.05, 2.0, begin())
    start = 2.0 * normalize(torch.rand(20, 10, generator=generator()).double() - 0.5, dim=1)
    torch.testing.assert_close(delta[0], start[0])
    torch.testing.assert_close(delta[2:], whole[2:])
    two = virtual_augmentation(head, e, neighbours[:, :2], 0.05, 2.0, begin())
    torch.testing.assert_close(delta[1], two[1])


def test_virtual_augmentation_is_the_direction_of_finite_differences(setting):
    head, e, neighbours = setting
    radius, step = 2.0, 1e-6
    delta = virtual_augmentation(head, e, neighbours, 0.5, radius, begin())
    start = normalize(torch.rand(20, 10, generator=generator()).double() - 0.5, dim=1)
    numeric = torch.empty_like(e)
    for j in range(10):
        shift = torch.zeros_like(e)
        shift[:, j] = step
        up, down = (
            reference_ascent_losses(head, e, radius * (start + sign * shift), neighbours, 0.5)
            for sign in (1, -1)
        )
        numeric[:, j] = (up - down).detach() / (2 * step)
    torch.testing.assert_close(delta, radius * normalize(numeric, dim=1), rtol=1e-4, atol=1e-5)


def test_virtual_augmentation_raises_the_loss_of_every_row(setting):
    head, e, neighbours = setting
    for radius in (1e-4, 1e-2):
        delta = virtual_augmentation(head, e, neighbours, 0.05, radius, begin())
        start = radius * normalize(torch.rand(20, 10, generator=generator()).double() - 0.5, dim=1)
        before, begun, ended = (
            reference_ascent_losses(head, e, x, neighbours, 0.05) for x in (0.0, start, delta)
        )
        assert (ended > before).all() and (ended > begun).all()


def test_starts_are_of_length_1_on_a_cube_or_gaussian():
    cube, gaussian = begin(), begin(gaussian=True)
    for start in (cube, gaussian):
        torch.testing.assert_close(start.norm(dim=1), torch.ones(20, dtype=torch.float64))
    drawn = torch.randn(20, 10, generator=generator()).double()
    torch.testing.assert_close(gaussian, normalize(drawn, dim=1))
    torch.testing.assert_close(
        cube, normalize(torch.rand(20, 10, generator=generator()).double() - 0.5, dim=1)
    )


def test_virtual_augmentation_depends_on_its_start_alone(setting):
    head, e, neighbours = setting
    first = virtual_augmentation(head, e, neighbours, 0.05, 2.0, begin())
    torch.manual_seed(99)
    assert torch.equal(first, virtual_augmentation(head, e, neighbours, 0.05, 2.0, begin()))
    assert not torch.equal(first, virtual_augmentation(head, e, neighbours, 0.05, 2.0, begin(2)))
    wide = virtual_augmentation(head.float(), e.float(), neighbours, 0.05, 2.0, begin().float())
    torch.testing.assert_close(wide.double(), first, rtol=1e-2, atol=1e-2)
    assert wide.dtype == torch.float32


def test_virtual_augmentation_reaches_no_parameter_and_keeps_its_radius_without_gradient(setting):
    head, e, neighbours = setting
    tracked = e.clone().requires_grad_()
    virtual_augmentation(head, tracked, neighbours, 0.05, 2.0, begin())
    assert tracked.grad is None and all(p.grad is None for p in head.parameters())
    for p in head.parameters():
        p.data.zero_()
    flat = virtual_augmentation(head, e, neighbours, 0.05, 2.0, begin())
    start = normalize(torch.rand(20, 10, generator=generator()).double() - 0.5, dim=1)
    torch.testing.assert_close(flat, 2.0 * start)


def test_virtual_augmentation_input_is_checked(setting):
    head, e, neighbours = setting
    with pytest.raises(AssertionError):
        virtual_augmentation(head, e, neighbours, 0.0, 1.0, begin())


def test_memory_grows_with_the_batch_not_its_square(monkeypatch):
    cut(monkeypatch, 16, listed=9 * 8)
    clean, augmented = (torch.randn(2000, 8, requires_grad=True) for _ in range(2))
    with Largest() as largest:
        neighbours = nearest_neighbours(clean, 4)
        neighbourhood_loss(clean, augmented, neighbours, 0.1).backward()
    assert largest.numbers <= 2 * 2000 * 9  # the listed candidates; N x N would be 4,000,000


@pytest.mark.slow
def test_a_batch_of_65536_stays_within_its_tiles():
    """N x N in float32 would be 16 GiB."""
    e, head = torch.randn(65_536, 8), vascl_head(8, 16)
    before = restart_peak()
    neighbours = nearest_neighbours(e, 16, Exclusions(identities=torch.arange(65_536).repeat(2, 1)))
    delta = virtual_augmentation(head, e, neighbours, 0.05, 1.0, random_directions(e, generator()))
    neighbourhood_loss(head(e), head(e + delta), neighbours, 0.05).backward()
    assert peak_memory() - before < 512 * 2**20


@pytest.mark.parametrize("numbers, tiles", [(1, 6), (14, 6), (28, 3), (83, 2), (84, 1), (10**6, 1)])
def test_candidates_are_gathered_for_as_many_anchors_as_may_be_at_once(monkeypatch, numbers, tiles):
    """Six anchors with 1 + 1 candidates of 7 numbers each; a tile has one anchor at least."""
    calls, real = [], vascl.checkpoint
    monkeypatch.setattr(vascl, "checkpoint", lambda *given, **more: calls.append(1) or real(*given, **more))
    monkeypatch.setitem(vascl.GATHERED, "cpu", numbers)
    vectors = torch.nn.functional.normalize(torch.randn(6, 7, generator=torch.Generator().manual_seed(1)))
    index = torch.arange(6)
    loss = vascl.softmax_over_listed(vectors, vectors, index, index.roll(1)[:, None], 0.5)
    others = torch.exp((vectors * vectors[index.roll(1)]).sum(1) / 0.5)
    own = torch.exp((vectors * vectors).sum(1) / 0.5)
    assert float(loss) == pytest.approx(float(-(own / (own + others)).log().mean()), rel=1e-5)
    assert len(calls) == tiles
