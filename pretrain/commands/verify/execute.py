"""Do the steps of a run behind a checkpoint again: the process that `clearly verify --replay` starts."""

import os
from pathlib import Path

# first: sets variables that numpy, torch and DeepSpeed read when they are imported
from pretrain.common.environment import choose_accelerator

# isort: split
from pretrain.checkpoint.store import read_state
from pretrain.common import cli
from pretrain.common.error_output import LOCAL_RANKS
from pretrain.common.shutdown import STOP
from pretrain.config.recipe import load_config
from pretrain.run import TrainingRun, start
from pretrain.start.data import report_damage
from pretrain.start.local_ranks import start_local_ranks


class StepsAgain(TrainingRun):
    """A run that saves and stops behind step `end`; of the start it leaves best/ alone."""

    end = 0

    def build(self) -> None:
        super().build()
        if self.checkpoint is not None:  # a branch forgets them, and chooses among its own evaluations
            recorded = read_state(self.checkpoint)["progress"]
            self.progress.best_score = recorded["best_score"]
            self.progress.unimproved = recorded.get("unimproved", 0)

    def train(self, batches):
        return super().train(batches) if self.end else 0

    def _step(self, batches):
        result = super()._step(batches)
        if self.progress.step >= self.end:
            result.request = STOP
        return result

    def _record_what_runs(self) -> None:
        report_damage(self.data, self.evaluation.heldout, self.progress, self.telemetry)


def execute(recipe: Path, *, end: cli.Natural, ranks: cli.Count) -> int:
    """Do steps up to `end` again, on several ranks of this machine.

    Args:
        recipe: the run's settings, with another folder, and the checkpoint as `checkpoint.resume`.
    """
    StepsAgain.end, config = end, load_config(recipe, {})
    choose_accelerator()
    if LOCAL_RANKS not in os.environ:  # else one of those started
        start_local_ranks(ranks)
    return start(config, None, False, StepsAgain)


if __name__ == "__main__":
    cli.run(execute)
