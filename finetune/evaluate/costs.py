"""What units cost, as measured earlier on this machine or else estimated; how long a budget is."""

import contextlib
import json
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from finetune.encoders.models import EmbeddingModel
from finetune.encoders.source import ModelSource
from finetune.evaluate.suites import Unit
from pretrain.common.errors import UserError
from pretrain.common.files import make_folder, replace_durably, sha256_of, to_json

START_SECONDS = 10.0
"""Of a process until it has imported its libraries and loaded a small model."""
_WIDTH = 256
"""Of the vectors that `Unit.seconds` was measured with."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = ("storm", "the", "captain", "of", "a", "ship", "waited", "night", "because", "economically", "is")


def seconds_of(budget: str) -> float:
    """Return the seconds of "90s", "10m", "1h30m", "2d"; infinity for "".

    >>> seconds_of("10m"), seconds_of("1h30m"), seconds_of("1.5h")
    (600.0, 5400.0, 5400.0)

    Raises:
        UserError: no such duration.
    """
    if not budget:
        return float("inf")
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", budget)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != budget or not seconds:
        raise UserError(f"--budget {budget}: give a time as 90s, 10m, 1h30m or 2d")
    return seconds


@dataclass
class Costs:
    """Seconds of units, for one shape of model, precision and number of processes, on this machine.

    Args:
        file: where measurements are kept; None: nowhere.
        circumstances: what the times depend on, in words.
        root: the folder of evaluation data.
    """

    file: Path | None
    circumstances: str
    root: Path
    characters_a_second: float = 0.0
    """Of encoding, in one of the processes; 0: not measured."""
    width: int = _WIDTH
    of_training: Mapping[Unit, float] = field(default_factory=dict)
    """Seconds of units that train the weights (`training_costs`)."""
    measured: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError, ValueError):
                self.measured = json.loads(self.file.read_text())

    def known(self, unit: Unit) -> float | None:
        """Return the seconds that the unit took here before; None: it has not run."""
        return self.measured.get(f"{unit.name} | {self.circumstances}")

    def estimate(self, unit: Unit) -> float:
        """Return the seconds that the unit takes, as measured or else estimated."""
        if (known := self.known(unit)) is not None:
            return known
        if unit in self.of_training:
            return START_SECONDS + self.of_training[unit]
        beside = unit.seconds * max(1.0, self.width / _WIDTH)
        return START_SECONDS + beside + 1e6 * unit.million_characters(self.root) / self.characters_a_second

    def add(self, unit: Unit, seconds: float) -> None:
        """Keep what a unit took: the most of all times, since vectors that were there cost nothing."""
        key = f"{unit.name} | {self.circumstances}"
        self.measured[key] = max(seconds, self.measured.get(key, 0.0))
        if self.file is not None:
            with contextlib.suppress(OSError):
                make_folder(self.file.parent)
                others = json.loads(self.file.read_text()) if self.file.is_file() else {}
                replace_durably(self.file, to_json(others | self.measured))

    def measure(self, model: EmbeddingModel, processes: int) -> None:
        """Encode a few hundred sentences, to know what others cost; `processes` share the cores later."""
        chosen = random.Random(0)
        texts = [" ".join(chosen.choices(_WORDS, k=chosen.randint(4, 24))) for _ in range(256)]
        self.width = model.encode(texts[:32]).shape[1]  # the first pass is slower
        started = time.perf_counter()
        model.encode(texts[32:])
        seconds = time.perf_counter() - started
        self.characters_a_second = sum(map(len, texts[32:])) / seconds / processes


def shape_of(source: ModelSource) -> str:
    """Return what the speed of a model depends on: a digest of its config.json, else its name."""
    folder = source.folder
    if folder is None or not (folder / "config.json").is_file():
        return source.name
    return sha256_of(folder / "config.json")[:12]
