"""The GPU's kernels against the plain ones in float64: on a GPU, elsewhere by Triton's interpreter."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; torch's CUDA build brings it")

from encoder_helpers import make_encoder, norm_dropout, random_ids
from run_helpers import ROOT

from pretrain.model import encoder as encoder_module
from pretrain.model.kernels import dropout as hashing
from pretrain.model.kernels import fused, plain
from pretrain.model.kernels.dropout import Dropout, site_of
from pretrain.model.kernels.plain import IGNORED

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LENGTHS = torch.tensor([3, 1, 12, 9])
TYPES = [torch.float32, torch.bfloat16, torch.float16]
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3, torch.float16: 8e-4}
"""Of the error in L2, relative: a rounding of the type, and of float32 several."""


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def make_dropout(rate: float | None = 0.3) -> Dropout | None:
    if rate is None:
        return None
    keys = hashing.token_keys(torch.arange(-2, 2, dtype=torch.int64) * 0x5DEECE66D1234567, LENGTHS)
    return Dropout(rate, keys.to(DEVICE), site_of(23, hashing.MLP))


def close(found, exact, dtype) -> None:
    assert found.shape == exact.shape and found.isfinite().all()
    error = torch.linalg.vector_norm(found.double() - exact.double())
    assert error <= TOLERANCE[dtype] * torch.linalg.vector_norm(exact.double()), float(error)


def call(module, name: str, *given: object):
    if name == "residual_norm":
        *before, weight, bias, eps, dropout, dtype, post = given
        return module.residual_norm(*before, plain.Norm(weight, bias, eps), plain.How(dropout, dtype, post))
    if name == "norm_dropout":
        return norm_dropout(module, *given)
    return getattr(module, name)(*given)


def check(name: str, inputs: list, *more: object, dtype: torch.dtype) -> None:
    """Compare outputs and gradients with those of the plain operation, in float64, for the same weights."""
    found, exact = [], []
    for module, results, wide in ((fused, found, False), (plain, exact, True)):
        leaves = [
            None if x is None else (x.double() if wide else x).detach().clone().requires_grad_()
            for x in inputs
        ]
        given = [torch.float64 if wide and x is dtype else x for x in more]
        outputs = call(module, name, *leaves, *given)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        loss = sum(
            (output.double() * normal(*output.shape, seed=70 + number).double()).sum()
            for number, output in enumerate(outputs)
        )
        loss.backward()
        results += [*outputs, *(leaf.grad for leaf in leaves if leaf is not None)]
        if not wide:
            assert all(leaf is None or leaf.grad.dtype == leaf.dtype for leaf in leaves)
    for ours, theirs in zip(found, exact, strict=True):
        close(ours, theirs, dtype)
    with torch.no_grad():  # what only a backward reads is not written
        again = call(fused, name, *inputs, *more)
    again = again if isinstance(again, tuple) else (again,)
    assert all(torch.equal(ours, without) for ours, without in zip(found, again, strict=False))


@pytest.mark.parametrize("post", [True, False])
@pytest.mark.parametrize("residual", ["none", "own", "float32"])
@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("dtype", TYPES[:2])
def test_residual_norm(dtype, rate, residual, post):
    width = 40
    stream = (
        None
        if residual == "none"
        else normal(25, width, seed=1, dtype=dtype if residual == "own" else torch.float32)
    )
    inputs = [normal(25, width, seed=0, dtype=dtype), normal(width, seed=2), stream]
    inputs += [normal(width, seed=3), normal(width, seed=4)]
    check("residual_norm", inputs, 1e-5, make_dropout(rate), dtype, post, dtype=dtype)


def test_connect_without_biases_and_with_one_gradient_missing():
    inputs = [normal(25, 24, seed=0), None, normal(25, 24, seed=1), normal(24, seed=3), None]
    check("residual_norm", inputs, 1e-5, None, torch.float32, False, dtype=torch.float32)
    for post in (True, False):
        for chosen in (0, 1):
            gradients = []
            for module, dtype in ((fused, torch.float32), (plain, torch.float64)):
                leaves = [None if x is None else x.to(dtype).requires_grad_() for x in inputs]
                leaves = [None if x is None else x.detach().requires_grad_() for x in leaves]
                outputs = call(module, "residual_norm", *leaves, 1e-5, make_dropout(), dtype, post)
                outputs[chosen].square().sum().backward()
                gradients.append([x.grad for x in leaves if x is not None])
            for ours, theirs in zip(*gradients):
                # a sum that goes on is no function of the norm's weight
                theirs = torch.zeros_like(ours) if theirs is None else theirs
                close(ours, theirs, torch.float32)


@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("dtype", TYPES)
def test_norm_dropout(dtype, rate):
    inputs = [normal(25, 72, seed=0, dtype=dtype), normal(72, seed=3), normal(72, seed=4)]
    check("norm_dropout", inputs, 1e-5, make_dropout(rate), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_bias_gelu(dtype):
    check("bias_gelu", [normal(25, 1100, seed=0, dtype=dtype), normal(1100, seed=2)], dtype=dtype)
    check("bias_gelu", [normal(25, 48, seed=0, dtype=dtype), None], dtype=dtype)


@pytest.mark.parametrize("rate", [None, 0.3])
@pytest.mark.parametrize("dtype", TYPES)
def test_gelu_gate(dtype, rate):
    check("gelu_gate", [normal(25, 2 * 1050, seed=0, dtype=dtype)], make_dropout(rate), dtype=dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_rotate(dtype):
    angle = torch.arange(25)[:, None] * torch.tensor([1.0, 0.3, 0.01]).repeat(2)
    both = [turn(angle)[:, None, None].to(DEVICE) for turn in (torch.cos, torch.sin)]
    check("rotate", [normal(25, 3, 5, 6, seed=0, dtype=dtype)], *both, dtype=dtype)


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.5, 0.999])
def test_dropout_keeps_what_the_hash_says_bit_by_bit(rate):
    dropout = make_dropout(rate)
    ones = torch.ones(25, 300, device=DEVICE)
    kept = fused.gelu_gate(torch.cat([100 * ones, ones], 1), dropout) != 0
    assert torch.equal(kept, hashing.keep_mask(dropout, 300))


def test_programs_that_add_up_rows_are_more_for_more_rows():
    counts = [len(fused._partial_sums(torch.empty(rows, 1), 1)) for rows in (0, 9, 3072, 32_768, 131_072)]
    assert counts == [1, 9, 512, 1024, 2112]


@pytest.mark.parametrize("programs", [(8, 8), (2, 9), (2, 3)])
def test_sums_of_more_rows_than_programs_are_the_same_at_every_call(monkeypatch, programs):
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    x, bias = normal(61, 24, seed=0), normal(24, seed=1)

    def gradient():
        leaf = bias.clone().requires_grad_()
        fused.bias_gelu(x, leaf).square().sum().backward()
        return leaf.grad

    first = gradient()
    assert torch.equal(first, gradient())
    exact = bias.double().requires_grad_()
    plain.bias_gelu(x.double(), exact).square().sum().backward()
    close(first, exact.grad, torch.float32)


def test_no_rows():
    check("bias_gelu", [normal(0, 48, seed=0), normal(48, seed=2)], dtype=torch.float32)
    inputs = [normal(0, 8, seed=0), None, normal(0, 8, seed=1), normal(8, seed=3), normal(8, seed=4)]
    check("residual_norm", inputs, 1e-5, None, torch.float32, True, dtype=torch.float32)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [70, 5000])
def test_cross_entropy_of_filled_up_logits(dtype, width):
    logits = normal(9, -(-width // 128) * 128, seed=0, dtype=dtype)
    labels = torch.tensor([0, 1, 2, IGNORED, 4, 69, 6, 7, IGNORED], device=DEVICE)
    exact = logits[:, :width].double().requires_grad_()
    loss = torch.nn.functional.cross_entropy(exact, labels, reduction="sum", ignore_index=IGNORED)
    (0.7 * loss).backward()
    with torch.no_grad():
        close(fused.cross_entropy_sum(logits.clone(), labels, width), loss, torch.float32)
    leaf = logits.clone().requires_grad_()
    found = fused.cross_entropy_sum(leaf * 1, labels, width)
    (once,) = torch.autograd.grad(found, leaf, retain_graph=True)
    (0.7 * found).backward()
    assert torch.equal(leaf.grad, (0.7 * once.float()).to(dtype))  # the weight stays float32
    close(found, loss, torch.float32)
    # one rounding: Triton's interpreter cuts digits off where a GPU rounds to the nearest
    close(once[:, :width], exact.grad / 0.7, dtype)
    assert not leaf.grad[:, width:].any() and not leaf.grad[labels == IGNORED].any()


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_an_encoder_with_dropout_is_that_of_the_plain_kernels(family, monkeypatch):
    encoder = make_encoder(family, layers=2, dropout=0.2, attention_dropout=0.1).to(DEVICE).train()
    ids, keys = random_ids(LENGTHS).to(DEVICE), np.arange(4, dtype=np.uint64)
    results = []
    for kernels in (plain, fused):
        monkeypatch.setattr(encoder_module, "kernels_for", lambda device, dtype, kernels=kernels: kernels)
        hidden = encoder.states(ids, LENGTHS, None, keys=keys).last
        (hidden * normal(*hidden.shape, seed=1)).sum().backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        results.append({"hidden": hidden.detach()} | gradients)
        encoder.zero_grad(set_to_none=True)
    assert results[0].keys() == results[1].keys()
    scale = max(float(torch.linalg.vector_norm(x)) for x in results[0].values())
    for name, expected in results[0].items():
        error = torch.linalg.vector_norm(results[1][name] - expected)
        assert error < 1e-5 * torch.linalg.vector_norm(expected) + 1e-7 * scale, name


def compile_programs(tmp_path, *words: str) -> list[list[str]]:
    """Return the words of each line that is printed."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(Path(__file__).with_name("compile_programs.py")), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [line.split() for line in done.stdout.splitlines()]


def test_every_program_compiles_for_a_gpu_that_is_not_here(tmp_path):
    compiled = {line[0] for line in compile_programs(tmp_path)}
    assert {"norm_forward", "norm_backward", "attention_backward", "cross_entropy"} <= compiled


@pytest.mark.full
def test_attention_shares_no_more_memory_than_it_is_held_to(tmp_path):
    lines = compile_programs(tmp_path, "tiles")
    left = [line[1:4] for line in lines if line[4] == "is"]
    assert left == [["128", "128", "4"]]  # channels, tokens, bytes of a number
    sizes = [(int(shared), int(bound)) for *_, shared, bound in lines if bound.isdigit()]
    assert len(sizes) == len(lines) - len(left) == 29
    assert all(shared <= bound <= 227 * 1024 for shared, bound in sizes), lines
    assert any(shared == bound for shared, bound in sizes)
