"""Measure what encoders cost: their size, and how many sentences per second they encode, in turn."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any

from finetune.encoders.models import EmbeddingModel
from pretrain.common.errors import UserError

SENTENCES, ROUNDS = 256, 5


@dataclass(frozen=True)
class Cost:
    """parameters: numbers in its files of weights. megabytes: of these. width: of a vector. speed: sentences
    a second, the fastest of `ROUNDS`."""

    parameters: int
    megabytes: float
    width: int
    speed: float


def costs_of(
    models: Mapping[str, tuple[Path | None, EmbeddingModel]],
    sentences: Iterable[str],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """Return row -> `Cost` as JSON.

    What else the machine does slows a round down, never up: so the fastest counts, and rounds of all models
    alternate.

    Args:
        models: row -> the folder with its weights, if there is one, and the encoder.
        sentences: the first `SENTENCES` of which are encoded, each once.
        clock: seconds, for tests.
    """
    chosen = list(dict.fromkeys(islice(sentences, SENTENCES)))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    widths = {}
    for number in range(ROUNDS + 1):
        for name, (_, model) in models.items():
            begun = clock()
            widths[name] = replace(model, kept_vectors=None).encode_document(chosen).shape[1]
            if number:  # not the first, which may still load and compile
                seconds[name].append(clock() - begun)
    speeds = {name: len(chosen) / min(rounds) for name, rounds in seconds.items()}
    return {
        name: asdict(Cost(*size_of(folder), widths[name], speeds[name]))
        for name, (folder, _) in models.items()
    }


def size_of(folder: Path | None) -> tuple[int, float]:
    """Return the parameters and megabytes of the safetensors files of a model; (0, 0): there are none."""
    from safetensors import SafetensorError, safe_open

    parameters = size = 0
    for path in sorted(folder.rglob("*.safetensors")) if folder is not None else ():
        try:
            with safe_open(path, "np") as file:
                names = file.keys()
                parameters += sum(prod(file.get_slice(name).get_shape()) for name in names)
        except SafetensorError as error:
            raise UserError(f"{path} is damaged: {error}; fetch the model again") from None
        size += path.stat().st_size
    return parameters, size / 1e6


def cost_lines(costs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of what `costs_of` returned; none of nothing."""
    if not costs:
        return []
    lines = [f"  {'':18}{'parameters':>16}{'MB':>10}{'width':>8}{'sentences per second':>22}"]
    for name, one in costs.items():
        figures = (f"{one['parameters']:,}", f"{one['megabytes']:,.1f}") if one["parameters"] else ("", "")
        lines.append(f"  {name:18}{figures[0]:>16}{figures[1]:>10}{one['width']:>8}{one['speed']:>22,.0f}")
    return lines
