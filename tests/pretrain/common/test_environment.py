"""What is set before torch is imported."""

import os
import subprocess
import sys

import pytest

SCRIPT = (
    "import pretrain.common.environment, os; print(os.environ.get('OMP_WAIT_POLICY'), "
    "os.environ.get('GOMP_SPINCOUNT'))"
)


@pytest.mark.parametrize("given, found", [
    ({}, "active 300000"), ({"OMP_WAIT_POLICY": "passive"}, "passive None"), ({"GOMP_SPINCOUNT": "7"},
    "None 7"),
])  # fmt: skip
def test_threads_spin_between_kernels_unless_the_user_says_otherwise(given, found):
    others = {
        name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**others, **given}, capture_output=True, text=True, check=True
    )
    assert run.stdout.split("\n")[0] == found
