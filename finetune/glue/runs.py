"""Say which runs GLUE's figures come from: one per task, seed and hyper-parameters."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from finetune.tuning.recipe import TrainingOptions
from pretrain.common import cli

SEEDS = 5
"""What RoBERTa and CLEAR report the median of."""
EPOCHS = 10
MAX_LENGTH = 512
FAIRSEQ: dict[str, tuple[float, int, float]] = {
    "MNLI": (1e-5, 32, 7432 / 123873),
    "QNLI": (1e-5, 32, 1986 / 33112),
    "QQP": (1e-5, 32, 28318 / 113272),
    "RTE": (2e-5, 16, 122 / 2036),
    "SST-2": (1e-5, 32, 1256 / 20935),
    "MRPC": (1e-5, 16, 137 / 2296),
    "CoLA": (1e-5, 16, 320 / 5336),
    "STS-B": (2e-5, 16, 214 / 3598),
    "WNLI": (2e-5, 16, 0.06),
}
"""Learning rate, batch, warm-up / total updates: fairseq's examples/roberta/README.glue.md. Its totals are 10
epochs of its own batches, which a limit of tokens makes smaller than here where texts are long, so the share
is what is kept. WNLI, which RoBERTa treats by another method, has RTE's."""
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


class GlueOptions(TrainingOptions, frozen=True):
    """What all runs of an evaluation have in common, as flags."""

    seeds: cli.Count = Field(
        SEEDS, description="number of seeds; the figure is the median over them, each at its best epoch"
    )
    sweep: bool = Field(
        False,
        description="try rates 1e-5, 2e-5, 3e-5 with batches of 16 and 32, and report the setting with the "
        "best median",
    )
    predict: bool = Field(
        False,
        description="also write the test sets' predictions, of the best seed, in the leaderboard's format",
    )
    epochs: cli.Count = Field(EPOCHS, description="fewer, for a quick trial; the result is marked incomplete")

    def runs(self, tasks: Sequence[str]) -> list[GlueRun]:
        """Return all runs, by task, then setting, then seed; of AX, which MNLI's model answers, none."""
        runs = []
        for task in [task for task in tasks if task != "AX"]:
            lr, batch, warmup = FAIRSEQ[task]
            settings = GRID if self.sweep else [(self.lr or lr, self.batch_size or batch, warmup)]
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
