"""Prepare data or train by the settings in a JSON, in a fork that has imported all (`forked_python`)."""

import json
import sys
from pathlib import Path

import torch

from augment.core.own_code import allow
from pretrain import main
from pretrain.common.errors import UserError
from pretrain.config.data import data_config
from pretrain.prepare.run import prepare
from pretrain.start import summary

PEAK = 1e9
"""FLOP/s that runs take for measured."""


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


def act(task: dict) -> int | None:
    """Do it; return an exit status, 2 for an error of the user's."""
    torch.set_num_threads(1)
    summary.measure_peak_flops = lambda device, dtype: PEAK
    if task["told"]:
        tell()
    try:
        if "prepare" in task:
            prepare(data_config(task["prepare"]), Path(task["out"]), 1, False, False)
            return None
        allow(task["settings"].values())
        return main.main(dry_run=task["dry_run"], **task["settings"])
    except UserError as error:
        print(f"error: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(act(json.loads(sys.argv[1])))
