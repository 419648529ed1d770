"""Projection heads: shapes, precision, and what is refused."""

import pytest
import torch

from pretrain.errors import UserError
from pretrain.heads import ProjectionHead


def test_two_layers_equal_the_formula():
    head = ProjectionHead(8, 16, 4)
    x = torch.randn(5, 8)
    first, second = head.layers[0], head.layers[2]
    expected = torch.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(head(x), expected)


@pytest.mark.parametrize(("layers", "batch_norm", "linear", "norms"), [(1, True, 1, 0), (2, False, 2, 0),
                                                                      (3, True, 3, 2)])
def test_layers_and_batch_norm(layers, batch_norm, linear, norms):
    head = ProjectionHead(8, 16, 4, layers=layers, batch_norm=batch_norm)
    assert sum(isinstance(m, torch.nn.Linear) for m in head.layers) == linear
    assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in head.layers) == norms
    assert head(torch.randn(6, 8)).shape == (6, 4)


def test_computes_in_its_own_precision_under_autocast():
    head = ProjectionHead(8, 16, 4)
    x = torch.randn(5, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(head(x), head(x.float()))
        assert head(x.bfloat16()).dtype == torch.float32
    assert head.double()(x).dtype == torch.float64


def test_bad_settings_are_explained():
    with pytest.raises(UserError, match=r"'swish'.*relu, gelu, tanh"):
        ProjectionHead(8, 8, 8, activation="swish")
    with pytest.raises(UserError, match="at least one layer"):
        ProjectionHead(8, 8, 8, layers=0)
