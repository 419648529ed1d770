"""Weights & Biases, online or offline (https://docs.wandb.ai)."""

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

from pretrain.common.files import make_folder, rename_durably
from pretrain.telemetry.trackers.tracker import CLOSE_SECONDS, PROJECT, TrackedRun, Tracker


class Wandb(Tracker):
    """A run of Weights & Biases. WANDB_MODE, WANDB_PROJECT, WANDB_ENTITY ... are the library's own.

    Without WANDB_MODE and without an API key it is offline: `wandb sync RUN/trackers/wandb/offline-run-*`
    uploads it. A server cannot be asked to forget rows, so that the steps done again after a resume stay as
    they were sent first. An offline run is written anew from metrics.jsonl at each start, and the files of
    the start before are moved to replaced/.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._first_step = 0

    def open(self, run: TrackedRun) -> None:
        import wandb

        identity = run.identity("wandb") or uuid4().hex[:8]
        run.keep_identity("wandb", identity)
        mode: Any = os.environ.get("WANDB_MODE") or ("online" if wandb.login(prompt=False) else "offline")
        if mode == "offline":
            _replace_offline(run.place / "wandb", identity)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.name,
            id=identity,
            resume=None if mode == "offline" else "allow",
            config=run.settings,
            dir=str(run.place),
            mode=mode,
            # the console is the run's own: its bar must not go through another program
            settings=wandb.Settings(silent=True, console="off", finish_timeout=CLOSE_SECONDS),
        )
        self._first_step = self._run.step  # a server's next one; offline 0

    def last_step(self, name: str) -> int:
        return self._first_step - 1

    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        self._run.log({**values, "_timestamp": wall_time}, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()


def _replace_offline(folder: Path, identity: str) -> None:
    """Move the offline files of earlier starts of a run to replaced/, where `wandb sync` does not look."""
    for old in sorted(folder.glob(f"offline-run-*-{identity}")):
        make_folder(folder / "replaced")
        rename_durably(old, folder / "replaced" / old.name)
