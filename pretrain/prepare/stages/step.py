"""What the steps of a preparation share: the work folder, and the plan in it.

Nothing that a step does depends on how many tasks run at once. Each output appears whole
under its final name, and a step that runs twice writes the same bytes.
"""

from functools import cached_property
from pathlib import Path

from pretrain.config.data import DataConfig
from pretrain.prepare import buckets as bk
from pretrain.prepare.work_folder import PreparationPlan


class Step:
    """A step of a stage (`pretrain.prepare.jobs`) that knows its work folder. stage: its name."""

    stage: str

    def __init__(self, work: Path):
        self.work = Path(work)

    @property
    def out(self) -> Path:
        return self.work.parent


class PlannedStep(Step):
    """A step of a preparation, which reads in the plan what to do."""

    @cached_property
    def plan(self) -> PreparationPlan:
        return PreparationPlan.read(self.work)

    @property
    def config(self) -> DataConfig:
        return self.plan.config

    @property
    def buckets(self) -> int:
        return self.plan.buckets

    @property
    def annotation(self) -> dict[str, str]:
        """Return what the plan says of the parser, of data that is annotated."""
        annotation = self.plan.annotation
        assert annotation is not None  # a plan with `config.annotate` has it
        return annotation

    def parts_of(self, runs: list[bk.RunFile], bucket: int) -> int:
        """Return in how many parts to read a bucket, so that none has more text than `bucket_megabytes`."""
        held = sum(run.text_bytes(bucket) for run in runs)
        return max(1, -(-held // int(self.config.bucket_megabytes * 1e6)))

    def __getstate__(self) -> dict:
        return {key: value for key, value in self.__dict__.items() if key != "plan"}
