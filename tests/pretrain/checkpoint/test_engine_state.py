"""Where optimizers and loss scalers keep their numbers, and that a checkpoint restores them."""

from types import SimpleNamespace

import pytest
import torch
from checkpoint_helpers import PlainEngine, save
from step.threaded_ranks import ThreadedRanks

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


SIZES = [7, 2, 3, 4]  # the first two and the third are groups; the last is frozen
PADDING = -9.0


def address(start: int, stop: int) -> SimpleNamespace:
    return SimpleNamespace(start=start, numel=stop - start)


def partitioned(stage: int, rank: int, world: int) -> SimpleNamespace:
    """What a checkpoint asks of DeepSpeed's engine on one of several ranks, whose parts are padded."""
    module = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(size)) for size in SIZES)
    params, calls = list(module), []
    params[3].requires_grad_(False)
    groups, slices, places = [params[:2], params[2:3]], [], {}
    for number, group in enumerate(groups):
        if stage == 3:  # each parameter is cut by itself
            offset = 0
            for p in group:
                count = -(-p.numel() // world)
                places[id(p)] = number, offset, count
                offset += count
            slices.append(torch.nn.Parameter(torch.full((offset,), PADDING)))
        else:  # a group is cut as a whole
            length, begin = -(-sum(p.numel() for p in group) // world), 0
            slices.append(torch.nn.Parameter(torch.full((length,), PADDING)))
            for p in group:
                own = range(max(begin, rank * length), min(begin + p.numel(), (rank + 1) * length))
                p._hp_mapping = None
                if own:
                    ours = address(own.start - rank * length, own.stop - rank * length)
                    whole = address(own.start - begin, own.stop - begin)
                    p._hp_mapping = SimpleNamespace(
                        get_hp_fragment_address=lambda ours=ours: ours, lp_fragment_address=whole
                    )
                begin += p.numel()
    zero = SimpleNamespace(optimizer=torch.optim.AdamW([{"params": [one]} for one in slices]))
    if stage == 3:
        for p in params:
            p.ds_numel, p.ds_shape = p.numel(), p.shape
        length = -(-SIZES[3] // world)
        params[3].ds_tensor = torch.full((length,), PADDING)
        params[3].ds_tensor.ds_numel = length
        zero.fp16_groups, zero.fp32_partitioned_groups_flat = groups, slices
        zero._get_param_partition_rank = lambda parameter: rank
        zero.get_param_id, zero.grad_position = id, places
        zero.checkpoint_event_prologue = lambda: calls.append("prologue")
        zero.checkpoint_event_epilogue = lambda: calls.append("epilogue")
        zero._reassign_or_swap_out_partitioned_parameters = calls.append
    else:
        zero.bit16_groups, zero.single_partition_of_fp32_groups = groups, slices
        zero.update_lp_params = lambda: calls.append("update")
    return SimpleNamespace(module=module, optimizer=zero, calls=calls)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_parts_of_all_ranks_cover_each_element_once_and_hold_what_was_set(stage, world):
    """Whatever the sizes: some ranks hold nothing of a parameter, and some only padding."""
    engines = [partitioned(stage, rank, world) for rank in range(world)]
    views = [engine_state(engine) for engine in engines]
    moments = ["exp_avg", "exp_avg_sq"]
    for view, engine in zip(views, engines):
        own = list(engine.module)
        assert [view.moment_keys(p) for p in own] == [[]] * 4 and view.scalars(own[0]) == {}
        saved = {id(p): moments for p in own[:2]}
        view.prepare(saved)
        assert [view.moment_keys(p) for p in own] == [moments, moments, [], []]
        view.prepare(saved | {id(own[2]): moments})
        view.set_scalars(
            {id(own[0]): {"step": 3}, id(own[1]): {"step": 5}, id(own[2]): {"step": 4}, id(own[3]): {}}
        )
        assert [view.scalars(p) for p in own] == [{"step": 5}, {"step": 5}, {"step": 4}, {}]
    wanted = {}
    for number, size in enumerate(SIZES):
        for key in (None, *moments) if number < 3 else (None,):
            whole = wanted[number, key] = torch.randn(size)
            seen = []
            for view, engine in zip(views, engines):
                parameter = engine.module[number]
                part = view.wanted(parameter, key)
                seen += range(size)[part]
                view.set(parameter, key, whole[part].clone())
            each = len(seen) // size if views[0].is_whole(engines[0].module[number]) else 1
            assert sorted(seen) == sorted([*range(size)] * each)
    for (number, key), whole in wanted.items():  # after all have been set
        for view, engine in zip(views, engines):
            part = view.part(engine.module[number], key)
            if part is not None:
                assert torch.equal(part.values, whole[part.start : part.start + len(part.values)])
    if stage == 3:  # what fills up is zeros: optimizers step it, too
        for view, engine in zip(views, engines):
            held = [engine.module[3].ds_tensor, *(x for x in view.inner.state.values() for x in x.values())]
            assert not any((tensor == PADDING).any() for tensor in [*held, *view.holders.values()])
    for view, engine in zip(views, engines):
        view.finish()
        assert engine.calls == (["prologue", 0, 1, "epilogue"] if stage == 3 else ["update"])
        assert view.is_whole(engine.module[3]) == (stage == 1) and not view.is_whole(engine.module[0])


def test_zeros_are_kept_by_who_holds_views_of_them():
    """What was there is zero, and the same memory; and it goes where each parameter has its own state."""
    engine = partitioned(1, 0, 1)
    view, first = engine_state(engine), engine.module[0]
    keys = {id(p): ["exp_avg", "exp_avg_sq"] for p in list(engine.module)[:3]}
    view.prepare(keys)
    state = dict(view.inner.state[view.holders[id(first)]])
    for tensor in state.values():
        tensor.fill_(7)
    view.set_scalars({id(first): {"step": 3}})
    view.prepare({})
    assert all(view.part(first, key).values.data_ptr() == state[key].data_ptr() for key in state)
    assert not any(tensor.any() for tensor in state.values()) and view.scalars(first) == {"step": 0}
    whole = PlainEngine()
    whole.step()
    plain = engine_state(whole)
    plain.prepare({id(whole.module.bias): ["exp_avg", "exp_avg_sq"]})
    assert plain.moment_keys(whole.module.bias) and not plain.moment_keys(whole.module.weight)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("world,again", [(1, 3), (2, 3), (3, 2), (5, 1)])
def test_a_checkpoint_of_parts_is_whole_and_is_read_by_any_number_of_ranks(
    stage, world, again, tmp_path, monkeypatch
):
    """Parts of a tensor travel to the rank that writes it; files are small."""
    engines = [partitioned(stage, rank, world) for rank in range(world)]
    series, wanted = ["parameters", "exp_avg", "exp_avg_sq"], {}
    for engine in engines:
        view = engine_state(engine)
        view.prepare({id(p): series[1:] for p in list(engine.module)[:3]})
        view.set_scalars({id(p): {"step": 6} for p in list(engine.module)[:3]})
        for kind in series:
            for name, p in list(view.named_parameters())[: 4 if kind == "parameters" else 3]:
                whole = wanted.setdefault((kind, name), torch.randn(p.ds_numel if stage == 3 else p.numel()))
                key = None if kind == "parameters" else kind
                view.set(p, key, whole[view.wanted(p, key)].clone())
    ranks = ThreadedRanks(world, monkeypatch)
    (folder,) = set(ranks.run(lambda rank: save(tmp_path, engines[rank], {"step": 6}, 1, max_file_bytes=30)))
    assert store.problem_with(folder) is None
    found = {(kind, name): tensor for kind in series for name, tensor in store.read_tensors(folder, kind)}
    assert found.keys() == wanted.keys() and all(torch.equal(found[key], wanted[key]) for key in found)
    assert len(list(folder.glob("parameters-*"))) > 1
    others = [partitioned(stage, rank, again) for rank in range(again)]
    ThreadedRanks(again, monkeypatch).run(lambda rank: store.load(folder, others[rank]))
    for engine in others:
        view = engine_state(engine)
        for name, p in view.named_parameters():
            assert view.scalars(p) == ({} if name == "3" else {"step": 6})
            for key in (None, *view.moment_keys(p)):
                part, whole = view.part(p, key), wanted[key or "parameters", name]
                if part is not None:
                    assert torch.equal(part.values, whole[part.start : part.start + len(part.values)])
        assert engine.calls[-1] in ("update", "epilogue")
