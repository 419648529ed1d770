"""Do some steps of a run again, in a folder of its own: the process that `clearly verify --replay` starts.

    python -m pretrain.commands.verify.execute RECIPE --end STEP --ranks N

RECIPE has the settings of the run at these steps, another folder, and the checkpoint before them as
`checkpoint.resume`. It is the loop of training itself, which goes on in a new folder as a branch does.
"""

from pathlib import Path

# first: sets variables that numpy, torch and DeepSpeed read when they are imported
from pretrain.common.environment import choose_accelerator

# isort: split
from collections.abc import Iterator

import torch.distributed as dist

from pretrain.checkpoint.store import read_state
from pretrain.common import cli
from pretrain.common.shutdown import STOP
from pretrain.config.recipe import load_config
from pretrain.config.run import Config
from pretrain.data.batch import RankBatch
from pretrain.run import TrainingRun
from pretrain.start import summary
from pretrain.start.data import report_damage
from pretrain.start.local_ranks import start_local_ranks
from pretrain.step.engine import start_processes
from pretrain.step.whole_batch import StepResult
from pretrain.watch.deadline import Watchdog


class StepsAgain(TrainingRun):
    """A run that stops behind step `end`, with the checkpoint and the rows of metrics that it had there."""

    def __init__(self, config: Config, watchdog: Watchdog, end: int) -> None:
        super().__init__(config, None, None, watchdog)
        self.end = end

    def build(self) -> None:
        super().build()
        if self.checkpoint is not None:  # a branch chooses among its own evaluations
            self.progress.best_score = read_state(self.checkpoint)["progress"]["best_score"]

    def _step(self, batches: Iterator[RankBatch]) -> StepResult:
        result = super()._step(batches)
        if self.progress.step >= self.end:
            result.request = STOP
        return result

    def _record_what_runs(self) -> None:
        report_damage(self.data, self.evaluation.heldout, self.progress, self.telemetry)


def execute(recipe: Path, *, end: cli.Count, ranks: cli.Count = 1) -> int:
    """Do the steps behind a checkpoint again.

    Args:
        recipe: the settings, as YAML.
        end: the last step.
        ranks: processes, all on this machine.
    """
    config = load_config(recipe, {})
    choose_accelerator()
    start_local_ranks(ranks)
    summary.quiet_libraries()
    start_processes(config.train.rendezvous_seconds)
    with Watchdog(config.run_folder, config.train.step_deadline) as watchdog:
        run = StepsAgain(config, watchdog, end)
        run.open()
        run.build()
        code = run.loop()
    dist.destroy_process_group()
    return code


if __name__ == "__main__":
    cli.run(execute)
