"""Small parts of a step by hand: norms, clips, the loss scale, what a graph reaches, optimizers."""

import math
import sys
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pretrain.config.recipe import load_config
from pretrain.losses import mlm
from pretrain.objectives.base import (
    MomentumEncoder,
    Objective,
    Probe,
    cut,
    joint,
    running_statistics_kept,
    share_of_loss,
)
from pretrain.step import model as step_model
from pretrain.step.gradients import Gradients
from pretrain.step.log import Window, slowest_rank
from pretrain.step.optimizer import AdamW, Lamb, build_optimizer, learning_rate
from pretrain.step.precision import LARGEST_SCALE, SMALLEST_SCALE, LossScale, factor_of
from pretrain.step.reduction import _complete, leaves
from pretrain.step.update import _an_element, _partitioned_norm, check_norm, clip, norm_of, norm_of_long

# -- norms and clips


def test_norms_are_of_all_numbers_together():
    parts = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]]), torch.tensor([12.0])]
    assert norm_of(parts) == 13.0
    for count in (1, 1023, 1024, 1025, 5000):
        vector = torch.linspace(-1, 1, count)
        assert float(norm_of_long(vector)) == pytest.approx(float(vector.double().norm()), rel=1e-6)
    assert norm_of_long(torch.ones(3)).dtype == torch.float64
    big = torch.full((1024,), 3.0)
    big[-1] = 4.0
    assert float(norm_of_long(torch.cat([big, torch.tensor([5.0])]))) == pytest.approx(
        math.sqrt(9 * 1023 + 16 + 25)
    )


@pytest.mark.parametrize(
    "norm, loss, limit, finite, sound",
    [
        *((2.0, 1.0, 2.0, True, True), (2.0, 1.0, 1.99, True, False), (2.0, math.nan, 9.0, False, False)),
        *((math.inf, 1.0, math.inf, False, False), (math.nan, 1.0, 9.0, False, False)),
        *((2.0, math.inf, 9.0, False, False), (2.0, 1.0, math.inf, True, True)),
    ],
)
def test_a_step_is_sound_if_loss_and_norm_are_finite_and_the_norm_is_at_most_the_limit(
    norm, loss, limit, finite, sound
):
    given = torch.tensor(norm)
    found = check_norm(given, torch.tensor(loss), limit)
    assert found[0] is given and (bool(found[1]), bool(found[2])) == (finite, sound)


@pytest.mark.parametrize("largest, factor", [(5.0, 0.5), (10.0, 1.0), (20.0, 1.0)])
def test_gradients_are_clipped_to_the_largest_norm_and_never_made_longer(largest, factor):
    gradients = [torch.tensor([6.0]), torch.tensor([[8.0]])]
    clip(gradients, torch.tensor(10.0), largest)
    assert [float(g) for g in gradients] == pytest.approx([6 * factor, 8 * factor], rel=1e-6)


def test_the_element_that_is_made_not_finite_is_of_the_largest_part():
    parts = {0: [torch.zeros(2), torch.zeros(2, 3)], 1: None, 2: [torch.zeros(4)]}
    element = _an_element(SimpleNamespace(averaged_gradients=parts))
    element.fill_(7.0)
    assert parts[0][1].flatten().tolist() == [7.0, 0, 0, 0, 0, 0] and element.shape == (1,)


def test_the_norm_before_a_step_is_deepspeeds_own():
    assert _partitioned_norm(SimpleNamespace(scaled_global_norm=lambda: 3.0)) == 3.0
    third = SimpleNamespace(_get_norm_groups=lambda: [torch.tensor(3.0), torch.tensor(4.0)])
    assert float(_partitioned_norm(third)) == 5.0


# -- float16


def test_the_scale_stays_within_its_bounds_and_is_what_gradients_are_divided_by():
    module = nn.Linear(2, 1)
    frozen = nn.Linear(2, 1).requires_grad_(False)
    assert factor_of(module) is None
    LossScale(nn.ModuleList([module, frozen]))  # a frozen parameter takes no hook
    scale = LossScale(module, value=8.0, growth_interval=1)
    assert (SMALLEST_SCALE, LARGEST_SCALE) == (2**-14, 2**24) and LossScale(module).value == 2**16
    assert LossScale(module).growth_interval == 1000
    with scale.applied(weight=4.0) as factor:
        assert factor == 8.0 and factor_of(module) == 2.0, "gradients keep the weight"
        with scale.applied():
            assert factor_of(module) == 8.0
        (module(torch.ones(1, 2)).sum() * factor).backward()
    assert factor_of(module) is None
    assert module.weight.grad.tolist() == [[4.0, 4.0]]
    for _ in range(30):
        scale.update(torch.tensor(True))
    assert scale.value == LARGEST_SCALE
    scale.update(torch.tensor(False))
    assert scale.state() == {"value": 2.0**23, "good_steps": 0}


# -- what a backward pass reaches


def test_the_leaves_of_a_loss_are_those_that_get_a_gradient():
    first, second, third = (nn.Parameter(torch.ones(2)) for _ in range(3))
    middle = (first * 2).sum()
    loss = middle * middle + (second.detach() * second).sum()
    assert leaves(loss) == {id(first), id(second)}
    assert leaves((third.detach() * third).sum()) == {id(third)} and leaves(torch.zeros(())) == set()


def test_parameters_without_a_gradient_get_zeros_and_others_keep_theirs():
    first, second = (nn.Parameter(torch.ones(2)) for _ in range(2))
    second.grad = torch.tensor([1.0, 2.0])
    found = _complete([first, second])
    assert found[0] is first.grad and found[0].tolist() == [0, 0] and found[1] is second.grad
    assert second.grad.tolist() == [1.0, 2.0]


def test_gradients_are_put_where_they_belong():
    module = nn.ParameterList([nn.Parameter(torch.ones(2)) for _ in range(3)])
    module[2].requires_grad_(False)
    engine = SimpleNamespace(module=module, zero_optimization_stage=lambda: 0)
    kept = Gradients(engine)
    own = [gradient for _, gradient in kept.pairs]
    assert len(own) == 2 and [p for p, _ in kept.pairs] == list(module)[:2]
    own[0].fill_(9.0)
    module[1].grad = torch.tensor([5.0, 6.0])
    kept.keep()
    assert module[0].grad is own[0] and own[0].tolist() == [0, 0], "there was none"
    assert module[1].grad is own[1] and own[1].tolist() == [5.0, 6.0]
    own[0].fill_(3.0)
    kept.keep()
    assert own[0].tolist() == [3.0, 3.0]
    kept.forget()
    assert kept.pairs[0][1] is not own[0]


# -- random states


def test_a_rows_state_is_of_its_number_and_no_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda number: pytest.fail("a GPU's"))
    step_model.seed(5, torch.device("cpu"))
    first = torch.rand(3)
    assert torch.equal(first, torch.rand(3, generator=torch.Generator().manual_seed(5)))
    seeds = []
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    step_model.seed(7, torch.device("cuda"))
    assert seeds == [7] and torch.equal(
        torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(7))
    )


def test_ranks_agree_on_tiles_where_weights_are_gathered(monkeypatch):
    weight = SimpleNamespace()
    lm = SimpleNamespace(
        get_output_embeddings=lambda: SimpleNamespace(weight=weight), device=torch.device("cpu")
    )
    encoder = SimpleNamespace(lm=lm)
    seen = []

    def reduce(count, operation):
        seen.append((int(count), operation))
        count.fill_(6)

    monkeypatch.setattr(dist, "all_reduce", reduce)
    for has_id, initialized, world, expected in (
        *((False, True, 2, 4), (True, False, 2, 4), (True, True, 1, 4), (True, True, 2, 6)),
    ):
        monkeypatch.setattr(dist, "is_initialized", lambda initialized=initialized: initialized)
        monkeypatch.setattr(dist, "get_world_size", lambda world=world: world)
        vars(weight).update({"ds_id": 1} if has_id else {})
        if not has_id:
            vars(weight).clear()
        assert mlm._agreed_count(encoder, 4) == expected
    assert seen == [(4, dist.ReduceOp.MAX)]


# -- what objectives share


def test_an_objective_of_ones_own_needs_only_its_losses():
    bare = Objective()
    with pytest.raises(NotImplementedError, match=r"Objective has no method weights\(step\)"):
        bare.weights(0)
    for call in (lambda: bare.relate({}, None), lambda: bare.sequence_loss(None, "anchor", None, None)):
        with pytest.raises(NotImplementedError):
            call()
    assert bare.conditions({}, None) == {} and bare.sequence_checks({}) == {}
    assert bare.sequence_scale(8, 100) == 1 / 8 and bare.sequence_scale(0, 0) == 1.0
    assert bare.touch_unused_heads(torch.device("cpu")) == 0 and bare.negatives(9) == 0
    assert (bare.compared, bare.kept_head, bare.given_negatives(9), bare.given_roles) == (
        bare.roles,
        None,
        0,
        (),
    )
    bare.rivals, bare.roles = 2, ("anchor", "positive", "negative", "negative2")
    assert bare.negatives(9) == 16 and bare.given_roles == ("negative", "negative2")
    bare.settings, bare.full_weights = object(), {"a": 0.5}
    found = bare.weights(3)
    assert found == {"a": 0.5} and found is not bare.full_weights


def test_a_probe_adds_up_and_sums_over_ranks_by_name(monkeypatch):
    def reduce(values):
        values += 100 * torch.arange(len(values))

    monkeypatch.setattr(dist, "all_reduce", reduce)
    probe = Probe()
    assert probe.gather() == {}
    for number in (1.0, 2.0):
        probe.add(b=torch.tensor(number), a=torch.tensor(10 * number))
    frozen = torch.ones(2)
    probe.watch(frozen)
    assert {name: float(value) for name, value in probe.gather().items()} == {"a": 30.0, "b": 103.0}


def test_a_momentum_encoder_follows_without_gradients():
    source = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    follower = MomentumEncoder(source, 0.75)
    before = follower.copy[0].weight.clone()
    with torch.no_grad():
        source[0].weight.add_(1.0)
        source[1].running_mean.fill_(5.0)
    follower.follow()
    assert torch.allclose(follower.copy[0].weight, before + 0.25)
    assert torch.equal(follower.copy[1].running_mean, torch.full((2,), 5.0))
    follower.train()
    assert not follower.copy.training and not any(p.requires_grad for p in follower.parameters())
    assert len(list(follower.parameters())) == 4, "the source is none of its modules"


def test_statistics_of_batch_norms_stay_inside_and_move_after_it():
    norm = nn.BatchNorm1d(2)
    values = torch.randn(4, 2)
    with pytest.raises(KeyError), running_statistics_kept(nn.Sequential(norm)):
        inside = norm(values)
        raise KeyError
    assert torch.equal(norm.running_mean, torch.zeros(2)) and norm.num_batches_tracked == 0
    assert torch.allclose(inside, norm(values)) and norm.num_batches_tracked == 1


def test_views_share_one_call_of_a_head_and_parts_of_a_loss_are_shares():
    calls = []
    head = lambda values: calls.append(len(values)) or 2 * values  # noqa: E731
    first, second = torch.ones(3, 2), torch.zeros(3, 2)
    assert torch.equal(joint(head, [first, second]), torch.stack([2 * first, second])) and calls == [6]
    assert share_of_loss(torch.tensor(4.0), torch.tensor(1.0)) == 0.75
    assert share_of_loss(torch.tensor(0.0), torch.tensor(0.0)) == 0.0
    assert cut(torch.ones(1, 3), 3).tolist() == [[1, 1, 1]] and cut(torch.ones(1, 3), 1).tolist() == [
        [1, 0, 0]
    ]


# -- rows of the log


def test_a_row_is_of_its_steps_and_the_next_begins_anew():
    window = Window()
    window.add({"mlm": 2.0, "a": 1.0}, 3.0, {"m": 1.0}, 10, (2, 1))
    window.add({"mlm": 4.0}, math.inf, {}, 30, (4, 3))
    again = Window(window.state())
    again.add({"mlm": 4.0, "a": 2.0}, 1.0, {"m": 4.0}, 0, (0, 2))
    assert window.steps == 2 and again.steps == 3
    assert again.close() == {
        "loss": {"mlm": (20 + 120) / 40, "a": 1.5},
        "gradient_norm": 2.0,
        "gradient_norm_max": 3.0,
        "masked_tokens": 40 / 3,
        "micro_batches": [2.0, 2.0],
        "steps": 3,
        "m": 2.5,
    }
    again.add({}, math.nan, {}, 0, (1, 1))
    row = again.close()
    assert math.isnan(row["gradient_norm"]) and math.isnan(row["gradient_norm_max"]) and row["loss"] == {}


def test_the_slowest_rank_is_compared_with_the_median():
    assert slowest_rank([1.0, 3.0, 2.0, 2.0]) == {"slowest_rank": {"rank": 1, "over_median": 1.5}}
    assert slowest_rank([2.0, 1.0]) == {"slowest_rank": {"rank": 0, "over_median": 2.0}}
    assert slowest_rank([0.0, 0.0, 5.0]) == {}


# -- optimizers


def test_parameters_without_a_gradient_are_left_alone():
    with_gradient, without = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    lamb = Lamb(
        [{"params": [with_gradient, without], "weight_decay": 0.1}], lr=0.1, betas=(0.9, 0.99), eps=1e-6
    )
    with_gradient.grad = torch.ones(2, 2)
    lamb.step()
    assert torch.equal(without, torch.ones(2, 2)) and not lamb.state[without]
    assert not torch.equal(with_gradient, torch.ones(2, 2))
    adam = AdamW([{"params": [with_gradient], "lr": 0.1}, {"params": [without], "lr": 0.1}], fused=True)
    for _ in range(3):  # a parameter that has no gradient yet: as torch's
        adam.step()
    assert torch.equal(without, torch.ones(2, 2)) and not adam.is_set_up()
    assert adam.state[with_gradient]["step"] == 3


def test_an_update_that_is_found_not_finite_changes_nothing_and_counts_nothing():
    one = nn.Parameter(torch.ones(2, 2))
    adam = AdamW([{"params": [one], "lr": 0.1}], fused=True)
    one.grad = torch.ones(2, 2)
    adam.step()
    before, state = one.clone(), {name: value.clone() for name, value in adam.state[one].items()}
    adam.found_inf = torch.tensor(1.0)
    adam.step()
    assert torch.equal(one, before) and all(
        torch.equal(adam.state[one][name], v) for name, v in state.items()
    )
    adam.found_inf = torch.tensor(0.0)
    adam.step()
    assert adam.state[one]["step"] == 2 and not torch.equal(one, before)


def test_apexs_optimizers_get_the_recipes_settings(monkeypatch):
    made = []
    kinds = {
        name: lambda groups, name=name, **more: made.append((name, more))
        for name in ("FusedAdam", "FusedLAMB")
    }
    monkeypatch.setitem(sys.modules, "apex", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "apex.optimizers", SimpleNamespace(**kinds))
    given = {"optimizer_code": "apex", "zero": 0, "lr": 0.5, "betas": "[0.8,0.9]", "eps": 0.25}
    for optimizer in ("adamw", "lamb"):
        flags = {f"train.{key}": str(value) for key, value in (given | {"optimizer": optimizer}).items()}
        build_optimizer(nn.Linear(2, 2), load_config(None, flags).train, torch.device("cuda"))
    own = {"lr": 0.5, "betas": (0.8, 0.9), "eps": 0.25}
    assert made == [("FusedAdam", own | {"adam_w_mode": True}), ("FusedLAMB", own | {"max_grad_norm": 0.0})]


@pytest.mark.parametrize(
    "flags, rates",
    [
        ({}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "constant"}, [0.5, 1, 1, 1, 1, 1]),
        (
            {"schedule": "cosine"},
            [0.5, 1, 1, *((1 + math.cos(math.pi * done / 4)) / 2 for done in (1, 2, 3))],
        ),
        ({"schedule": "wsd", "decay_steps": 3}, [0.5, 1, 1, 1, 1 - math.sqrt(1 / 3), 1 - math.sqrt(2 / 3)]),
        ({"schedule": "wsd", "decay_steps": 3, "decay_shape": "linear"}, [0.5, 1, 1, 1, 2 / 3, 1 / 3]),
        ({"warmup_steps": 0}, [1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ({"warmup_steps": 5}, [1 / 5, 2 / 5, 3 / 5, 4 / 5, 1, 1]),
    ],
)
def test_rates_of_six_steps(flags, rates):
    given = {"steps": 6, "warmup_steps": 2, "lr": 0.004} | flags
    train = load_config(None, {f"train.{key}": str(value) for key, value in given.items()}).train
    assert [learning_rate(train, step) for step in range(6)] == pytest.approx(
        [0.004 * rate for rate in rates]
    )
