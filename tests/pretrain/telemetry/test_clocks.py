"""Times of parts by device events, the pause rules of telemetry, and metrics files that are not whole."""

import io
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pretrain.common.errors import UserError
from pretrain.telemetry import run as telemetry_run
from pretrain.telemetry import stopwatch
from pretrain.telemetry.formats import columns, flatten, format_count, format_seconds, table
from pretrain.telemetry.metrics_file import NO_LINES, chained, copy_metrics, read_metrics
from pretrain.telemetry.run import Telemetry, memory_use
from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.telemetry.throughput import FlopsMeter, Throughput, measure_peak_flops


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def device(monkeypatch):
    """Stand in for a GPU: an event is complete once `come` has reached the time at which it was recorded."""
    state = SimpleNamespace(now=0.0, come=math.inf, made=[])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing
            state.made.append(self)

        def record(self):
            self.at = state.now

        def query(self):
            return self.at <= state.come

        def elapsed_time(self, other):
            return 1000 * (other.at - self.at)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return state


def test_events_that_have_come_are_booked_and_the_others_later(device):
    clock = Clock()
    watch = Stopwatch(clock, cuda=True)
    watch.start_step()
    for part, seconds in (("data", 1.0), ("encode", 2.0), ("data", 4.0)):
        with watch(part):
            assert watch.part == part
            device.now += seconds
        assert watch.part == ""
    clock.now = 10.0
    assert watch.end_step() == 10.0
    device.come = 3.0
    assert watch.seconds() == {"data": 1.0, "encode": 2.0, "other": 7.0}
    device.come = 7.0
    assert watch.seconds() == {"data": 4.0, "other": 0.0}
    assert watch.seconds() == {}


def test_nested_parts_are_named_and_events_are_read_before_they_are_too_many(device, monkeypatch):
    monkeypatch.setattr(stopwatch, "PENDING_EVENTS", 3)
    device.come = -1.0
    watch = Stopwatch(Clock(), cuda=True)
    with watch("outer"):
        with watch("inner"):
            assert watch.part == "inner"
            device.now += 1.0
        assert watch.part == "outer"
        device.now += 1.0
    device.come = math.inf
    with watch("third"):  # the third event: all are read
        device.now += 5.0
    device.come = -1.0
    assert watch.seconds() == {"inner": 1.0, "outer": 2.0, "third": 5.0, "other": 0.0}


def test_without_a_device_the_hosts_clock_counts(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    watch = Stopwatch(clock)
    clock.now = 3.0
    watch.start_step()
    for _ in range(2):
        with watch("data"):
            clock.now += 2.0
        clock.now += 0.5
    assert watch.end_step() == 5.0
    assert watch.seconds() == {"data": 4.0, "other": 1.0}


# -- rates


def test_utilisation_counts_what_is_repeated_apart_and_no_rate_is_infinite():
    clock = Clock()
    rates = Throughput(clock, flops=FlopsMeter(6.0, 1000.0, repeated_per_token=2.0))
    assert rates.figures(10) == {"tokens_per_second": 0.0, "mfu": 0.0, "hfu": 0.0}
    rates.begin(3)
    clock.now = 2.0
    rates.add(4, tokens=100, sequences=8)
    found = rates.figures(10)
    assert found == pytest.approx(
        {"tokens_per_second": 50.0, "sequences_per_second": 4.0, "mfu": 0.3, "hfu": 0.4, "eta_seconds": 12.0}
    )
    clock.now = 5.0
    rates.pause()
    rates.add(5, tokens=100, ended=4.0)  # it had ended before the pause
    assert rates.figures(10)["tokens_per_second"] == 100.0
    assert rates.eta(5) == 0.0 and rates.eta(4) == 0.0 and rates.eta(7) == pytest.approx(2 * 4.0 / 2)
    rates.begin(5)
    assert rates.eta(10) is None


def test_the_time_left_is_the_same_before_and_after_an_evaluation():
    """Of 10 seconds after every third step of one; else it would be some times as long for a while."""
    clock = Clock()
    rates = Throughput(clock, window=4, every=3)
    for step in range(1, 31):
        clock.now += 1.0
        rates.add(step, 10)
        if step > 6:
            assert rates.eta(100) == pytest.approx((100 - step) * 13 / 3)
        if step % 3 == 0:
            clock.now += 10.0
            rates.pause()


def test_the_time_left_is_by_recent_steps_where_evaluations_are_seldom():
    """After a thousand slow steps it is by the speed of the last 200."""
    clock = Clock()
    rates = Throughput(clock, every=5000)
    for step in range(1, 1300):
        clock.now += 1.0 if step < 1000 else 0.1
        rates.add(step, 10)
    assert rates.eta(2000) == pytest.approx((2000 - step) / 10)


def test_the_time_left_is_by_the_last_steps_of_the_window_and_their_work():
    clock = Clock()
    rates = Throughput(clock, window=2, work=lambda step: step**2)
    rates.begin(0)
    for step, seconds in ((1, 50.0), (2, 2.0), (3, 3.0)):
        clock.now += seconds
        rates.add(step, tokens=1)
    # the last two steps are of work 9 - 1 in 5 s; 16 - 9 are left
    assert rates.eta(4) == pytest.approx(7 * 5 / 8)


@pytest.mark.parametrize("kind, limit", [("cuda", 16384), ("cpu", 4096)])
def test_products_grow_until_one_takes_an_eighth_of_the_time(monkeypatch, kind, limit):
    from pretrain.telemetry import throughput

    sizes, seconds = [], {"per": 0.0}

    def times(left, right, repeats, device):
        size = len(left)
        assert left.dtype == right.dtype == torch.bfloat16 and left.shape == right.shape == (size, size)
        sizes.append((size, repeats))
        return repeats * (size / 1024) ** 3 * seconds["per"]

    monkeypatch.setattr(throughput, "_time_products", times)
    monkeypatch.setattr(torch, "randn", lambda *size, device: torch.empty(*size, device="meta"))
    seconds["per"] = 0.0125 / 8  # a product of 2,048 takes an eighth of 0.1 s
    found = measure_peak_flops(torch.device(kind), torch.bfloat16, seconds=0.1)
    assert found == pytest.approx(2 * 1024**3 / seconds["per"])
    assert [size for size, _ in sizes] == [1024] * 4 + [2048] * 8 and [n for _, n in sizes[-4:]] == [8] * 4
    sizes.clear()
    seconds["per"] = 1e-9
    measure_peak_flops(torch.device(kind), torch.bfloat16, seconds=0.1)
    assert max(size for size, _ in sizes) == limit and len({repeats for _, repeats in sizes[-4:]}) == 1


# -- files


def test_what_is_no_row_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert list(read_metrics(path)) == []
    path.write_text('{"step": 1, "link": "a"}\n[1, 2]\n7\nnull\n{"half\n\n{"step": 2}\n{"step": 3}')
    assert list(read_metrics(path)) == [{"step": 1}, {"step": 2}]


def lines(*rows, place=NO_LINES):
    text = b""
    for row in rows:
        line, place = chained(row, place)
        text += line
    return text, place


def test_without_a_place_rows_up_to_the_step_stay_but_not_what_a_start_there_has_said(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"step": 0, "config_sha256": "x"}, {"step": 1, "loss": 1}, {"step": 2, "loss": 1}]
    rows += [{"step": 2, "config_sha256": "y"}, {"step": 2, "changed": []}, {"step": 3, "loss": 1}]
    path.write_bytes(lines(*rows)[0] + b'[1]\n"text"\n')
    place, whole = copy_metrics(path, path, 2)
    assert list(read_metrics(path)) == rows[:3] and whole
    assert place == lines(*rows[:3])[1]
    assert copy_metrics(path, path, 0) == (NO_LINES, True) and path.read_bytes() == b""


def test_with_a_place_it_decides_and_a_lost_line_shows(tmp_path):
    path, other = tmp_path / "metrics.jsonl", tmp_path / "other.jsonl"
    rows = [{"step": 1}, {"step": 2}, {"step": 2, "warning": "late"}, {"step": 3}]
    text, place = lines(*rows[:3])
    path.write_bytes(text + lines(rows[3], place=place)[0])
    assert copy_metrics(path, other, 2, place) == (place, True) and other.read_bytes() == text
    missing = text.splitlines(keepends=True)
    other.write_bytes(missing[0] + missing[2])
    assert copy_metrics(other, other, 2, place) == (place, False)
    path.write_bytes(missing[0] + missing[1])  # the place is not there: rows up to the step stay
    assert copy_metrics(path, path, 1, place) == (place, False) and list(read_metrics(path)) == rows[:1]


def test_a_run_is_told_of_rows_that_are_not_as_recorded(tmp_path):
    stream = io.StringIO()
    with Telemetry(
        tmp_path, 5, start_step=3, start_place={"lines": 2, "link": "0" * 32}, stream=stream
    ) as one:
        one.log(4, {"loss": {"total": 1.0}})
    assert "is not as the checkpoint recorded it" in stream.getvalue()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"), Telemetry(tmp_path / "file", 5, stream=stream):
        pass


def test_steps_that_a_record_interrupts_are_paused_but_by_rows_and_faults(tmp_path, monkeypatch):
    pauses = []
    with Telemetry(tmp_path, 5, stream=io.StringIO()) as one:
        monkeypatch.setattr(one.throughput, "pause", lambda: pauses.append(1))
        for metrics in (
            {"loss": {"total": 1.0}},
            {"left_out": {}},
            {"evaluation": {"a": 1.0}},
            {"changed": []},
        ):
            one.log(1, metrics)
            pauses.append(0)
    assert pauses == [0, 0, 1, 0, 1, 0]


def test_a_lines_numbers_are_the_rows(tmp_path, monkeypatch):
    stream, clock = io.StringIO(), Clock()
    rates = Throughput(clock, flops=FlopsMeter(6.0, 1e4))
    with Telemetry(tmp_path, 9, stream=stream, throughput=rates) as one:
        clock.now = 4.0
        one.advance(1, 4000, 8)
        one.log(1, {"loss": {"mlm": 2.5, "total": 3.25, "x": 0.75}, "lr": 0.0005})
        one.log(1, {"loss": 1.5})  # so soon it is not shown
        one.warn("odd")
        one.log(9, {"loss": {"a": 1.0}})
    shown = stream.getvalue().splitlines()
    assert shown[0] == "step 1/9  loss 3.250  mlm 2.500  x 0.750  lr 5.00e-04  1k tok/s  mfu 60.0%  eta 00:32"
    assert (
        shown[1] == "WARNING at step 1: odd"
        and shown[2].startswith("step 9/9  a 1.000  lr nan")
        and len(shown) == 3
    )
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 1, 1, 9] and rows[2]["warning"] == "odd"
    assert rows[0]["tokens_per_second"] == 1000.0 and rows[1]["tokens_per_second"] == 0.0


def test_memory_is_told_in_gigabytes(monkeypatch):
    monkeypatch.setattr(telemetry_run.resource, "getrusage", lambda who: SimpleNamespace(ru_maxrss=10**6))
    monkeypatch.setattr(telemetry_run, "resident_bytes", lambda: 5 * 10**8)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert memory_use() == {"peak_gb": 1.024, "resident_gb": 0.5}
    monkeypatch.setattr(telemetry_run, "resident_bytes", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 3 * 10**9)
    assert memory_use() == {"peak_gb": 1.024, "gpu_peak_gb": 3.0}


# -- formats


@pytest.mark.parametrize(
    "seconds, shown",
    [
        *((0.4, "00:00"), (59.6, "01:00"), (60, "01:00"), (3599, "59:59"), (3599.5, "01:00:00")),
        *((86399, "23:59:59"), (86400, "1d 00:00:00"), (273_906, "3d 04:05:06"), (math.inf, "--:--")),
        *((None, "--:--"), (math.nan, "--:--")),
    ],
)
def test_durations(seconds, shown):
    assert format_seconds(seconds) == shown


@pytest.mark.parametrize(
    "number, shown",
    [
        (999, "999"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (1e6, "1M"),
        (4.56e6, "4.56M"),
        (1e9, "1G"),
        (0.5, "0.5"),
    ],
)
def test_counts(number, shown):
    assert format_count(number) == shown


def test_nested_numbers_and_tables():
    nested = {"a": {"b": 1, "c": {"d": 2.5}}, "e": True, "f": "x", "g": None, "h": 3}
    assert list(flatten(nested)) == [("a/b", 1.0), ("a/c/d", 2.5), ("h", 3.0)]
    assert table(("a", "b"), [("1|2", "3")]) == "| a | b |\n| --- | --- |\n| 1\\|2 | 3 |"
    assert columns(("", "long"), [("name", "1"), ("n", "12345")]) == "       long\nname      1\nn     12345"


def test_no_file_stays_open_behind_the_loop(tmp_path):
    def opened():
        links = []
        for one in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the one of this listing
                links.append(os.readlink(one))
        return sorted(Path(link).name.split(".")[0] for link in links if link.startswith(str(tmp_path)))

    with Telemetry(tmp_path, 5, stream=io.StringIO()) as one:
        one.log(1, {"loss": {"total": 1.0}})
        assert opened() == ["events", "metrics"]
    assert opened() == []
