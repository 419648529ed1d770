"""Fuzz targets: what they once found is replayed; each has a minute of new cases in the slow tests.

`make fuzz TARGET=NAME` runs a million (CONTRIBUTING.md).
"""

import random
import time

import pytest
from fuzz_target import SEEDS, fault_of, place_of, shortened
from fuzz_targets import TARGETS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from run_fuzz import keep, run

MINUTE = 60.0
KEPT = sorted(path for path in SEEDS.glob("*/*") if path.is_file())


@pytest.fixture(scope="module")
def targets(tmp_path_factory):
    made = {}

    def target(name):
        if name not in made:
            made[name] = TARGETS[name](tmp_path_factory.mktemp(name))
        return made[name]

    return target


@pytest.mark.parametrize("path", KEPT, ids=[f"{path.parent.name}-{path.name}" for path in KEPT])
def test_what_was_found_stays_found(path, targets):
    error = fault_of(targets(path.parent.name), path.read_bytes())
    if error is not None:
        raise error


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_cases(name, targets):
    kinds = set()
    for number in range(60):
        case = targets(name).generate(random.Random(number))
        assert case == targets(name).generate(random.Random(number)), "a case is not that of its seed"
        kinds.add(targets(name).check(case))
    assert len(kinds) > 1, "all cases end alike, so that they test little"


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_a_minute_of_cases(name, targets):
    """Hypothesis makes the generator's draws, and shrinks them where a case fails."""
    target, end, last = targets(name), time.monotonic() + MINUTE, [b""]

    @settings(
        max_examples=200,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def batch(chance):
        case = target.generate(chance)
        error = fault_of(target, case)
        if error is not None:
            last[0] = case
            raise AssertionError(place_of(error)) from error

    while time.monotonic() < end:
        try:
            batch()
        except BaseException:
            print(f"kept: {keep(target, last[0])}")
            raise


def test_faults_are_shortened(targets):
    """A target of our own: a case with an x in it is a fault."""
    target = targets("specification")

    class Planted(type(target)):
        def check(self, case):
            assert b"x" not in case, "planted"
            return "accepted"

    planted = Planted(target.folder)
    assert place_of(fault_of(planted, b"abxcd")).startswith("AssertionError at tests/fuzz/test_fuzz.py")
    assert shortened(planted, b"a" * 50 + b"x" + b"b" * 70) == b"x"
    assert fault_of(planted, b"abc") is None


def test_processes_that_crash_or_hang_are_replaced_and_their_cases_kept(tmp_path, monkeypatch, capfd):
    class Crashing(TARGETS["specification"]):
        name = "crashing"

        def generate(self, chance):
            return str(chance.randrange(100)).encode()

        def check(self, case):
            if case == b"7":
                import os

                os._exit(11)
            return "accepted"

    monkeypatch.setitem(TARGETS, "crashing", Crashing)
    monkeypatch.setattr("run_fuzz.SEEDS", tmp_path)
    assert run("crashing", cases=500, seed=0, processes=2) > 0
    assert [path.read_bytes() for path in (tmp_path / "crashing").iterdir()] == [b"7"]
    assert "ended its process with status 11" in capfd.readouterr().out
