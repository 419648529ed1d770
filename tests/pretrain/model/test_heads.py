"""Projection heads: formulas, precision, batch statistics, and what is refused."""

import pytest
import torch
from torch.nn.functional import batch_norm

from pretrain.model.heads import batch_norm_head, simclr_head, simcse_head, vascl_head


def test_two_layers_equal_the_formula():
    head = simclr_head([8, 16, 4])
    x = torch.randn(5, 8)
    first, second = head.layers[0], head.layers[2]
    expected = torch.relu(x @ first.weight.T + first.bias) @ second.weight.T + second.bias
    torch.testing.assert_close(head(x), expected)


@pytest.mark.parametrize(
    ("layers", "batch_norm", "linear", "norms"), [(1, True, 1, 0), (2, False, 2, 0), (3, True, 3, 2)]
)
def test_layers_and_batch_norm(layers, batch_norm, linear, norms):
    head = simclr_head([8, *[16] * (layers - 1), 4], batch_norm)
    assert sum(isinstance(m, torch.nn.Linear) for m in head.layers) == linear
    assert sum(isinstance(m, torch.nn.BatchNorm1d) for m in head.layers) == norms
    assert head(torch.randn(6, 8)).shape == (6, 4)


def test_heads_of_the_papers_equal_their_code():
    x = torch.randn(20, 8, dtype=torch.float64)

    head = simcse_head(8).double()
    dense = head.layers[0]
    torch.testing.assert_close(head(x), (x @ dense.weight.T + dense.bias).tanh())

    head = vascl_head(8).double()
    assert [tuple(p.shape) for p in head.parameters()] == [(8, 8), (128, 8)]
    torch.testing.assert_close(head(x), (x @ head.layers[0].weight.T).relu() @ head.layers[2].weight.T)

    head = batch_norm_head(8).double()
    names = [name for name, _ in head.named_parameters()]
    assert names == ["layers.0.weight", "layers.1.weight", "layers.1.bias", "layers.3.weight"]
    theirs = torch.nn.Sequential(
        torch.nn.Linear(8, 16, bias=False),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(),
        torch.nn.Linear(16, 8, bias=False),
        torch.nn.BatchNorm1d(8, affine=False),
    ).double()
    head.layers.load_state_dict(theirs.state_dict())
    for mode in (True, False):
        torch.testing.assert_close(head.train(mode)(x), theirs.train(mode)(x))
    torch.testing.assert_close(head.layers.state_dict(), theirs.state_dict())


def test_initialisation_is_berts_or_torchs():
    torch.manual_seed(0)
    head = simcse_head(256)
    assert head.layers[0].weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert head.layers[0].weight.abs().max() > 0.07 and not head.layers[0].bias.any()
    plain = simcse_head(256, initializer_range=None)
    assert plain.layers[0].weight.abs().max() <= 256**-0.5 and plain.layers[0].bias.any()
    assert batch_norm_head(256).layers[3].weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_fixed_statistics_are_those_of_the_whole_batch():
    head, whole = batch_norm_head(6).double(), torch.randn(40, 6, dtype=torch.float64)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    statistics = head.statistics(whole)
    assert len(statistics) == 2 and not any(x.requires_grad for pair in statistics for x in pair)
    hidden = whole @ head.layers[0].weight.T
    torch.testing.assert_close(statistics[0], (hidden.mean(0), hidden.var(0, unbiased=False)))
    parts = torch.cat([head(part, statistics) for part in whole.split([1, 7, 32])])
    torch.testing.assert_close(head.state_dict(), before, rtol=0, atol=0)
    torch.testing.assert_close(parts, head(whole))
    # that was a training pass
    assert any(not torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_with_fixed_statistics_no_gradient_passes_between_vectors():
    head = batch_norm_head(6).double()
    x = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    statistics = head.statistics(x)
    (gradient,) = torch.autograd.grad(head(x, statistics)[3].sum(), x)
    assert gradient[3].any() and not gradient[:3].any() and not gradient[4:].any()
    hidden = batch_norm(
        x @ head.layers[0].weight.T, *statistics[0], head.layers[1].weight, head.layers[1].bias
    ).relu()
    (expected,) = torch.autograd.grad(
        batch_norm(hidden @ head.layers[3].weight.T, *statistics[1])[3].sum(), x
    )
    torch.testing.assert_close(gradient, expected)


def test_statistics_belong_to_the_head():
    head, plain = batch_norm_head(6), vascl_head(6)
    assert plain.statistics(torch.randn(3, 6)) == ()
    plain(torch.randn(3, 6), ())
    with pytest.raises(RuntimeError):
        head(torch.randn(5, 7), head.statistics(torch.randn(5, 6)))


def test_computes_in_its_own_precision_under_autocast():
    for head in (simclr_head([8, 16, 4]), batch_norm_head(8).eval(), simcse_head(8)):
        x = torch.randn(5, 8)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(head(x), head(x.float()))
            assert head(x.bfloat16()).dtype == torch.float32
        assert head.double()(x).dtype == torch.float64
