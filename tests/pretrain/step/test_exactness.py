"""Two-level gradients: real DeepSpeed ranks against a padded single-device float64 reference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from contrastive_references import NEGATIVES
from exactness_cases import CASES, SEED, N, make_batch, share
from exactness_worker import build, errors, reference_gradients
from run_helpers import finish, start
from threaded_ranks import PlainEngine, ThreadedRanks

from pretrain.losses import contrastive
from pretrain.step import placement
from pretrain.step.frozen_vectors import FrozenVectors
from pretrain.step.precision import LossScale
from pretrain.step.whole_batch import WholeBatch

WORKER = Path(__file__).parents[1] / "exactness_worker.py"
DEVICE = "cpu"  # tests/benchmarks/gpu_accept.py runs the worker on a GPU
CLEAR = (
    "mlm,double_mlm,clear_mean,clear_cls,clear_batch_norm,clear_no_head,clear_local,contrastive_only,not_yet"
)
SYSTEMS = (
    "simcse,simcse_supervised,sda,declutr,esimcse,esimcse_growing,vascl,vascl_paper,augcse,augcse_order,vadvcse,"
    "diffcse,simcse+retain"
)
LOCAL = "vascl_local,augcse_local,esimcse_local"
SWITCHES = (
    "simcse_symmetric,simcse_all,simcse_batch_norm,sda_no_negatives,augcse_paper,augcse_bool,vadvcse_printed,"
    "vadvcse_two_steps,diffcse_sample,clear+vadvcse"
)
OTHERS = (
    "clear_mean_options,simcse_all_options,simcse_supervised_options,esimcse_options,vascl_paper_options,"
    "augcse_order_options,clear_mean_guided,esimcse_guided,augcse_paper_guided,clear_mean_prompts,"
    "simcse_supervised_prompts_outside,esimcse_prompts,diffcse_prompts_outside,"
    "simcse_supervised_options_mixture,sda_mixture,clear_mean_answers,simcse_supervised_answers,"
    "esimcse_answers,vascl_answers,simcse_negatives_options,simcse_negatives_local,scored,"
    "scored_cosine_options,simcse_positives_options,simcse_positives_local,simcse_hard,distill_mse,"
    "distill_margin,simcse+distill,clear_weights,simcse_words,clear_words,vadvcse_words"
)
"""One of each kind of loss with options, guides, prompts, mixtures, shared texts and several negatives."""
ALL = ",".join(case for case in CASES if case != "muon" and not case.startswith("faint"))
PARTITIONED = (
    "not_yet,double_mlm,esimcse,vascl_paper,vadvcse_two_steps,diffcse,simcse_kept_options,clear_mean_guided,"
    "clear_weights,clear_words"
)
EACH = (
    "not_yet,clear_batch_norm,clear_local,simcse_supervised,sda,declutr,vascl,augcse,simcse+retain,vascl_local,"
    "augcse_local,esimcse_local,simcse_symmetric,simcse_all,sda_no_negatives,augcse_paper,augcse_order,"
    "augcse_bool,vadvcse_printed,vadvcse_two_steps,diffcse_sample,clear_mean_guided,esimcse_guided,"
    "vascl_paper_options,simcse_supervised_prompts_outside,simcse_supervised_options_mixture,"
    "clear_mean_answers,simcse_supervised_answers,esimcse_answers,simcse_negatives_local,"
    "simcse_positives_local,simcse_hard,distill_mse,simcse+distill,clear_words,vadvcse_words"
)
"""Losses and switches of which each runs lines of its own."""
KEPT = "clear_mean_guided", "distill_mse", "distill_margin"

FEW = "double_mlm,vascl,diffcse"
BOTH = "fp32,bf16"
CHECKED = (
    "vascl,augcse,augcse_order,vadvcse,sda,diffcse,esimcse"  # objectives with a check of their mechanism
)
DROPPED = (
    "clear_mean,clear_views_without_dropout,double_mlm,simcse_supervised,vascl,vadvcse_two_steps,"
    "diffcse,clear+vadvcse,clear_mean_guided"
)
MOVED = "mlm,clear_batch_norm,not_yet,simcse_supervised,esimcse,diffcse,clear+vadvcse"


def launch(
    tmp_path: Path,
    world: int,
    stage: int,
    cases: str,
    dropout: float = 0.0,
    balance: str = "off",
    layers: str = "plain",
    precisions: str = "fp32",
) -> dict:
    out = tmp_path / "report.json"
    words = [str(WORKER), str(out), str(stage), cases, str(dropout), balance, layers, precisions, DEVICE]
    finish(start(words, world), timeout=1800)
    return json.loads(out.read_text())


def check(report: dict, world: int) -> None:
    rows = report["rows"]
    assert rows
    for row in rows:
        # The rank that needs the most micro-batches decides: fewer would break another's memory budget.
        assert row["micro_batches"] == row["needed_micro_batches"], row
        # Against float64. bfloat16 has 8 bits of mantissa, so its gradient only points the same way; float16
        # has 11.
        largest = {"fp32": 1e-5, "fp16": 0.01, "bf16": 0.25}[row["precision"]]
        assert row["error"] < (1e-6 if row["case"] == "mlm_weight" else largest), row
        # An adversarial step is of the size of the embeddings themselves, and magnifies what float32 rounds.
        magnified = any(name.endswith("_adversarial") for name in row["expected_losses"])
        assert row["precision"] != "fp32" or row["worst_parameter"] < (2e-4 if magnified else 5e-5), row
        if "esimcse" not in row["case"]:  # whose queue is counted as if it were full
            assert row.get("negatives") == pytest.approx(row.get("expected_negatives")), row
        for name, value in row["expected_losses"].items():
            close = 5e-5 if name.endswith("_adversarial") else 1e-5
            assert abs(row["losses"][name] - value) < (close if row["precision"] == "fp32" else 0.05) * abs(
                value
            ), row
        for name, value in row["expected_shares"].items() if row["precision"] == "fp32" else ():
            close = pytest.approx(value, rel=1e-3 if magnified else 1e-4, abs=1e-6)
            assert row["measures"][name] == close, (name, row)
    assert len({tuple(row["micro_batches"]) for row in rows}) > 2  # the splits really were different
    if report["dropout"]:  # equal sequences on two ranks meet different dropout
        dropout = report["dropout"]
        assert dropout["sequences"] >= 8 and dropout["largest_cosine_between_ranks"] < 0.9999, dropout


@pytest.mark.parametrize(
    "case,world,dropout,balance",
    [
        ("double_mlm", 3, 0.1, "off"),  # of 16 lanes: 5, 5 and 6
        ("clear_mean", 2, 0.1, "on"),
        ("esimcse", 2, 0.0, "on"),
        ("diffcse", 2, 0.1, "off"),
        ("clear+vadvcse", 2, 0.1, "on"),
        ("scored", 3, 0.1, "off"),
        ("distill_kl", 2, 0.1, "off"),
        ("distill_margin", 3, 0.0, "off"),
        ("simcse_positives", 2, 0.1, "off"),
        ("simcse_hard_positives", 3, 0.0, "off"),
        ("scored_cosine_options", 2, 0.0, "on"),
        *((case, 2, 0.0, "off") for case in EACH.split(",")),
    ],
)
def test_threads_as_ranks_have_the_gradient_of_the_whole_batch(
    monkeypatch, tmp_path, case, world, dropout, balance
):
    """Losses are shared over ranks, and what passes through the encoder goes backward scaled."""
    monkeypatch.setattr(contrastive, "SMALLEST_SHARED", 0)
    built = [build(case, 0, "fp32", dropout) for _ in range(world)]
    if balance == "off":
        monkeypatch.setattr(placement, "ABOVE", math.inf)
    NEGATIVES.clear()
    config, model = built[0]
    more = CASES[case].get("batch", {})
    whole = make_batch(5, model.objective.masked_copies, model.objective.roles, balance == "on", **more)
    for _, each in built:
        each.encoder.leave_out(np.array(prompt, np.int32) for prompt in whole["outside"].values())
    systems = () if case == "not_yet" else tuple(model.objective.terms)
    expected_losses, expected, shares = reference_gradients(model, whole, config, world, systems, dropout > 0)

    def compute(rank):
        engine = PlainEngine(built[rank][1])
        steps = WholeBatch(engine, SEED, 60, LossScale(engine.module, 1024.0), lanes=N)
        if case in KEPT:
            roles, width = model.objective.guided_roles, model.objective.guide.hidden_size
            steps.guide_store = FrozenVectors(tmp_path / "kept", range(len(roles)), N, width, "float32")
        step = steps.compute(share(whole, rank, world, 0), collects_diagnostics=True)
        gradients = {n: p.grad.double() for n, p in engine.module.named_parameters() if p.grad is not None}
        return step, errors(gradients, expected)

    negatives = max(NEGATIVES, default=None)
    for step, found in ThreadedRanks(world, monkeypatch).run(compute):
        if "esimcse" not in case:  # whose queue is counted as if it were full
            assert step.negatives == pytest.approx(negatives)
        assert max(step.micro_batches) > 1
        assert found["error"] < 1e-5 and found["worst_parameter"] < 2e-4, found
        for name, value in expected_losses.items():
            assert float(step.losses[name]) == pytest.approx(value, rel=5e-5), name
        for name, value in shares.items():
            assert float(step.measures[name]) == pytest.approx(value, rel=1e-3, abs=1e-6), name


@pytest.mark.full
@pytest.mark.parametrize(
    "world,stage,cases,precisions",
    [
        (1, 0, f"{CLEAR},faint_mlm,faint_contrastive", BOTH),
        (1, 0, SWITCHES, "fp32"),
        (2, 1, f"{CLEAR},{LOCAL},{OTHERS}", "fp32"),
        (2, 3, PARTITIONED, "fp32"),
        (2, 0, f"{FEW},muon", BOTH),
        (2, 2, FEW, "fp32"),
    ],
)
def test_gradients_equal_the_whole_batch_on_one_device(tmp_path, world, stage, cases, precisions):
    check(launch(tmp_path, world, stage, cases, precisions=precisions), world)


@pytest.mark.full
def test_objectives_and_checks_of_their_mechanisms_are_the_same_for_every_split(tmp_path):
    """Of 1 rank and of 2, in two numbers of micro-batches, with losses shared over ranks and not."""
    whole = launch(tmp_path, 2, 1, SYSTEMS)
    check(whole, 2)
    found: dict[str, list[dict]] = {}
    for row in launch(tmp_path, 1, 1, CHECKED)["rows"] + whole["rows"]:
        if row["precision"] == "fp32" and row["measures"]:
            found.setdefault(row["case"], []).append(row["measures"])
    for case in CHECKED.split(","):
        first, *others = found[case]
        assert len(others) == 3 and len(first) > 1
        for other in others:
            assert other == pytest.approx(first, rel=1e-3, abs=1e-6), case


@pytest.mark.full
@pytest.mark.parametrize(
    "world,stage,cases",
    [
        (1, 0, FEW),
        (2, 1, DROPPED),
        (2, 3, f"{FEW},clear+vadvcse"),
        (2, 2, "clear_mean"),
    ],
)
def test_with_dropout_gradients_equal_the_whole_batch_on_one_device(tmp_path, world, stage, cases):
    check(launch(tmp_path, world, stage, cases, 0.1), world)


@pytest.mark.full
@pytest.mark.parametrize(
    "world,stage,cases,dropout",
    [(1, 0, "clear_mean,double_mlm,vadvcse,diffcse", 0.0), (2, 1, "clear_mean,simcse,vascl", 0.1)],
)
def test_gradients_are_the_same_through_the_variable_length_branch(tmp_path, world, stage, cases, dropout):
    check(launch(tmp_path, world, stage, cases, dropout, layers="flash"), world)


@pytest.mark.full
@pytest.mark.parametrize("world,stage", [(1, 0), (2, 1)])
def test_gradients_are_the_same_by_graphs_of_rows(tmp_path, world, stage):
    report = launch(tmp_path, world, stage, "clear_mean", layers="graphs", precisions=BOTH)
    check(report, world)
    assert all(row["repeats"] == sum(row["micro_batches"]) for row in report["rows"] if "repeats" in row)


@pytest.mark.full
@pytest.mark.parametrize("world,stage,cases", [(1, 0, "clear_mean,vadvcse"), (2, 3, "clear_mean,diffcse")])
def test_gradients_are_the_same_where_layers_are_computed_again(tmp_path, world, stage, cases):
    check(launch(tmp_path, world, stage, cases, 0.1, layers="recomputed"), world)


UNEVEN = "mlm,clear_batch_norm,not_yet,simcse_supervised,esimcse,augcse,vadvcse_two_steps,diffcse"


@pytest.mark.full
@pytest.mark.parametrize(
    "stage,cases,dropout,balance",
    [
        pytest.param(1, UNEVEN, 0.1, "off", marks=pytest.mark.slow),
        (1, "mlm,not_yet,simcse_supervised,esimcse,diffcse", 0.1, "off"),
        (3, "double_mlm,diffcse", 0.0, "off"),
        (1, "clear_mean,diffcse", 0.1, "on"),
    ],
)
def test_gradients_are_the_same_where_ranks_have_unequal_numbers_of_lanes(
    tmp_path, stage, cases, dropout, balance
):
    """16 lanes on 3 ranks: 5, 5 and 6."""
    check(launch(tmp_path, 3, stage, cases, dropout, balance), 3)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("layers", ["flash", "recomputed"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradients_are_the_same_for_all_kinds_of_layers(tmp_path, world, stage, layers, dropout):
    cases = f"{CLEAR},{SYSTEMS},{SWITCHES}"
    check(launch(tmp_path, world, stage, cases, dropout, layers=layers, precisions=BOTH), world)


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_with_dropout_gradients_for_every_world_and_stage(tmp_path, world, stage):
    check(launch(tmp_path, world, stage, ALL, 0.1), world)


@pytest.mark.full
@pytest.mark.parametrize(
    "stage,cases,dropout", [(1, MOVED, 0.1), (1, f"mlm,clear_mean,{LOCAL}", 0.0), (3, FEW, 0.1)]
)
def test_gradients_are_the_same_wherever_sequences_are_encoded(tmp_path, stage, cases, dropout):
    check(launch(tmp_path, 2, stage, cases, dropout, "on"), 2)


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_gradients_are_the_same_wherever_sequences_are_encoded_for_all(tmp_path, world, stage, dropout):
    check(
        launch(tmp_path, world, stage, ALL, dropout, "on", precisions=BOTH),
        world,
    )


@pytest.mark.slow
@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_for_every_world_and_stage(tmp_path, world, stage):
    check(launch(tmp_path, world, stage, ALL, precisions=BOTH), world)
