"""A run's telemetry without its training: FOLDER TRACKER FIRST LAST. Every fifth step has two rows."""

import sys
import time
from pathlib import Path

from pretrain.telemetry.run import Telemetry
from pretrain.telemetry.trackers import Tracking


def report(folder: Path, tracker: str, first: int, last: int, pause: float) -> None:
    """Log the steps after `first` up to `last`. A step's loss is its number."""
    settings = {"train.lr": 0.1, "augment.spec": "none"}
    with Telemetry(
        folder, last, start_step=first, tracking=Tracking([tracker], "shown", settings)
    ) as telemetry:
        for step in range(first + 1, last + 1):
            telemetry.log(step, {"loss": {"total": step}, "lr": 0.1})
            if step % 5 == 0:
                telemetry.log(step, {"evaluation": {"stsb-dev": step / 2}})
            time.sleep(pause)


if __name__ == "__main__":
    report(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), 0.02)
