"""The tests that are marked gpu, in processes beside the parts of `gpu_accept.py` that time nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 100
"""Seconds that they may take, from when they start."""
PROCESSES = 8


class GpuTests:
    """All gpu-marked tests, running; what they say goes to a file."""

    def __init__(self) -> None:
        marked = [str(path) for path in ROOT.glob("tests/**/test_*.py") if "mark.gpu" in path.read_text()]
        words = [sys.executable, "-m", "pytest", "-v", "-m", "gpu", "-p", "no:cacheprovider", "--tb=line"]
        if find_spec("xdist"):
            words += ["-n", str(PROCESSES), "--dist", "worksteal"]
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as they run
        self.until = time.monotonic() + LIMIT
        self.process = subprocess.Popen(
            [*words, *sorted(marked)],
            cwd=ROOT,
            stdout=self.said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def outcome(self) -> dict[str, Any]:
        """Wait until they end, or their time is over; raise AssertionError unless all passed, and some."""
        try:
            code = self.process.wait(max(0.0, self.until - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = self.stop()
        self.said.seek(0)
        lines = self.said.read().strip().splitlines()
        passed = sum(" PASSED" in line for line in lines)
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR", "E  "))]
        slowest = [line.strip() for line in lines if " call  " in line][:3]
        assert code is not None, " / ".join([f"{passed} passed in {LIMIT} s, then stopped", *lines[-3:]])
        assert code == 0, " / ".join([*failed, *lines[-1:]])[:1500]
        assert passed, f"none passed: {lines[-1]}"
        return {"said": lines[-1].strip("= "), "slowest": slowest}

    def stop(self) -> None:
        """End them, and what they started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
