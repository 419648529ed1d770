"""The soak in its short forms: a run and five requeues that are flat, and a run that leaks everything."""

from pathlib import Path

import pytest
from soak import prepared, requeue, soak

pytestmark = pytest.mark.slow
MINUTES, INTERVAL = 1, 0.3
BOUND = 3000
"""MB/hour: a minute is all warm-up."""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return prepared(tmp_path_factory.mktemp("soaked"), 300)


def failures(judgements) -> dict[str, str]:
    return {judgement.series: judgement.says for judgement in judgements if not judgement.sound}


def test_a_run_of_a_minute_is_flat(data, tmp_path):
    judgements = soak(data, tmp_path, MINUTES, INTERVAL, BOUND, [])
    assert not failures(judgements)
    judged = {judgement.series for judgement in judgements}
    for process in ("rank 0", "rank 0 child 1", "rank 1", "rank 1 child 1"):  # a loader worker each
        assert {f"{process}, {name}" for name in ("rss", "anonymous", "threads")} <= judged
    assert (tmp_path / "soak.png").stat().st_size > 10_000
    assert len((tmp_path / "processes.tsv").read_text().splitlines()) > 100


def test_leaks_of_every_kind_are_found(data, tmp_path):
    leaky = f"--objective={Path(__file__).with_name('leaky_objective.py')}:Leaky"
    found = failures(soak(data, tmp_path, MINUTES, INTERVAL, BOUND, [leaky]))
    for rank in ("rank 0", "rank 1"):
        for name in ("rss", "anonymous", "descriptors", "threads"):
            assert f"{rank}, {name}" in found
    assert {"shared_entries", "temporary_entries", "left after the end"} <= found.keys()
    assert "temporary files" in found["left after the end"]


def test_requeues_are_flat_and_end_as_the_unbroken_run(data, tmp_path):
    judgements = requeue(data, tmp_path, times=6, steps=20, interval=0.3, words=[])
    assert not failures(judgements)
    assert sum(judgement.series.startswith("exit of start") for judgement in judgements) == 7
