"""The rank that the others wait for: found, named after several rows, and not for noise."""

import numpy as np
import pytest
from run_helpers import command, finish, records, start

from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.watch.ending import FOLDER
from pretrain.watch.heartbeat import heartbeat
from pretrain.watch.stragglers import PARTS, QUIET, ROWS, Stragglers

SECOND = 1_000_000


def test_a_row_has_the_time_of_all_its_steps_and_no_wait(tmp_path):
    now = [0.0]
    clock = Stopwatch(lambda: now[0], cuda=False)
    stragglers = Stragglers(clock, tmp_path, speaks=True)
    sent, rng = [], np.random.default_rng(0)
    done = 0.0
    for step in range(12):
        sent.append(stragglers.busy())
        for part in (*PARTS, "loss", "step"):
            with clock(part):
                seconds = rng.random()
                now[0] += seconds
            done += seconds if part in PARTS else 0.0
        if step % 4 == 3:  # ends a row; its numbers were sent before it ran
            stragglers.end_row([sent[-1], 1])
    rest = stragglers.busy()
    assert (sent[3] + sent[7] + sent[11] + rest) / SECOND == pytest.approx(done, abs=1e-4)


def rows(stragglers: Stragglers, *busy: list[float]) -> list[tuple[dict, str | None]]:
    return [stragglers.end_row([int(SECOND * of_rank) for of_rank in row]) for row in busy]


def test_a_rank_that_stays_slow_is_named_once_with_its_host(tmp_path):
    (tmp_path / FOLDER).mkdir()
    beat = heartbeat(2, 0, 7, "encode", 0.0)
    beat.write(tmp_path / FOLDER)
    stragglers = Stragglers(Stopwatch(cuda=False), tmp_path, speaks=True)
    said = rows(stragglers, *[[2.0, 2.1, 3.0, 1.9]] * (2 * QUIET))
    assert said[0][0] == {"slowest_rank": {"rank": 2, "over_median": 1.5}}
    assert [number for number, (_, text) in enumerate(said) if text] == [ROWS - 1, QUIET + ROWS - 1]
    assert said[ROWS - 1][1].startswith(f"{beat.name} needs 1.50 times the median rank's time")
    silent = Stragglers(Stopwatch(cuda=False), tmp_path, speaks=False)
    assert not any(text for _, text in rows(silent, *[[2.0, 2.1, 3.0, 1.9]] * 9))


@pytest.mark.parametrize(
    "busy",
    [
        [[2.0, 2.0, 2.5]] * 9,  # within what is usual
        [[0.02, 0.02, 0.09]] * 9,  # too short to tell
        [[2.0, 2.0, 3.0], [2.0, 3.0, 2.0]] * 9,  # now this one, now that one
        [[2.0, 2.0, 3.0], [2.0, 3.0, 2.0], [2.0, 2.0, 2.0]] * 9,
        [[5.0]] * 9,
        [[0.0, 0.0]] * 9,
    ],
)
def test_noise_is_no_warning(tmp_path, busy):
    assert not any(text for _, text in rows(Stragglers(Stopwatch(cuda=False), tmp_path, True), *busy))


@pytest.mark.full
def test_a_run_of_two_ranks_has_it_in_its_rows(tiny_data, tmp_path):
    finish(start(command(tiny_data, tmp_path, train__steps=4, evaluate__every=0), ranks=2))
    found = [row["slowest_rank"] for row in records(tmp_path) if row.get("slowest_rank")]
    assert len(found) == 4
    assert all(row["rank"] in (0, 1) and row["over_median"] >= 1 for row in found)
