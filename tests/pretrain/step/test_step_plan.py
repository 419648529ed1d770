"""The keys of a step's passes: of the run, the step, the sequence and the view, and of nothing else."""

from itertools import product

import numpy as np
import pytest
import torch
from exactness_cases import SEED, N, make_batch, share
from exactness_worker import build
from threaded_ranks import PlainEngine, ThreadedRanks

from augment.core.ragged import Ragged
from pretrain.step.plan import StepPlan, passes_of
from pretrain.step.whole_batch import WholeBatch


def keys_of(world: int, step: int = 3, seed: int = SEED) -> dict[str, np.ndarray]:
    """Pass -> uint64[roles, N], all ranks' together."""
    _, model = build("clear+vadvcse", 0, "fp32", 0.1)
    whole = make_batch(5, model.objective.masked_copies, model.objective.roles)
    shares = [
        passes_of(share(whole, rank, world, step), model.objective, 90, seed, rank) for rank in range(world)
    ]
    return {
        name: np.concatenate([of[name].keys.reshape(-1, N // world) for of in shares], axis=1)
        for name in shares[0]
    }


def test_keys_do_not_depend_on_ranks():
    alone, together = keys_of(1), keys_of(4)
    assert set(alone) == {"views", "masking 0", "vadvcse anchor"}
    assert all(np.array_equal(alone[name], together[name]) for name in alone)


def test_every_view_masking_and_loss_of_a_sequence_has_a_key_of_its_own_at_every_step_and_seed():
    runs = [keys_of(1), keys_of(1, step=4), keys_of(1, seed=SEED + 1)]
    keys = np.concatenate([keys.ravel() for run in runs for keys in run.values()])
    assert len(np.unique(keys)) == len(keys) == 3 * 4 * N


def test_a_sequences_key_stays_with_it_in_its_micro_batch():
    _, model = build("clear_mean", 0, "fp32", 0.1)
    batch = share(make_batch(5, 1, model.objective.roles), 0, 1, 0)
    views = passes_of(batch, model.objective, 90, SEED, 0)["views"]
    rows = views.micro_batches(4)
    for row in rows:
        assert np.array_equal(row.keys, views.keys[row.rows.numpy()])
    assert sum(len(row.keys) for row in rows) == 2 * N


@pytest.mark.parametrize("case", ["double_mlm", "clear+vadvcse", "diffcse"])
def test_every_micro_batch_of_a_pass_rank_and_step_has_a_random_state_of_its_own(case):
    objective = build(case, 0, "fp32", 0.1)[1].objective
    whole = make_batch(5, objective.masked_copies, objective.roles)
    seeds = [
        row.seed
        for seed, step, rank in product((SEED, SEED + 1), (0, 1), (0, 1))
        for of in passes_of(share(whole, rank, 2, step), objective, 90, seed, rank).values()
        for row in of.micro_batches(3)
    ]
    assert len(set(seeds)) == len(seeds) >= 8 * 3 * 2 and None not in seeds


@pytest.mark.parametrize(
    "case,names",
    [
        ("mlm", ["masking 0"]),
        ("double_mlm", ["masking 0", "masking 1"]),
        ("clear_mean", ["views", "masking 0"]),
        ("not_yet", ["masking 0"]),
        ("simcse", ["views"]),
        ("esimcse", ["views", "momentum"]),
        ("esimcse_local", ["views"]),  # without a queue
        ("diffcse", ["views", "diffcse anchor", "diffcse positive"]),
    ],
)
def test_a_step_reads_what_its_losses_need_and_a_momentum_encoder_its_role(case, names):
    objective = build(case, 0, "fp32", 0.1)[1].objective
    batch = share(make_batch(5, objective.masked_copies, objective.roles), 0, 1, 0)
    passes = passes_of(batch, objective, 90, SEED, 0)
    assert list(passes) == names
    for name, of in passes.items():
        roles = objective.roles if name == "views" else [name.split()[-1].replace("momentum", "anchor")]
        expected = ("length",) if "masking" in name else tuple(f"length {role}" for role in roles)
        assert of.lengths_of == expected and of.budget == (45 if "diffcse" in name else 90)
        if "masking" not in name:
            assert of.sequences == Ragged.concatenate([batch.views[role].tokens for role in roles])
        assert (of.keys is None) is (of.seeds is None) is (name == "momentum")  # it has no dropout


@pytest.mark.parametrize("budget, kept", [(60, False), (10**6, True)])
def test_a_graph_is_kept_in_the_first_pass_where_it_is_the_only_one(budget, kept, monkeypatch):
    """Else a step would hold the activations of all micro-batches."""
    _, model = build("clear_mean", 0, "fp32", 0.1)
    whole = make_batch(5, model.objective.masked_copies, model.objective.roles)
    seen = []
    model.encoder.lm.base_model.embeddings.register_forward_hook(
        lambda *_: seen.append(torch.is_grad_enabled())
    )

    def compute(rank):
        steps = WholeBatch(PlainEngine(model), SEED, budget, lanes=N)
        return steps.compute(share(whole, 0, 1, 0))

    (step,) = ThreadedRanks(1, monkeypatch).run(compute)
    views, masked = step.micro_batches
    assert seen == ([True] * 2 if kept else [False] * views + [True] * (views + masked))
    assert kept == (views == 1)


def test_a_loss_of_one_sequence_at_a_time_has_half_of_a_pass():
    _, model = build("clear+vadvcse", 0, "fp32", 0.1)
    batch = share(make_batch(5, 1, model.objective.roles), 0, 1, 0)
    for budget, half in ((90, 45), (91, 45), (1, 1)):
        passes = passes_of(batch, model.objective, budget, SEED, 0)
        assert {name: one.budget for name, one in passes.items()} == {
            "views": budget,
            "masking 0": budget,
            "vadvcse anchor": half,
        }
    assert passes["views"].lengths_of == ("length anchor", "length positive")
    assert passes["masking 0"].lengths_of == ("length",) and passes["vadvcse anchor"].lengths_of == (
        "length anchor",
    )
    lengths = [batch.views[role].tokens.lengths for role in model.objective.roles]
    assert np.array_equal(passes["views"].sequences.lengths, np.concatenate(lengths))


def test_plans_of_ranks_are_merged_number_by_number():
    def plan(views, tokens, masked, request, damaged, sums, lengths):
        sequences = {"length": torch.tensor(lengths), "label": torch.tensor([10 * n for n in lengths])}
        return StepPlan(
            {"views": views, "x": 1},
            {"views": tokens},
            masked,
            request,
            damaged,
            [len(lengths)],
            sequences,
            sums,
        )

    big = -(2**63)
    one = plan(2, 50, [3, 4], 1, 2, (5, big, 1, 0), [7, 8, 9])
    two = plan(5, 70, [10, 20], 4, 0, (6, big, 2, -1), [1])
    three = plan(1, 5, [0, 0], 0, 1, (0, 0, 0, 2), [2, 3])
    whole = one.merge(torch.stack([part.to_tensor(3) for part in (one, two, three)]))
    assert (whole.micro_batches, whole.tokens, whole.masked_tokens) == (
        {"views": 5, "x": 1},
        {"views": 125},
        [13, 24],
    )
    assert (whole.request, whole.substitutions, whole.drawn) == (4, 3, [3, 1, 2])
    assert whole.sequences["length"].tolist() == [7, 8, 9, 1, 2, 3]
    assert whole.sequences["label"].tolist() == [70, 80, 90, 10, 20, 30]
    assert [int(number) % 2**64 for number in whole.sums] == [11, 0, 3, 1]
