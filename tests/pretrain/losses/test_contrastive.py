"""Contrastive losses against short float64 references with full matrices, gradients included."""

import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

from pretrain.losses import contrastive
from pretrain.losses.contrastive import (
    Negatives,
    info_nce,
    nt_xent,
    relaxed_negative_info_nce,
    softmax_over_candidates,
    symmetric_info_nce,
)
from pretrain.losses.exclusions import Exclusions
from pretrain.losses.vectors import directions, unit_vectors

TILES = [1, 7, 37, 512, None]


@pytest.fixture(autouse=True)
def tiles_of_the_test(request, monkeypatch):
    """A test with a parameter `tile` has tiles of that many anchors."""
    callspec = getattr(request.node, "callspec", None)
    if callspec and (tile := callspec.params.get("tile")):
        monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: tile)


def same_with_gradients(ours, theirs, *inputs):
    """Equal values, and equal gradients of three times the values, in float64."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    for mine, expected in zip(torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs)):
        torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-12)


def vectors(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def cosines(a, b):
    return normalize(a, dim=1) @ normalize(b, dim=1).T


def exclude(logits, anchor_ids, positive_ids, candidate_ids, own):
    """The rule for texts of one meaning, word by word."""
    rows = [{*row} for row in zip(anchor_ids.tolist(), positive_ids.tolist())]
    excluded = []
    for meaning, mine in zip(map(set, rows), own.tolist()):
        while linked := [row for row in rows if row & meaning and not row <= meaning]:
            meaning.update(*linked)
        excluded.append([j != mine and text in meaning for j, text in enumerate(candidate_ids.tolist())])
    return logits.masked_fill(torch.tensor(excluded), -torch.inf)


def reference_nt_xent(views, temperature, groups=None, identities=None):
    """NT-Xent as written in SimCLR: the full 2N x 2N matrix."""
    z = views.double().flatten(0, 1)
    similarity = cosines(z, z) / temperature
    similarity = similarity.masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    partner = (torch.arange(len(z)) + len(z) // 2) % len(z)
    if groups is not None:
        both = groups.repeat(2)
        similarity = similarity.masked_fill(both[:, None] != both, -torch.inf)
    if identities is not None:
        ids = identities.flatten()
        similarity = exclude(similarity, ids, ids[partner], ids, partner)
    return cross_entropy(similarity, partner)


def reference_info_nce(a, p, temperature, negatives=None, bias=0.0, identities=None):
    candidates = p if negatives is None else torch.cat([p, negatives])
    logits = cosines(a, candidates) / temperature
    if bias:
        logits = logits + bias * torch.cat([torch.zeros(len(a), len(a)), torch.eye(len(a))], 1).double()
    own = torch.arange(len(a))
    if identities is not None:
        anchor_ids, positive_ids, candidate_ids = identities
        logits = exclude(logits, anchor_ids, positive_ids, candidate_ids, own)
    return cross_entropy(logits, own)


# ---- NT-Xent
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_nt_xent_equals_the_reference(tile, grouped, duplicates, temperature):
    views = vectors(2, 37, 16)
    groups = torch.randint(0, 4, (37,)) if grouped else None
    identities = torch.randint(0, 90, (2, 37)) if duplicates else None
    same_with_gradients(
        nt_xent(views, temperature, Exclusions(groups, identities)),
        reference_nt_xent(views, temperature, groups, identities),
        views,
    )


def test_nt_xent_is_float32_under_autocast_and_from_bfloat16():
    views = torch.randn(2, 64, 32)
    expected = reference_nt_xent(views, 0.05)
    with torch.autocast("cpu", torch.bfloat16):
        loss = nt_xent(views.requires_grad_(), 0.05)
        (gradient,) = torch.autograd.grad(loss, views)
    assert loss.dtype == gradient.dtype == torch.float32
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert nt_xent(views.detach().bfloat16(), 0.05).dtype == torch.float32


def test_alone_in_its_group_a_pair_costs_nothing():
    views = vectors(2, 3, 8)
    loss = nt_xent(views, 0.1, Exclusions(torch.tensor([0, 1, 2])))
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert views.grad.abs().max() < 1e-10


@pytest.mark.parametrize("temperature", [0.05, 0.01])
def test_float32_gradients_keep_their_digits_where_sentences_are_told_apart(temperature):
    """Losses of 1e-4 and less are SimCSE's daily bread: the gradient is then a difference of nearly equal
    numbers."""
    first = torch.randn(64, 256)
    views = torch.stack([first, first + 0.1 * torch.randn_like(first)])
    exact = views.double().requires_grad_()
    expected_loss = nt_xent(exact, temperature)
    (expected,) = torch.autograd.grad(expected_loss, exact)
    loss = nt_xent(views.requires_grad_(), temperature)
    (gradient,) = torch.autograd.grad(loss, views)
    assert expected_loss.item() < 1e-4
    assert loss.item() == pytest.approx(expected_loss.item(), rel=1e-4)
    error = (gradient - expected).norm() / expected.norm()
    assert error < 1e-4, error


# ---- InfoNCE
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("bias", [0.0, 0.7])
@pytest.mark.parametrize("duplicates", [False, True])
def test_info_nce_with_hard_negatives_equals_the_reference(tile, bias, duplicates):
    a, p, n = vectors(37, 16), vectors(37, 16), vectors(37, 16)
    same, negative_ids, reference = Exclusions(), None, None
    if duplicates:
        anchor_ids, positive_ids, negative_ids = torch.randint(0, 90, (3, 37))
        same = Exclusions(identities=torch.stack([anchor_ids, positive_ids]))
        reference = anchor_ids, positive_ids, torch.cat([positive_ids, negative_ids])
    same_with_gradients(
        info_nce(a, p, 0.05, same, Negatives(n, identities=negative_ids, own_bias=bias)),
        reference_info_nce(a, p, 0.05, n, bias, reference),
        a,
        p,
        n,
    )


@pytest.mark.parametrize("tile", TILES)
def test_an_absent_negative_is_nobodys_candidate(tile):
    a, p, n = vectors(37, 16), vectors(37, 16), vectors(37, 16)
    present = torch.rand(37) < 0.6
    same_with_gradients(
        info_nce(a, p, 0.05, negatives=Negatives(n, present)),
        reference_info_nce(a, p, 0.05, n[present]),
        a,
        p,
        n,
    )


@pytest.mark.parametrize("queue", [0, 5, 90])
@pytest.mark.parametrize("tile", [10])
def test_info_nce_takes_a_queue_of_any_length_without_gradient(queue, tile):
    a, p, n = vectors(37, 16), vectors(37, 16), torch.randn(queue, 16, dtype=torch.float64)
    ours = info_nce(a, p, 0.1, negatives=Negatives(n))
    same_with_gradients(ours, reference_info_nce(a, p, 0.1, n), a, p)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("in_batch", [True, False])
def test_several_positives_have_the_mean_of_their_losses(tile, in_batch):
    """By the formula, anchor by anchor; others of one's positives are no candidates, absent ones none's."""
    count = 11
    a, p, n = vectors(count, 8), vectors(3, count, 8), vectors(2 * count, 8)
    present = torch.rand(3, count) < 0.6
    present[0] = True
    there = torch.rand(2 * count) < 0.7
    numbers = torch.arange(count)
    same = Exclusions(identities=torch.stack([numbers, *(numbers + 100 * k for k in (1, 2, 3))]))
    negatives = Negatives(n, there, torch.arange(2 * count) + 1000, own_bias=0.4)
    ours = info_nce(a, p, 0.05, same, negatives, present=present, in_batch=in_batch)

    def logit(i, candidate):
        return torch.cosine_similarity(a[i], candidate, dim=0) / 0.05

    total = 0.0
    for i in range(count):
        others = [logit(i, p[k, j]) for k in range(3) for j in range(count) if j != i and present[k, j]]
        own = [logit(i, n[m]) + 0.4 for m in (i, i + count) if there[m]]
        further = [logit(i, n[m]) for m in range(2 * count) if m % count != i and there[m]]
        denominator = torch.stack([*own, *(others + further if in_batch else []), torch.tensor(-1e9)])
        of_anchor = [
            torch.logaddexp(logit(i, p[k, i]), denominator.logsumexp(0)) - logit(i, p[k, i])
            for k in range(3)
            if present[k, i]
        ]
        total = total + sum(of_anchor) / len(of_anchor)
    same_with_gradients(ours, total / count, a, p, n)


def test_info_nce_is_simcse_as_its_code_computes_it():
    """princeton-nlp/SimCSE, models.py: torch's cosine similarity of all pairs, weights on the diagonal of the
    third block."""
    a, p, n = vectors(9, 16), vectors(9, 16), vectors(9, 16)
    similarity = torch.nn.CosineSimilarity(dim=-1)
    logits = torch.cat([similarity(a[:, None], p[None]), similarity(a[:, None], n[None])], 1) / 0.05
    weights = torch.tensor(
        [[0.0] * 9 + [0.0] * i + [0.3] + [0.0] * (8 - i) for i in range(9)], dtype=torch.float64
    )
    same_with_gradients(
        info_nce(a, p, 0.05, negatives=Negatives(n, own_bias=0.3)),
        cross_entropy(logits + weights, torch.arange(9)),
        a,
        p,
        n,
    )


@pytest.mark.parametrize("tile", [5, None])
def test_local_negatives_are_the_mean_over_groups_computed_alone(tile):
    a, p, n = vectors(24, 8), vectors(24, 8), vectors(24, 8)
    groups = torch.tensor([2, 0, 1, 1] * 6)
    parts = [groups == g for g in range(3)]

    def alone(loss, *inputs):
        return sum(loss(*(x[part] for x in inputs)) * part.sum() for part in parts) / 24

    present = torch.arange(24) % 3 > 0
    same_with_gradients(
        info_nce(a, p, 0.1, Exclusions(groups), Negatives(n, own_bias=0.2)),
        alone(lambda *x: reference_info_nce(x[0], x[1], 0.1, x[2], 0.2), a, p, n),
        a,
        p,
        n,
    )
    same_with_gradients(
        symmetric_info_nce(a, p, 0.1, Exclusions(groups)),
        alone(lambda *x: symmetric_info_nce(*x, 0.1), a, p),
        a,
        p,
    )
    same_with_gradients(
        relaxed_negative_info_nce(a, p, n, present, 0.1, 0.2, Exclusions(groups)),
        alone(lambda *x: relaxed_negative_info_nce(*x, 0.1, 0.2), a, p, n, present),
        a,
        p,
        n,
    )
    views = torch.stack([a, p])
    same_with_gradients(
        nt_xent(views, 0.1, Exclusions(groups)),
        alone(lambda *x: nt_xent(torch.stack(x), 0.1), a, p),
        a,
        p,
    )


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_symmetric_info_nce_is_clips(tile, duplicates):
    a, p = vectors(37, 16), vectors(37, 16)
    ids, forth, back = None, None, None
    if duplicates:
        ids = torch.randint(0, 90, (2, 37))
        forth, back = (ids[0], ids[1], ids[1]), (ids[1], ids[0], ids[0])
    expected = 0.5 * (
        reference_info_nce(a, p, 0.05, identities=forth) + reference_info_nce(p, a, 0.05, identities=back)
    )
    same_with_gradients(symmetric_info_nce(a, p, 0.05, Exclusions(identities=ids)), expected, a, p)


@pytest.mark.parametrize("duplicates", [False, True])
@pytest.mark.parametrize("tile", TILES)
def test_relaxed_negatives_equal_equation_4_of_sda(tile, duplicates):
    a, p, n = vectors(37, 16), vectors(37, 16), vectors(37, 16)
    present = torch.rand(37) < 0.7
    ids = torch.randint(0, 90, (2, 37)) if duplicates else torch.arange(74).view(2, 37)
    cosine = exclude(cosines(a, p), ids[0], ids[1], ids[1], torch.arange(37))
    own = (cosines(a, n).diagonal() - 0.5) / 0.05
    denominator = (cosine / 0.05).exp().sum(1) + own.exp() * present
    expected = -((cosine.diagonal() / 0.05).exp() / denominator).log().mean()
    same = Exclusions(identities=ids if duplicates else None)
    same_with_gradients(relaxed_negative_info_nce(a, p, n, present, 0.05, 0.5, same), expected, a, p, n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_negation_far_nearer_than_every_candidate_does_not_overflow(dtype):
    """At low temperature its logit is hundreds above the candidates': the largest of all must be taken out
    before exp."""
    a = normalize(torch.randn(6, 4, dtype=torch.float64), dim=1)
    noise = torch.randn(2, 6, 4, dtype=torch.float64)
    a, p, n = (x.to(dtype).requires_grad_() for x in (a, 0.2 * noise[0] - a, a + 0.2 * noise[1]))
    present = torch.tensor([True, True, False, True, True, True])
    ours = relaxed_negative_info_nce(a, p, n, present, 1e-3, 0.0)
    wide = [x.detach().double().requires_grad_() for x in (a, p, n)]
    cosine = cosines(wide[0], wide[1]) / 1e-3
    own = (normalize(wide[0], dim=1) * normalize(wide[2], dim=1)).sum(1) / 1e-3
    logits = torch.cat([cosine, own.masked_fill(~present, -torch.inf)[:, None]], 1)
    expected = cross_entropy(logits, torch.arange(6))
    torch.testing.assert_close(ours.double(), expected, rtol=1e-5, atol=0)
    for mine, theirs in zip(torch.autograd.grad(ours, (a, p, n)), torch.autograd.grad(expected, wide)):
        assert mine.isfinite().all()
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-3, atol=1e-3 * float(theirs.abs().max()))


def test_without_negations_relaxed_negatives_are_info_nce():
    a, p, n = vectors(12, 8), vectors(12, 8), vectors(12, 8)
    none = torch.zeros(12, dtype=torch.bool)
    plain = info_nce(a, p, 0.05)
    assert relaxed_negative_info_nce(a, p, n, none, 0.05, 0.5).item() == pytest.approx(
        plain.item(), rel=1e-14
    )
    assert relaxed_negative_info_nce(a, p, n, ~none, 0.05, 100.0).item() == pytest.approx(
        plain.item(), rel=1e-14
    )
    assert relaxed_negative_info_nce(a, p, n, ~none, 0.05, 0.5) > plain


def test_equal_texts_everywhere_leave_no_negatives():
    a, p, n = vectors(6, 8), vectors(6, 8), vectors(6, 8)
    ids = torch.full((6,), 9)
    same = Exclusions(identities=ids.expand(2, 6))
    for loss in (
        info_nce(a, p, 0.1, same, Negatives(n, identities=ids)),
        symmetric_info_nce(a, p, 0.1, same),
        nt_xent(torch.stack([a, p]), 0.1, same),
    ):
        assert loss.item() == 0.0
        assert not any(g.any() for g in torch.autograd.grad(loss, (a, p)))


# ---- the engine
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [4])
def test_the_engine_takes_other_candidates_and_constants(tile):
    """More candidates than anchors, not normalised, a constant on a block."""
    anchors, candidates = vectors(6, 5), vectors(12, 5)

    def weigh(logits, own, start, stop):
        logits[:, 6:] += 0.7

    positives = torch.arange(6)
    constant = torch.tensor([0.0] * 6 + [0.7] * 6, dtype=torch.float64)
    same_with_gradients(
        softmax_over_candidates(anchors, candidates, positives, 0.2, [weigh]),
        cross_entropy(anchors @ candidates.T / 0.2 + constant, positives),
        anchors,
        candidates,
    )


def test_gradients_are_made_only_for_what_wants_them():
    a, p = vectors(6, 5), vectors(6, 5)
    (only_a,) = torch.autograd.grad(info_nce(a, p.detach(), 0.1), a)
    (only_p,) = torch.autograd.grad(info_nce(a.detach(), p, 0.1), p)
    both = torch.autograd.grad(info_nce(a, p, 0.1), (a, p))
    torch.testing.assert_close((only_a, only_p), both)


def test_the_graph_may_be_walked_twice():
    views = vectors(2, 5, 4)
    loss = nt_xent(views, 0.1)
    (first,) = torch.autograd.grad(7 * loss, views, retain_graph=True)
    (second,) = torch.autograd.grad(7 * loss, views)
    assert torch.equal(first, second)


def test_unit_vectors_equal_torchs_and_vectors_of_length_0_stay():
    x = vectors(9000, 3)  # more rows than are worked on at once
    weights = torch.randn(9000, 3, dtype=torch.float64)
    same_with_gradients((unit_vectors(x) * weights).sum(), (normalize(x, dim=1) * weights).sum(), x)
    zeros = torch.zeros(2, 3, requires_grad=True)
    unit_vectors(zeros).sum().backward()
    assert not unit_vectors(zeros).any() and not zeros.grad.any()


def test_directions_of_gradients_of_any_size():
    gradient = torch.tensor([[3.0, 4.0], [3e-25, 4e-25], [3e30, 4e30], [0.0, 0.0]])
    otherwise = torch.tensor([[1.0, 0.0]] * 4)
    expected = torch.tensor([[0.6, 0.8]] * 3 + [[1.0, 0.0]])
    torch.testing.assert_close(directions(gradient, otherwise), expected)


def test_a_temperature_of_0_is_an_error():
    a, ids = torch.randn(3, 4), torch.arange(3)
    for loss in (
        lambda t: nt_xent(torch.randn(2, 3, 4), t),
        lambda t: info_nce(a, a, t),
        lambda t: symmetric_info_nce(a, a, t),
        lambda t: relaxed_negative_info_nce(a, a, a, ids > 0, t, 0.5),
    ):
        with pytest.raises(AssertionError):
            loss(0.0)


def test_a_questions_other_answer_is_no_negative_by_identities_of_texts():
    question, answers = torch.randn(1, 8).repeat(2, 1), torch.randn(2, 8)
    one, two = torch.tensor([1, 1]), torch.tensor([2, 3])
    loss = info_nce(question, answers, 0.05, anchor_identities=one, positive_identities=two)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    other = info_nce(question, answers, 0.05, anchor_identities=torch.tensor([1, 4]), positive_identities=two)
    assert other.item() > 0.01
