"""Clipping, and leaving an update out, at ZeRO 0: against torch's own functions."""

import copy
import math

import pytest
import torch

from pretrain.step.optimizer import Lamb, MuonWithAdamW
from pretrain.step.precision import LossScale
from pretrain.step.update import Update


class WholeEngine:
    """What an update asks of an engine at ZeRO 0."""

    device = torch.device("cpu")

    def __init__(self, module, optimizer):
        self.module, self.optimizer, self.steps = module, optimizer, 0

    def zero_optimization_stage(self):
        return 0

    def zero_grad(self):
        self.module.zero_grad()

    def step(self):
        self.steps += 1
        self.optimizer.step()
        self.zero_grad()


SETTINGS = {"lr": 0.1, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01}


def muon(parameters):
    decay = {"weight_decay": SETTINGS["weight_decay"]}
    others = {name: value for name, value in SETTINGS.items() if name not in decay}
    return MuonWithAdamW([{"params": parameters, **decay}], {id(parameters[0])}, **others)


OPTIMIZERS = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, **SETTINGS, fused=True),
    "lamb": lambda parameters: Lamb(parameters, **SETTINGS),
    "muon": lambda parameters: muon(list(parameters)),
}


def made(optimizer: str) -> WholeEngine:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    return WholeEngine(module, OPTIMIZERS[optimizer](module.parameters()))


def backward(module, factor: float) -> torch.Tensor:
    loss = factor * module(torch.arange(6.0).view(2, 3)).square().sum()
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_updates_are_torchs_own(optimizer, clip):
    ours, theirs = made(optimizer), made(optimizer)
    update = Update(ours, clip)
    for factor in (1.0, 1e-4, 30.0):
        norm, applied = update.apply(backward(ours.module, factor))
        backward(theirs.module, factor)
        expected = torch.nn.utils.clip_grad_norm_(theirs.module.parameters(), clip or math.inf)
        theirs.step()
        torch.testing.assert_close(norm, expected)
        assert applied and all(p.grad is None for p in ours.module.parameters())
    for mine, other in zip(ours.module.parameters(), theirs.module.parameters()):
        torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("broken", ["loss", "gradient", "spike"])
def test_a_step_that_is_left_out_leaves_nothing_behind(optimizer, broken):
    """The others are those of an optimizer that has not met it."""
    engine, other = made(optimizer), made(optimizer)
    engine.module.norm = torch.nn.BatchNorm1d(2, affine=False)
    update, unbroken = Update(engine, 1.0), Update(other, 1.0)
    for factor in (1.0, 2.0, 0.5):
        engine.module.norm(torch.randn(4, 2))
        statistics = copy.deepcopy(engine.module.norm.state_dict())
        assert update.apply(backward(engine.module, factor), limit=1e6)[1]
        unbroken.apply(backward(other.module, factor))
        loss = backward(engine.module, 1e7 if broken == "spike" else 1.0)
        engine.module.norm(torch.full((4, 2), math.nan))
        if broken == "gradient":
            engine.module.bias.grad[0] = math.nan
        norm, applied = update.apply(loss / 0 if broken == "loss" else loss, limit=1e6)
        assert not applied and norm.isfinite() == (broken != "gradient")
        for name, value in engine.module.norm.state_dict().items():
            assert torch.equal(value, statistics[name])
    for mine, theirs in zip(engine.module.parameters(), other.module.parameters()):
        assert torch.equal(mine, theirs)
        for name, value in engine.optimizer.state[mine].items():
            assert torch.equal(value, other.optimizer.state[theirs][name])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_with_a_loss_scale_an_overflow_is_left_out_and_training_goes_on(optimizer):
    engine = made(optimizer)
    update = Update(engine, 1.0, scale := LossScale(engine.module, value=64.0))
    for infinite, expected in [(False, 64.0), (True, 32.0), (False, 32.0)]:
        before = copy.deepcopy(engine.module.state_dict())
        loss = backward(engine.module, 1.0)
        if infinite:
            engine.module.weight.grad[0, 0] = math.inf
        _, applied = update.apply(loss)
        assert bool(applied) != infinite and scale.value == expected
        assert torch.equal(before["weight"], engine.module.weight) == infinite


def test_without_gradients_nothing_is_applied():
    engine = made("adamw")
    norm, applied = Update(engine, 1.0).apply(torch.zeros(()))
    assert math.isnan(norm) and not applied and engine.steps == 0
