"""Started, killed, damaged, resumed and moved in any order, a run is the run that nothing happened to."""

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from run_machine import RunMachine
from unbroken_runs import Seen, World

SETTINGS = settings(
    database=None,
    deadline=None,
    phases=[Phase.generate],  # to shrink a sequence takes hours
    suppress_health_check=list(HealthCheck),
    print_blob=False,
)
"""The first sequence of a seed is always the simplest, which starts nothing."""


def machine(data, folder, worlds):
    return type("Machine", (RunMachine,), {"seen": Seen(data, folder), "choices": worlds})


@pytest.mark.parametrize("number", [1])
def test_a_few_events_in_any_order(tiny_data, tmp_path, number):
    made = seed(number)(machine(tiny_data, tmp_path, (World(2, 2), World(1, 0))))
    run_state_machine_as_test(made, settings=settings(SETTINGS, max_examples=2, stateful_step_count=7))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", [1])
def test_many_events_in_any_order(tiny_data, tmp_path, number):
    worlds = tuple(
        World(ranks, zero, micro) for ranks in (1, 2, 3) for zero in range(4) for micro in (256, 192)
    )
    made = seed(number)(machine(tiny_data, tmp_path, worlds))
    run_state_machine_as_test(made, settings=settings(SETTINGS, max_examples=20, stateful_step_count=12))
