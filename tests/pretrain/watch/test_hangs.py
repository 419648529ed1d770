"""Ranks and loader workers that stop or die: real runs of two ranks, each with one message and one end."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from run_helpers import command, curve, outputs_of, start, wait_for

from pretrain.checkpoint import store

DEADLINE, EVERY = 8, 20
SETTINGS = {"train__steps": 100_000, "evaluate__every": 0, "train__step_deadline": DEADLINE}
MOST = DEADLINE + 90
"""Seconds until all is over, on a busy machine: the deadline, the report, and the end of two processes."""


def started(data: Path, run: Path, **flags: object) -> list[subprocess.Popen]:
    """Two ranks that train, and have written a checkpoint."""
    ranks = start(command(data, run, **SETTINGS | {"checkpoint__every": EVERY} | flags), ranks=2)
    wait_for(lambda: max(curve(run), default=0) > EVERY + 5, ranks)
    return ranks


def workers_of(rank: subprocess.Popen) -> list[int]:
    """The pids of a rank's loader workers."""
    return [child.pid for child in psutil.Process(rank.pid).children()]


def ended(ranks: list[subprocess.Popen]) -> tuple[str, list[int]]:
    """What all ranks have printed, and their exit statuses; nothing of them is left, in bounded time."""
    everything = [psutil.Process(rank.pid) for rank in ranks if rank.poll() is None]
    everything += [child for process in everything for child in process.children(recursive=True)]
    outputs = outputs_of(ranks, MOST)
    assert not psutil.wait_procs(everything, 60)[1]
    return "".join(outputs), [rank.returncode for rank in ranks]


def assert_last_words(output: str, what: str, run: Path) -> None:
    """One message, that says what happened, what is safe, and what to type."""
    assert output.count("error: ") == 1 and "Traceback" not in output, output
    last = output[output.index("error: ") :]
    assert re.search(what, last), last
    newest = store.latest(run / "checkpoints")
    assert f"safe: {newest}" in last and "with --resume auto" in last, last


@pytest.mark.full
def test_a_stopped_rank_is_named_and_ends_with_the_others(tiny_data, tmp_path):
    run = tmp_path / "run"
    ranks = started(tiny_data, run)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    output, codes = ended(ranks)
    assert codes == [75, -signal.SIGKILL]
    assert_last_words(output, rf"rank 1 \(.*process {ranks[1].pid}\) is stopped by a signal after step", run)
    assert (run / "watch" / "end").read_text().startswith("75\n")
    assert "pretrain/run.py" in (run / "watch" / "stacks-rank-0").read_text()


@pytest.mark.slow
def test_a_stopped_loader_worker_is_named_and_does_not_stay(tiny_data, tmp_path):
    run = tmp_path / "run"
    ranks = started(tiny_data, run)
    (worker,) = workers_of(ranks[1])
    os.kill(worker, signal.SIGSTOP)
    output, codes = ended(ranks)
    assert codes == [75, 75]
    assert_last_words(output, rf"rank 1 .* in data \(loader worker {worker} is stopped by a signal\)", run)


@pytest.mark.full
def test_a_rank_killed_in_mid_step_is_named_by_the_other(tiny_data, tmp_path):
    run = tmp_path / "run"
    ranks = started(tiny_data, run)
    os.kill(ranks[1].pid, signal.SIGKILL)
    output, codes = ended(ranks)
    assert codes == [75, -signal.SIGKILL]
    assert_last_words(output, rf"rank 1 \(.*process {ranks[1].pid}\) has ended without a word", run)


@pytest.mark.slow
def test_without_progress_there_is_no_requeue_and_the_next_start_goes_on(tiny_data, tmp_path):
    """A start that wrote a checkpoint asks for another; one that did not says that it would end the same."""
    run = tmp_path / "run"
    for number, (every, code) in enumerate([(EVERY, 75), (0, 1)]):
        ranks = started(tiny_data, run, checkpoint__every=every, checkpoint__resume="auto")
        begun = max(curve(run))
        wait_for(lambda least=begun + 5: max(curve(run)) > least, ranks)
        os.kill(ranks[1].pid, signal.SIGKILL)
        output, codes = ended(ranks)
        assert codes[0] == code
        assert ("no checkpoint was written since this start at step" in output) == (number == 1), output
    assert (run / "watch" / "end").read_text().startswith("1\n")
    assert (run / "watch.before" / "end").read_text().startswith("75\n")


@pytest.mark.slow
def test_a_run_that_is_suspended_as_a_whole_goes_on(tiny_data, tmp_path):
    """As a cluster's scheduler does: the deadline counts the time in which a rank ran."""
    run = tmp_path / "run"
    ranks = started(tiny_data, run)
    everyone = [pid for rank in ranks for pid in (rank.pid, *workers_of(rank))]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(DEADLINE + 4)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    done = max(curve(run))
    wait_for(lambda: max(curve(run)) > done + 5, ranks)
    (run / "stop").touch()
    output, codes = ended(ranks)
    assert codes == [0, 0] and "error" not in output
    assert not (run / "watch").exists()
