"""V-advCSE's divergences and noise against the formulas, in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from augment.core.keys import sequence_keys
from pretrain.config.terms import ADVERSARIAL_READINGS
from pretrain.objectives.vadvcse import (
    adversarial_noise,
    divergence,
    project_noise,
    sequence_noise,
    sizes,
)

# ---- divergences
# ----------------------------------------------------------------------------------------------


def reference_divergence(p_logits, q_logits, kind, form="packaged"):
    """By row, with probabilities: smart-pytorch's kl_loss, sym_kl_loss and js_loss, or equations 11 to 14."""
    p, q = p_logits.softmax(-1), q_logits.softmax(-1)

    def kl(a, b):
        return (a * (a.log() - b.log())).sum(-1)

    mean = 0.5 * (p + q)
    if kind == "kl":
        return kl(q, p)
    if kind == "symmetric-kl":
        return kl(q.detach(), p) + kl(p.detach(), q) if form == "packaged" else (kl(q, p) + kl(p, q)) / 2
    if form == "packaged":
        return kl(mean.detach(), p) + kl(mean.detach(), q)
    return (kl(p, mean) + kl(q, mean)) / 2


@pytest.mark.parametrize("kind", ["kl", "symmetric-kl", "js"])
@pytest.mark.parametrize("form", ["packaged", "printed"])
def test_divergences_equal_the_formulas(kind, form):
    p, q = (torch.randn(5, 9, dtype=torch.float64, requires_grad=True) for _ in range(2))
    theirs = reference_divergence(p, q, kind, form).sum()
    ours = divergence(p, q, kind, form)
    torch.testing.assert_close(ours, theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours.sum(), (p, q)), torch.autograd.grad(theirs.sum(), (p, q))
    ):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("kind", ["kl", "symmetric-kl", "js"])
def test_divergences_are_0_between_equals_above_it_otherwise_and_float32(kind):
    p = 30 * torch.randn(5, 768)  # probabilities that underflow
    assert divergence(p, p + 3.0, kind).item() == pytest.approx(0.0, abs=1e-3)
    assert divergence(p, torch.randn(5, 768), kind) > 0
    with torch.autocast("cpu", torch.bfloat16):
        assert divergence(p.bfloat16(), p, kind).dtype == torch.float32


def test_the_packaged_js_is_about_twice_the_printed_one_near_equality():
    p = torch.randn(4, 9, dtype=torch.float64)
    q = p + 1e-3 * torch.randn(4, 9, dtype=torch.float64)
    ratio = divergence(p, q, "js") / divergence(p, q, "js", form="printed")
    assert ratio.item() == pytest.approx(2.0, rel=1e-3)


def test_the_printed_js_is_at_most_log_2():
    far = 100 * torch.eye(2, dtype=torch.float64)
    assert divergence(far, far.flip(0), "js", "printed").item() == pytest.approx(2 * math.log(2))


# ---- the noise
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

    closed = project_noise(noise, gradient, 0.3, norm, "closed-form", 1.5, lengths)
    expected = 1.5 * (gradient.sign() if norm == "inf" else gradient / lengths_of(gradient))
    torch.testing.assert_close(closed, expected)

    ball = project_noise(noise, gradient, 0.3, norm, "ball", 1.5, lengths)
    assert (lengths_of(ball) <= 1.5 * (1 + 1e-12)).all()
    wide = project_noise(noise, gradient, 0.3, norm, "ball", 1e3, lengths)
    torch.testing.assert_close(wide, noise + 0.3 * 1e3 / 1.5 * closed)
    step = noise + 0.3 * closed
    for _ in range(50):  # no point of the ball is nearer to the step, sequence by sequence
        other = torch.randn(8, 5, dtype=torch.float64)
        other = other / lengths_of(other) * 1.5 * torch.rand(8, 1)[0]
        assert ((other - step).square().sum() >= (ball - step).square().sum()).all()

    of_sequences = torch.tensor([1.5, 0.2, 4.0], dtype=torch.float64)
    radii = of_sequences.repeat_interleave(LENGTHS)[:, None]
    each = project_noise(noise, gradient, 0.3, norm, "ball", radii, lengths)
    torch.testing.assert_close(each[:3], ball[:3])
    assert (lengths_of(each)[3] <= 0.2 * (1 + 1e-12)).all()


def test_sizes_measure_the_words_of_each_sequence_as_the_norms_do():
    words = torch.randn(8, 5, dtype=torch.float64)
    parts = words.split(LENGTHS.tolist())
    l2, inf = sizes(words, LENGTHS, "l2"), sizes(words, LENGTHS, "inf")
    for index, rows in ((0, slice(0, 3)), (1, slice(3, 4)), (2, slice(4, 8))):
        torch.testing.assert_close(l2[rows], parts[index].norm().expand(len(l2[rows]), 1))
        torch.testing.assert_close(inf[rows], parts[index].square().mean().sqrt().expand(len(l2[rows]), 1))


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


def reading(**given):
    return replace(ADVERSARIAL_READINGS["smart-package"], **given)


@pytest.mark.parametrize(("norm", "order"), [("l2", 2), ("inf", torch.inf)])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_smart_ascent_is_the_packages(norm, order, steps):
    f, embed = model(), torch.randn(8, 5, dtype=torch.float64)

    def objective(noise):
        return divergence(f(embed + noise), f(embed).detach(), "js")

    start = torch.randn(8, 5, generator=torch.Generator().manual_seed(4)).double()
    noise = adversarial_noise(objective, start, LENGTHS, reading(sigma=0.1, step_size=0.5, norm=norm), steps)
    start = 0.1 * start
    expected = smart_loss(
        embed, f, lambda p, q: reference_divergence(p, q, "js").sum(), start, steps, 0.5, order
    )
    torch.testing.assert_close(noise, expected)
    assert not noise.requires_grad


@pytest.mark.parametrize("kind", ["kl", "js"])
def test_the_adversarial_direction_is_that_of_finite_differences(kind):
    f, embed = model(), torch.randn(8, 5, dtype=torch.float64)
    keys = np.arange(3, dtype=np.uint64)
    clean, start = f(embed), sequence_noise(keys, LENGTHS, 5).double()
    noise = adversarial_noise(
        lambda r: divergence(f(embed + r), clean, kind),
        start,
        LENGTHS,
        reading(sigma=0.3, norm="l2", projection="closed-form", scope="sequence"),
        1,
        0.01,
    )
    start = 0.3 * start
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
            sequence_noise(np.arange(3, dtype=np.uint64), LENGTHS, 5).double(),
            LENGTHS,
            reading(sigma=1e-3, step_size=1.0, norm=norm, projection=mode, scope="sequence"),
            steps,
            0.02,
        )
        pairs = zip(f(embed + noise), f(embed))
        losses.append(torch.stack([divergence(p[None], q[None], kind) for p, q in pairs]))
    assert (losses[1] > losses[0]).all() and (losses[2] > losses[0]).all()


def test_the_ascent_touches_no_parameter():
    weight = torch.randn(5, 5, requires_grad=True)
    with torch.no_grad():
        start = torch.randn(8, 5)
        adversarial_noise(lambda r: (r @ weight).square().sum(), start, LENGTHS, reading(sigma=0.1), 1)
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
