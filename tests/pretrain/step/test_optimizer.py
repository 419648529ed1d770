"""Schedules by hand, LAMB against its algorithm written out."""

import sys

import pytest
import torch

from pretrain.common.errors import UserError
from pretrain.config.run import TrainConfig
from pretrain.model.modules import parameter_groups
from pretrain.step.optimizer import Lamb, build_optimizer, learning_rate


def test_linear_schedule_rises_to_the_peak_and_falls_to_zero():
    config = TrainConfig(steps=100, warmup_steps=10, lr=1.0)
    rates = [learning_rate(config, step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1) and rates[9] == rates[10] == pytest.approx(1.0)
    assert rates[55] == pytest.approx(0.5) and rates[99] == pytest.approx(1 / 90) and rates[100] == 0


def test_constant_and_cosine():
    assert learning_rate(TrainConfig(steps=10, warmup_steps=0, lr=2.0, schedule="constant"), 9) == 2.0
    assert learning_rate(
        TrainConfig(steps=10, warmup_steps=0, lr=2.0, schedule="cosine"), 5
    ) == pytest.approx(1.0)


@pytest.mark.parametrize("shape", ["1-sqrt", "linear"])
def test_wsd_is_constant_but_for_its_ends(shape):
    config = TrainConfig(
        steps=100, warmup_steps=10, lr=2.0, schedule="wsd", decay_steps=25, decay_shape=shape
    )
    rates = [learning_rate(config, step) for step in range(101)]
    assert rates[:11] == pytest.approx([0.2 * step for step in range(1, 11)] + [2.0])
    assert set(rates[9:76]) == {2.0} and rates[100] == 0
    # 4, 15 and 24 of the decay's 25 steps are done
    left = {"1-sqrt": (0.6, 1 - 0.6**0.5, 1 - 0.96**0.5), "linear": (0.84, 0.4, 0.04)}[shape]
    assert [rates[79] / 2, rates[90] / 2, rates[99] / 2] == pytest.approx(left)
    assert TrainConfig(steps=95, schedule="wsd").decay_begins == 85  # a tenth, rounded up


def test_biases_and_norms_are_not_decayed():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    decayed, exempt = parameter_groups(module, 0.1)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert [p.ndim for p in decayed["params"]] == [2] and len(exempt["params"]) == 3


def test_lamb_is_algorithm_2_of_its_paper():
    torch.manual_seed(0)
    w = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    optimizer = Lamb([w], lr=0.01, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1)
    x, m, v = w.detach().clone(), 0.0, 0.0
    for step in range(1, 6):
        gradient = torch.randn(4, 3, dtype=torch.float64)
        w.grad = gradient.clone()
        optimizer.step()
        m, v = 0.9 * m + 0.1 * gradient, 0.99 * v + 0.01 * gradient**2
        r = (m / (1 - 0.9**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-6) + 0.1 * x
        x = x - 0.01 * x.norm() / r.norm() * r
        torch.testing.assert_close(w.detach(), x, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 100.0])
def test_vectors_are_not_decayed_in_the_encoder_nor_in_the_heads(scale):
    module = torch.nn.Module()
    module.encoder, module.objective = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    groups = parameter_groups(module, 0.1, scale)
    found = {id(p): (group["weight_decay"], group["lr_scale"]) for group in groups for p in group["params"]}
    of = {name: found[id(p)] for name, p in module.named_parameters()}
    assert of == {
        "encoder.weight": (0.1, 1.0),
        "encoder.bias": (0.0, 1.0),
        "objective.weight": (0.1, scale),
        "objective.bias": (0.0, scale),
    }


def built(device, **settings):
    module = torch.nn.Module()
    module.encoder, module.objective = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    return build_optimizer(module, TrainConfig(**settings), torch.device(device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_optimizer_is_torchs_own_on_every_device(device):
    adamw = built(device)
    assert type(adamw) is torch.optim.AdamW and all(group["fused"] for group in adamw.param_groups)
    assert type(built(device, optimizer="lamb", zero=0)) is Lamb


@pytest.mark.parametrize("code", ["deepspeed", "apex"])
def test_optimizers_for_gpus_are_refused_on_a_cpu(code):
    with pytest.raises(UserError, match=f"train.optimizer_code={code} is for GPUs, and there is none"):
        built("cpu", optimizer_code=code)


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_an_optimizer_that_is_not_installed_is_one_error_that_names_the_remedy(optimizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "apex", None)
    with pytest.raises(UserError, match=r"cannot be used here.*build NVIDIA's apex from its source.* torch"):
        built("cuda", optimizer=optimizer, optimizer_code="apex")
