"""Losses of scored pairs, against the formulas in float64 and sentence-transformers on the same vectors."""

import pytest
import torch
from sentence_transformers.sentence_transformer import losses
from torch.nn.functional import cosine_similarity, kl_div, normalize

from pretrain.losses import pairs as pairs_of_losses
from pretrain.losses.pairs import cosent, cosine_regression, similarity_divergence

N, WIDTH = 37, 16


def pairs(count: int = N, dtype=torch.float64) -> list[torch.Tensor]:
    first = torch.randn(count, WIDTH, dtype=dtype)
    second = first + torch.randn_like(first)
    return [first.requires_grad_(), second.detach().requires_grad_()]


def by_formula(first, second, scores, temperature):
    cosines = cosine_similarity(first, second)
    lower = scores[:, None] < scores
    terms = ((cosines[:, None] - cosines) / temperature)[lower]
    return torch.log1p(terms.exp().sum())


def equal(ours, theirs, inputs, **close):
    torch.testing.assert_close(ours, theirs, **close)
    for mine, expected in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(theirs, inputs)):
        torch.testing.assert_close(mine, expected, **close)


class Given(torch.nn.Module):
    """A model of sentence-transformers' whose vectors are given."""

    def forward(self, features: dict) -> dict:
        return {"sentence_embedding": features["vectors"]}


SCORES = {
    "different": torch.randperm(N, generator=torch.Generator().manual_seed(1)) / N,
    "of sts": torch.randint(0, 11, (N,), generator=torch.Generator().manual_seed(2)) / 2.0,
    "of two kinds": (torch.arange(N) % 3 == 0).float(),
    "equal": torch.ones(N),
}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_cosent_is_the_sum_over_all_pairs_of_pairs(kind, temperature):
    inputs, scores = pairs(), SCORES[kind]
    ours = cosent(*inputs, scores, temperature)
    equal(ours, by_formula(*inputs, scores.double(), temperature), inputs, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("kind", SCORES)
def test_losses_are_those_of_sentence_transformers(kind):
    inputs, scores = pairs(), SCORES[kind].double()
    features = [{"vectors": vectors} for vectors in inputs]
    close = {"rtol": 1e-10, "atol": 1e-13}
    theirs = losses.CoSENTLoss(Given(), scale=20.0)(features, scores)
    equal(cosent(*inputs, scores, 0.05), theirs.squeeze(), inputs, **close)
    targets = (scores / 5).float()  # as which it takes them
    theirs = losses.CosineSimilarityLoss(Given())(features, targets)
    equal(cosine_regression(*inputs, targets), theirs, inputs, **close)


@pytest.mark.parametrize("tile", [1, 10, 1000])
def test_divergence_of_similarities_is_torchs_of_the_whole_matrix(tile, monkeypatch):
    monkeypatch.setattr(pairs_of_losses, "tile_rows", lambda device, candidates: tile)
    student, teacher = pairs(), [torch.randn(N, 9, dtype=torch.float64) for _ in range(2)]
    logits = [normalize(v[0]) @ normalize(v[1]).T / 0.1 for v in (student, teacher)]
    expected = kl_div(logits[0].log_softmax(1), logits[1].softmax(1), reduction="batchmean")
    ours = similarity_divergence(student, teacher, 0.1)
    equal(ours, expected, student, rtol=1e-9, atol=1e-13)
    assert similarity_divergence(teacher, teacher, 0.1).item() == pytest.approx(0, abs=1e-14)


def test_one_pair_and_large_batches_have_a_loss():
    one = pairs(1)
    assert cosent(*one, torch.ones(1), 0.05).item() == 0.0
    many = pairs(50_000, torch.float32)  # 10 GB as a matrix
    scores = torch.arange(50_000) % 11 / 5
    loss = cosent(*many, scores, 0.05)
    loss.backward()
    assert loss.isfinite() and all(part.grad.isfinite().all() for part in many)
    exact = [part.detach().double().requires_grad_() for part in many]
    expected = cosent(*exact, scores, 0.05)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    for part, of in zip(many, exact):
        assert (part.grad - of.grad).norm() < 1e-5 * of.grad.norm()


def test_far_apart_cosines_keep_their_digits():
    """At a small temperature the terms span 200 orders of magnitude."""
    inputs = pairs()
    equal(
        cosent(*inputs, SCORES["different"], 0.004),
        by_formula(*inputs, SCORES["different"].double(), 0.004),
        inputs,
        rtol=1e-9,
        atol=1e-13,
    )
