"""Several steps under schedules: real DeepSpeed ranks against a plain float64 loop on one device."""

import json
from pathlib import Path

import pytest
from run_helpers import finish, start

WORKER = Path(__file__).parent / "trajectory_worker.py"


@pytest.mark.full
@pytest.mark.parametrize(
    "world,stage,case",
    [
        (1, 0, "schedules"),
        (2, 1, "schedules"),
        (2, 3, "schedules"),
        (1, 0, "schedules_muon"),
        (2, 0, "schedules_muon"),
        pytest.param(2, 2, "schedules", marks=pytest.mark.slow),
    ],
)
def test_weights_move_as_in_a_plain_loop_on_one_device(tmp_path, world, stage, case):
    """Warm-up, stable, decay or Muon; a batch that grows; a rate of masking that falls; clipping."""
    out = tmp_path / "report.json"
    finish(start([str(WORKER), str(out), str(stage), case], world))
    rows = json.loads(out.read_text())
    assert len(rows) == 8
    # Muon orthogonalises in bfloat16, which has 8 bits of mantissa
    moved, worst = (0.01, 0.05) if case.endswith("muon") else (2e-5, 1e-4)
    for row in rows:
        assert row["applied"] and row["loss"] == pytest.approx(row["expected_loss"], rel=1e-5)
        assert row["norm"] == pytest.approx(row["expected_norm"], rel=1e-4)
        assert row["error"] < moved and row["worst_parameter"] < worst, row
    assert min(row["norm"] for row in rows) > 0.5  # all are clipped
