"""Objectives as they are put together: names, plug-ins, heads, momentum, and what they refuse."""

import itertools
import shutil

import numpy as np
import pytest
import torch
from exactness_cases import CASES
from exactness_worker import LABELS, VOCABULARY, WIDTH, FakeTokenizer, build
from run_helpers import command, curve, finish, start

from augment.core.own_code import ALLOWED
from finetune.encoders.models import open_model
from pretrain.benchmarks.sts_tasks import StsEvaluator
from pretrain.common.errors import UserError
from pretrain.config.recipe import load_config, validate_config
from pretrain.data.batch import ViewSpec
from pretrain.data.microbatches import MicroBatch
from pretrain.export.folder import read_policy
from pretrain.model.encoder import build_encoder
from pretrain.model.modules import parameter_groups
from pretrain.objectives import BatchContext, build_objective, view_specs
from pretrain.objectives.base import MomentumEncoder
from pretrain.start.continuity import record_changes
from pretrain.step.model import SentenceModel

MINE = '''
from pretrain.objectives import Objective


class Nearer(Objective):
    """The positive must be nearer than the next sentence's, by a margin."""

    def __init__(self, config, encoder):
        super().__init__()
        self.margin = float(config.objective.options.get("margin", 0.2))

    def weights(self, step):
        return {"nearer": 1.0}

    def relate(self, views, context):
        near = (views["anchor"] - views["positive"]).norm(dim=1)
        far = (views["anchor"] - views["positive"].roll(1, 0)).norm(dim=1)
        return {"nearer": (near - far + self.margin).clamp_min(0).mean()}
'''


@pytest.fixture(autouse=True)
def own_code(monkeypatch):
    monkeypatch.setenv(ALLOWED, "*")


def encoder(pooling="mean"):
    sizes = {"type": "bert", "layers": 1, "hidden_size": WIDTH, "heads": 2, "max_positions": 32}
    return build_encoder(sizes, FakeTokenizer(), pooling)


def config(**objective):
    return validate_config(
        {"objective": objective, "train": {"global_batch": 32}, "data": {"lanes": 1}}, "test"
    )


@pytest.mark.parametrize(
    "name, said",
    [("simsce", "simcse"), ("clear+clear", "twice"), ("clear+vaslc", "vascl"), ("x.txt:A", "FILE.py")],
)
def test_names_that_are_none_are_refused(name, said):
    with pytest.raises(UserError, match=said):
        load_config(None, {"objective": name})


@pytest.mark.full
def test_the_roles_said_before_the_model_is_built_are_the_objectives_own():
    for case in CASES:
        settings, model = build(case, 0, "fp32", 0.0)
        assert tuple(view.role for view in view_specs(settings)) == model.objective.roles, case


def test_every_head_is_reached_by_an_idle_step():
    for case in ("clear_batch_norm", "simcse", "sda", "vascl", "augcse", "vadvcse", "esimcse", "diffcse"):
        _, model = build(case, 0, "fp32", 0.0)
        buffers = {name: buffer.clone() for name, buffer in model.objective.named_buffers()}
        model.touch_unused_heads(torch.device("cpu")).backward()
        for name, parameter in model.objective.named_parameters():
            assert parameter.grad is not None or not parameter.requires_grad, (case, name)
        for name, buffer in model.objective.named_buffers():
            assert torch.equal(buffer, buffers[name]), (case, name)


def test_masked_language_modelling_alone_has_no_roles_and_no_negatives():
    objective = build_objective(config(name="mlm"), encoder())
    assert (objective.roles, objective.negatives(32), objective.momentum_role) == ((), 0, None)


def test_every_momentum_encoder_of_an_objective_follows():
    _, model = build("esimcse", 0, "fp32", 0.0)
    momentum = [part for part in model.objective.modules() if isinstance(part, MomentumEncoder)]
    before = [[p.clone() for p in part.copy.parameters()] for part in momentum]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(parameter.requires_grad)
    model.objective.follow()
    assert len(momentum) == 2
    for part, old in zip(momentum, before):
        assert any(not torch.equal(p, was) for p, was in zip(part.copy.parameters(), old))


def test_a_sum_embeds_every_role_once():
    objective = build_objective(config(name="clear+sda"), encoder())
    assert objective.roles == ("anchor", "positive", "negative")
    assert set(objective.weights(0)) == {"mlm", "contrastive", "sda"}


def test_schedules_of_the_terms():
    late = {"start_step": 10, "warmup_steps": 5, "simcse": {"weight": 2.0}}
    objective = build_objective(config(name="clear+simcse", **late), encoder())
    weights = [objective.weights(step) for step in (9, 10, 12, 14, 99)]
    assert [one["simcse"] for one in weights] == pytest.approx([0, 0.4, 1.2, 2, 2])
    assert [one["contrastive"] for one in weights] == pytest.approx([0, 0.2, 0.6, 1, 1])
    assert all(one["mlm"] == 1.0 for one in weights)


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"name": "diffcse"}, "generator"),
        ({"name": "diffcse", "diffcse": {"generator": "/nowhere"}}, "/nowhere"),
        ({"name": "vascl", "vascl": {"neighbours": 32}}, "global_batch=32 is too small"),
        ({"name": "simcse", "simcse": {"keep_head": True, "head": "none"}}, "needs head mlp"),
        ({"name": "absent.py:Mine"}, "there is no file"),
    ],
)
def test_what_cannot_be_built_is_one_clear_message(settings, said):
    with pytest.raises(UserError, match=said):
        build_objective(config(**settings), encoder(), FakeTokenizer(), LABELS)


def test_a_loss_without_a_weight_is_named(tmp_path):
    (tmp_path / "mine.py").write_text(MINE.replace('return {"nearer": 1.0}', 'return {"neaer": 1.0}'))
    objective = build_objective(config(name=f"{tmp_path / 'mine.py'}:Nearer"), encoder())
    context = BatchContext(0, 0.0, torch.zeros(4, dtype=torch.long), {}, {}, None, 0)
    with pytest.raises(UserError, match=r"Nearer: weights lacks 'nearer'"):
        objective.relate({role: torch.randn(4, WIDTH) for role in objective.roles}, context)


def test_draws_of_an_objective_follow_seed_step_and_purpose():
    def drawn(seed: int, step: int, purpose: int) -> tuple[float, ...]:
        context = BatchContext(step, 0.5, torch.zeros(4, dtype=torch.long), None, {}, None, seed)
        return tuple(torch.randn(3, generator=context.generator(purpose)).tolist())

    asked = list(itertools.product((0, 1, 7), repeat=3))
    found = {one: drawn(*one) for one in asked}
    assert len(set(found.values())) == len(asked)
    torch.manual_seed(5)
    assert all(drawn(*one) == found[one] for one in asked)


def vascl(views: dict, identities: torch.Tensor, **settings):
    torch.manual_seed(0)
    term = build_objective(config(name="vascl", vascl=settings), encoder()).terms["vascl"]
    numbers = torch.zeros(len(identities), dtype=torch.long)
    context = BatchContext(0, 0.0, numbers, dict.fromkeys(("anchor", "positive"), identities), {}, None, 0)
    return term.relate(views, context), context.measures


def test_vascl_trains_on_batches_that_one_text_fills():
    """65% one sentence, K = 16: its rows have fewer neighbours, which is counted."""
    views = {role: torch.randn(32, WIDTH, requires_grad=True) for role in ("anchor", "positive")}
    identities = torch.arange(32)
    losses, measures = vascl(views, identities)
    assert measures == {"vascl_rows_short_of_neighbours": 0.0}
    identities[:21] = 0  # 11 others are left to each of these, 31 to the rest
    losses, measures = vascl(views, identities, reading="paper")
    assert measures == {"vascl_rows_short_of_neighbours": 21.0}
    (gradient,) = torch.autograd.grad(sum(losses.values()), views["anchor"])
    assert gradient.isfinite().all() and (gradient.abs().sum(1) > 0).all()
    losses, measures = vascl(views, torch.zeros(32, dtype=torch.long))
    assert (
        measures == {"vascl_rows_short_of_neighbours": 32.0} and float(losses["vascl_neighbourhood"]) == 0.0
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "vascl", "vascl": {"neighbours": 32, "neighbourhood_weight": 0.0}},
        {"name": "clear+vascl", "vascl": {"neighbours": 32, "neighbourhood_weight": 0.0, "weight": 0.0}},
        {"name": "clear+vascl", "vascl": {"neighbours": 32}, "start_step": 10**6},
    ],
)
def test_a_loss_of_weight_zero_demands_no_batch(settings):
    objective = build_objective(config(**settings), encoder())
    assert objective.smallest_batch == 2
    objective.untrained_heads_touch(WIDTH, torch.device("cpu")).backward()


def test_a_kept_head_decides_what_vectors_are_in_use_and_nothing_else():
    settings = {"name": "clear+simcse", "mlm": {"weight": 0.0}}
    models = {}
    for keep in (True, False):
        torch.manual_seed(0)
        objective = build_objective(config(**settings, simcse={"keep_head": keep}), encoder("cls"))
        models[keep] = SentenceModel(encoder("cls"), objective).eval()
    models[False].load_state_dict(models[True].state_dict())  # the same parameters, under the same names
    generator = torch.Generator().manual_seed(1)
    ids, lengths = torch.randint(5, VOCABULARY, (21,), generator=generator), torch.tensor([7, 5, 9])
    row = MicroBatch(ids, lengths, torch.arange(3))
    pooled, dropped = models[True].embed(row), models[False].embed(row)
    linear = models[True].objective.terms["simcse"].head.layers[0]
    assert torch.equal(pooled, dropped) and torch.equal(models[False].embed_for_use(row), dropped)
    expected = torch.tanh(pooled @ linear.weight.T + linear.bias)
    assert torch.allclose(models[True].embed_for_use(row), expected, atol=1e-6)
    assert (
        models[True].objective.kept_head_name == "terms.simcse.head"
        and models[False].objective.kept_head_name is None
    )
    views = dict(zip(("anchor", "positive"), torch.randn(2, 32, WIDTH, generator=generator)))
    numbers = torch.arange(32)
    context = BatchContext(0, 0.0, torch.zeros_like(numbers), None, {}, None, 0)
    gradients = []
    for model in models.values():
        sum(model.relate(views, context).values()).backward()
        gradients.append({name: p.grad for name, p in model.objective.named_parameters()})
    assert all(torch.equal(gradients[0][name], gradients[1][name]) for name in gradients[0]) and len(
        gradients[0]
    )


KEEPER = """
from pretrain.model.heads import simcse_head, vascl_head
from pretrain.objectives.simcse import Simcse


class Keeper(Simcse):
    kept_head = property(lambda self: self.head)


class Other(Keeper):
    def __init__(self, config, encoder):
        super().__init__(config, encoder)
        self.head = vascl_head(encoder.hidden_size)
"""


def test_only_one_head_can_be_kept_and_only_one_that_exports_can_hold(tmp_path):
    path = tmp_path / "keeper.py"
    path.write_text(KEEPER)
    assert (
        build_objective(config(name=f"simcse+{path}:Keeper"), encoder()).kept_head_name == "terms.Keeper.head"
    )
    with pytest.raises(UserError, match="simcse and Keeper each keep a head: let one keep it"):
        build_objective(config(name=f"simcse+{path}:Keeper", simcse={"keep_head": True}), encoder())
    with pytest.raises(UserError, match=r"head of Other: make it by pretrain\.model\.heads\.simcse_head"):
        build_objective(config(name=f"{path}:Other"), encoder())


def test_a_checkpoint_older_than_a_key_had_its_default(tmp_path):
    old = config(name="simcse").model_dump(mode="json")
    del old["objective"]["simcse"]["keep_head"], old["objective"]["options"], old["train"]["head_lr_scale"]
    state = {"config": old, "step": 3, "progress": {}}
    record_changes(config(name="simcse"), state, tmp_path)
    assert state["progress"]["changes"] == []
    with pytest.raises(
        UserError, match=r"made with objective\.simcse\.keep_head=False, this command has True"
    ):
        record_changes(config(name="simcse", simcse={"keep_head": True}), state, tmp_path)


def test_how_augcses_view_is_augmented_must_be_said():
    for weight in (0.005, 0):
        with pytest.raises(UserError, match=r"augment\.augmented is missing: .*, or none"):
            view_specs(config(name="augcse", augcse={"discriminator_weight": weight}))
    ablation = config(name="augcse", augcse={"discriminator_weight": 0, "positive": "augmented"})
    ablation.augment.augmented = "none"
    assert view_specs(ablation)[-1] == ViewSpec("augmented", "none", False)
    assert build_objective(ablation, encoder()).roles == ("anchor", "augmented")


def test_an_objective_of_ones_own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    objective = build_objective(config(name=f"{path}:Nearer", options={"margin": 5}), encoder())
    assert objective.terms["Nearer"].margin == 5.0 and objective.roles == ("anchor", "positive")
    with pytest.raises(UserError, match="no class Other"):
        build_objective(config(name=f"{path}:Other"), encoder())
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_that_name")
    with pytest.raises(UserError, match="ModuleNotFoundError"):
        build_objective(config(name=f"{broken}:Mine"), encoder())


def test_heads_learn_at_a_rate_of_their_own_and_a_second_encoder_does_not():
    _, model = build("diffcse", 0, "fp32", 0.0)
    groups = parameter_groups(model, 0.1, head_lr_scale=100.0)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    fast = {names[id(p)] for group in groups if group["lr_scale"] == 100 for p in group["params"]}
    assert fast and all(name.startswith("objective.") and ".discriminator." not in name for name in fast)
    assert {id(p) for group in groups for p in group["params"]} == {
        id(p) for p in model.parameters() if p.requires_grad
    }
    assert {group["lr_scale"] for group in parameter_groups(model, 0.1)} == {1.0}


def test_a_momentum_encoder_follows_by_the_formula_and_never_trains():
    source = torch.nn.Linear(3, 2)
    follower = MomentumEncoder(source, 0.9)
    assert not follower.copy.training
    before = follower.copy.weight.clone()
    with torch.no_grad():
        source.weight.add_(1.0)
    follower.follow()
    assert torch.allclose(follower.copy.weight, 0.9 * before + 0.1 * source.weight)
    assert not any(p.requires_grad for p in follower.parameters()) and not follower.train().copy.training
    # the source is not its own
    assert {name for name, _ in follower.named_parameters()} == {"copy.weight", "copy.bias"}


def test_a_momentum_encoder_has_the_statistics_of_its_source():
    source = torch.nn.BatchNorm1d(3)
    follower = MomentumEncoder(source, 0.9)
    source(torch.randn(8, 3))
    follower.follow()
    for own, followed in zip(follower.buffers(), source.buffers(), strict=True):
        assert torch.equal(own, followed)


def test_the_queue_holds_the_newest_first_and_no_more_than_it_may():
    objective = build_objective(config(name="esimcse", esimcse={"queue": 1.5}), encoder())
    term = objective.terms["esimcse"]
    rows = torch.randn(32, WIDTH)
    for round_ in range(2):
        term.remember(rows + round_, torch.arange(32) + 100 * round_)
    assert int(term.filled) == len(term.queue) == 48
    assert term.queue_identities.tolist() == [*range(100, 132), *range(16)]
    assert torch.allclose(term.queue[:32], term.momentum_head(rows + 1))
    short = build_objective(config(name="esimcse", esimcse={"queue": 0.5}), encoder()).terms["esimcse"]
    short.remember(rows, torch.arange(32))
    assert torch.allclose(short.queue, short.momentum_head(rows)[short.queue_identities])
    rows[3] = torch.nan  # a batch that is not finite costs its step, and no later one
    term.remember(rows, torch.arange(32))
    assert term.queue.isfinite().all() and torch.allclose(term.queue[:3], term.momentum_head(rows[:3]))


def test_edits_depend_on_a_sequences_key_and_not_on_its_neighbours():
    _, model = build("diffcse_sample", 0, "fp32", 0.0)
    term = model.objective.terms["diffcse"].eval()
    lengths = torch.tensor([7, 5, 9])
    ids = torch.randint(5, VOCABULARY, (21,), generator=torch.Generator().manual_seed(0))
    keys = np.array([11, 12, 13], dtype=np.uint64)
    whole = term.edit(ids, lengths, keys)
    assert torch.equal(whole[7:12], term.edit(ids[7:12], lengths[1:2], keys[1:2]))
    assert (whole != ids).any() and len(term.edit(ids[:0], lengths[:0], keys[:0])) == 0


@pytest.mark.slow
def test_a_run_with_a_momentum_queue_resumes_bitwise(tiny_data, tmp_path):
    """The queue and the encoder that fills it are in the checkpoint."""
    flags = {
        "objective__name": "esimcse",
        "objective__mlm__weight": 0,
        "augment__positive": "repeat",
        "train__steps": 6,
        "train__warmup_steps": 1,
        "checkpoint__every": 3,
        "train__log_every": 1,
    }
    finish(start(command(tiny_data, tmp_path / "whole", **flags)))
    finish(start(command(tiny_data, tmp_path / "parts", **flags)))
    for step in (tmp_path / "parts" / "checkpoints").glob("step-00000006"):
        for file in step.iterdir():
            file.unlink()
        step.rmdir()
    finish(start(command(tiny_data, tmp_path / "parts", resume="auto", **flags)))
    whole, parts = curve(tmp_path / "whole"), curve(tmp_path / "parts")
    assert [whole[step]["loss"] for step in (4, 5, 6)] == [parts[step]["loss"] for step in (4, 5, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("ranks, zero", [(1, 0), (2, 3)])
def test_a_run_that_keeps_its_head_is_evaluated_alike_in_training_and_from_its_export(
    tiny_data, tmp_path, ranks, zero
):
    benchmark = tmp_path / "STS" / "STSBenchmark"
    benchmark.mkdir(parents=True)
    words = [
        "river",
        "stone",
        "engine",
        "garden",
        "letter",
        "teacher",
        "window",
        "planet",
        "market",
        "soldier",
    ]
    pairs = [
        (f"The {a} finds the {b}.", f"The {b} follows a {c}.") for a, b, c in zip(words, words[3:], words[1:])
    ]
    rows = [f"g\tf\ty\t{n}\t{n * 3 % 6}\t{one}\t{two}\n" for n, (one, two) in enumerate(pairs)]
    (benchmark / "sts-dev.csv").write_text("".join(rows))
    flags = {
        "objective__name": "simcse",
        "objective__mlm__weight": 0,
        "aug": "none",
        "model__pooling": "cls",
        "train__steps": 4,
        "train__warmup_steps": 0,
        "checkpoint__every": 2,
        "evaluate__every": 2,
        "evaluate__sts": tmp_path,
        "train__zero": zero,
        "train__lr": "1e-2",
    }
    curves = {}
    for keep in (True, False):
        run = tmp_path / f"keep-{keep}"
        finish(start(command(tiny_data, run, objective__simcse__keep_head=keep, **flags), ranks))
        curves[keep] = curve(run)
        for part in ("export", "best"):
            policy = read_policy(run / part)
            assert (policy["kept_head"] is not None) == keep
            result = StsEvaluator(tmp_path).evaluate(open_model(run / part).encode, ["STS-B-dev"])[
                "STS-B-dev"
            ]
            assert result["spearman_all"] == pytest.approx(
                curves[keep][policy["step"]]["evaluation"]["stsb-dev"], abs=1e-6
            )
    assert [row.get("loss") for row in curves[True].values()] == [
        row.get("loss") for row in curves[False].values()
    ]
    evaluations = [[curves[keep][step]["evaluation"] for step in (0, 2, 4)] for keep in (True, False)]
    assert evaluations[0] != evaluations[1]
    run, before = tmp_path / "keep-True", curves[True][4]
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    finish(start(command(tiny_data, run, objective__simcse__keep_head=True, resume="auto", **flags), ranks))
    assert {key: curve(run)[4][key] for key in ("loss", "evaluation")} == {
        key: before[key] for key in ("loss", "evaluation")
    }
