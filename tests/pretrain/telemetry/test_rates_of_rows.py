"""Rates and means of a row of metrics: each step has its own, although it is written during the next."""

import io
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from step.threaded_ranks import ThreadedRanks

from augment.core.ragged import Ragged
from pretrain.common.transfer import Numbers
from pretrain.config.recipe import load_config
from pretrain.data.batch import RankBatch
from pretrain.data.ledger import begin_ledger
from pretrain.step.faults import Faults
from pretrain.step.log import StepLog, is_due
from pretrain.step.progress import Progress
from pretrain.step.whole_batch import StepResult
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.telemetry.throughput import Throughput


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_step_that_is_written_during_the_next_has_its_own_time(tmp_path):
    """As the training loop does it: a step is written when the next is computed, or before an evaluation."""
    clock, queued = Clock(), []

    def write() -> None:
        while queued:
            step, ended = queued.pop()
            telemetry.advance(step, 1000 * step, ended=ended)
            if step % 4 == 2:
                telemetry.log(step, {"left_out": {"why": "a spike"}})
            telemetry.log(step, {"loss": {"total": 1.0}})

    with Telemetry(tmp_path, 12, stream=io.StringIO(), throughput=Throughput(clock)) as telemetry:
        for step in range(1, 13):
            clock.now += step
            write()
            queued.append((step, clock.now))
            if step % 3 == 0:
                write()
                clock.now += 100.0
                telemetry.log(step, {"evaluation": {"score": 1.0}})
    rows = [record for record in read_metrics(tmp_path / "metrics.jsonl") if "loss" in record]
    assert [record["tokens_per_second"] for record in rows] == [1000.0] * 12


def test_numbers_of_the_host_have_come_when_they_are_made():
    before = time.monotonic()
    numbers = Numbers({"loss": torch.tensor(2.0), "norm": 1.0})
    after = time.monotonic()
    assert numbers.read() == {"loss": 2.0, "norm": 1.0} and before <= numbers.came <= after


def result_of(step: int, loss: float) -> StepResult:
    """A step that masks as many tokens as its number."""
    losses = {name: torch.tensor(loss, dtype=torch.float64) for name in ("mlm", "total")}
    lengths = torch.tensor([3])
    return StepResult(losses, {}, None, 10, step, (1, 2), 0, lengths, [], (0,) * 4, None)


def step_log(config, progress, telemetry, **extra):
    """The log of a run whose only loss is `mlm`. extra: name -> number of steps done -> value in a row."""
    objective = SimpleNamespace(weights=lambda step: {"mlm": 1.0})
    faults = Faults(config.train.faults, None, None, telemetry, progress, str)

    def metrics(step):
        return {name: of_step(step) for name, of_step in extra.items()}

    return StepLog(config, progress, telemetry, faults, Stopwatch(cuda=False), None, objective, metrics)


def batch_of(step: int) -> RankBatch:
    texts = Ragged.from_sequences([[2, 7, 3]])
    return RankBatch(step - 1, 0, np.array([step], np.uint64), texts, [], {}, None, [])


def test_a_growing_batch_counts_in_every_row_the_sequences_of_its_steps(tmp_path):
    """From 8 to 32 in steps of 8: two steps each."""
    growth = {"train.batch_start": "8", "train.batch_warmup_steps": "6", "train.global_batch": "32"}
    config = load_config(None, growth | {"data.lanes": "8", "train.steps": "9", "train.warmup_steps": "1"})
    progress = Progress(ledger=begin_ledger(0))
    with Telemetry(tmp_path, 9, stream=io.StringIO()) as telemetry:
        log = step_log(config, progress, telemetry)
        for step in range(1, 10):
            log.write()
            progress.step = step
            log.add(batch_of(step), result_of(step, 1.0), 0.1, 1.0, torch.tensor(True), step % 3 == 0)
        log.write()
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "loss" in row]
    assert [row["global_batch"] for row in rows] == [16, 24, 32]
    counts = [30 * row["sequences_per_second"] / row["tokens_per_second"] for row in rows]  # 10 tokens a step
    assert counts == pytest.approx([8 + 8 + 16, 16 + 24 + 24, 3 * 32])


def test_every_step_is_in_one_row_and_one_with_a_fault_in_none(tmp_path):
    """Rows of three steps, and one of the first; the loss of step 2 is not finite, step 5 is left out."""
    config = load_config(None, {"train.steps": "9", "train.log_every": "3", "train.warmup_steps": "1"})
    progress = Progress(ledger=begin_ledger(0))
    with Telemetry(tmp_path, 9, stream=io.StringIO()) as telemetry:
        log = step_log(config, progress, telemetry, steps_done=int)
        for step in range(1, 9):
            log.write()
            progress.step, progress.tokens = step, progress.tokens + 10
            sound, loss = step not in (2, 5), torch.nan if step == 2 else float(step)
            norm, applied = torch.tensor(step / 2), torch.tensor(sound)
            log.add(
                batch_of(step), result_of(step, loss), step / 10, norm, applied, step == 1 or step % 3 == 0
            )
        log.write()
        log.write()  # as before an evaluation
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [row["step"] for row in rows if "left_out" in row] == [2] == progress.faults
    rows = [row for row in rows if "loss" in row]
    assert [(row["step"], row["steps"], row["skipped_steps"]) for row in rows] == [
        (1, 1, 0),
        (3, 1, 1),
        (6, 3, 2),
    ]
    assert [row["loss"]["total"] for row in rows] == [1, 3, 5]
    assert [row["loss"]["mlm"] for row in rows] == pytest.approx([1, 3, (16 + 25 + 36) / 15])
    assert [row["gradient_norm_max"] for row in rows] == [0.5, 1.5, 3]
    for name, values in {"lr": [0.1, 0.3, 0.6], "tokens": [10, 30, 60], "steps_done": [1, 3, 6]}.items():
        assert [row[name] for row in rows] == values
    assert progress.skipped_steps == 2 and log.window.steps == 2  # 7 and 8, for the next row


def test_rank_zero_measures_and_a_row_names_the_slowest_rank(tmp_path, monkeypatch):
    """Of three ranks, of which the second takes four times as long in what is its own; one step is float16's
    overflow, and one has damaged data."""
    config = load_config(None, {"train.steps": "9", "train.warmup_steps": "1"})
    substitution = {"chunk": 3, "reason": "flipped", "lane": 1, "replacement": 5, "step": 1}
    monkeypatch.setattr("pretrain.step.log.host_group", lambda: None)
    measured, parts = [], {"data": 1.0, "encode": 2.0, "loss": 4.0, "other": 1.0}

    def run(rank):
        progress = Progress(ledger=begin_ledger(0) | {"last": {"sequences": "x"}}, seconds=7.0)
        with Telemetry(tmp_path, 9, stream=io.StringIO(), rank=rank) as telemetry:
            log = step_log(config, progress, telemetry, threads=lambda step: 2 * step)
            log.scale = SimpleNamespace(value=torch.tensor(8.0))
            log.clock = SimpleNamespace(seconds=lambda: parts | {"encode": 11.0 if rank == 1 else 2.0})

            def measure(views, lengths, negatives, spectrum):
                measured.append((rank, views.shape, negatives, spectrum))
                return {"mean_norm": views.sum()}

            log.monitor.measure = measure
            for step in (1, 2):
                log.write()
                progress.step = step
                result = result_of(step, 1.0)
                result.views, result.negatives = torch.ones(3, 2, 4), 5.0
                result.substitutions = [substitution] * (step == 1)
                norm = torch.tensor(torch.inf if step == 2 else 3.0)
                log.add(batch_of(step), result, 0.1, norm, torch.tensor(step == 1), step == 2)
                assert result.views is None  # the next step needs the memory
            log.write()
        return progress.faults, progress.skipped_steps

    assert ThreadedRanks(3, monkeypatch).run(run) == [([], 1)] * 3
    assert measured == [(0, (2, 2, 4), 5.0, ends_row) for ends_row in (False, True)]
    rows = list(read_metrics(tmp_path / "metrics.jsonl"))
    (row,) = (row for row in rows if "loss" in row)
    assert row["slowest_rank"] == {"rank": 1, "over_median": 4.0} and row["mean_norm"] == 16.0
    assert row["time"] == {"data": 0.125, "encode": 0.25, "loss": 0.5, "other": 0.125}
    assert (row["seconds"], row["threads"], row["steps"], row["skipped_steps"]) == (7.0, 4, 2, 1)
    assert (row["gradient_norm"], row["gradient_norm_max"]) == (3.0, 3.0) and "scale" not in row
    assert row["ledger"] == {name: part for name, part in begin_ledger(0).items() if name != "last"}
    (text,) = (row["warning"] for row in rows if "warning" in row)
    assert text.startswith("chunk 3 is damaged (flipped): lane 1 reads chunk 5 in its place from step 2 on")


def test_what_is_due():
    assert [step for step in range(7) if is_due(step, 3)] == [0, 3, 6] and not is_due(0, 0)


def test_shares_are_judged_once_all_losses_have_their_full_weight(tmp_path):
    """They rise until step 4, which is the first of full weight; a row a step, and an alarm after one."""
    config = load_config(
        None, {"train.steps": "9", "train.warmup_steps": "1", "train.faults.dead_loss": "warn"}
    )
    progress, risen = Progress(ledger=begin_ledger(0)), {}
    with Telemetry(tmp_path, 9, stream=io.StringIO()) as telemetry:
        log = step_log(config, progress, telemetry)
        log.objective = SimpleNamespace(weights=lambda step: {"a": min(step, 3)})  # of steps from 0
        real = log.monitor.alarms_of_row

        def alarms(step, losses, metrics, all_risen):
            risen[step] = all_risen
            return real(step, losses, metrics, all_risen)

        log.monitor.alarms_of_row = alarms
        for step in range(1, 7):
            log.write()
            progress.step = step
            result = result_of(step, 1.0)
            result.measures = {"a_gradient_share": 0.0}
            log.add(batch_of(step), result, 0.1, 1.0, torch.tensor(True), True)
        log.write()
    assert risen == {1: False, 2: False, 3: False, 4: True, 5: True, 6: True}
