"""The script that accepts a GPU, at tiny sizes on a CPU."""

import io
import json
import os
import signal
import sys
import time
import zipfile
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from run_helpers import finish, start

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import gpu_accept
import gpu_bundle
import gpu_peers
import gpu_tests

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_accept.py"
WORKER = Path(__file__).with_name("accept_worker.py")


def accepted(out: Path, parts: str) -> dict:
    """The outcomes of some parts, after the table of them was printed."""
    words = ["--device", "cpu", "--out", str(out), "--parts", parts, "--seconds", "600"]
    said = finish(start([str(SCRIPT), *words]), timeout=600)
    outcomes = json.loads(out.read_text())["parts"]
    assert list(outcomes) == parts.split(",")
    for part, outcome in outcomes.items():
        assert any(line.split()[:2] == [part, outcome["outcome"]] for line in said.splitlines()), said
    return outcomes


@pytest.mark.full
def test_a_part_passes_or_says_why_it_cannot_run(tmp_path):
    outcomes = accepted(tmp_path / "accept.json", "replay,waits")
    assert outcomes["replay"]["outcome"] == "pass" and "rows by graphs" not in outcomes["replay"]
    assert outcomes["waits"]["outcome"] == "skip" and "CUDA" in outcomes["waits"]["reason"]


@pytest.mark.full
def test_checks_compare_what_graphs_made(tmp_path):
    finish(start([str(WORKER), str(tmp_path / "found.json"), "replay,resume"]), timeout=600)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["replay"]["rows by graphs"] == 1 and found["resume"]["rows by graphs"] >= 6


@pytest.mark.full
@pytest.mark.parametrize("parts", ["attention", "batch65536,peer512"])
def test_single_operations_steps_and_peers_run_on_a_cpu(tmp_path, parts):
    outcomes = accepted(tmp_path / "accept.json", parts)
    assert all(outcome["outcome"] == "pass" for outcome in outcomes.values()), outcomes
    if parts == "attention":
        assert outcomes["attention"]["8 tokens"]["plain"].endswith(" us")
    else:
        assert outcomes["batch65536"]["step"]["tokens_per_second"] > 0
        assert outcomes["peer512"]["peer_tokens_per_second"] > 0


@pytest.mark.full
def test_parts_without_time_are_named_and_end_the_script_with_1(tmp_path):
    """The time is over before the script is set up."""
    out = tmp_path / "accept.json"
    words = ["--device", "cpu", "--out", str(out), "--parts", "attention,peer64", "--seconds", "0.1"]
    said = finish(start([str(SCRIPT), *words]), expect=1)
    assert said.splitlines()[-1] == "no time: attention, peer64"
    outcomes = json.loads(out.read_text())["parts"]
    assert all(outcome["outcome"] == "late" for outcome in outcomes.values())


def require_late(part, monkeypatch):
    """Do a part of which the time is over after a tenth of a second."""
    monkeypatch.setitem(gpu_accept.PARTS, "masked", part)
    before = signal.signal(signal.SIGALRM, gpu_accept.end)
    try:
        nothing = SimpleNamespace(peers={})
        outcome = gpu_accept.outcome_of("masked", nothing, ["masked"], time.monotonic() + 0.1)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert outcome["outcome"] == "late" and outcome["seconds"] < 10


def test_a_part_that_begins_late_ends_with_the_time(monkeypatch):
    def takes_long(accept):
        try:
            time.sleep(30)
        except Exception:
            pytest.fail("a library may catch exceptions")

    require_late(takes_long, monkeypatch)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_part_that_loses_the_end_of_the_time_is_told_again(monkeypatch):
    def loses_it(accept):
        with pytest.raises(gpu_accept.OutOfTime):
            time.sleep(30)
        time.sleep(30)

    monkeypatch.setattr(gpu_accept, "AGAIN", 0.1)
    require_late(loses_it, monkeypatch)


def peer(tmp_path, monkeypatch, body: str) -> gpu_peers.Peer:
    """A peer that is a script; `folder` is where it writes, and `parent` this process."""
    script = tmp_path / "peer.py"
    begin = "import json, os, pathlib, signal, sys, time\n"
    begin += "folder, parent = pathlib.Path(sys.argv[3]), sys.argv[4]\n"
    script.write_text(begin + body)
    monkeypatch.setattr(gpu_peers, "__file__", str(script))
    return gpu_peers.Peer("peer64", "cpu")


@pytest.mark.parametrize(
    "body,error,said",
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", RuntimeError, "died with -9"),  # as if memory was full
        ("sys.exit('no such package')", RuntimeError, "died with 1: no such package"),
        (
            "(folder / 'found.json').write_text(json.dumps({'failed': 'KeyError: 3'}))",
            RuntimeError,
            "KeyError",
        ),
        (
            "(folder / 'found.json').write_text(json.dumps({'skipped': 'not there'}))",
            gpu_peers.Skipped,
            "not there",
        ),
        ("time.sleep(60)", gpu_peers.Late, "not ready after"),
    ],
)
def test_a_peer_that_fails_or_dies_is_not_one_that_cannot_run(tmp_path, monkeypatch, body, error, said):
    monkeypatch.setattr(gpu_peers, "LIMIT", 0.3 if error is gpu_peers.Late else 60)
    with pytest.raises(error, match=said):
        peer(tmp_path, monkeypatch, body).speed()


def test_a_peer_knows_whose_it_is_and_how_many_may_compile(tmp_path, monkeypatch):
    body = "found = {'parent': parent, 'threads': os.environ['TORCHINDUCTOR_COMPILE_THREADS']}\n"
    body += "(folder / 'ready').touch()\n(folder / 'found.json').write_text(json.dumps(found))"
    own = peer(tmp_path, monkeypatch, body)
    assert own.speed() == {"parent": str(os.getpid()), "threads": "4"}
    assert gpu_peers.settle(SimpleNamespace(peers={"peer64": own})) == {"ready": ["peer64"]}


@pytest.mark.parametrize("said,fine", [("a PASSED\n1 passed", True), ("a SKIPPED\n1 skipped", False)])
def test_tests_of_which_none_passed_are_a_failure(said, fine):
    tests = gpu_tests.GpuTests.__new__(gpu_tests.GpuTests)
    tests.said, tests.until = io.StringIO(said), time.monotonic() + 60
    tests.process = SimpleNamespace(wait=lambda seconds: 0)
    if fine:
        assert tests.outcome()["said"] == "1 passed"
    else:
        with pytest.raises(AssertionError, match="none passed: 1 skipped"):
            tests.outcome()


def test_own_parts_come_before_peers():
    parts = list(gpu_accept.PARTS)
    assert parts[-len(gpu_accept.PEERS) :] == list(gpu_accept.PEERS)
    assert {beside for beside, _ in gpu_accept.PEERS.values()} < set(parts)


@pytest.mark.full
def test_a_part_that_fails_is_said_and_ends_the_script_with_1(tmp_path):
    out = tmp_path / "accept.json"
    words = ["--device", "cpu", "--out", str(out), "--parts", "tests,waits,nothing"]
    said = finish(start([str(SCRIPT), *words]), expect=1)
    assert said.splitlines()[-2:] == ["failed: nothing", "skipped: waits, tests"]
    outcomes = json.loads(out.read_text())["parts"]
    assert list(outcomes) == ["nothing", "waits", "tests"]
    assert outcomes["nothing"]["outcome"] == "fail" and "KeyError" in outcomes["nothing"]["reason"]
    assert outcomes["waits"]["outcome"] == "skip"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    said = finish(start([str(SCRIPT)]), expect=2)
    assert "there is no GPU here" in said.splitlines()[-1]


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    outcomes = accepted(tmp_path / "accept.json", ",".join(gpu_accept.PARTS))
    skipped = {part for part, outcome in outcomes.items() if outcome["outcome"] == "skip"}
    assert skipped == {"waits", "tests"}  # which want a GPU
    assert all(outcome["outcome"] == "pass" for part, outcome in outcomes.items() if part not in skipped)
    speeds = outcomes["masked"]["exact, graphs auto"], outcomes["batch64"]["graphs off"]
    assert all(speed["tokens_per_second"] > 0 for speed in speeds)
    assert outcomes["masked"]["fast, graphs off"]["planned_gb"] >= 0
    assert all(outcomes[part]["ratio"] > 0 for part in gpu_accept.PEERS)
    assert outcomes["batch65536"]["step"]["tokens_per_second"] > 0
    assert outcomes["batch65536"]["loss alone"]["TF32 is off by"]["loss"] < 1e-5  # a CPU rounds no factor


def test_a_bundle_has_installed_packages_as_wheels_for_a_gpu(tmp_path):
    gpu_bundle.pack("fire", tmp_path, "2.11")
    (wheel,) = tmp_path.glob("fire-*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "fire/core.py" in names and not any(name.endswith(".pyc") for name in names)
    (record,) = [name for name in names if name.endswith("RECORD")]
    listed = zipfile.ZipFile(wheel).read(record).decode().splitlines()
    assert sorted(line.split(",")[0] for line in listed) == sorted(set(names) - {record})
    here = ".".join(distribution("torch").version.split(".")[:2])
    notes = f"accelerator_name='cpu'; torch_info={{'version': '{here}', 'bf16_support': False}}".encode()
    changed = gpu_bundle.of_a_gpu(notes, "2.11").decode()
    assert "accelerator_name='cuda'" in changed and "'version': '2.11', 'bf16_support': True" in changed
