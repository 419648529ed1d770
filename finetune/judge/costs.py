"""Measure what encoders cost: their size, and how many sentences per second they encode, in turn."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from augment.core.errors import CannotLoad
from augment.core.pretrained import pretrained
from finetune.encoders.models import EmbeddingModel
from pretrain.common.errors import UserError
from pretrain.telemetry.formats import columns

SENTENCES, ROUNDS = 256, 5
_FORMS = {"parameters": ",", "megabytes": ",.1f", "width": "", "speed": ",.0f"}


def costs_of(
    models: Mapping[str, tuple[Path | None, EmbeddingModel]],
    sentences: Iterable[str],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, dict[str, Any]]:
    """Return row -> parameters and megabytes of its files of weights, width of a vector, and speed.

    speed: sentences a second, the fastest of `ROUNDS`. What else the machine does slows a round down, never
    up: so the fastest counts, and rounds of all models alternate.

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
    sizes = {name: size_of(folder) for name, (folder, _) in models.items()}
    return {
        name: {"parameters": count, "megabytes": size, "width": widths[name], "speed": speeds[name]}
        for name, (count, size) in sizes.items()
    }


def size_of(folder: Path | None) -> tuple[int, float]:
    """Return the parameters and megabytes of a model's weights in safetensors files; (0, 0): there are none.

    Of a masked language model its head is left out, as it is when sentence-transformers loads the folder.
    """
    from safetensors import SafetensorError, safe_open

    from pretrain.export.sentence_transformers import STATIC_FOLDER

    parameters = size = 0
    if folder is not None and (table := folder / STATIC_FOLDER).is_dir():  # beside it lies what trained it
        folder = table
    for path in sorted(folder.rglob("*.safetensors")) if folder is not None else ():
        try:
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                prefix = _encoder_prefix(path.parent)
                of_encoder = [name for name in names if prefix and name.startswith(prefix)]
                for name in of_encoder or names:
                    tensor = file.get_tensor(name)
                    parameters, size = parameters + tensor.numel(), size + tensor.nbytes
        except SafetensorError as error:
            raise UserError(f"{path} is damaged: {error}; fetch the model again") from None
    return parameters, size / 1e6


def _encoder_prefix(folder: Path) -> str:
    """Return how names of the encoder's weights begin in a model with a head, as "bert."; "": not known."""
    from transformers import MODEL_MAPPING, AutoConfig

    if not (folder / "config.json").is_file():
        return ""
    try:
        config = pretrained(AutoConfig, folder)
    except CannotLoad:  # modules of sentence-transformers have files of this name, too
        return ""
    known = type(config) in MODEL_MAPPING
    return f"{MODEL_MAPPING[type(config)].base_model_prefix}." if known else ""


def cost_lines(costs: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of what `costs_of` returned; none of nothing."""
    if not costs:
        return []
    rows = [
        (f"  {name}", *(f"{one[key]:{form}}" if one[key] else "" for key, form in _FORMS.items()))
        for name, one in costs.items()
    ]
    return columns(("", "parameters", "MB", "width", "sentences per second"), rows).split("\n")
