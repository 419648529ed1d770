"""Which units are done: what OUT/eval.json says of them, checked against the files of figures."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finetune.evaluate.suites import EvaluationJob
from finetune.results import Evaluation, read
from pretrain.common.errors import UserError
from pretrain.common.files import replace_durably, to_json
from pretrain.common.folder_lock import folder_lock

FILE = "eval.json"


@dataclass
class EvaluationRecord:
    """The units that were done for these weights and settings (pooling, precision) in a folder of results."""

    folder: Path
    identity: str
    settings: Mapping[str, Any]

    @property
    def units(self) -> dict[str, dict[str, Any]]:
        """What is noted of the units that are done; a damaged file has nothing in it."""
        try:
            return dict(json.loads((self.folder / FILE).read_text("utf-8"))["units"])
        except (OSError, ValueError, KeyError, TypeError):
            return {}

    def figures(self, unit: EvaluationJob, root: Path) -> Evaluation | None:
        """Return the figures of a unit; None: it is not done, or was of other weights, settings or data."""
        entry = self.units.get(unit.name)
        if not isinstance(entry, dict) or entry.get("of") != self._of(unit, root):
            return None
        return self.written(unit)

    def written(self, unit: EvaluationJob) -> Evaluation | None:
        """Return the newest figures of a unit that are of these weights; None: there are none."""
        paths = self.folder.glob(f"{unit.evaluation}-*.json")
        for path in sorted(paths, key=lambda path: -path.stat().st_mtime_ns):
            try:
                evaluation = read(path)
            except UserError:
                continue
            same = evaluation.evaluation == unit.evaluation and evaluation.source == self.identity
            if not unit.command.trains:
                precision = self._precision(unit)
                rounded = f"vectors computed in {precision}" in evaluation.notes
                same &= evaluation.pooling == self.settings["pooling"] and rounded == (precision != "fp32")
            if same and set(unit.expected) <= set(evaluation.tasks):
                return evaluation
        return None

    def add(self, unit: EvaluationJob, root: Path, seconds: float, evaluation: Evaluation) -> None:
        """Note that a unit is done, beside what other processes have noted."""
        figures = {
            name: {key: getattr(evaluation.tasks[name], key) for key in ("metric", "value", "std")}
            for name in unit.expected
        }
        entry = {"of": self._of(unit, root), "seconds": round(seconds, 1), "tasks": figures}
        with folder_lock(self.folder, wait=60.0, part=FILE):
            content = {"identity": self.identity, **self.settings, "units": {**self.units, unit.name: entry}}
            replace_durably(self.folder / FILE, to_json(content))

    def _of(self, unit: EvaluationJob, root: Path) -> dict[str, Any]:
        """Return all that a unit's figures depend on, as JSON gives it back."""
        stamps = [[str(path), *_stamp(path)] for path in unit.files(root)]
        own = {} if unit.command.trains else {**self.settings, "precision": self._precision(unit)}
        return {"identity": self.identity, "words": unit.words, "data": stamps, **own}

    def _precision(self, unit: EvaluationJob) -> str:
        return self.settings["precision"] if unit.command.takes_precision else "fp32"


def _stamp(path: Path) -> list[int]:
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]
