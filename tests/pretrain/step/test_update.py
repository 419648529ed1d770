"""Clipping, and leaving an update out: against torch's own functions."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from threaded_ranks import ThreadedRanks

from pretrain.step.gradients import Gradients
from pretrain.step.optimizer import AdamW, Lamb, MuonWithAdamW
from pretrain.step.precision import LossScale
from pretrain.step.update import Update, norm_of_long


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
    scale = LossScale(engine.module, value=64.0)
    norm, applied = Update(engine, 1.0, scale).apply(torch.zeros(()))
    assert math.isnan(norm) and not applied and engine.steps == 0 and scale.value == 32.0


class SharedEngine:
    """What an update asks of an engine at ZeRO 1, whose weights lie group by group, filled up."""

    device = torch.device("cpu")

    def __init__(self, module, rank: int, world: int):
        self.module, self.steps = module, 0
        of_decay = [[p for p in module.parameters() if (p.ndim > 1) == decayed] for decayed in (True, False)]
        flat, shares, masters = [], [], []
        for group in of_decay:
            sizes = [p.numel() for p in group]
            flat.append(torch.cat([*(p.detach().flatten() for p in group), torch.zeros(-sum(sizes) % world)]))
            for p, part in zip(group, flat[-1].split([*sizes, len(flat[-1]) - sum(sizes)])):
                p.data = part.view_as(p)
            shares.append(list(flat[-1].chunk(world)))
            masters.append(torch.nn.Parameter(shares[-1][rank].clone()))
        self.optimizer = SimpleNamespace(
            single_partition_of_fp32_groups=masters,
            parallel_partitioned_bit16_groups=shares,
            bit16_groups_flat=flat,
            bit16_groups=of_decay,
            real_dp_process_group=[None, None],
            optimizer=torch.optim.AdamW(decaying(*([m] for m in masters)), **SETTINGS, fused=True),
        )

    def zero_optimization_stage(self):
        return 1

    def step(self):
        self.steps += 1
        self.optimizer.step()
        self.optimizer.zero_grad()


def decaying(decayed, others):
    """Two groups of parameters, as a model's are."""
    return [{"params": decayed}, {"params": others, "weight_decay": 0.0}]


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_updates_at_zero_1_are_torchs_own_of_the_whole(world, clip, monkeypatch):
    """Steps that are left out are in between. One group has more elements than a piece of the norm."""
    torch.manual_seed(0)
    theirs = torch.nn.Sequential(torch.nn.Linear(45, 30), torch.nn.Linear(30, 1, bias=False))
    matrices, others = ([p for p in theirs.parameters() if (p.ndim > 1) == wide] for wide in (True, False))
    optimizer = torch.optim.AdamW(decaying(matrices, others), **SETTINGS, fused=True)
    engines = [SharedEngine(copy.deepcopy(theirs), rank, world) for rank in range(world)]
    ranks = ThreadedRanks(world, monkeypatch)
    updates = ranks.run(lambda rank: Update(engines[rank], clip))

    def applied(rank, gradients, loss, limit):
        for p, gradient in zip(engines[rank].module.parameters(), gradients):
            p.grad = None if gradient is None else gradient.clone()
        return updates[rank].apply(loss, limit)

    for factor, broken in [(1, ""), (1e-4, "loss"), (30, ""), (2, "gradient"), (0.5, "norm"), (1e-3, "")]:
        gradients = [factor * torch.randn_like(p) for p in theirs.parameters()]
        norm = torch.cat([g.double().flatten() for g in gradients]).norm()
        if broken == "gradient":
            gradients[0][-1, -1] = math.nan
        loss = torch.tensor(math.inf if broken == "loss" else 1.0)
        limit = float(norm) * (0.99 if broken == "norm" else 1.01)
        for found, done in ranks.run(lambda rank: applied(rank, gradients, loss, limit)):  # noqa: B023
            assert bool(done) == (not broken)
            assert found.dtype == torch.float32 and (found.isnan() if broken == "gradient" else True)
            if broken != "gradient":
                torch.testing.assert_close(found, norm.float())
        if not broken:
            for p, gradient in zip(theirs.parameters(), gradients):
                p.grad = gradient
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), clip or math.inf)
            optimizer.step()
        for engine in engines:
            for mine, other in zip(engine.module.parameters(), theirs.parameters()):
                torch.testing.assert_close(mine, other)
                assert not mine.grad.any()
    assert [engine.steps for engine in engines] == [6] * world


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 5000])
def test_the_norm_of_a_long_vector_counts_each_element_once(length):
    vector = torch.randn(length)
    torch.testing.assert_close(norm_of_long(vector), vector.double().norm(), rtol=1e-6, atol=0)


class Repeated:
    """Graphs that add gradients: what is recorded runs as it is, once before, as on a device."""

    on = adds = True
    graphs = ("of a pass",)

    def __init__(self, engine):
        self.gradients, self.recorded = Gradients(engine), 0

    def record_update(self, body):
        self.recorded += 1
        body()
        return body


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_an_update_that_is_a_graph_is_torchs_own(clip):
    """The learning rate changes, and steps are left out."""
    modules = [copy.deepcopy(made("adamw").module) for _ in range(2)]
    ours, theirs = (
        WholeEngine(module, kind(module.parameters(), **SETTINGS, fused=True))
        for module, kind in zip(modules, (AdamW, torch.optim.AdamW))
    )
    graphs = Repeated(ours)
    update = Update(ours, clip, graphs=graphs)
    for number, (factor, limit) in enumerate(
        [(1.0, 1e3), (30.0, 1e9), (1.0, 0.1), (math.nan, 1e9), (1e-2, 1e9)]
    ):
        for engine in (ours, theirs):
            engine.optimizer.param_groups[0]["lr"] = 0.1 / (1 + number // 2)
        before = [p.detach().clone() for p in ours.module.parameters()]
        norm, applied = update.apply(backward(ours.module, factor), limit)
        backward(theirs.module, factor)
        expected = torch.nn.utils.clip_grad_norm_(theirs.module.parameters(), clip or math.inf)
        torch.testing.assert_close(norm, expected, equal_nan=True)
        assert bool(applied) == bool(expected <= limit)
        if applied:
            theirs.step()
        else:
            theirs.zero_grad()
            assert all(torch.equal(p, was) for p, was in zip(ours.module.parameters(), before))
        for mine, other in zip(ours.module.parameters(), theirs.module.parameters()):
            torch.testing.assert_close(mine, other)
            assert mine.grad is None or not mine.grad.any()
    assert graphs.recorded == 1 and ours.steps == 5
    own = dict(graphs.gradients.pairs)
    assert all(p.grad is own[p] for p in ours.module.parameters())
    graphs.on = False  # given up: gradients come and go as before
    update.apply(backward(ours.module, 1.0))
    assert all(p.grad is None for p in ours.module.parameters())


class DeepSpeeds:
    """What an update asks of an engine whose own step clips and leaves out (ZeRO 2 and 3; 1 with LAMB)."""

    device = torch.device("cpu")

    def __init__(self, stage, gradients):
        self.module, self.stage, self.calls = torch.nn.Linear(2, 2), stage, []
        self.norm = torch.cat([g for parts in gradients.values() for g in parts or ()]).norm()
        self.optimizer = SimpleNamespace(
            averaged_gradients=gradients,
            optimizer=None,
            setup_buckets=lambda: self.calls.append("buckets"),
            overlapping_partition_gradients_reduce_epilogue=lambda: self.calls.append("shares"),
            scaled_global_norm=lambda: self.norm,
        )

    def zero_optimization_stage(self):
        return self.stage

    def step(self):
        parts = [g for parts in self.optimizer.averaged_gradients.values() for g in parts or ()]
        self.optimizer.overflow = any(not g.isfinite().all() for g in parts)
        self.calls.append("step")

    def get_global_grad_norm(self):
        return self.norm


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("limit", [math.inf, 5.1, 4.9])
@pytest.mark.parametrize("loss", [1.0, math.nan])
def test_deepspeeds_own_step_is_left_out_by_what_is_no_number(stage, limit, loss):
    gradients = {0: [torch.zeros(2), torch.tensor([3.0, 0.0, 4.0])], 1: None}
    engine = DeepSpeeds(stage, gradients)
    engine.module.norm, sound = torch.nn.BatchNorm1d(2), limit > 5 and loss == 1.0
    norm, applied = Update(engine, 1.0, scale := LossScale(engine.module, 64.0)).apply(
        torch.tensor(loss), limit
    )
    assert bool(applied) == sound and engine.calls == ["buckets", "shares"] * (stage == 1) + ["step"]
    # the largest part's first element is no padding
    assert gradients[0][0].equal(torch.zeros(2)) and gradients[0][1][0].isfinite() == sound
    assert gradients[0][1][1:].equal(torch.tensor([0.0, 4.0]))
    assert math.isnan(norm) if limit == math.inf and not sound else norm == 5
    assert scale.value == (64.0 if loss == 1.0 else 32.0)  # a spike is no overflow
