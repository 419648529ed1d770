"""Measures against plain reference formulas and known shapes of clouds; alarms on the stories that they are
for."""

import json
import math
import shutil

import pytest
import torch
from run_helpers import command, finish, outputs_of, reproducible_records, start
from torch.utils._python_dispatch import TorchDispatchMode

from pretrain.checkpoint import store
from pretrain.common.transfer import Numbers
from pretrain.telemetry import monitors
from pretrain.telemetry.monitors import Monitor


def sphere(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return monitors.normalise(
        torch.randn(count, width, generator=torch.Generator().manual_seed(seed)).double()
    )


def test_alignment_uniformity_and_cosines_are_the_textbook_sums():
    first, second = sphere(17, 5, 1), sphere(17, 5, 2)
    assert monitors.alignment(first, second) == pytest.approx(
        sum(float((a - b).norm() ** 2) for a, b in zip(first, second, strict=True)) / 17
    )
    pairs = [(i, j) for i in range(17) for j in range(i)]
    assert monitors.uniformity(first) == pytest.approx(
        math.log(sum(math.exp(-2 * float((first[i] - first[j]).norm() ** 2)) for i, j in pairs) / len(pairs))
    )
    others = [float(first[i] @ second[j]) for i in range(17) for j in range(17) if i != j]
    assert monitors.negative_cosine(first, second) == pytest.approx(sum(others) / len(others))


def test_uniformity_of_known_clouds():
    assert monitors.uniformity(sphere(1, 4).expand(10, 4)) == pytest.approx(0.0, abs=1e-9)
    assert monitors.uniformity(sphere(1000, 256)) == pytest.approx(-4.0, abs=0.05)


def test_length_variance_is_the_share_that_regression_explains():
    lengths = torch.arange(100)
    direction = sphere(1, 6, 8)
    assert monitors.length_variance(lengths[:, None] * direction, lengths) == pytest.approx(1.0)
    assert monitors.length_variance(sphere(5000, 6, 9), torch.arange(5000)) < 0.01
    x = sphere(50, 4, 10)
    y = torch.stack([torch.ones(100), lengths]).T.double()[:50]
    fitted = y @ torch.linalg.lstsq(y, x).solution
    whole = (x - x.mean(0)).square().sum()
    assert monitors.length_variance(x, lengths[:50]) == pytest.approx(
        1 - ((x - fitted).square().sum() / whole).item()
    )
    assert monitors.length_variance(x, torch.full((50,), 3)) == 0.0


def test_effective_rank_counts_directions():
    x = torch.cat([torch.eye(5), -torch.eye(5)]).double()
    assert monitors.effective_rank(torch.nn.functional.pad(x, (0, 20))) == pytest.approx(5.0)
    assert monitors.effective_rank(x[:, :3].repeat(4, 1)) == pytest.approx(3.0)
    assert monitors.effective_rank(torch.ones(10, 4)) == 0.0
    assert monitors.effective_rank(sphere(512, 32)) > 30


def measured(*given, **more):
    """What a monitor measures, read by the host."""
    return Numbers(Monitor().measure(*given, **more)).read()


def test_measures_do_not_depend_on_the_vectors_norm_and_are_bounded_in_cost():
    generator = torch.Generator().manual_seed(11)
    views = torch.randn(2, 20000, 16, generator=generator)
    lengths = torch.randint(5, 50, (20000,), generator=generator)
    measures = measured(views, lengths, 39998)
    assert measures == pytest.approx(measured(views * 7, lengths, 39998), rel=1e-4, abs=1e-5)
    assert set(measures) == {
        "alignment", "uniformity", "positive_cosine", "negative_cosine", "length_variance", "effective_rank",
        "effective_negatives",
    }  # fmt: skip
    assert measures["effective_negatives"] == 2 * 20000 - 2
    assert measures["alignment"] == pytest.approx(2 - 2 * measures["positive_cosine"], abs=1e-5)


@pytest.mark.parametrize("count", [1, 2, 7, 63, 64, 65])
def test_tiny_batches_are_measured_as_far_as_they_can_be(count):
    measures = measured(torch.randn(2, count, 4), torch.arange(1, count + 1), count)
    assert all(math.isfinite(value) for value in measures.values())
    assert ("uniformity" in measures) == (count > 1) and ("effective_rank" in measures) == (count >= 64)


class HostWaits(TorchDispatchMode):
    """Counts what waits for the device: numbers that the host reads, and results whose shape depends on
    values."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function._overloadpacket in (
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.masked_select,
        )
        if function._overloadpacket is torch.ops.aten.index:
            self.count += any(index is not None and index.dtype == torch.bool for index in args[1])
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("spectrum", [False, True])
def test_measures_reach_the_host_together(spectrum):
    """Not one by one: every number that the host reads waits for all work on the device."""
    with HostWaits() as waits:
        measures = Numbers(
            Monitor().measure(torch.randn(2, 200, 16), torch.arange(200), 398, spectrum=spectrum)
        )
    assert waits.count == 0
    assert len(measures.read()) == (7 if spectrum else 6)


SPY = """
import os, runpy, sys
import pretrain.common.environment
from pretrain.telemetry import monitors
def spied(name, function):
    def called(*args, **rest):
        print("CALLED", name, "on rank", os.environ["RANK"], flush=True)
        return function(*args, **rest)
    return called
monitors.Monitor.measure = spied("measure", monitors.Monitor.measure)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_rank_0_alone_measures_and_rows_do_not_notice_a_resume(tiny_data, tmp_path):
    """What only rank 0 writes only rank 0 computes; a checkpoint between two rows holds what it has
    computed."""
    run, again = tmp_path / "run", tmp_path / "again"
    flags = {"train__log_every": 4, "train__steps": 6, "evaluate__every": 0, "checkpoint__keep": 9}
    outputs = outputs_of(start(["-c", SPY, *command(tiny_data, run, **flags)], ranks=2), 240)
    calls = [
        output.splitlines().count(f"CALLED measure on rank {rank}") for rank, output in enumerate(outputs)
    ]
    assert calls == [6, 0], outputs
    shutil.copytree(run, again)
    shutil.rmtree(again / "checkpoints" / "step-00000006")
    assert store.latest(again / "checkpoints").name == "step-00000003"
    finish(start(command(tiny_data, again, **flags, checkpoint__resume="auto"), ranks=2))
    rows = [reproducible_records(folder) for folder in (run, again)]
    assert rows[0] == rows[1] and any("uniformity" in row and row["step"] == 4 for row in rows[0])


HEALTHY = {
    "uniformity": -3.0,
    "negative_cosine": 0.1,
    "length_variance": 0.05,
    "effective_rank": 60.0,
    "effective_negatives": 382.0,
}


def watch(
    losses=lambda i: 2.0, norm=lambda i: 1.0, metrics=lambda i: {}, times: int = 60
) -> list[tuple[int, str]]:
    """(step, alarm) of a course of figures given every 10 steps."""
    monitor, said = Monitor(), []
    for i in range(times):
        step = 10 * i
        of_step = {"contrastive": losses(i)}
        of_row = monitor.alarms_of_row(step, of_step, HEALTHY | metrics(i))
        said += [(step, text) for text in [monitor.alarm_of_step(step, norm(i)), *of_row] if text]
    return said


def test_healthy_training_is_quiet():
    assert watch(lambda i: 5.9 * 0.97**i, lambda i: 1 + (i % 3)) == []


def test_collapse_is_said_once_with_its_beginning():
    said = watch(metrics=lambda i: {"uniformity": -0.01, "negative_cosine": 0.99} if i >= 20 else {})
    assert len(said) == 1 and said[0][0] == 240
    assert "since step 200" in said[0][1] and "0.990" in said[0][1] and "model.pooling mean" in said[0][1]


def test_collapse_that_comes_again_is_said_again():
    bad = {"uniformity": -0.01}
    assert len(watch(metrics=lambda i: bad if i in range(10, 20) or i in range(30, 40) else {})) == 2
    assert watch(metrics=lambda i: bad if i % 4 else {}) == []  # never five times in a row


def test_an_explosion_is_measured_against_the_running_median():
    said = watch(norm=lambda i: 50.0 if i == 40 else 1.0 + i % 2)
    assert [step for step, _ in said] == [400]
    assert "gradient norm 50" in said[0][1] and "running median" in said[0][1]
    assert watch(norm=lambda i: 1.03**i) == []  # slow growth is not an explosion


def test_nothing_learned_is_said_after_long():
    said = watch(losses=lambda i: math.log(383))
    assert len(said) == 1 and said[0][0] == 190
    assert "chance: 5.948" in said[0][1] and "since step 0" in said[0][1]


def test_what_stops_a_run_is_the_row_that_says_so():
    monitor, dead = Monitor(), []
    for step in range(0, 300, 10):
        monitor.alarms_of_row(step, {"contrastive": math.log(383)}, HEALTHY)
        dead.append(monitor.dead_loss)
    assert [10 * row for row, is_dead in enumerate(dead) if is_dead] == [190]


def test_views_too_easy():
    said = watch(losses=lambda i: 0.001)
    assert len(said) == 1 and "too easy" in said[0][1]


def test_matched_by_length():
    said = watch(metrics=lambda i: {"length_variance": 0.7})
    assert len(said) == 1 and "70%" in said[0][1]


def test_records_that_nearly_all_share_texts():
    said = watch(losses=lambda i: 0.0, metrics=lambda i: {"effective_negatives": 0.2})
    assert any("an anchor has 0.2 negatives since step 0" in text for _, text in said)


def test_without_a_contrastive_loss_there_is_no_alarm():
    monitor = Monitor()
    assert [a for i in range(100) for a in monitor.alarms_of_row(i, {"mlm": 3.0}, {"loss": {}})] == []


def test_explosions_are_said_at_once_and_not_again_within_a_row():
    monitor = Monitor(quiet=50)
    said = [step for step in range(1, 301) if monitor.alarm_of_step(step, 40.0 if step % 20 == 17 else 1.0)]
    assert said == [17, 77, 137, 197, 257]


@pytest.mark.parametrize("cut", [5, 30, 61, 100])
def test_alarms_do_not_notice_a_resume(cut):
    """A monitor that is written down and read back in the middle raises what one that was never stopped
    raises."""
    generator = torch.Generator().manual_seed(3)
    norms = (torch.randn(200, generator=generator).abs() * 3).exp().tolist()
    stories = [HEALTHY | ({"uniformity": -0.01} if 20 < i < 90 or i > 150 else {}) for i in range(200)]

    def tell(monitor, start, stop):
        losses = {"contrastive": 5.9}
        return [
            text
            for i in range(start, stop)
            for text in [monitor.alarm_of_step(i, norms[i]), *monitor.alarms_of_row(i, losses, stories[i])]
            if text
        ]

    whole = tell(Monitor(quiet=10), 0, 200)
    before = Monitor(quiet=10)
    first = tell(before, 0, cut)
    again = Monitor(quiet=10, state=json.loads(json.dumps(before.memory())))
    assert first + tell(again, cut, 200) == whole and len(whole) > 3


def test_a_step_without_a_decomposition_has_the_other_measures():
    views, lengths = torch.randn(2, 200, 16), torch.arange(200)
    whole, cheap = measured(views, lengths, 398), measured(views, lengths, 398, spectrum=False)
    assert cheap == {name: value for name, value in whole.items() if name != "effective_rank"}
