"""Steps of DeepSpeed's own engines, of one rank, against torch's optimizer."""

import copy
import math
import os
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
import torch.distributed as dist
from exactness_worker import build

from pretrain.checkpoint.engine_state import engine_state
from pretrain.common.environment import choose_accelerator
from pretrain.common.ranks import destroy_groups
from pretrain.config.recipe import validate_config
from pretrain.config.run import Precision
from pretrain.model.modules import parameter_groups
from pretrain.step.engine import build_engine, device, start_processes
from pretrain.step.optimizer import AdamW, Lamb
from pretrain.step.reduction import BUCKET, Buckets, Coalesced
from pretrain.step.update import Update


@pytest.fixture(scope="module")
def alone():
    """The process group of a process that no launcher has started."""
    if torch.cuda.is_available():
        pytest.skip("of gloo and a CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ.copy())
        choose_accelerator()
        start_processes()
        assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (0, 1, "gloo")
        assert device() == torch.device("cpu")
        yield
        destroy_groups()
    assert not dist.is_initialized()


class Model(torch.nn.Module):
    """One with a matrix that no loss reaches, and one that only the first of two does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = (
            torch.nn.Linear(6, 5),
            torch.nn.LayerNorm(5),
            torch.nn.Linear(5, 3),
        )
        self.early, self.idle = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

    def forward(self, x):
        y = self.second(self.norm(self.first(x)).tanh())
        return self.early(y).square().sum(), y.square().sum()


@pytest.mark.parametrize("zero,optimizer", [(0, "adamw"), (0, "lamb"), (1, "adamw"), (2, "adamw")])
def test_steps_are_torchs_own(alone, zero, optimizer):
    """Of two backward passes each; the second step is left out, and the third clipped."""
    train = {"zero": zero, "clip": 0.5, "optimizer": optimizer, "weight_decay": 0.1, "lr": 0.05}
    config = validate_config({"train": train}, "test")
    model = Model()
    theirs = copy.deepcopy(model)
    engine = build_engine(model, config)
    assert engine.module is model and int(engine.zero_optimization_stage()) == zero
    if zero <= 1:
        assert engine.zero_reduce_bucket_size() == BUCKET
    reduction = (Buckets if zero <= 1 else Coalesced)(engine)
    update = Update(engine, config.train.clip)
    groups = parameter_groups(theirs, config.train.weight_decay, config.train.head_lr_scale)
    kind, fused = (torch.optim.AdamW, {"fused": True}) if optimizer == "adamw" else (Lamb, {})
    other = kind(groups, lr=0.05, betas=config.train.betas, eps=config.train.eps, **fused)
    if zero == 0:
        assert type(engine.optimizer) is (AdamW if optimizer == "adamw" else Lamb)
    for number, factor in enumerate((1e-2, math.nan, 1.0)):
        x = torch.randn(4, 6)
        with reduction.of_step():
            for part, final in ((0, False), (1, True)):
                forward = (
                    engine if zero == 2 else engine.module
                )  # DeepSpeed's hooks are for its own reduction
                reduction.backward(forward(x)[part] * factor, final)
        norm, applied = update.apply(torch.tensor(float(number)))
        assert bool(applied) == (number != 1)
        if applied:
            sum(theirs(x)).mul(factor).backward()
            for p in theirs.parameters():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
            assert float(norm) == pytest.approx(float(expected), rel=1e-5)
            assert (expected > 0.5) == (number == 2)
            other.step()
            other.zero_grad()
        for mine, reference in zip(model.parameters(), theirs.parameters()):
            torch.testing.assert_close(mine, reference, rtol=1e-5, atol=1e-6)
    view = engine_state(engine)
    for (name, p), q in zip(view.named_parameters(), theirs.parameters()):
        for key in view.moment_keys(p):
            part = view.part(p, key)
            torch.testing.assert_close(part.values, other.state[q][key].flatten(), msg=name)
        torch.testing.assert_close(view.part(p, None).values, q.detach().flatten(), rtol=1e-5, atol=1e-6)
        assert view.scalars(p) == {"step": 2}
    engine.destroy()


@pytest.mark.parametrize("precision", [one for one in get_args(Precision) if one != "auto"])
def test_products_are_of_the_precision_that_is_set(precision):
    """Each that a recipe may name; vectors are float32 in all."""
    _, model = build("simcse", 0, precision, 0.0)
    row = SimpleNamespace(seed=None, ids=torch.zeros(1))
    with torch.autocast("cpu", torch.bfloat16), model.autocast(row):  # whatever is around it
        made = torch.ones(2, 2) @ torch.ones(2, 2)
    assert made.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
