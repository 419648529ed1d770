"""AugCSE's discriminator, V-advCSE's noise and DiffCSE's replaced tokens against the formulas, in float64."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.nn.functional import cross_entropy

from augment.core.keys import sequence_keys
from pretrain.common.errors import UserError
from pretrain.losses.adversary import (
    Discriminator,
    discriminator_accuracy,
    discriminator_loss,
    reverse_gradient,
)
from pretrain.losses.replaced_token import replaced_token_loss
from pretrain.losses.virtual_adversarial import adversarial_noise, divergence, project_noise, sequence_noise

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


def test_discriminator_accuracy():
    logits = torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0], [0.0, 0.5]])
    assert discriminator_accuracy(logits, torch.tensor([0, 1, 1, 1])).item() == 0.75


def test_discriminator_settings_are_checked():
    with pytest.raises(UserError, match=r"'figure'.*code, paper"):
        Discriminator(6, 5, form="figure")
    with pytest.raises(UserError, match="at least 2"):
        Discriminator(6, 1)


# ---- V-advCSE: divergences
# ----------------------------------------------------------------------------------------------


def reference_divergence(p_logits, q_logits, kind):
    """By row, as smart-pytorch's kl_loss, sym_kl_loss and js_loss write them, with probabilities."""
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)

    def kl(a, b):
        return (a * (a.log() - b.log())).sum(-1)

    if kind == "kl":
        return kl(q, p)
    if kind == "symmetric-kl":
        return kl(q.detach(), p) + kl(p.detach(), q)
    mean = (0.5 * (p + q)).detach()
    return kl(mean, p) + kl(mean, q)


@pytest.mark.parametrize("kind", ["kl", "symmetric-kl", "js"])
@pytest.mark.parametrize("reduction", ["sum", "batchmean", "none"])
def test_divergences_equal_the_formulas(kind, reduction):
    p, q = (torch.randn(5, 9, dtype=torch.float64, requires_grad=True) for _ in range(2))
    rows = reference_divergence(p, q, kind)
    theirs = {"sum": rows.sum(), "batchmean": rows.mean(), "none": rows}[reduction]
    ours = divergence(p, q, kind, reduction)
    torch.testing.assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours.sum(), (p, q)), torch.autograd.grad(theirs.sum(), (p, q))
    ):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("kind", ["kl", "symmetric-kl", "js"])
def test_divergences_are_0_between_equals_above_it_otherwise_and_float32(kind):
    p = 30 * torch.randn(5, 768)  # probabilities that underflow
    assert divergence(p, p + 3.0, kind).item() == pytest.approx(0.0, abs=1e-3)
    assert (divergence(p, torch.randn(5, 768), kind, "none") > 0).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert divergence(p.bfloat16(), p, kind).dtype == torch.float32


def test_js_is_about_twice_the_textbooks_near_equality():
    p = torch.randn(4, 9, dtype=torch.float64)
    q = p + 1e-3 * torch.randn(4, 9, dtype=torch.float64)
    a, b = p.softmax(-1), q.softmax(-1)
    m = (a + b) / 2
    textbook = 0.5 * ((a * (a / m).log()).sum() + (b * (b / m).log()).sum())
    assert (divergence(p, q, "js") / textbook).item() == pytest.approx(2.0, rel=1e-3)


# ---- V-advCSE: the noise
# ------------------------------------------------------------------------------------------------

LENGTHS = torch.tensor([3, 1, 4])


def over_sequences(function, values):
    return torch.cat([function(part) for part in values.split(LENGTHS.tolist())])


@pytest.mark.parametrize("norm", ["inf", "l2"])
@pytest.mark.parametrize("scope", ["token", "sequence"])
def test_projections(norm, scope):
    noise, gradient = (torch.randn(8, 5, dtype=torch.float64) for _ in range(2))
    lengths = LENGTHS if scope == "sequence" else None
    order = {"inf": torch.inf, "l2": 2}[norm]

    def lengths_of(values):  # [8, 1]
        if scope == "token":
            return torch.linalg.vector_norm(values, order, dim=1, keepdim=True)
        return over_sequences(lambda part: torch.linalg.vector_norm(part, order).expand(len(part), 1), values)

    step = noise + 0.3 * gradient
    smart = project_noise(noise, gradient, 0.3, norm, "smart", lengths=lengths)
    torch.testing.assert_close(smart, step / (lengths_of(step) + 1e-6))

    ball = project_noise(noise, gradient, 0.3, norm, "ball", 1.5, lengths)
    assert (lengths_of(ball) <= 1.5 * (1 + 1e-12)).all()
    wide = project_noise(noise, gradient, 0.3, norm, "ball", 1e3, lengths)
    torch.testing.assert_close(wide, step)
    for _ in range(50):  # no point of the ball is nearer to the step, sequence by sequence
        other = torch.randn(8, 5, dtype=torch.float64)
        other = other / lengths_of(other) * 1.5 * torch.rand(8, 1)[0]
        assert ((other - step).square().sum() >= (ball - step).square().sum()).all()

    closed = project_noise(noise, gradient, 0.3, norm, "closed-form", 1.5, lengths)
    expected = 1.5 * (gradient.sign() if norm == "inf" else gradient / lengths_of(gradient))
    torch.testing.assert_close(closed, expected)


@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("inf", torch.inf)])
def test_closed_forms_maximise_the_linearised_loss(norm, order):
    """Appendix A: among all r with ||r|| <= epsilon none has a larger g . r; the maximum is epsilon times the
    dual norm."""
    gradient = torch.randn(1, 6, dtype=torch.float64)
    best = project_noise(torch.zeros_like(gradient), gradient, 1.0, norm, "closed-form", 0.7)
    value = (gradient * best).sum()
    dual = gradient.norm() if norm == "l2" else gradient.abs().sum()
    assert value.item() == pytest.approx(0.7 * dual.item())
    others = torch.randn(2000, 6, dtype=torch.float64)
    others = others / torch.linalg.vector_norm(others, order, dim=1, keepdim=True) * 0.7
    assert (others @ gradient[0] <= value + 1e-12).all()


def test_closed_form_takes_small_gradients_and_leaves_0():
    gradient = torch.tensor([[3e-30, 4e-30], [0.0, 0.0]])
    noise = project_noise(torch.ones(2, 2), gradient, 1.0, "l2", "closed-form", 1.0)
    torch.testing.assert_close(noise, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def model(seed=0):
    """A smooth map of token embeddings [T, 5] to one vector for each of the 3 sequences, [3, 6]."""
    draw = torch.Generator().manual_seed(seed)
    first, second = (torch.randn(shape, generator=draw).double() for shape in ((5, 7), (7, 6)))

    def pooled(embeddings):
        hidden = (embeddings @ first).tanh() @ second
        return torch.stack([part.mean(0) for part in hidden.split(LENGTHS.tolist())])

    return pooled


def smart_loss(embed, evaluate, loss, noise, steps, step_size, norm):
    """The loop of smart-pytorch's SMARTLoss, from a given start: the noise that its last step uses."""
    state = evaluate(embed)
    for _ in range(steps):
        noise = noise.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(evaluate(embed + noise), state.detach()), noise)
        step = noise + step_size * gradient
        noise = step / (torch.linalg.vector_norm(step, norm, dim=-1, keepdim=True) + 1e-6)
    return noise.detach()


@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("inf", torch.inf)])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_smart_ascent_is_the_packages(norm, order, steps):
    f, embed = model(), torch.randn(8, 5, dtype=torch.float64)

    def objective(noise):
        return divergence(f(embed + noise), f(embed).detach(), "js")

    source = torch.Generator().manual_seed(4)
    noise = adversarial_noise(
        objective, (8, 5), source, sigma=0.1, step_size=0.5, steps=steps, norm=norm, dtype=torch.float64
    )
    start = 0.1 * torch.randn(8, 5, generator=torch.Generator().manual_seed(4)).double()
    expected = smart_loss(
        embed, f, lambda p, q: reference_divergence(p, q, "js").sum(), start, steps, 0.5, order
    )
    torch.testing.assert_close(noise, expected)
    assert not noise.requires_grad


@pytest.mark.parametrize("kind", ["kl", "js"])
def test_the_adversarial_direction_is_that_of_finite_differences(kind):
    f, embed = model(), torch.randn(8, 5, dtype=torch.float64)
    keys = np.arange(3, dtype=np.uint64)
    clean = f(embed)
    noise = adversarial_noise(
        lambda r: divergence(f(embed + r), clean, kind),
        (8, 5),
        keys,
        sigma=0.3,
        steps=1,
        norm="l2",
        mode="closed-form",
        radius=0.01,
        lengths=LENGTHS,
        scope="sequence",
        dtype=torch.float64,
    )
    start = 0.3 * sequence_noise(keys, LENGTHS, 5).double()
    held = clean.softmax(-1) if kind == "kl" else (clean.softmax(-1) + f(embed + start).softmax(-1)) / 2

    def objective(r):  # the distribution that gets no gradient is held
        return (held * (held.log() - f(embed + r).log_softmax(-1))).sum()

    numeric = torch.empty_like(start)
    for index in np.ndindex(8, 5):
        shift = torch.zeros_like(start)
        shift[index] = 1e-6
        numeric[index] = (objective(start + shift) - objective(start - shift)) / 2e-6
    expected = over_sequences(lambda part: 0.01 * part / part.norm(), numeric)
    torch.testing.assert_close(noise, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("mode", ["ball", "closed-form"])
@pytest.mark.parametrize("norm", ["l2", "inf"])
@pytest.mark.parametrize("kind", ["kl", "symmetric-kl", "js"])
def test_the_ascent_raises_the_divergence(mode, norm, kind):
    f, embed = model(), torch.randn(8, 5, dtype=torch.float64)
    losses = []
    for steps in (0, 1, 5):
        noise = adversarial_noise(
            lambda r: divergence(f(embed + r), f(embed).detach(), kind),
            (8, 5),
            np.arange(3, dtype=np.uint64),
            sigma=1e-3,
            step_size=5.0,
            steps=steps,
            norm=norm,
            mode=mode,
            radius=0.02,
            lengths=LENGTHS,
            scope="sequence",
            dtype=torch.float64,
        )
        losses.append(divergence(f(embed + noise), f(embed), kind, "none"))
    assert (losses[1] > losses[0]).all() and (losses[2] > losses[0]).all()


def test_the_ascent_touches_no_parameter():
    weight = torch.randn(5, 5, requires_grad=True)
    with torch.no_grad():
        adversarial_noise(lambda r: (r @ weight).square().sum(), (8, 5), torch.Generator(), sigma=0.1)
    assert weight.grad is None


def test_noise_of_a_sequence_does_not_depend_on_the_packing():
    keys = sequence_keys(1, 0, np.arange(4), 0, "adversary")
    lengths = torch.tensor([3, 7, 1, 5])
    together = sequence_noise(keys, lengths, 9).split(lengths.tolist())
    order = [2, 0, 3, 1]
    other = sequence_noise(keys[order], lengths[order], 9).split(lengths[order].tolist())
    for place, row in enumerate(order):
        assert torch.equal(other[place], together[row])
    assert torch.equal(sequence_noise(keys[1:2], lengths[1:2] - 3, 9), together[1][:4])
    assert sequence_noise(keys[:0], lengths[:0], 9).shape == (0, 9)


def test_sequence_noise_is_standard_normal_and_uncorrelated():
    noise = sequence_noise(sequence_keys(1, 0, np.arange(500), 0, "adversary"), torch.full((500,), 20), 32)
    assert kstest(noise.flatten().numpy()[::7], "norm").pvalue > 1e-3
    tokens, features = torch.corrcoef(noise[:400]), torch.corrcoef(noise.T)
    assert (tokens - torch.eye(400)).abs().max() < 6.0 / math.sqrt(32)
    assert (features - torch.eye(32)).abs().max() < 6.0 / math.sqrt(10_000)
    assert noise.unique().numel() > 0.98 * noise.numel()


def test_noise_settings_are_checked():
    x = torch.zeros(8, 5)
    with pytest.raises(UserError, match="need a radius"):
        project_noise(x, x, 1.0, mode="ball")
    with pytest.raises(UserError, match="'smart' takes none"):
        project_noise(x, x, 1.0, mode="smart", radius=1.0)
    with pytest.raises(UserError, match="above 0"):
        project_noise(x, x, 1.0, mode="ball", radius=0.0)
    with pytest.raises(UserError, match=r"norm 'l1'.*inf, l2"):
        project_noise(x, x, 1.0, norm="l1")
    with pytest.raises(UserError, match=r"'mse'.*kl, symmetric-kl, js"):
        divergence(x, x, "mse")
    with pytest.raises(ValueError, match="8"):
        project_noise(x, x, 1.0, lengths=LENGTHS[:2])
    with pytest.raises(ValueError, match="lengths"):
        adversarial_noise(lambda r: r.sum(), (8, 5), np.arange(3, dtype=np.uint64))


# ---- DiffCSE
# ------------------------------------------------------------------------------------------------------------


def test_replaced_tokens_are_a_sum_over_all_tokens_of_the_sequences():
    logits = torch.randn(10, 2, dtype=torch.float64, requires_grad=True)
    replaced = torch.tensor([0, 1, 0, 0, 1, 1, 0, 0, 1, 1])
    ours = replaced_token_loss(logits, replaced, torch.tensor([3, 5]))  # two tokens fill the row up
    theirs = cross_entropy(logits[:8], replaced[:8], reduction="sum")
    torch.testing.assert_close(ours, theirs)
    (gradient,) = torch.autograd.grad(ours, logits)
    torch.testing.assert_close(gradient, torch.autograd.grad(theirs, logits)[0])
    assert not gradient[8:].any() and gradient[0].any()


def test_replaced_tokens_are_counted_in_float32():
    logits = torch.randn(10, 2)
    replaced = torch.randint(0, 2, (10,))
    with torch.autocast("cpu", torch.bfloat16):
        assert replaced_token_loss(logits.bfloat16(), replaced, torch.tensor([10])).dtype == torch.float32
    with pytest.raises(ValueError, match="11 tokens in a row of 10"):
        replaced_token_loss(logits, replaced, torch.tensor([11]))
    with pytest.raises(ValueError, match=r"\[T, 2\]"):
        replaced_token_loss(torch.randn(10, 3), replaced, torch.tensor([10]))
