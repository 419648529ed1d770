"""The command that trains, in a fork that has imported all (`forked_python`), with a peak that is known."""

import os
import runpy
from pathlib import Path

from pretrain.start import summary

PEAK = 1e9
"""FLOP/s that runs take for measured."""
MAIN = Path(__file__).parents[2] / "pretrain" / "main.py"


def tell() -> None:
    """Print each call of what watches a run and of what prepares the machine for it."""
    from pretrain import run as module

    owners = {
        module: "check_sources check_requested require_sts require_trackers record_collectives require_lanes "
        "require_different_views remove_folder destroy_groups",
        module.devices: "set_threads set_deterministic allow_tf32",
        module.Watchdog: "begin follow end_step __call__ end_after_errors",
        module.FlatMemory: "after_step after_pause",
        module.Throughput: "begin pause",
        module.Shutdown: "requested",
        module.summary: "quiet_libraries",
    }

    def told(owner, name):
        real = getattr(owner, name)

        def call(*given, **more):
            print("TOLD", name, *(one for one in given if isinstance(one, (str, int))))
            return real(*given, **more)

        setattr(owner, name, call)

    for owner, names in owners.items():
        for name in names.split():
            told(owner, name)


if __name__ == "__main__":
    summary.measure_peak_flops = lambda device, dtype: PEAK
    if os.environ.get("TOLD"):
        tell()
    runpy.run_path(str(MAIN), run_name="__main__")
