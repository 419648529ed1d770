"""The keys of a step's passes: of the run, the step, the sequence and the view, and of nothing else."""

from itertools import product

import numpy as np
import pytest
from exactness_cases import SEED, N, make_batch, share
from exactness_worker import build

from augment.core.ragged import Ragged
from pretrain.step.plan import passes_of


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
