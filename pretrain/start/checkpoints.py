"""The checkpoints of a run, and best/: the export of the step with the best evaluation."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pretrain.checkpoint import store
from pretrain.checkpoint.engine_state import engine_state
from pretrain.checkpoint.folder_writer import Retention
from pretrain.checkpoint.saver import Saver
from pretrain.checkpoint.store import Reason, quarantine
from pretrain.common.errors import UserError
from pretrain.common.files import discard, recover
from pretrain.common.ranks import gathered, on_rank_zero
from pretrain.config.run import Config
from pretrain.export.folder import export, is_export, read_policy
from pretrain.export.sums import changed_files
from pretrain.model.modules import unsound
from pretrain.start.continuity import Inputs
from pretrain.start.devices import device_name
from pretrain.step.faults import Finding, OverBudget, first_fault_of_series
from pretrain.step.progress import Progress


class Checkpoints(Saver):
    """Save a run's engine and progress. Collective; `close` waits for the save in flight."""

    def __init__(
        self, config: Config, engine, inputs: Inputs, of_start: Mapping[str, Any] | None = None
    ) -> None:
        """of_start: what exports must know of the starting model and its tokenizer."""
        super().__init__(engine)
        self.config, self.inputs, self._of_start = config, inputs, of_start or {}
        self._said_no_room = False
        train = config.train
        self._branch_point = train.decay_begins if train.schedule == "wsd" else None
        """The step before wsd's decay: its checkpoint is kept, for longer runs and other decays."""

    def due(self, step: int) -> bool:
        """Return whether a checkpoint is due after a step."""
        every = self.config.checkpoint.every
        return (bool(every) and step % every == 0) or step == self._branch_point

    def require_finite_weights(self, progress: Progress) -> None:
        """Raise OverBudget if the norm of weights is not finite: no later step would be. Collective.

        A gradient may be finite, and its update not. Asked before each save and evaluation, so that every
        checkpoint can be returned to.
        """
        view = engine_state(self.engine)
        parts = ((name, view.part(parameter, None)) for name, parameter in view.named_parameters())
        if any(gathered(unsound((name, part.values) for name, part in parts if part is not None))):
            since = first_fault_of_series([*progress.faults, progress.step])
            what = f"the norm of the weights is not finite after step {progress.step}"
            raise OverBudget(progress.step, since, what, Finding([], again=False))

    def save_progress(
        self,
        progress: Progress,
        root: Path | None = None,
        wait: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> Path:
        """Write a checkpoint, and return its folder: whole already, or soon.

        root: folder of checkpoints; None: the run's own. wait: return when it is whole. say: is told where
        training waits although it need not.
        """
        settings, began = self.config.checkpoint, time.monotonic()
        if self.in_flight:
            self.wait()
            waited = f"waited {time.monotonic() - began:.1f} s for the checkpoint before to be written"
            say(f"{waited}: one takes longer than {settings.every} steps (checkpoint.every)")
        extra = {self._branch_point} | ({progress.best_step} if settings.keep_best else set())
        background = settings.background and not wait
        folder = self.save(
            root or self.config.run_folder / "checkpoints",
            {
                "progress": asdict(progress),
                "step": progress.step,
                "config": self.config.model_dump(mode="json"),
                "tokenizer_hash": self.inputs["tokenizer"]["sha256"],
                "inputs": self.inputs,
                "world_size": dist.get_world_size(),
                "machine": {"device": device_name(), "threads": torch.get_num_threads()},
                "kept_head": self.engine.module.objective.kept_head_name,
                **self._of_start,
            },
            Retention(
                settings.keep, settings.keep_every, frozenset(step for step in extra if step is not None)
            ),
            background,
        )
        if background and not self.has_room and not self._said_no_room:
            self._said_no_room = True
            say("checkpoints are written while training waits: memory has no room for a copy of the model")
        return folder

    def load(self, folder: Path) -> dict[str, Any]:
        """Load a checkpoint, verified when it was chosen, into the engine; return its state."""
        return store.load(folder, self.engine)

    # -- best/ ----------------------------------------------------------------

    def keep_best(self, checkpoint: Path) -> None:
        """Export a checkpoint to best/."""
        on_rank_zero(lambda: export(checkpoint, self.config.run_folder / "best"))

    def keep_start(self, progress: Progress) -> None:
        """Export the untrained model to best/: until an evaluation is better, the start is the best."""
        with self._checkpoint_of_start(progress) as checkpoint:
            self.keep_best(checkpoint)

    @contextmanager
    def _checkpoint_of_start(self, progress: Progress) -> Iterator[Path]:
        """Save the untrained model, for a while: all ranks can write a checkpoint at any ZeRO stage."""
        temporary = self.config.run_folder / ".start"
        on_rank_zero(lambda: discard(temporary))
        yield self.save_progress(progress, temporary / "checkpoints", wait=True)
        on_rank_zero(lambda: discard(temporary))

    def repair_best(self, progress: Progress) -> None:
        """Make best/ the export of the best step that a resumed run records, before a checkpoint is loaded.

        It is another one if a kill came between a checkpoint and its export, if its files were damaged,
        and if it belongs to steps that this resume discards. Step 0 has no checkpoint, and is made again.
        Without a checkpoint of another best step there is nothing to export again: best/ is set aside, and
        the next evaluation is the best.
        """
        folder, step = self.config.run_folder, progress.best_step
        on_rank_zero(lambda: recover(folder / "best"))
        was_start = step == 0 and progress.best_score is not None
        if was_start and on_rank_zero(lambda: _exported_step(folder)) != 0:
            with self._checkpoint_of_start(Progress()) as start:
                on_rank_zero(lambda: _export_best(folder, progress, start))
            return
        source = folder / "checkpoints" / f"step-{step:08d}"
        if not on_rank_zero(lambda: _export_best(folder, progress, source)):
            progress.best_score = None


def _exported_step(folder: Path) -> int | None:
    """Return the step that best/ is of; None: it is no whole export."""
    try:
        policy = None if changed_files(folder / "best") else read_policy(folder / "best")
    except UserError:
        return None
    return None if policy is None else policy["step"]


def _export_best(folder: Path, progress: Progress, source: Path) -> bool:
    """Export the best step from `source` to best/ if that holds another; return whether it holds it then."""
    best, exported = folder / "best", _exported_step(folder)
    if exported == progress.best_step:
        return True
    problem = store.problem_with(source) if source.is_dir() else None
    if problem is not None and problem.kind != "damaged":
        raise UserError(f"{best} must be exported again from {source}, which {problem}. {problem.remedy}")
    can_export = source.is_dir() and problem is None
    finding = "" if can_export or progress.best_score is None else "is missing"
    if best.exists() and not (can_export and is_export(best)):  # else the export replaces it
        kind: Reason = "damaged" if exported is None else "abandoned"
        try:
            finding = f"is not that of the best step: renamed to {quarantine(best, kind).name}"
        except OSError as error:
            raise UserError(f"cannot rename {best}: {error.strerror}") from None
    if finding:
        again = f"exported again from {source.name if progress.best_step else 'the start'}"
        then = again if can_export else "without a checkpoint: the next evaluation counts as the best"
        said = f"warning: {best} {finding}. The best step so far is {progress.best_step}, {then}"
        print(said, file=sys.stderr, flush=True)
    if can_export:
        export(source, best)
    return can_export
