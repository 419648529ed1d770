"""Every number that a run prints, against known times and tokens."""

import io
import itertools
import json
import math
import os
import signal
import time
from operator import itemgetter
from pathlib import Path

import pytest
import torch
from run_helpers import fork, wait_for
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForMaskedLM

from pretrain.config.run import BatchSizes
from pretrain.telemetry import throughput
from pretrain.telemetry.formats import flatten, format_count, format_seconds
from pretrain.telemetry.metrics_file import read_metrics, to_line
from pretrain.telemetry.run import Telemetry, memory_use
from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.telemetry.throughput import (
    FlopsMeter,
    Throughput,
    measure_peak_flops,
    model_flops,
    model_flops_per_token,
)


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


# -- rates -------------------------------------------------------------------


def test_rates_count_training_time_only():
    clock = Clock()
    meter = Throughput(clock)
    meter.begin(0)
    for step in (1, 2):
        clock.now += 2.0
        meter.add(step, tokens=1000, sequences=50)
    clock.now += 60.0  # an evaluation
    meter.pause()
    clock.now += 4.0
    meter.add(3, tokens=2000, sequences=100)
    rates = itemgetter("tokens_per_second", "sequences_per_second")
    assert rates(meter.figures(9)) == (4000 / 8, 200 / 8)
    meter.reset()
    assert meter.figures(9)["tokens_per_second"] == 0.0
    clock.now += 5.0
    meter.add(4, tokens=300, sequences=3, ended=clock.now - 3.5)
    assert rates(meter.figures(9)) == (200.0, 2.0)


def test_a_step_that_is_counted_after_the_pause_behind_it_takes_none_of_the_next():
    clock = Clock()
    meter = Throughput(clock)
    meter.begin(0)
    clock.now += 2.0
    ended = clock.now
    clock.now += 60.0
    meter.pause()
    meter.add(1, tokens=100, ended=ended)
    clock.now += 4.0
    meter.add(2, tokens=300)
    assert meter.figures(9)["tokens_per_second"] == 400 / 4


def test_eta_is_by_the_wall_clock_evaluations_included():
    clock = Clock()
    meter = Throughput(clock, window=10)
    meter.begin(100)
    assert meter.eta(200) is None
    for step in range(101, 111):
        clock.now += 1.0
        meter.add(step, 1)
    assert meter.eta(200) == pytest.approx(90.0)
    clock.now += 10.0
    meter.pause()
    for step in range(111, 121):  # the window has left the first steps behind: ten steps in 10 + 10 seconds
        clock.now += 1.0
        meter.add(step, 1)
    assert meter.eta(200) == pytest.approx(80 * 2.0)
    assert meter.eta(50) == 0.0


def test_eta_counts_sequences_where_the_batch_grows():
    clock, sizes = Clock(), BatchSizes(full=8, lanes=2, start=2, growth_steps=3)
    meter = Throughput(clock, work=sizes.total_before)
    meter.begin(0)
    for step, sequences in ((1, 2), (2, 4)):
        clock.now += sequences  # a second each
        meter.add(step, 1)
    assert meter.eta(10) == pytest.approx(6 + 7 * 8)
    assert meter.eta(2) == 0.0


def test_utilisation():
    clock = Clock()
    meter = Throughput(clock, flops=FlopsMeter(per_token=6e6, peak=1e9, repeated_per_token=2e6))
    clock.now += 2.0
    meter.add(1, 100)
    assert (meter.figures(10)["mfu"], meter.figures(10)["hfu"]) == pytest.approx((0.3, 0.4))


def padded_flops(lm, length: int, backward: bool) -> float:
    """FLOPs that torch counts for the library's own model on one unpadded sequence."""
    ids = torch.ones(1, length, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        logits = lm(input_ids=ids).logits
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "distilbert"])
def test_model_flops_are_those_that_torch_counts(kind):
    sizes = {"vocab_size": 97, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    names = {"num_hidden_layers": 3, "max_position_embeddings": 64, "pad_token_id": 0}
    if kind == "distilbert":
        sizes = {"vocab_size": 97, "dim": 32, "n_heads": 4, "hidden_dim": 64, "n_layers": 3}
        names = {"max_position_embeddings": 64, "pad_token_id": 0}
    if kind == "modernbert":
        names |= {"local_attention": 128}
    lm = AutoModelForMaskedLM.from_config(
        AutoConfig.for_model(kind, **sizes, **names), attn_implementation="eager"
    )
    flops = model_flops(lm)
    for length in (7, 40):
        assert flops.forward([length], masked_tokens=length) == padded_flops(lm, length, False)
        # all but the first layer's input gradient, which no embedding look-up asks for... is counted: twice
        # the forward
        counted = padded_flops(lm, length, True)
        assert 3 * flops.forward([length], length) == pytest.approx(counted, rel=0.02)
    assert flops.forward([7, 40]) == flops.forward([7]) + flops.forward([40])
    assert model_flops_per_token(lm, [7, 40], 0.5) == pytest.approx(3 * flops.forward([7, 40], 23.5) / 47)


def test_windowed_attention_counts_the_keys_in_its_window():
    config = AutoConfig.for_model(
        "modernbert", vocab_size=50, hidden_size=32, num_attention_heads=2, intermediate_size=32,
        num_hidden_layers=3, local_attention=8, global_attn_every_n_layers=3, pad_token_id=0,
    )  # fmt: skip
    flops = model_flops(AutoModelForMaskedLM.from_config(config))
    difference = flops.forward([100]) - 100 * flops.per_token
    assert difference == 4 * 32 * (100 * 100 + 2 * 100 * 8)


def test_peak_is_a_rate_that_this_machine_reaches():
    peak = measure_peak_flops("cpu", torch.float32, seconds=0.02)
    a = torch.randn(256, 256)
    torch.mm(a, a)
    started = time.perf_counter()
    for _ in range(20):
        torch.mm(a, a)
    reached = 20 * 2 * 256**3 / (time.perf_counter() - started)
    assert reached / 20 < peak < 1e14


def test_peak_is_the_rate_of_the_fastest_products(monkeypatch):
    """A product takes 10 ms, or two or three times as long while others use the core."""
    factors = itertools.cycle([3, 1, 2])
    monkeypatch.setattr(
        throughput, "_time_products", lambda left, right, repeats, device: 0.01 * repeats * next(factors)
    )
    assert measure_peak_flops("cpu", torch.float32) == pytest.approx(2 * 1024**3 / 0.01)


# -- time shares --------------------------------------------------------------


def test_stopwatch_seconds_sum_to_all_and_start_anew():
    clock = Clock()
    watch = Stopwatch(clock, cuda=False)
    for _ in range(2):
        watch.start_step()
        for part, seconds in [("data", 1.0), ("encode", 2.0), ("encode", 2.0), ("step", 4.0)]:
            with watch(part):
                clock.now += seconds
        clock.now += 1.0
        assert watch.end_step() == 10.0
    assert watch.seconds() == pytest.approx({"data": 2.0, "encode": 8.0, "step": 8.0, "other": 2.0})
    assert watch.seconds() == {}


def test_stopwatch_books_a_part_that_raises():
    clock = Clock()
    watch = Stopwatch(clock, cuda=False)
    watch.start_step()
    with pytest.raises(KeyError), watch("data"):
        clock.now += 3.0
        raise KeyError
    watch.end_step()
    assert watch.seconds() == {"data": 3.0, "other": 0.0}


@pytest.mark.gpu
def test_stopwatch_measures_the_device():
    watch = Stopwatch()
    watch.start_step()
    with watch("encode"):
        torch.cuda._sleep(200_000_000)
    torch.cuda.synchronize()
    watch.end_step()
    parts = watch.seconds()
    assert parts["encode"] > 0.9 * sum(parts.values())


# -- metrics.jsonl --------------------------------------------------------------


def test_lines_are_strict_json():
    record = {"step": 1, "loss": {"mlm": float("nan"), "x": torch.tensor(2.5)}, "a": [1, math.inf], "b": None}
    assert json.loads(to_line(record), parse_constant=pytest.fail) == {
        "step": 1, "loss": {"mlm": None, "x": 2.5}, "a": [1, None], "b": None,
    }  # fmt: skip


def test_metrics_survive_a_kill(tmp_path):
    def write() -> None:
        with Telemetry(tmp_path, 10**9, stream=io.StringIO()) as telemetry:
            for step in range(1, 10**9):
                telemetry.advance(step, 10)
                telemetry.log(step, {"loss": {"total": 1.0}})

    child = fork(write)
    path = tmp_path / "metrics.jsonl"
    wait_for(lambda: path.exists() and path.stat().st_size >= 5000, [])
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    steps = [record["step"] for record in read_metrics(path)]
    assert steps == list(range(1, len(steps) + 1)) and len(steps) > 10


# -- the whole ----------------------------------------------------------------------


def run(folder: Path, stream: io.StringIO, clock: Clock, first: int, last: int, **arguments) -> None:
    rank, flops = arguments.get("rank", 0), arguments.get("flops")
    with Telemetry(folder, 100, rank, first, None, Throughput(clock, flops=flops), stream) as telemetry:
        for step in range(first + 1, last + 1):
            clock.now += 2.0
            telemetry.advance(step, tokens=5000, sequences=20)
            if step % 5 == 0:
                telemetry.log(step, {"loss": {"mlm": 3.0, "total": 4.0}, "lr": 1e-4, "micro_batches": [2, 1]})
                clock.now += 100.0
                telemetry.log(step, {"evaluation": {"heldout_mlm_loss": 2.345}})
        telemetry.warn("look here")


def test_records_and_lines_say_what_happened(tmp_path):
    stream = io.StringIO()
    run(tmp_path, stream, Clock(), 0, 20, flops=FlopsMeter(per_token=1e6, peak=1e10, repeated_per_token=5e5))
    records = list(read_metrics(tmp_path / "metrics.jsonl"))
    training = [record for record in records if "loss" in record]
    assert [record["step"] for record in training] == [5, 10, 15, 20]
    for record in training:
        assert record["tokens_per_second"] == 2500.0 and record["sequences_per_second"] == 10.0
        assert record["mfu"] == pytest.approx(0.25) and record["hfu"] == pytest.approx(0.375)
        assert record["memory"]["peak_gb"] >= record["memory"]["resident_gb"] * 0.5 > 0
    # 20 steps: 40 seconds of training and 3 evaluations of 100 seconds before the last step
    assert training[-1]["eta_seconds"] == pytest.approx(80 * 340 / 20)
    assert training[0]["eta_seconds"] == pytest.approx(95 * 2)
    assert [record["evaluation"] for record in records if "evaluation" in record] == [
        {"heldout_mlm_loss": 2.345}
    ] * 4
    assert records[-1]["warning"] == "look here" and records[-1]["step"] == 20
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 5/100  loss 4.000  mlm 3.000  lr 1.00e-04  2.5k tok/s  mfu 25.0%  eta 03:10"
    assert lines[1] == "step 5  evaluation:  heldout_mlm_loss 2.345"
    assert lines[-1] == "WARNING at step 20: look here"


@pytest.mark.parametrize(
    ("seconds", "log_every", "shown"),
    [
        # a row of metrics every 1.25 s: a line every 30 s
        (0.125, 10, [10, 250, 490, 730, 970, 1000]),
        # a row every 100 s: a line each
        (0.5, 200, [200, 400, 600, 800, 1000]),
    ],
)
def test_plain_lines_come_with_rows_of_metrics_and_30_seconds_apart(tmp_path, seconds, log_every, shown):
    clock, stream = Clock(), io.StringIO()
    with Telemetry(tmp_path, 1000, stream=stream, throughput=Throughput(clock)) as telemetry:
        for step in range(1, 1001):
            clock.now += seconds
            telemetry.advance(step, 1)
            if step % log_every == 0:
                telemetry.log(step, {"loss": {"total": 1.0}, "lr": 0.1})
    assert [line.split("  ")[0] for line in stream.getvalue().splitlines()] == [
        f"step {step}/1000" for step in shown
    ]


def test_a_terminal_gets_a_line_every_five_seconds(tmp_path):
    stream = Terminal()
    run(tmp_path, stream, Clock(), 0, 20)
    lines = [line for line in stream.getvalue().splitlines() if "eta" in line]
    assert [line.split("  ")[0] for line in lines] == [f"step {step}/100" for step in (5, 10, 15, 20)]


@pytest.mark.parametrize("clock", [3e9, 3e9 - 86400])
def test_resumed_run_overwrites_its_abandoned_future(tmp_path, monkeypatch, clock):
    """Where the clock of the next start is a day behind, too: TensorBoard reads files by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    copies = tmp_path / "tensorboard"
    copies.mkdir()
    (copies / "events.out.tfevents.1700000000 (copy).host").touch()
    monkeypatch.setattr(time, "time", lambda: 3e9)
    run(tmp_path, io.StringIO(), Clock(), 0, 20)
    monkeypatch.setattr(time, "time", lambda: clock)
    run(tmp_path, io.StringIO(), Clock(), 10, 30)
    training = [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r]
    assert training == [5, 10, 15, 20, 25, 30]
    board = EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [event.step for event in board.Scalars("loss/mlm")] == training
    assert board.Scalars("tokens_per_second")[-1].value == 2500.0


def test_new_run_in_the_same_folder_starts_its_metrics_anew(tmp_path):
    run(tmp_path, io.StringIO(), Clock(), 0, 10)
    run(tmp_path, io.StringIO(), Clock(), 0, 5)
    assert [r["step"] for r in read_metrics(tmp_path / "metrics.jsonl") if "loss" in r] == [5]


def test_other_ranks_are_silent(tmp_path):
    stream = io.StringIO()
    run(tmp_path / "run", stream, Clock(), 0, 10, rank=1)
    assert stream.getvalue() == "" and not (tmp_path / "run").exists()


def test_formats():
    assert [format_seconds(s) for s in (None, math.nan, 5.4, 65, 3661, 90061)] == [
        "--:--", "--:--", "00:05", "01:05", "01:01:01", "1d 01:01:01",
    ]  # fmt: skip
    assert [format_count(n) for n in (0, 830, 12345, 4.56e6, 7e9)] == ["0", "830", "12.3k", "4.56M", "7G"]
    assert dict(flatten({"a": {"b": 1, "c": {"d": 2.5}}, "e": [1], "f": "x", "g": True})) == {
        "a/b": 1.0,
        "a/c/d": 2.5,
    }
    assert 0.01 < memory_use()["peak_gb"] < 1000
