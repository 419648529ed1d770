"""Where optimizers and loss scalers keep their numbers, and that a checkpoint restores them."""

import pytest
import torch
from checkpoint_helpers import PlainEngine, save

from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import engine_state
from pretrain.step.optimizer import Lamb, MuonWithAdamW


class ApexAdam(torch.optim.Adam):
    """Keeps its count as apex's does: in the group."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                update(p, state, group["step"], group["lr"])


ApexAdam.__module__ = "apex.optimizers.fused_adam"


def update(p, state, step: int, lr: float) -> None:
    state["exp_avg"].mul_(0.9).add_(p.grad, alpha=0.1)
    state["exp_avg_sq"].mul_(0.98).addcmul_(p.grad, p.grad, value=0.02)
    mean, square = state["exp_avg"] / (1 - 0.9**step), state["exp_avg_sq"] / (1 - 0.98**step)
    p.data.sub_(lr * mean / (square.sqrt() + 1e-6))


def lamb(parameters, lr: float):
    return Lamb(parameters, lr=lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)


def muon(parameters, lr: float):
    matrix, vector = parameters
    return MuonWithAdamW([{"params": [matrix, vector]}], {id(matrix)}, lr=lr, betas=(0.9, 0.98), eps=1e-6)


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw fused": lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
    "amsgrad": lambda p, lr: torch.optim.AdamW(p, lr=lr, amsgrad=True),
    "sgd with momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "sgd": torch.optim.SGD,
    "lamb": lamb,
    "muon": muon,
    "apex": ApexAdam,
}


@pytest.mark.parametrize("stepped", [False, True])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_optimizers_go_on_bitwise(tmp_path, name, stepped):
    def engine(seed: int) -> PlainEngine:
        made = PlainEngine(5)
        torch.manual_seed(seed)
        made.module.reset_parameters()
        made.optimizer = OPTIMIZERS[name](made.module.parameters(), lr=0.05)
        return made

    straight, resumed = engine(1), engine(2)
    for _ in range(3):
        straight.step()
    path = save(tmp_path, straight, {"step": 3}, keep=1)
    if stepped:
        resumed.step()
    store.load(path, resumed)
    for _ in range(3):
        straight.step()
        resumed.step()
    for ours, theirs in zip(resumed.module.parameters(), straight.module.parameters(), strict=True):
        assert ours.equal(theirs)


@pytest.mark.parametrize("loaded", ["adamw", "apex"])
@pytest.mark.parametrize("name", ["adamw", "apex"])
def test_step_counts_are_each_parameters_wherever_an_optimizer_keeps_them(tmp_path, name, loaded):
    """Saved under one optimizer and loaded under another, every parameter has done as many steps."""
    saved, other = PlainEngine(5), PlainEngine(5)
    saved.optimizer = OPTIMIZERS[name](saved.module.parameters(), lr=0.05)
    other.optimizer = OPTIMIZERS[loaded](other.module.parameters(), lr=0.05)
    for _ in range(3):
        saved.step()
    store.load(save(tmp_path, saved, {"step": 3}, keep=1), other)
    for engine in (saved, other):
        view = engine_state(engine)
        assert [view.scalars(parameter)["step"] for _, parameter in view.named_parameters()] == [3, 3]
    (group,) = other.optimizer.param_groups
    assert [
        int(group["step"] if loaded == "apex" else other.optimizer.state[p]["step"]) for p in group["params"]
    ] == [3, 3]


def test_the_larger_step_count_is_that_of_a_shared_partition():
    """At ZeRO 0 a parameter without gradients has done fewer steps; one flat partition has one count for
    all."""
    view = engine_state(PlainEngine())
    (_, first), (_, second) = view.named_parameters()
    for counts in ((5, 3), (3, 5)):
        view.holders = {id(first): first, id(second): first}
        view.set_scalars({id(first): {"step": counts[0]}, id(second): {"step": counts[1]}})
        assert view.scalars(first)["step"] == view.scalars(second)["step"] == 5
