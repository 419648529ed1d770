"""Attention by a GPU's own programs against the plain one in float64: on a GPU, elsewhere by Triton's
interpreter."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; torch's CUDA build brings it")

import triton.language as tl
from triton.runtime import interpreter

from pretrain.model.attention import PackedLayout
from pretrain.model.kernels import dropout as hashing
from pretrain.model.kernels import fused, plain
from pretrain.model.kernels.dropout import Dropout, site_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}
"""Of the error in L2, relative; Triton's interpreter cuts digits off where a GPU rounds to the nearest."""
RAGGED = (65, 1, 128, 17, 17, 64, 2, 33, 16, 5, 100)
LONG = (129, 3, 290)


@pytest.fixture(autouse=True)
def products_of_bfloat16(monkeypatch):
    """Widen bfloat16 before a product: Triton's interpreter keeps it as integers, and multiplies these."""
    create_dot = interpreter.InterpreterBuilder.create_dot

    def wide(x):
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def widened(self, a, b, *more):
        return create_dot(self, wide(a), wide(b), *more)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", widened)


class Row:
    """A packed row with filler: its layout, qkv [T, 3, heads, size], an upstream gradient, a dropout."""

    def __init__(self, lengths, heads, size, dtype=torch.float32, rate=0.3, filler=20):
        lengths = torch.tensor(lengths)
        self.layout = PackedLayout.build(lengths, DEVICE, filler)
        self.tokens, total = self.layout.num_tokens, self.layout.num_tokens + filler
        generator = torch.Generator().manual_seed(total)
        self.qkv = torch.randn((total, 3, heads, size), generator=generator).to(DEVICE, dtype)
        self.gradient = torch.randn((total, heads, size), generator=generator).to(DEVICE, dtype)
        self.gradient[self.tokens :] = 0  # nobody reads filler
        keys = hashing.token_keys(torch.arange(len(lengths)) * 0x5DEECE66D1234567, lengths)
        keys = torch.nn.functional.pad(keys, (0, filler)).to(DEVICE)
        self.dropout = Dropout(rate, keys, site_of(0, hashing.PROBABILITIES)) if rate else None

    def run(self, module=fused, window=None, dtype=None, start=0):
        """Return output and gradient of its tokens from `start` on."""
        leaf = self.qkv.to(dtype or self.qkv.dtype).detach().requires_grad_()
        output = module.attention(leaf, self.layout, self.qkv.shape[-1] ** -0.5, window, self.dropout)
        output.backward(self.gradient.to(output.dtype))
        assert output.dtype == leaf.dtype and output.isfinite().all() and leaf.grad.isfinite().all()
        assert not leaf.grad[self.tokens :].any()
        return output.detach()[start : self.tokens], leaf.grad[start : self.tokens]


def check(row: Row, window: int | None = None) -> None:
    for found, exact in zip(row.run(window=window), row.run(plain, window, torch.float64)):
        assert found.shape == exact.shape
        error = torch.linalg.vector_norm(found.double() - exact) / torch.linalg.vector_norm(exact)
        assert error < TOLERANCE[row.qkv.dtype], float(error)


@pytest.mark.parametrize(
    "dtype,size,rate,window",
    [
        (torch.float32, 32, 0.0, None),
        (torch.float32, 80, 0.3, 14),  # leaves out a little of 16 tokens
        (torch.bfloat16, 64, 0.1, None),
        (torch.float16, 128, 0.3, 64),
    ],
)
def test_it_equals_the_plain_operation_in_float64(dtype, size, rate, window):
    row = Row(RAGGED, 2, size, dtype, rate)
    assert fused.takes_attention(row.qkv, row.layout)
    assert [most for most, _ in row.layout.buckets] == [16, 32, 64, 128]
    check(row, window)


def test_dropout_keeps_what_the_hash_says_bit_by_bit():
    """Values that are unit vectors give back the probabilities."""
    row = Row([128], 2, 128, filler=0)
    row.qkv[:, 2] = torch.eye(128, device=DEVICE)[:, None]
    kept = hashing.kept_probabilities(row.dropout.keys[None], row.dropout, 2)[0]
    assert torch.equal(row.run()[0].transpose(0, 1) != 0, kept)


@pytest.mark.parametrize("lengths,first,dtype", [(RAGGED, 6, torch.float32), (LONG, 1, torch.bfloat16)])
def test_a_sequence_has_the_same_bits_in_any_row(lengths, first, dtype):
    row = Row(lengths, 2, 32, dtype)
    assert fused.takes_attention(row.qkv, row.layout) == (lengths is RAGGED)
    start, half = sum(lengths[:first]), Row(lengths[first:], 2, 32, dtype, filler=0)
    part = slice(start, row.tokens)
    half.qkv, half.gradient = row.qkv[part], row.gradient[part]
    half.dropout = replace(row.dropout, keys=row.dropout.keys[part])
    for whole, alone in zip(row.run(start=start), half.run()):
        assert torch.equal(whole, alone)


def test_slots_without_tokens_change_nothing():
    row = Row([3, 16], 2, 32, filler=0)
    expected = row.run()
    slots = torch.cat([row.layout.slots, torch.zeros_like(row.layout.slots)])
    row.layout = replace(row.layout, slots=slots, buckets=((16, len(slots)),))
    assert all(torch.equal(found, exact) for found, exact in zip(row.run(), expected))


@pytest.mark.parametrize(
    "dtype,size,rate,window", [(torch.bfloat16, 64, 0.1, None), (torch.float16, 40, 0.3, 64)]
)
def test_long_sequences_equal_the_plain_operation_too(dtype, size, rate, window):
    row = Row(LONG, 1, size, dtype, rate)
    assert not fused.takes_attention(row.qkv, row.layout)
    check(row, window)


def test_what_is_too_large_is_left_to_others():
    row = Row([3, 129], 1, 32, filler=0)
    assert not row.layout.buckets
    check(row)
    short = PackedLayout.build(torch.tensor([3]), DEVICE)
    assert fused.takes_attention(torch.zeros(3, 3, 1, 128), short)
    assert not fused.takes_attention(torch.zeros(3, 3, 1, 129), short)
    assert not fused.takes_attention(torch.zeros(3, 3, 1, 32, dtype=torch.float64), short)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("size", [32, 64, 128])
def test_on_a_gpu_every_length(dtype, size):
    row = Row(range(1, 129), 12, size, dtype, 0.1)
    check(row)
    check(row, window=64)
    assert all(torch.equal(once, again) for once, again in zip(row.run(), row.run()))
    check(Row((129, 3, 300, 512), 12, size, dtype, 0.1))
