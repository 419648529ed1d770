"""AugCSE's discriminator and DiffCSE's replaced tokens against the formulas, in float64."""

import math

import numpy as np
import pytest
import torch

from pretrain.objectives.augcse import (
    Discriminator,
    discriminator_loss,
    reverse_gradient,
)
from pretrain.objectives.diffcse import replaced_token_loss

# ---- AugCSE
# ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, -1.0, 0.25, 10.0])
def test_reversed_gradient_is_minus_scale_times_finite_differences(scale):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(5, 3, dtype=torch.float64)

    def f(values):
        return (values.tanh() * weights).sum()

    assert torch.equal(reverse_gradient(x, scale), x)
    (gradient,) = torch.autograd.grad(f(reverse_gradient(x, scale)), x)
    numeric = torch.empty_like(x)
    for index in np.ndindex(5, 3):
        shift = torch.zeros_like(x)
        shift[index] = 1e-6
        numeric[index] = (f(x + shift) - f(x - shift)) / 2e-6
    torch.testing.assert_close(gradient, -scale * numeric, rtol=1e-7, atol=1e-8)


def test_discriminator_follows_the_code_and_the_papers_listing():
    x = torch.randn(7, 6).double()
    code = Discriminator(6, 5).double().eval()
    first, second = code.layers[1], code.layers[4]
    assert first.weight.shape == (12, 6) and second.weight.shape == (5, 12)
    hidden = (x @ first.weight.T + first.bias).tanh()
    torch.testing.assert_close(code(x), (hidden @ second.weight.T + second.bias).tanh())

    paper = Discriminator(6, 5, form="paper").double().eval()
    first, second, classifier = paper.layers[1], paper.layers[4], paper.layers[6]
    assert first.weight.shape == (12, 6) and second.weight.shape == (6, 12)
    hidden = ((x @ first.weight.T + first.bias).tanh() @ second.weight.T + second.bias).tanh()
    torch.testing.assert_close(paper(x), hidden @ classifier.weight.T + classifier.bias)


@pytest.mark.parametrize("form", ["code", "paper"])
def test_discriminator_drops_before_each_of_two_layers_and_ignores_autocast(form):
    module = Discriminator(6, 5, form, dropout=0.2)
    dropouts = [m for m in module.modules() if isinstance(m, torch.nn.Dropout)]
    assert [m.p for m in dropouts] == [0.2, 0.2]
    x = torch.randn(64, 6)
    assert not torch.equal(module(x), module(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module.eval()(x), module.eval()(x.float()))
        assert module(x.bfloat16()).dtype == torch.float32


def test_discriminator_loss_is_the_mean_of_binary_cross_entropies():
    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    terms = [
        -(p.log() if j == label else (1 - p).log())
        for row, label in zip(logits.sigmoid(), labels.tolist())
        for j, p in enumerate(row)
    ]
    loss = discriminator_loss(logits, labels)
    torch.testing.assert_close(loss, torch.stack(terms).mean())
    assert torch.autograd.gradcheck(lambda x: discriminator_loss(x, labels), logits)
    best = discriminator_loss(2 * torch.eye(4)[labels] - 1, labels)
    assert best.item() == pytest.approx(math.log1p(math.exp(-1)), rel=1e-6)


# ---- DiffCSE
# ------------------------------------------------------------------------------------------------------------


def test_replaced_tokens_are_a_sum_over_all_tokens_of_the_sequences():
    logits = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    replaced = torch.tensor([0, 1, 0, 0, 1, 1, 0, 0, 1, 1])
    ours = replaced_token_loss(logits, replaced.bool())
    theirs = -logits.log_softmax(1)[torch.arange(10), replaced].sum()
    torch.testing.assert_close(ours, theirs)
    (gradient,) = torch.autograd.grad(ours, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, logits)[0])


def test_replaced_tokens_are_counted_in_float32():
    logits = torch.randn(10, 2)
    replaced = torch.randint(0, 2, (10,))
    with torch.autocast("cpu", torch.bfloat16):
        assert replaced_token_loss(logits.bfloat16(), replaced).dtype == torch.float32
