"""What TF32 products (`train.tf32`) cost a contrastive loss, against float64: on a GPU, elsewhere rounded so.

TF32 cuts the factors of a product to 11 digits, rounded to the nearest or towards 0, and adds up in float32.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.losses import contrastive
from pretrain.losses.contrastive import info_nce, nt_xent

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
COUNT, WIDTH, TILE = 1024, 256, 128
LIMITS = {"nearest": (5e-5, 2.5e-3), "cut": (2e-2, 2e-2), "gpu": (2e-2, 2e-2)}
"""Most that the loss is off, of itself, and the gradient, of its norm. Cut factors shorten vectors alike, so
cosines near 1 lose 1 in 2,000, which a temperature of 0.05 makes a hundredth of a small loss."""
aten = torch.ops.aten
FACTORS = {aten.mm.default: (0, 1), aten.mm.out: (0, 1), aten.addmm_.default: (1, 2)}


class Tf32(TorchDispatchMode):
    """Round the factors of float32 products; count the products."""

    def __init__(self, nearest):
        super().__init__()
        self.nearest, self.count = nearest, 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        given = list(arguments)
        for place in FACTORS.get(function, ()):
            given[place] = rounded(given[place], self.nearest)
        self.count += function in FACTORS
        return function(*given, **(keywords or {}))


def rounded(x: torch.Tensor, nearest: bool) -> torch.Tensor:
    """Round float32 numbers to 11 significant bits: to the nearest, ties to even, or towards 0."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + nearest * (0xFFF + ((bits >> 13) & 1))) & ~0x1FFF).view(torch.float32)


def test_numbers_are_rounded_to_11_bits():
    numbers = torch.tensor([1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-10, -3.0, 1 + 2**-11 + 2**-20, 0.0])
    expected = torch.tensor([1, 1 + 2**-9, 1 + 2**-10, -3.0, 1 + 2**-10, 0.0])
    assert torch.equal(rounded(numbers, True), expected)
    expected = torch.tensor([1, 1 + 2**-10, 1 + 2**-10, -3.0, 1, 0.0])
    assert torch.equal(rounded(numbers, False), expected)


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    monkeypatch.setattr(contrastive, "tile_rows", lambda device, candidates: TILE)


def info(first, second):
    return info_nce(first, second, 0.05)


def both(first, second):
    return nt_xent(torch.stack([first, second]), 0.05)


def found(loss, first, second):
    value = loss(first.requires_grad_(), second.requires_grad_())
    return value, torch.cat(torch.autograd.grad(value, (first, second)))


@pytest.mark.parametrize("loss", [info, both])
@pytest.mark.parametrize("noise", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("products", ["nearest", "cut", pytest.param("gpu", marks=GPU)])
def test_products_in_tf32_are_near_float64s(loss, noise, products, monkeypatch):
    """noise: of a positive; by 0.1 it is told apart from all others, by 3 it hardly is."""
    generator = torch.Generator().manual_seed(0)
    first, other = torch.randn(2, COUNT, WIDTH, generator=generator)
    given = [part.to("cuda" if products == "gpu" else "cpu") for part in (first, first + noise * other)]
    exact_loss, exact = found(loss, *(part.double() for part in given))
    if products == "gpu":
        monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
        value, gradient = found(loss, *given)
    else:
        with Tf32(products == "nearest") as tf32:
            value, gradient = found(loss, *given)
        assert tf32.count >= 3 * COUNT // TILE
    assert value.dtype == gradient.dtype == torch.float32
    most_of_loss, most_of_gradient = LIMITS[products]
    assert abs(value - exact_loss) <= most_of_loss * exact_loss
    assert (gradient - exact).norm() <= most_of_gradient * exact.norm()
