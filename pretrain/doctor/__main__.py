"""Examine an installation, its machine and its folders, and say what to do about what is found.

    clearly doctor
    clearly doctor --folder /scratch/me/runs --data /data/benchmarks
    srun --label --nodes 2 --ntasks-per-node 1 clearly doctor --folder /scratch/me/runs  # of each node

The exit status is 1 if something is wrong: it would fail. A note is about what works, but slower or with
less than it could.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pretrain.common import cli
from pretrain.common.environment import choose_accelerator
from pretrain.doctor import allocation, benchmarks, hardware, software, storage
from pretrain.doctor.findings import Finding, show


def doctor(*, folder: Path = Path("runs"), data: str = "") -> int:
    """Examine the installation, the machine and the folders; say what to do about what is found.

    Args:
        folder: where runs will be written.
        data: folder of the benchmarks; default: CLEAR_DATA.
    """
    choose_accelerator()
    console = Console(highlight=False)
    data = data or os.environ.get("CLEAR_DATA", "")
    examinations: dict[str, dict[str, Callable[[], list[Finding]]]] = {
        "software": {
            "Python": software.python,
            "packages": software.packages,
            "compiled parts": software.compiled,
        },
        "machine": {
            "the job": partial(allocation.allocation, dict(os.environ)),
            "the processor": partial(hardware.processor, allocation.share(dict(os.environ))),
            "devices": hardware.devices,
            "the speed of bfloat16": hardware.precision,
            "whether ranks meet": hardware.meeting,
        },
        "folders": {
            "the disk": partial(storage.disk, folder),
            "locks": partial(storage.locks, folder),
            "whether all nodes see the folder": partial(storage.visibility, folder, dict(os.environ)),
        },
        "data": {"benchmarks": partial(benchmarks.sets, data), "the parser": benchmarks.parser},
    }
    worst = 0
    for heading, steps in examinations.items():
        console.print(Text(heading, style="bold"))
        for what, examine in steps.items():
            with console.status(f"examining {what}"):  # some take a minute on a busy machine
                findings = examine()
            for finding in findings:
                show(console, finding)
                worst += finding.level == "wrong"
    verdict = {0: "nothing here will fail", 1: "1 thing will fail"}.get(worst, f"{worst} things will fail")
    console.print(f"\n{verdict}")
    return 1 if worst else 0


if __name__ == "__main__":
    cli.run(doctor)
