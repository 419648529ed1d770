"""What training and evaluation need of any module: its mode, its sound tensors, its groups of parameters."""

import pytest
import torch
from torch import nn

from pretrain.model.modules import evaluation_mode, grouped, parameter_groups, unsound


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_restored_after_errors_too(training):
    module = nn.Sequential(nn.Dropout()).train(training)
    with pytest.raises(KeyError), evaluation_mode(module):
        assert not module.training and not module[0].training
        raise KeyError
    assert module.training == module[0].training == training


@pytest.mark.parametrize(
    "value, sound", [(1e18, True), (1e37, False), (float("nan"), False), (float("inf"), False)]
)
def test_a_tensor_is_sound_if_its_norm_is_finite_in_float32(value, sound):
    tensors = [("first", torch.zeros(3)), ("second", torch.full((3,), value, dtype=torch.float64))]
    assert unsound(tensors) == ("" if sound else "second")
    assert unsound([*reversed(tensors), ("third", torch.tensor([float("nan")]))]) == (
        "third" if sound else "second"
    )
    assert unsound([]) == ""


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_heads_have_a_rate_of_their_own_where_it_differs_and_vectors_no_decay(scale):
    names = ("encoder.weight", "encoder.bias", "objective.head.weight", "objective.head.bias")
    names += ("objective.terms.diffcse.discriminator.lm.weight", "objective.scale", "own.objective.weight")
    parameters = {
        name: nn.Parameter(
            torch.zeros(() if name.endswith("scale") else (2, 2) if name.endswith("weight") else 2)
        )
        for name in names
    }
    groups = grouped(parameters, 0.25, scale)
    of = {id(p): group for group in groups for p in group["params"]}
    assert len(of) == sum(len(group["params"]) for group in groups) == len(names)
    for name, parameter in parameters.items():
        group = of[id(parameter)]
        head = name in ("objective.head.weight", "objective.head.bias", "objective.scale")
        assert group["lr_scale"] == (scale if head else 1.0), name
        assert group["weight_decay"] == (0.25 if name.endswith("weight") else 0.0), name
    assert len(groups) == (2 if scale == 1 else 4)


def test_frozen_parameters_are_in_no_group():
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    module[0].requires_grad_(False)
    (group,) = parameter_groups(module, 0.1)
    assert group["params"] == [module[1].weight] and group["lr_scale"] == 1.0
