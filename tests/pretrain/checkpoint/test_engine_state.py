"""Where optimizers and loss scalers keep their numbers, and that a checkpoint restores them."""

import pytest
import torch
from checkpoint_helpers import PlainEngine, save

from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import engine_state
from pretrain.step.optimizer import Lamb, MuonWithAdamW


def lamb(parameters, lr: float):
    return Lamb(parameters, lr=lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)


def muon(parameters, lr: float):
    matrix, vector = parameters
    return MuonWithAdamW(
        [{"params": [matrix, vector]}], {id(matrix)}, "match_rms_adamw", lr=lr, betas=(0.9, 0.98), eps=1e-6
    )


OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adamw fused": lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True),
    "amsgrad": lambda p, lr: torch.optim.AdamW(p, lr=lr, amsgrad=True),
    "sgd with momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    "sgd": torch.optim.SGD,
    "lamb": lamb,
    "muon": muon,
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


def test_the_larger_step_count_is_that_of_a_shared_partition():
    """At ZeRO 0 a parameter without gradients has done fewer steps; one flat partition has one count for
    all."""
    view = engine_state(PlainEngine())
    (_, first), (_, second) = view.named_parameters()
    for counts in ((5, 3), (3, 5)):
        view.holders = {id(first): first, id(second): first}
        view.set_scalars({id(first): {"step": counts[0]}, id(second): {"step": counts[1]}})
        assert view.scalars(first)["step"] == view.scalars(second)["step"] == 5
