"""Say which runs GLUE's figures come from: one per task, seed and hyper-parameters."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from finetune.tuning.recipe import TrainingOptions
from finetune.tuning.tasks import TASKS
from pretrain.common import cli

SEEDS = 5
"""What RoBERTa and CLEAR report the median of."""
EPOCHS = 10
MAX_LENGTH = 512
GRID = [(lr, batch, 0.06) for batch in (16, 32) for lr in (1e-5, 2e-5, 3e-5)]
"""RoBERTa's search for single-task dev results (Liu et al. 2019, section 5.1): rate, batch, warm-up."""


@dataclass(frozen=True)
class GlueRun:
    """One fine-tuning: a task, a seed, and hyper-parameters."""

    task: str
    seed: int
    lr: float
    batch_size: int
    warmup: float

    @property
    def name(self) -> str:
        return f"{self.task} seed {self.seed}, lr {self.lr:g}, batch {self.batch_size}"


class GlueOptions(TrainingOptions, frozen=True, use_attribute_docstrings=True):
    """What all runs of an evaluation have in common, as flags."""

    seeds: cli.Count = SEEDS
    """number of seeds; the figure is the median over them, each at its best epoch"""
    sweep: bool = False
    """try rates 1e-5, 2e-5, 3e-5 with batches of 16 and 32, and report the setting with the best median"""
    predict: bool = False
    """also write the test sets' predictions, of the best seed, in the leaderboard's format"""
    epochs: cli.Count = Field(EPOCHS, description="fewer, for a quick trial; the result is marked incomplete")

    def runs(self, tasks: Sequence[str]) -> list[GlueRun]:
        """Return all runs, by task, then setting, then seed; of AX, which MNLI's model answers, none."""
        runs = []
        for task in tasks:
            if not (recipe := TASKS[task].recipe):
                continue
            lr, batch, rise, total = recipe
            settings = GRID if self.sweep else [(self.lr or lr, self.batch_size or batch, rise / total)]
            runs += [GlueRun(task, seed, *one) for one in settings for seed in range(1, self.seeds + 1)]
        return runs


Results = Mapping[GlueRun, dict[str, Any]]
"""Runs that are done, with their figures."""


def choose(done: Results) -> tuple[dict[tuple[float, int], float], list[GlueRun], GlueRun]:
    """Return (median over seeds by (lr, batch), the runs of the best setting, the best of these)."""
    values = {run: found["best"]["value"] for run, found in done.items()}
    by_setting: dict[tuple[float, int], list[GlueRun]] = {}
    for run in done:
        by_setting.setdefault((run.lr, run.batch_size), []).append(run)
    medians = {
        setting: statistics.median(values[run] for run in runs) for setting, runs in by_setting.items()
    }
    # With seeds still to come a setting must not win by its one lucky seed.
    reported = by_setting[max(medians, key=lambda setting: (len(by_setting[setting]), medians[setting]))]
    return medians, reported, max(reported, key=values.__getitem__)
