"""What still runs when the budget is over is ended, kept apart from what failed, and taken up again."""

import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest
from intent_files import layout
from sts_layout import write_layout
from suite_command import evaluate

from finetune.evaluate import __main__ as running
from finetune.evaluate.suites import EvaluationJob
from pretrain.common.shutdown import EXIT_BUDGET, Shutdown

SLEEPS = "import time; time.sleep(300)"
DEAF = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); " + SLEEPS
"""Of a process that Ctrl-C does not end."""
PARENT = "import subprocess; subprocess.run(['sleep', '301.5'])"
DEAF_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {DEAF!r}, 'left-behind'])"


@pytest.fixture
def shutdown(tmp_path):
    handlers = {
        number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    yield Shutdown(tmp_path, watch_file=False)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def processes_with(word: str) -> list[int]:
    """Return the processes of this machine that have a word in their command line."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(name))
    return found


def run_until(seconds, codes, jobs, tmp_path, shutdown):
    """Run a unit for each code; return how each ended, and its seconds; None of those that were not begun."""
    units = [EvaluationJob("test", (str(number),)) for number in range(len(codes))]
    words = {unit: ["timeit", "-n1", "-r1", code] for unit, code in zip(units, codes, strict=True)}
    runs = running.run_units(
        units,
        words.__getitem__,
        tmp_path / "eval",
        dict(os.environ),
        jobs,
        time.monotonic() + seconds,
        shutdown,
        lambda unit: None,
    )
    told = {unit: ("ended" if one.at_deadline else one.code, one.seconds) for unit, one in runs}
    return [told.get(unit) for unit in units]


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_unit_has_its_own_words_log_and_share(jobs, tmp_path, monkeypatch):
    """And none begins after the deadline or a request to stop."""
    units, seen, begun = [EvaluationJob("test", (f"a{n},b",)) for n in range(7)], {}, []

    def stand_in(unit, words, log, environment, deadline, shutdown):
        seen[unit] = words, log.name, environment["CUDA_VISIBLE_DEVICES"], environment["KEPT"]
        return running.ProcessResult(0, float(unit.tasks[0][1]), "", False)

    monkeypatch.setattr(running, "_run", stand_in)
    monkeypatch.setattr(running, "_gpus", lambda: ["4", "7"])
    stopped = SimpleNamespace(requested=lambda: 0)
    words = {unit: [unit.name] for unit in units}
    given = {"KEPT": "it", "CUDA_VISIBLE_DEVICES": "4,7"}

    def done(left, stop=stopped):
        end = time.monotonic() + left
        return dict(
            running.run_units(
                units, words.__getitem__, tmp_path / "logs", given, jobs, end, stop, begun.append
            )
        )

    assert {unit: one.seconds for unit, one in done(60).items()} == {
        unit: float(number) for number, unit in enumerate(units)
    }
    assert sorted(begun, key=units.index) == units and (jobs > 1 or begun == units)
    for unit, (said, log, gpu, kept) in seen.items():
        assert (said, log, kept) == (
            [unit.name],
            unit.name.replace(" ", "-").replace(",", "-") + ".txt",
            "it",
        )
        assert gpu == "4,7" if jobs == 1 else gpu in ("4", "7")
    begun.clear()
    assert done(-1) == {} == done(60, SimpleNamespace(requested=lambda: signal.SIGTERM)) and not begun


@pytest.mark.parametrize(
    ("jobs", "slot", "gpus", "own", "share"),
    [
        (1, 0, ["a", "b"], 0, {}),
        (2, 1, ["a", "b"], 0, {"CUDA_VISIBLE_DEVICES": "b"}),
        (3, 2, ["a", "b"], 4, {"CUDA_VISIBLE_DEVICES": "a"}),
        (1, 0, [], 0, {}),
        (2, 1, [], 4, {}),
        (2, 1, [], 0, {"OMP_NUM_THREADS": "4"}),
        (3, 1, [], 0, {"OMP_NUM_THREADS": "2"}),
        (9, 1, [], 0, {"OMP_NUM_THREADS": "1"}),
    ],
)
def test_a_process_has_a_gpu_or_its_part_of_eight_cores(jobs, slot, gpus, own, share, monkeypatch):
    monkeypatch.setattr(running, "usable_cores", lambda: 8)
    monkeypatch.setattr(running, "threads_of_user", lambda: own)
    assert running._share(jobs, slot, gpus) == share


@pytest.mark.full
def test_a_unit_is_told_to_end_at_the_deadline_and_later_killed(tmp_path, shutdown, monkeypatch):
    monkeypatch.setattr(running, "SECONDS_TO_END", 6.0)
    codes = ["pass", SLEEPS, DEAF, "import nothing_of_this_name", PARENT, DEAF_CHILD, SLEEPS]
    told = run_until(12, codes, 6, tmp_path, shutdown)
    assert told[0][0] == 0 and told[3][0] == 1
    assert [one and one[0] for one in told[1:3]] == ["ended", "ended"]
    assert told[1][1] >= 6 and told[2][1] >= told[1][1] + 2  # which had to be killed
    assert told[4][0] == told[5][0] == "ended" and told[6] in (None, ("ended", pytest.approx(12, abs=30)))
    assert not processes_with("left-behind") and not processes_with("301.5")


@pytest.mark.full
def test_what_ends_by_itself_before_it_is_killed_is_done(tmp_path, shutdown):
    code = "import signal, time; signal.signal(signal.SIGINT, lambda *_: None); time.sleep(5.0)"
    (told,) = run_until(4, [code], 1, tmp_path, shutdown)
    assert told[0] == 0


@pytest.mark.full
def test_the_next_call_takes_it_up_again(tmp_path, monkeypatch):
    """STS takes for ever at first: the budget ends it, and what comes after it has no time."""
    data, ready = layout(write_layout(tmp_path / "data")), tmp_path / "ready"
    (tmp_path / "mine.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from sts_layout import bag_of_words\n"
        "def embed(texts):\n"
        f"    while any('guitar' in text for text in texts) and not Path({str(ready)!r}).exists():\n"
        "        time.sleep(0.1)\n"
        "    return bag_of_words(texts)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    words = [f"{tmp_path}/mine.py:embed", "--eval-data", data, "--out", tmp_path / "out", "--vectors=none"]
    started = time.monotonic()
    said = evaluate(*words, "--budget", "8s", code=EXIT_BUDGET)
    assert time.monotonic() - started < 8 + running.SECONDS_TO_END + 300  # of other work on this machine
    assert "what still runs after 8s is ended, within 20 s" in said
    assert "sts STS-B, SICK-R: ended at the budget after " in said and "FAILED" not in said
    assert "[2/2]" not in said
    assert "left at the budget: sts STS-B, SICK-R, intents SNIPS; finished work is kept, and the same" in said
    assert not (tmp_path / "out" / "eval.json").exists()

    ready.touch()
    said = evaluate(*words, "--budget", "2h")
    assert said.index("[1/2] sts STS-B, SICK-R") < said.index("[2/2] intents SNIPS")
    content = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert set(content["units"]) == {"sts STS-B, SICK-R", "intents SNIPS"}
