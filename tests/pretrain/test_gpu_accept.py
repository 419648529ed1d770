"""The script that accepts a GPU, at tiny sizes on a CPU."""

import json
from pathlib import Path

import pytest
import torch
from run_helpers import finish, start

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu_accept.py"


def accepted(out: Path, parts: str) -> dict:
    """The outcomes of some parts, after the table of them was printed."""
    said = finish(start([str(SCRIPT), "--device", "cpu", "--out", str(out), "--parts", parts]), timeout=600)
    outcomes = json.loads(out.read_text())["parts"]
    assert list(outcomes) == parts.split(",")
    for part, outcome in outcomes.items():
        assert any(line.split()[:2] == [part, outcome["outcome"]] for line in said.splitlines()), said
    return outcomes


@pytest.mark.full
def test_a_part_passes_or_says_why_it_cannot_run(tmp_path):
    outcomes = accepted(tmp_path / "accept.json", "replay,waits")
    assert outcomes["replay"]["outcome"] == "pass"
    assert outcomes["waits"]["outcome"] == "skip" and "CUDA" in outcomes["waits"]["reason"]


@pytest.mark.full
def test_a_part_that_fails_is_said_and_ends_the_script_with_1(tmp_path):
    out = tmp_path / "accept.json"
    finish(start([str(SCRIPT), "--device", "cpu", "--out", str(out), "--parts", "nothing,waits"]), expect=1)
    outcomes = json.loads(out.read_text())["parts"]
    assert outcomes["nothing"]["outcome"] == "fail" and "KeyError" in outcomes["nothing"]["reason"]
    assert outcomes["waits"]["outcome"] == "skip"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_in_one_line():
    said = finish(start([str(SCRIPT)]), expect=2)
    assert "there is no GPU here" in said.splitlines()[-1]


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    outcomes = accepted(tmp_path / "accept.json", "exactness,replay,resume,waits,masked,sentences")
    assert {part: outcome["outcome"] for part, outcome in outcomes.items()} == {
        "exactness": "pass",
        "replay": "pass",
        "resume": "pass",
        "waits": "skip",
        "masked": "pass",
        "sentences": "pass",
    }
