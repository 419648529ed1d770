"""trackio: a local dashboard in wandb's manner (https://huggingface.co/docs/trackio)."""

import os
from typing import Any
from uuid import uuid4

from pretrain.telemetry.trackers.tracker import PROJECT, TrackedRun, Tracker


class Trackio(Tracker):
    """A run of trackio, in TRACKIO_DIR; `trackio show` shows it. TRACKIO_SPACE_ID is the library's own.

    What a resumed run already has stays as it was written first.
    """

    def __init__(self) -> None:
        self._run: Any = None
        self._last: dict[str, int] = {}

    def open(self, run: TrackedRun) -> None:
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        project = os.environ.get("TRACKIO_PROJECT", PROJECT)
        known = run.identity("trackio")
        name = known or f"{run.name}-{uuid4().hex[:8]}"
        run.keep_identity("trackio", name)
        # allow: a start that was killed at once may have kept a name that trackio does not have yet
        self._run = trackio.init(project=project, name=name, config=run.settings, resume="allow", embed=False)
        if known:
            for row in SQLiteStorage.get_logs(project, name):
                self._last |= dict.fromkeys(row, row["step"])

    def last_step(self, name: str) -> int:
        return self._last.get(name, -1)

    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()
