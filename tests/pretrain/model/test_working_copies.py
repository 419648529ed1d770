"""Working copies of weights: what is read, and what of its gradient comes back to the parameters."""

import pytest
import torch

from pretrain.model.weights import WorkingCopies


def parameters(*rows):
    generator = torch.Generator().manual_seed(len(rows))
    return tuple(torch.randn(n, 4, generator=generator).requires_grad_() for n in rows)


@pytest.mark.parametrize(
    "rows, multiple, leaf",
    [
        *(((3,), None, False), ((3,), 2, False), ((4,), 2, False), ((3, 2), None, False), ((3, 2), 8, False)),
        *(((3,), None, True), ((3, 2), None, True)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_copy_is_the_parameters_one_under_the_other_and_zeros(rows, multiple, dtype, leaf):
    masters = parameters(*rows)
    more = {} if multiple is None else {"multiple": multiple}
    copies = WorkingCopies({})
    copy = copies.read(masters, dtype, leaf=leaf, **more)
    filler = -sum(rows) % (multiple or 1)
    expected = torch.cat([*(part.detach() for part in masters), torch.zeros(filler, 4)])
    assert copy.dtype == dtype and torch.equal(copy.detach(), expected.to(dtype))
    scale = torch.arange(1.0, 1 + len(copy))[:, None].to(dtype)
    (copy * scale).sum().backward()
    if leaf:
        assert all(part.grad is None for part in masters) and copy.is_leaf
        copies.add_gradients(None)
        assert copy.grad is None
    rates = scale.float().expand(-1, 4).split([*rows, filler])
    for part, rate in zip(masters, rates):
        assert part.grad.dtype == part.dtype and torch.equal(part.grad, rate)


def test_gradients_of_leaves_are_divided_once_and_added_to_those_that_are_there():
    (first,), (second,) = parameters(3), parameters(2)
    first.grad = torch.full((3, 4), 10.0)
    copies = WorkingCopies({})
    reads = [
        copies.read((one,), dtype, leaf=True)
        for one, dtype in ((first, torch.bfloat16), (second, torch.float32))
    ]
    sum(8 * read.float().sum() for read in reads).backward()
    copies.add_gradients(torch.tensor(4.0))
    assert torch.equal(first.grad, torch.full((3, 4), 12.0)) and torch.equal(
        second.grad, torch.full((2, 4), 2.0)
    )
    copies.add_gradients(torch.tensor(4.0))
    assert torch.equal(first.grad, torch.full((3, 4), 12.0)), "a gradient is added once"


def test_a_frozen_parameter_gets_no_gradient():
    (frozen,), (trained,) = parameters(3), parameters(2)
    frozen.requires_grad_(False)
    copies = WorkingCopies({})
    alone = copies.read((frozen,), torch.bfloat16, leaf=True)
    assert not alone.requires_grad
    both = copies.read((frozen, trained), torch.bfloat16, leaf=True)
    both.float().sum().backward()
    copies.add_gradients(None)
    assert frozen.grad is None and torch.equal(trained.grad, torch.ones(2, 4))


def test_what_is_known_is_made_together_and_once():
    (first,), (second,) = parameters(3), parameters(2)
    known = {}
    earlier = WorkingCopies(known)
    earlier.read((first,), torch.bfloat16)
    earlier.read((second,), torch.bfloat16)
    copies = WorkingCopies(known)
    one = copies.read((first,), torch.bfloat16, leaf=True)
    with torch.no_grad():
        first.zero_()
        second.zero_()
    assert copies.read((first,), torch.bfloat16, leaf=True) is one
    assert copies.read((second,), torch.bfloat16).abs().min() > 0, "made with the first, before the change"
    assert WorkingCopies(known).read((first,), torch.bfloat16).abs().max() == 0
    assert copies.read((first,), torch.float32) is first, "no copy where none is needed"
