"""Time and sizes of a plan by hand: shares of the peak, the assumed batch, what a token keeps, what fits."""

import math
from dataclasses import replace

import pytest
from test_formulas import BATCH, FOUR, MODEL

from pretrain.config.recipe import load_config
from pretrain.start import estimate
from pretrain.start.estimate import PlannedTokenizer, Reached

REACHED = Reached(short=0.5, long=0.25, half=400.0, host=1e-9, fp32=0.1, stages=(1.0, 2.0, 4.0, 8.0))


@pytest.mark.parametrize("length, best", [(128, 0.5), (129, 0.25)])
@pytest.mark.parametrize("zero, slower", [(0, 1.0), (1, 2.0), (2, 4.0), (3, 8.0)])
def test_rows_of_few_tokens_take_longer_for_each(length, best, zero, slower):
    """2,000 masked tokens and 4,000 of views on four ranks: rows of 500 tokens, and two of 500."""
    forward = 2e6 * 6000 + 1e5 * 300
    work = 3 * forward + 2e6 * 4000  # views are read again
    of_head = 3 * 1e5 * 300
    seconds = (of_head + (work - of_head) / 3) * (1 + 400 * 1 / 500) / (best * 1e12)
    seconds += (work - of_head) * 2 / 3 * (1 + 400 * 2 / 1000) / (best * 1e12)
    share = estimate.share_reached(REACHED, MODEL, BATCH, replace(FOUR, zero=zero), length, 1e12)
    assert share == pytest.approx(work / (1e12 * seconds * slower))


def test_no_step_is_faster_than_the_host_and_a_pass_without_tokens_takes_no_time():
    work = estimate.step_flops(MODEL, BATCH, FOUR)
    slow = replace(REACHED, host=7.0)
    assert estimate.share_reached(slow, MODEL, BATCH, FOUR, 64, 1e12) == pytest.approx(work / 7e12)
    views = replace(BATCH, masked_tokens=0.0, predicted=0.0)
    work = 3 * 2e6 * 4000 + 2e6 * 4000
    expected = 0.5 / (1 + 400 * 2 / 1000)
    assert estimate.step_flops(MODEL, views, FOUR) == work
    assert estimate.share_reached(REACHED, MODEL, views, FOUR, 64, 1e12) == pytest.approx(expected)


def test_without_graphs_the_host_launches_every_layer_of_every_row():
    """A row of maskings, and two of views a rank, which pass half as long without gradients before."""
    reached, model = replace(REACHED, host=1.0, launches=0.5), replace(MODEL, layers=3)
    work, eager = estimate.step_flops(model, BATCH, FOUR), replace(FOUR, graphs=False)
    for layout, seconds in ((FOUR, 1.0), (eager, 1.0 + 0.5 * 3 * (1 + 2 * 1.5))):
        share = estimate.share_reached(reached, model, BATCH, layout, 64, 1e12)
        assert share == pytest.approx(work / (seconds * 1e12))
    whole = replace(eager, micro_batch_tokens=1000)  # whose graph is kept
    share = estimate.share_reached(reached, model, BATCH, whole, 64, 1e12)
    assert share == pytest.approx(estimate.step_flops(model, BATCH, whole) / (4e12))


def test_a_step_computes_losses_of_one_sequence_twice_and_what_is_not_kept_again():
    more = replace(BATCH, sequence_tokens=1000.0, momentum_tokens=500.0)
    model = replace(MODEL, recomputed=3e6)
    assert more.tokens == 7000.0 and more.largest_pass == 4000.0
    forward = 2e6 * 8000 + 1e5 * 300
    again = 2e6 * (500 + 4000) + 3e6 * 8000
    assert estimate.step_flops(model, more, FOUR) == 3 * forward + again
    whole = replace(FOUR, micro_batch_tokens=1000)  # 4 x 1000: all tokens of the views at once
    assert estimate.step_flops(model, more, whole) == 3 * forward + 2e6 * 500 + 3e6 * 8000
    assert estimate.checkpoint_bytes(replace(MODEL, frozen=500)) == 4 * (1_000_500 + 2_000_000)


def test_memory_of_a_guide_and_of_stage_3():
    model = replace(MODEL, frozen=400_000, guide=50_000, leaves=7e6)
    found = {zero: estimate.memory(model, BATCH, replace(FOUR, zero=zero)) for zero in range(4)}
    for zero in range(3):
        assert found[zero]["weights"] == 4 * 50_000 + 4 * 1_400_000 and found[zero]["gathered"] == 0
    assert found[3]["weights"] == 4 * 50_000 + 1_400_000 + 4 * 10_000
    assert found[3]["gathered"] == 4 * 400_000 and found[3]["reserved"] == 2e9
    assert [found[zero]["leaves"] for zero in range(4)] == [7e6, 7e6, 0.0, 0.0]
    assert found[2]["reserved"] == found[0]["reserved"] == 0
    assert [found[zero]["copies"] for zero in range(4)] == [2e6] * 4
    assert found.keys() == {0, 1, 2, 3} and found[0].keys() == estimate.PARTS.keys()


def test_the_largest_pass_bounds_the_largest_micro_batch():
    room = 1e12
    assert (
        estimate.largest_micro_batch(MODEL, BATCH, FOUR, room) == 2048
    )  # of 1,000 tokens a rank, and one more
    long = replace(BATCH, longest=3000)
    assert estimate.largest_micro_batch(MODEL, long, FOUR, room) == (3 + 1) * 1024
    least = estimate.peak(estimate.memory(MODEL, long, replace(FOUR, micro_batch_tokens=3 * 1024)))
    assert estimate.largest_micro_batch(MODEL, long, FOUR, least) == 4096, "as many tokens: all of a rank's"
    assert estimate.largest_micro_batch(MODEL, long, FOUR, least - 1) is None


def config(**flags):
    return load_config(None, {key.replace("__", "."): str(value) for key, value in flags.items()})


@pytest.mark.parametrize(
    "flags, length, longest, expected",
    [
        ({}, 10, None, {"masked_tokens": 10, "predicted": 1.5, "views": 2, "view_tokens": 20, "longest": 40}),
        ({}, None, None, {"view_tokens": 2 * 24}),
        ({}, None, 16, {"view_tokens": 2 * 16, "longest": 16}),
        ({"data__prepare__unit": "document"}, None, None, {"view_tokens": 2 * 40, "masked_tokens": 40}),
        ({"model__max_positions": 32}, 10, None, {"longest": 32}),
        ({"objective__mlm__copies": 2}, 10, None, {"masked_tokens": 20, "predicted": 3.0}),
        ({"objective__mlm__weight": 0}, 10, None, {"masked_tokens": 0, "predicted": 0}),
        ({"objective__mlm__later_rates": "{5: 0.3}"}, 10, None, {"predicted": 3.0}),
        ({"objective__mlm__later_rates": "{5: 0.05}"}, 10, None, {"predicted": 1.5}),
        ({"objective": "diffcse", "objective__diffcse__generator": "g"}, 10, None, {"sequence_tokens": 20}),
        (
            {"objective": "diffcse", "objective__diffcse__replaced_token_weight": 0},
            10,
            None,
            {"sequence_tokens": 0},
        ),
        ({"objective": "vadvcse"}, 10, None, {"sequence_tokens": 10}),
        (
            {"objective": "vadvcse", "objective__vadvcse__adversarial_weight": 0},
            10,
            None,
            {"sequence_tokens": 0},
        ),
        ({"objective": "esimcse"}, 10, None, {"momentum_tokens": 10, "sequence_tokens": 0}),
        ({"objective": "esimcse", "objective__esimcse__queue": 0}, 10, None, {"momentum_tokens": 0}),
    ],
)
def test_the_batch_that_is_assumed(flags, length, longest, expected):
    """In tokens of each of the 32 sequences."""
    given = {"train__global_batch": 32, "data__prepare__max_length": 40} | flags
    batch, assumed = estimate.assumed_batch(config(**given), length, longest)
    found = vars(batch)
    scaled = {k: v if k in ("views", "longest") else 32 * v for k, v in expected.items()}
    assert {key: found[key] for key in scaled} == pytest.approx(scaled)
    assert batch.sequences == 32 and assumed == (length or batch.view_tokens / 64)


def test_what_a_token_keeps():
    """In half precision 20 bytes a channel and 4 an inner one; beside layers, what a backward pass holds."""
    sizes = {"type": "bert", "hidden_size": 64, "intermediate_size": 256, "layers": 3}
    end = 8 * 64 + 8 * 256
    assert estimate.token_bytes(sizes, "bf16", False) == 3 * (20 * 64 + 4 * 256) + end
    assert estimate.token_bytes(sizes, "fp16", True) == 3 * 6 * 64 + (20 * 64 + 4 * 256) + end
    assert estimate.token_bytes(sizes, "fp32", False) == 3 * (32 * 64 + 8 * 256) + end
    assert estimate.token_bytes(sizes, "fp32", True) == 3 * 4 * 64 + (32 * 64 + 8 * 256) + end
    gated = sizes | {"type": "modernbert"}
    assert estimate.token_bytes(gated, "bf16", False) == 3 * (20 * 64 + 4 * 384) + end


SMALL = {"model__layers": 2, "model__hidden_size": 64, "model__heads": 2, "model__max_positions": 64}
SMALL |= {"data__prepare__max_length": 64, "train__global_batch": 4096, "train__precision": "bf16"}


def test_what_is_measured_of_a_model():
    tokenizer = PlannedTokenizer(1000)
    whole = config(**SMALL)
    found = estimate.measure_model(whole, tokenizer, 20, "bf16")
    matrices = 2 * (4 * 64 * 64 + 2 * 64 * 256)
    assert (found.width, found.vocabulary, found.largest) == (64, 1000, 64_000)
    assert found.copies == 2 * matrices and found.leaves == 6 * matrices
    assert found.moments == 2 * found.trained and found.frozen == 0 and found.guide == 0
    assert found.small == found.trained, "all tensors are of less than 100,000 elements"
    assert found.masked_bytes == 16 * 64 and found.recomputed == 0
    assert found.token_flops == 2 * matrices + 2 * 4 * 64 * 20
    assert found.masked_flops == 2 * 64 * (64 + 1000)
    exact = estimate.measure_model(whole, tokenizer, 20, "fp32")
    assert exact.copies == 0 and exact.leaves == 4 * matrices
    muon = config(**SMALL, train__optimizer="muon", train__zero=0, train__activation_checkpointing="true")
    again = estimate.measure_model(muon, tokenizer, 20, "bf16")
    assert again.moments == 2 * again.trained - matrices and again.recomputed == again.token_flops
    guided = config(**SMALL, objective__mlm__weight=0)
    alone = estimate.measure_model(guided, tokenizer, 20, "bf16")
    assert alone.trained + alone.frozen == found.trained and alone.frozen > 64 * 64
    zeros = whole.model_copy(
        update={"deepspeed": {"zero_optimization": {"stage3_param_persistence_threshold": 65}}}
    )
    assert estimate.measure_model(zeros, tokenizer, 20, "bf16").small < found.small / 4


def test_a_layout_is_the_recipes():
    own = config(
        train__micro_batch_tokens=777, train__communication_dtype="bf16", train__optimizer_code="apex"
    )
    bucket = 25 * 2**20 // 4
    assert vars(estimate.layout_of(own, 8, 1)) == {
        "ranks": 8,
        "zero": 1,
        "micro_batch_tokens": 777,
        "bucket": bucket,
        "wire": 2,
        "graphs": True,
        "apex": True,
    }
    assert (
        estimate.layout_of(config(), 8, 2).bucket == 500_000_000
        and estimate.layout_of(config(), 8, 0).wire == 4
    )
    given = config().model_copy(update={"deepspeed": {"zero_optimization": {"reduce_bucket_size": 5e6}}})
    assert estimate.layout_of(given, 8, 0).bucket == 5_000_000 and not estimate.layout_of(given, 8, 0).apex


def test_graphs_are_planned_where_a_run_has_them():
    own, recomputed = config(), config(train__activation_checkpointing=True)
    assert [estimate.layout_of(own, 8, zero).graphs for zero in range(4)] == [True, True, True, False]
    assert not estimate.layout_of(recomputed, 8, 0).graphs
    assert not estimate.layout_of(config(train__graphs="off"), 8, 0).graphs


def test_a_pass_is_the_largest_power_of_two_that_fits_and_no_larger_than_a_graphs(capsys):
    tokenizer, whole = PlannedTokenizer(1000), config(**SMALL)
    assert estimate.fitting_micro_batch(whole, tokenizer, 64, 1, 0) == whole.train.micro_batch
    least = config(**SMALL, train__micro_batch_tokens=64)
    assert estimate.fitting_micro_batch(least, tokenizer, 64, 1, 0) == 64
    twice = config(**SMALL, objective="vadvcse", train__micro_batch_tokens=64)
    assert estimate.fitting_micro_batch(twice, tokenizer, 64, 1, 0) == 128
    assert estimate.fitting_micro_batch(whole, tokenizer, 64, 1, 1e12) == 2**15
    longer = config(**{**SMALL, "model__max_positions": 256, "data__prepare__max_length": 129})
    assert estimate.fitting_micro_batch(longer, tokenizer, 129, 1, 1e12) == 2**16
    assert estimate.fitting_micro_batch(longer, tokenizer, 128, 1, 1e12) == 2**15
    assert capsys.readouterr().err == ""
    assert estimate.fitting_micro_batch(whole, tokenizer, 64, 1, 1e3) == 64
    assert "no micro-batch of this run" in capsys.readouterr().err
    model = estimate.measure_model(whole, tokenizer, 64, "bf16")
    model = replace(model, token_bytes=2 * model.token_bytes)
    batch, _ = estimate.assumed_batch(whole, 64, 64)
    layout = estimate.layout_of(whole, 1, whole.train.zero)
    for steps in (3, 4, 7):  # of 1,024 tokens
        need = estimate.peak(estimate.memory(model, batch, replace(layout, micro_batch_tokens=1024 * steps)))
        found = estimate.fitting_micro_batch(whole, tokenizer, 64, 1, need / 0.9 + 1)
        assert found == 1024 * 2 ** int(math.log2(steps)), steps
