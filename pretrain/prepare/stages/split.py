"""The guarantee that held-out and training text both exist, in a corpus of any size.

Documents are held out by a hash of their text, so that the choice depends on nothing else; of a few documents
that may choose none, or all. The rule that closes the gap: the document with the smallest hash is always held
out, the one with the largest never, whatever the share; where there is only one document, its last sentences
are held out, the share of them that `heldout` says and at least one. Duplicates of a document share its hash,
hence its fate.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from pretrain.data.shards import write_atomically
from pretrain.prepare import buckets as bk
from pretrain.prepare.progress import Heartbeat
from pretrain.prepare.stages.texts import Step


class EnsureSplits(Step):
    """Where the hashes alone leave a split empty, decide by the rule and run the reading tasks concerned
    again.

    reading: the steps of the stage `read`, of which `Scatter` heeds the decision. That stage ends knowing
    each task's smallest and largest document hash; a corpus with enough documents costs nothing more than
    looking at those.
    """

    name = "ensure both splits"

    def __init__(self, work: Path, reading: list[PipelineStep]):
        super().__init__(work)
        self.reading = reading

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> None:
        with Heartbeat(self.work, "heldout", 0):
            paths = sorted((self.work / "counts" / "hashes").glob("*.json"))
            found = {int(path.stem): json.loads(path.read_text()) for path in paths}
            decision = _decide([hashes for hashes in found.values() if hashes], self.config.heldout)
            if decision is None:
                return
            write_atomically(self.work / "decision.json", json.dumps(decision).encode())
            for task, hashes in found.items():
                if any(key == decision["key"] for _, key in hashes.values()):
                    self._read_again(task, len(found))

    def _read_again(self, task: int, tasks: int) -> None:
        stream: Any = None
        for step in self.reading:
            stream = step.run(stream, task, tasks)


def _decide(found: list[dict[str, list[int]]], share: float) -> dict[str, Any] | None:
    """What to do with which document; None if the hashes alone fill both splits, or there is no text at all.

    found: smallest and largest (hash, key) of the documents of each task that has any.
    """
    if not found:
        return None
    smallest, largest = (
        min(hashes["smallest"] for hashes in found),
        max(hashes["largest"] for hashes in found),
    )
    if bk.is_below(smallest[0], share) and not bk.is_below(largest[0], share):
        return None
    if smallest == largest:
        return {"key": smallest[1], "cut": True, "heldout": False}
    if bk.is_below(smallest[0], share):
        return {"key": largest[1], "cut": False, "heldout": False}
    return {"key": smallest[1], "cut": False, "heldout": True}
