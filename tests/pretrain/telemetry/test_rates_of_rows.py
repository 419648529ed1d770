"""Rates of a row of metrics: each step has its own time, although it is written during the next."""

import io
import time

import torch

from pretrain.common.transfer import Numbers
from pretrain.telemetry.metrics_file import read_metrics
from pretrain.telemetry.run import Telemetry


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
            telemetry.advance(step, {"total": 1.0}, 0.1, 1000 * step, ended=ended)
            if step % 4 == 2:
                telemetry.log(step, {"left_out": {"why": "a spike"}})
            telemetry.log(step, {"loss": {"total": 1.0}})

    with Telemetry(tmp_path, 12, stream=io.StringIO(), clock=clock) as telemetry:
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
