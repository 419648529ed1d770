"""The plain kernels against their definitions, and dropout's hash against integers of Python's own."""

import sys

import pytest
import torch
from encoder_helpers import add_norm, norm_dropout
from torch.nn import functional

from pretrain.model import kernels
from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import dropout as hashing
from pretrain.model.kernels import fused, plain
from pretrain.model.kernels.dropout import Dropout

LENGTHS = torch.tensor([3, 3, 7, 1, 12])
CPU = torch.device("cpu")


def splitmix64(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def keeps(key, position, site, channel, rate):
    """Whether a value is kept, as the kernels' description says it."""
    token = splitmix64(key + (position + 1) * 0xD1342543DE82EF95)
    row = splitmix64(token + site * 0xA0761D6478BD642F)
    x = (channel * 0x9E3779B9 + row % 2**32) % 2**32
    x ^= x >> 16
    x = (x * 0x85EBCA6B + (row >> 32)) % 2**32
    x ^= x >> 13
    x = x * 0xC2B2AE35 % 2**32
    x ^= x >> 16
    return x >= int(rate * 2**32)


def sequence_keys(count=5, seed=0):
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=torch.Generator().manual_seed(seed))


def make_dropout(rate, site=9, filler=0):
    keys = hashing.token_keys(sequence_keys(), LENGTHS)
    return Dropout(rate, functional.pad(keys, (0, filler)), site)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_the_hash_is_that_of_python_integers(rate):
    dropout = make_dropout(rate, site=hashing.site_of(23, hashing.MLP))
    expected = [
        [keeps(key % 2**64, position, 23 * 8 + 3, channel, rate) for channel in range(50)]
        for key, length in zip(sequence_keys().tolist(), LENGTHS.tolist())
        for position in range(length)
    ]
    assert hashing.keep_mask(dropout, 50).tolist() == expected


def test_a_probabilitys_channel_is_its_head_and_key_position():
    dropout = make_dropout(0.3)
    keys = dropout.keys[-12:].view(1, 12)
    expected = [
        [
            [
                keeps(sequence_keys()[-1].item() % 2**64, query, 9, head * 65536 + key, 0.3)
                for key in range(12)
            ]
            for query in range(12)
        ]
        for head in range(5)
    ]
    assert hashing.kept_probabilities(keys, dropout, 5)[0].tolist() == expected


def test_kept_values_have_the_right_share_and_look_independent():
    lengths = torch.full((64,), 16)
    keys = hashing.token_keys(sequence_keys(64), lengths)
    layers = [hashing.keep_mask(Dropout(0.1, keys, hashing.site_of(layer, 1)), 256) for layer in range(4)]
    for kept in layers:
        assert kept.double().mean().item() == pytest.approx(0.9, abs=0.002)
        # Across channels, tokens and sequences each mean is a sum of independent draws.
        for axis in (0, 1):
            deviations = (kept.double().mean(axis) - 0.9) / (0.09 / kept.shape[axis]) ** 0.5
            assert deviations.std().item() == pytest.approx(1.0, abs=0.12)
    neighbours = [
        (layers[0], layers[1]),
        (layers[0][:, 1:], layers[0][:, :-1]),
        (layers[0][1:], layers[0][:-1]),
    ]
    for one, other in neighbours:
        dropped_twice = (~one & ~other).double().mean().item()
        assert dropped_twice == pytest.approx(0.01, abs=0.001)


def test_what_is_kept_does_not_depend_on_the_rest_of_the_row():
    whole = hashing.keep_mask(make_dropout(0.5), 8).split(LENGTHS.tolist())
    for number in range(len(LENGTHS)):
        keys = hashing.token_keys(sequence_keys()[number : number + 1], LENGTHS[number : number + 1])
        assert torch.equal(hashing.keep_mask(Dropout(0.5, keys, 9), 8), whole[number])


# ---- operations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [None, 0.0, 0.4])
@pytest.mark.parametrize("with_residual", [True, False])
def test_add_norm(rate, with_residual):
    x, bias, residual = normal(26, 8), normal(8, seed=1), normal(26, 8, seed=2)
    weight, norm_bias = normal(8, seed=3), normal(8, seed=4)
    dropout = None if rate is None else make_dropout(rate)
    added, normed = add_norm(
        plain, x, bias, residual if with_residual else None, weight, norm_bias, 1e-5, dropout
    )
    kept = torch.ones_like(x) if dropout is None else hashing.keep_mask(dropout, 8)
    expected = (x + bias) * kept / (1 - (rate or 0.0)) + (residual if with_residual else 0.0)
    torch.testing.assert_close(added, expected, rtol=1e-14, atol=1e-14)
    expected = functional.layer_norm(expected, (8,), weight, norm_bias, 1e-5)
    torch.testing.assert_close(normed, expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(add_norm(plain, x, None, residual, weight, None, 1e-5, None)[0], residual + x)


def test_norm_dropout_and_the_gelus():
    x, weight, bias = normal(26, 8), normal(8, seed=3), normal(8, seed=4)
    dropout = make_dropout(0.4)
    expected = functional.layer_norm(x, (8,), weight, bias, 1e-5) * hashing.keep_mask(dropout, 8) / 0.6
    torch.testing.assert_close(
        norm_dropout(plain, x, weight, bias, 1e-5, dropout), expected, rtol=1e-14, atol=1e-14
    )
    gelu = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(plain.bias_gelu(x, None), gelu, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(plain.bias_gelu(x - bias, bias), gelu, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(plain.gelu_gate(x), gelu[:, :4] * x[:, 4:], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("half_window", [None, 2])
@pytest.mark.parametrize("rate", [None, 0.0, 0.4])
@pytest.mark.parametrize("filler", [0, 3])
def test_attention_is_that_of_each_sequence_alone(half_window, rate, filler):
    qkv = normal(26 + filler, 3, 2, 4)
    layout = PackedLayout.build(LENGTHS, CPU, filler)
    dropout = None if rate is None else make_dropout(rate, filler=filler)
    output = plain.attention(qkv, layout, 0.7, half_window, dropout)
    start = 0
    for length in LENGTHS.tolist():
        q, k, v = qkv[start : start + length].unbind(1)
        scores = torch.einsum("ihd,jhd->hij", q, k) * 0.7
        if half_window is not None:
            place = torch.arange(length)
            scores = scores.masked_fill((place[:, None] - place).abs() > half_window, -torch.inf)
        probabilities = scores.softmax(-1)
        if dropout is not None:
            kept = hashing.kept_probabilities(dropout.keys[None, start : start + length], dropout, 2)[0]
            probabilities = probabilities * kept / (1 - dropout.rate)
        expected = torch.einsum("hij,jhd->ihd", probabilities, v)
        torch.testing.assert_close(output[start : start + length], expected, rtol=1e-12, atol=1e-12)
        start += length
    assert not output[26:].any()


def test_every_operation_has_the_right_gradient():
    dropout = make_dropout(0.4, filler=2)
    layout = PackedLayout.build(LENGTHS, CPU, 2)
    x, wide = normal(28, 4).requires_grad_(), normal(28, 8, seed=1).requires_grad_()
    qkv = normal(28, 3, 2, 2, seed=2).requires_grad_()
    weight, bias, more = (normal(4, seed=seed).requires_grad_() for seed in (3, 4, 5))
    checks = [
        (lambda *given: add_norm(plain, *given, 1e-5, dropout), (x, more, wide[:, :4], weight, bias)),
        (lambda *given: norm_dropout(plain, *given, 1e-5, dropout), (x, weight, bias)),
        (plain.bias_gelu, (x, bias)),
        (plain.gelu_gate, (wide,)),
        (lambda given: plain.attention(given, layout, 0.7, 3, dropout), (qkv,)),
    ]
    for operation, inputs in checks:
        assert torch.autograd.gradcheck(operation, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    """Inputs and parameters as they are, arithmetic in float32, one rounding at the end."""
    x, residual = (normal(26, 8, seed=seed).to(dtype) for seed in (1, 2))
    weight, bias = (normal(8, seed=seed).float() for seed in (3, 4))
    dropout = make_dropout(0.4)
    layout = PackedLayout.build(LENGTHS, CPU)
    qkv = normal(26, 3, 2, 4).to(dtype)
    for operation, *inputs in (
        (plain.bias_gelu, x, bias),
        (plain.gelu_gate, x),
        (lambda *given: norm_dropout(plain, *given, 1e-5, dropout), x, weight, bias),
        (lambda *given: add_norm(plain, *given, 1e-5, dropout)[0], x, bias, residual, weight, bias),
        (lambda *given: add_norm(plain, *given, 1e-5, dropout)[1], x, bias, residual, weight, bias),
        (lambda given: plain.attention(given, layout, 0.7, 3, dropout), qkv),
        (lambda given: plain.attention(given, layout, 0.7, 3, None), qkv),
    ):
        exact = operation(*(given.double() for given in inputs))
        output = operation(*inputs)
        assert output.dtype == dtype
        torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_a_float32_residual_stays_float32():
    x, residual = normal(26, 8).bfloat16(), normal(26, 8, seed=2).float()
    weight = normal(8, seed=3).float()
    added, normed = add_norm(plain, x, None, residual, weight, None, 1e-5, None)
    assert added.dtype == normed.dtype == torch.float32
    assert torch.equal(added, residual + x.float())


def test_with_a_triton_that_does_not_import_the_plain_operations_run(monkeypatch, tmp_path):
    (tmp_path / "triton.py").write_text("raise ImportError('no libcuda')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.delitem(sys.modules, "pretrain.model.kernels.programs", raising=False)
    monkeypatch.delattr(kernels, "programs", raising=False)
    assert not fused.available.__wrapped__()
