"""Started, killed, damaged, resumed and moved in any order, a run is the run that nothing happened to."""

from random import Random

import pytest
from run_machine import RunMachine
from unbroken_runs import Seen, World

KINDS = (
    *(f"started with {ranks} ranks" for ranks in (1, 2, 3)),
    *(f"started with ZeRO {zero}" for zero in range(4)),
    *(f"resumed with other {what}" for what in World._fields),
    "resumed behind a damaged checkpoint",
    "resumed a longer run",
    "all ranks killed",
    "one rank of several killed",
    "the disk full",
    *(f"stopped by {how}" for how in ("SIGTERM", "SIGUSR1", "SIGINT", "stop")),
    "a checkpoint damaged",
    "latest damaged",
    "best damaged",
    "metrics cut",
    "no checkpoint could be used",
    "the last step done",
)
"""What the long form must have met."""


@pytest.mark.full
@pytest.mark.parametrize("number", [324])
def test_a_few_events_in_any_order(tiny_data, tmp_path, number):
    RunMachine(Seen(tiny_data, tmp_path), (World(2, 2), World(1, 0)), Random(number)).live(7)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("number", [6])
def test_many_events_in_any_order(tiny_data, tmp_path, number):
    seen, draw = Seen(tiny_data, tmp_path), Random(number)
    worlds = tuple(
        World(ranks, zero, micro) for ranks in (1, 2, 3) for zero in range(4) for micro in (256, 192)
    )
    for _ in range(10):
        RunMachine(seen, worlds, draw).live(12)
    print("\n".join(f"{count:4d}  {what}" for what, count in sorted(seen.happened.items())))
    assert not [what for what in KINDS if not seen.happened[what]], seen.happened
