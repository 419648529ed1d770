"""What a tracker is to a run: opened, given metrics of steps, closed."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pretrain.common.files import make_folder, replace_durably

PROJECT = "sentence-clear"
"""What runs are grouped under, where a tracker's own environment variable says nothing else."""

CLOSE_SECONDS = 60.0
"""For all trackers to send what still waits, at the end of a run."""


@dataclass
class TrackedRun:
    """What a tracker shows: a run of ours, by the identity that the tracker knows it by."""

    folder: Path
    """The run folder."""
    name: str
    settings: dict[str, Any]
    """The resolved recipe: dotted key -> value."""
    continued: bool
    """Whether the run resumes from a checkpoint; from step 0 on it is a new run to the tracker."""

    @property
    def place(self) -> Path:
        """Where trackers keep their files."""
        return self.folder / "trackers"

    def identity(self, tracker: str) -> str | None:
        """Return what `keep_identity` was given at the run's earlier start; None: nothing yet."""
        path = self.place / f"{tracker}.id"
        return path.read_text().strip() if self.continued and path.is_file() else None

    def keep_identity(self, tracker: str, identity: str) -> None:
        """Write down by what the tracker knows this run."""
        make_folder(self.place)
        replace_durably(self.place / f"{tracker}.id", f"{identity}\n".encode())


class Tracker(ABC):
    """One tracker, for one run. All methods are called in one thread, which is not the training's."""

    @abstractmethod
    def open(self, run: TrackedRun) -> None:
        """Begin a tracked run, or continue the one that an earlier start of the same run began."""

    @abstractmethod
    def last_step(self, name: str) -> int:
        """Return the last step whose value of the metric `name` the tracker has; -1: none."""

    @abstractmethod
    def write(self, step: int, wall_time: float, values: dict[str, float]) -> None:
        """Write metrics of a step. wall_time: seconds since 1970."""

    @abstractmethod
    def close(self) -> None:
        """End this start of the run. Also called after a failure, then it may fail, too."""
