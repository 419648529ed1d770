"""The checkpoints of a run: when one is due, what it holds beside the engine's tensors, which stay."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import torch.distributed as dist

from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.config.run import Config
from pretrain.start.inputs import Inputs
from pretrain.step.progress import Progress


class Checkpoints:
    """Save a run's engine and progress. Collective; a context, whose end waits for the save in flight."""

    def __init__(
        self, config: Config, engine, inputs: Inputs, of_start: Mapping[str, Any] | None = None
    ) -> None:
        """of_start: what exports must know of the starting model and its tokenizer."""
        self.config, self.engine, self.inputs = config, engine, inputs
        self._of_start = of_start or {}
        self._saver, self._told = Saver(engine), False

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._saver.close()

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after a step: each so many, and where wsd's decay begins."""
        every = self.config.checkpoint.every
        return (bool(every) and step % every == 0) or step == self._branch_point

    @property
    def _branch_point(self) -> int | None:
        """The step before wsd's decay: its checkpoint is kept, for longer runs and other decays."""
        train = self.config.train
        return train.decay_begins if train.schedule == "wsd" else None

    def save(
        self,
        progress: Progress,
        root: Path | None = None,
        wait: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> Path:
        """Write a checkpoint, and return its folder: whole already, or soon.

        Args:
            root: folder of checkpoints; None: the run's own.
            wait: return when it is whole.
            say: is told where training waits although it need not.

        Raises:
            CheckpointError: on every rank, when this save or the one before has failed.
        """
        settings, began = self.config.checkpoint, time.monotonic()
        if self._saver.in_flight:
            self._saver.wait()
            say(
                f"waited {time.monotonic() - began:.1f} s for the checkpoint before to be written: one takes "
                f"longer than {settings.every} steps (checkpoint.every)"
            )
        beside = {self._branch_point} | ({progress.best_step} if settings.keep_best else set())
        kept = frozenset(step for step in beside if step is not None)
        folder = self._saver.save(
            root or self.config.run_folder / "checkpoints",
            self._state(progress),
            Retention(settings.keep, settings.keep_every, kept),
            background=settings.background and not wait,
        )
        if settings.background and not wait and not self._saver.has_room and not self._told:
            self._told = True
            say(
                "checkpoints are written while training waits: there is no room in memory for a copy of "
                "parameters and moments (checkpoint.background)"
            )
        return folder

    def wait(self) -> None:
        """Return when the save in flight, if there is one, is whole. Collective; raises as `save`."""
        self._saver.wait()  # whether one is in flight, ranks may see differently

    def _state(self, progress: Progress) -> dict[str, Any]:
        return {
            "progress": asdict(progress),
            "step": progress.step,
            "config": self.config.model_dump(mode="json"),
            "tokenizer_hash": self.inputs["tokenizer"]["sha256"],
            "inputs": self.inputs,
            "world_size": dist.get_world_size(),
            "kept_head": self.engine.module.objective.kept_head_name,
            **self._of_start,
        }

    @property
    def failed(self) -> bool:
        """Whether this rank knows that the save in flight has failed; `wait` and `save` then raise."""
        return self._saver.failed
