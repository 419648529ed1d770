"""Schedules by hand, LAMB and Muon against their algorithms written out."""

import sys

import pytest
import torch
from encoder_helpers import make_encoder

from pretrain.common.errors import UserError
from pretrain.config.run import TrainConfig
from pretrain.model.layer import layer_matrices, layers_of
from pretrain.model.modules import parameter_groups
from pretrain.step.optimizer import AdamW, Lamb, build_optimizer, learning_rate


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
    assert TrainConfig(steps=95, warmup_steps=0, schedule="wsd").decay_begins == 85  # a tenth, rounded up


def test_biases_and_norms_are_not_decayed():
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.LayerNorm(3))
    decayed, exempt = parameter_groups(module, 0.1)
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert [p.ndim for p in decayed["params"]] == [2] and len(exempt["params"]) == 3


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")],
        ),
    ],
)
def test_adamw_is_torchs_bit_for_bit(device):
    """With steps that are left out, a rate that changes, and states that come from a file."""
    random = torch.Generator().manual_seed(0)
    start = [torch.randn(size, generator=random) for size in ((5, 3), (7,), (), (4, 4))]
    gradients = [[torch.randn(w.shape, generator=random) for w in start] for _ in range(6)]
    settings = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-6, "fused": True}
    runs = []
    for kind in (torch.optim.AdamW, AdamW):
        weights = [w.to(device, copy=True).requires_grad_() for w in start]
        groups = [{"params": weights[:2], "weight_decay": 0.2}, {"params": weights[2:], "weight_decay": 0.0}]
        optimizer = kind(groups, **settings)
        for number, of_step in enumerate(gradients):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (number + 3)
            for place, (weight, gradient) in enumerate(zip(weights, of_step)):
                weight.grad = None if number == 4 and place == 1 else gradient.to(device)
            optimizer.found_inf = torch.tensor(float(number == 2), device=device)
            optimizer.step()
            if number == 2:
                optimizer.load_state_dict(optimizer.state_dict())
        states = [value for weight in weights for value in optimizer.state[weight].values()]
        runs.append([*weights, *states])
    assert len(runs[0]) == 16
    for theirs, own in zip(*runs, strict=True):
        assert torch.equal(theirs, own)


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


def test_optimizers_for_gpus_are_refused_on_a_cpu():
    with pytest.raises(UserError, match=r"train\.optimizer_code=apex is for GPUs, and there is none"):
        built("cpu", optimizer_code="apex")


@pytest.mark.parametrize("optimizer", ["adamw", "lamb"])
def test_an_optimizer_that_is_not_installed_is_one_error_that_names_the_remedy(optimizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "apex", None)
    with pytest.raises(UserError, match=r"cannot be used here.*build NVIDIA's apex from its source.* torch"):
        built("cuda", optimizer=optimizer, zero=0, optimizer_code="apex")


def newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """Five iterations of the reference's polynomial, by the singular values themselves, in float64."""
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    values = values / values.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


def test_muon_updates_the_matrices_of_layers_and_adamw_the_rest():
    torch.manual_seed(0)
    module = torch.nn.Module()
    module.encoder, module.objective = make_encoder("bert"), torch.nn.Linear(32, 32)
    config = TrainConfig(optimizer="muon", zero=0, lr=0.01, weight_decay=0.1)
    optimizer = build_optimizer(module, config, torch.device("cpu"))
    of_muon = {id(p) for group in optimizer.muon.param_groups for p in group["params"]}
    names = {name for name, p in module.named_parameters() if id(p) in of_muon}
    assert names == {
        name for name, p in module.named_parameters() if ".encoder.layer." in name and p.ndim == 2
    }
    assert len(names) == 6 * len(layers_of(module.encoder.lm))
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(trained)
    start = {name: p.detach().clone() for name, p in trained.items()}
    momenta = dict.fromkeys(names, 0.0)
    twin = {name: p.detach().clone().requires_grad_() for name, p in trained.items() if name not in names}
    adamw = torch.optim.AdamW(
        [{"params": [p], "weight_decay": 0.1 if p.ndim >= 2 else 0.0} for p in twin.values()],
        lr=0.01,
        betas=config.betas,
        eps=config.eps,
    )
    for step in range(3):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (step + 1) * group["lr_scale"]  # as the loop sets it
        for group in adamw.param_groups:
            group["lr"] = 0.01 * (step + 1)
        for name, p in trained.items():
            p.grad = torch.randn_like(p)
            if name in twin:
                twin[name].grad = p.grad.clone()
        before = {name: trained[name].detach().double().clone() for name in names}
        optimizer.step()
        adamw.step()
        for name in names:
            p, rate = trained[name], 0.01 * (step + 1)
            momenta[name] = 0.95 * momenta[name] + 0.05 * p.grad.double()
            update = newton_schulz(0.05 * p.grad.double() + 0.95 * momenta[name])
            rows, columns = p.shape
            factor = 0.2 * max(rows, columns) ** 0.5
            expected = before[name] * (1 - rate * 0.1) - rate * factor * update
            error = (p.detach() - expected).norm() / (rate * factor * update.norm())
            assert error < 0.02, name  # of an update that torch computes in bfloat16, of 8 bits
            # an update is as long as one of AdamW: 0.2 to 0.4 a weight
            assert 0.1 < (factor * update).square().mean().sqrt() < 0.3
    for name, p in twin.items():
        torch.testing.assert_close(trained[name].detach(), p.detach(), rtol=1e-6, atol=1e-7)
    assert all(not start[name].equal(p) for name, p in trained.items())


@pytest.mark.parametrize("family,each", [("bert", 6), ("roberta", 6), ("distilbert", 6), ("modernbert", 4)])
def test_hidden_matrices_are_those_of_the_layers_of_every_family(family, each):
    lm = make_encoder(family).lm
    found = layer_matrices(lm)
    names = [name for name, p in lm.named_parameters() if id(p) in found]
    assert len(names) == len(found) == each * len(layers_of(lm))
    assert not [name for name in names if "embed" in name or "decoder" in name or "head" in name]
    for p in layers_of(lm)[0].parameters():
        p.requires_grad_(False)
    assert len(layer_matrices(lm)) == each * (len(layers_of(lm)) - 1)
