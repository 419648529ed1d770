"""Stage `heldout`: make sure that held-out and training text both exist, in a corpus of any size.

Documents are held out by a hash of their text, so that the choice depends on nothing else; of a few documents
that may choose none, or all. Then a rule decides. The document with the smallest hash is held out, the one
with the largest is not, for any share. Of a single document the last sentences are held out: the share
`heldout` of them, and at least one. Duplicates of a document share its hash, hence its split.
"""

from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from pretrain.prepare import buckets as bk
from pretrain.prepare.stages.step import PlannedStep
from pretrain.prepare.work_folder import Decision, HashRange


class EnsureSplits(PlannedStep):
    """Decide by the rule where the hashes leave a split empty, and run the reading tasks concerned again.

    reading: the steps of the stage `read`, of which `Scatter` follows the decision. A corpus with enough
    documents costs a look at the smallest and largest hash of each task.
    """

    name, stage = "ensure both splits", "heldout"

    def __init__(self, work: Path, reading: list[PipelineStep]):
        super().__init__(work)
        self.reading = reading

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with self.heartbeat(0):
            ranges = HashRange.read_all(self.work)
            decision = _decide(list(ranges.values()), self.config.heldout)
            if decision is None:
                return
            decision.write(self.work)
            for task, hashes in ranges.items():
                if any(pair and pair[1] == decision.key for pair in (hashes.smallest, hashes.largest)):
                    self._read_again(task, len(ranges))

    def _read_again(self, task: int, tasks: int) -> None:
        stream: Any = None
        for step in self.reading:
            stream = step.run(stream, task, tasks)


def _decide(ranges: list[HashRange], share: float) -> Decision | None:
    """Return which document to decide on; None if the hashes fill both splits, or there is no text at all."""
    smallest = min((hashes.smallest for hashes in ranges if hashes.smallest), default=None)
    largest = max((hashes.largest for hashes in ranges if hashes.largest), default=None)
    if smallest is None or largest is None:
        return None
    if bk.is_below(smallest[0], share) and not bk.is_below(largest[0], share):
        return None
    if smallest == largest:
        return Decision(key=smallest[1], cut=True, heldout=False)
    if bk.is_below(smallest[0], share):
        return Decision(key=largest[1], cut=False, heldout=False)
    return Decision(key=smallest[1], cut=False, heldout=True)
