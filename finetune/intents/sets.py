"""Read the intent sets, each in its own published format.

Training and validation files are merged into the examples to sample from.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pretrain.benchmarks.files import csv_columns, find, lines, open_text, parse_json
from pretrain.common.errors import UserError

SETS = ("SNIPS", "BANKING77", "CLINC150", "HWU64")
SHOTS = (5, 10, 20)
SPLITS = 5
SEED = 0
LEARNING_RATE = 1e-4
BATCH = 32


@dataclass(frozen=True)
class Intents:
    """Examples to sample from (N), test examples (M), classes as indices of `names`; -1: not in the first."""

    texts: list[str]
    labels: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray
    classes: list[str]


def read(name: str, data: str | Path | None = None) -> Intents:
    """Read a set of SETS."""
    if name == "BANKING77":
        pool, test = (read_csv(find(data, "intents", name, f"{part}.csv")) for part in ("train", "test"))
    elif name == "CLINC150":
        pool, test = _read_clinc(find(data, "intents", name, "data_full.json"))
    else:
        parts = {part: read_lines(find(data, "intents", name, part)) for part in ("train", "valid", "test")}
        pool, test = parts["train"] + parts["valid"], parts["test"]
    classes = sorted({label for _, label in pool})
    number_of = {label: number for number, label in enumerate(classes)}
    if len(classes) < 2 or not test:
        raise UserError(f"{name}: {len(classes)} classes and {len(test)} test examples; a file is damaged")
    return Intents(
        [text for text, _ in pool],
        np.array([number_of[label] for _, label in pool]),
        [text for text, _ in test],
        np.array([number_of.get(label, -1) for _, label in test]),
        classes,
    )


def read_lines(folder: Path) -> list[tuple[str, str]]:
    """Read (text, label) from the files seq.in and label of one part, a line each."""
    files = [folder / file for file in ("seq.in", "label")]
    if absent := [file for file in files if not file.is_file()]:
        raise UserError(f"{absent[0]} is not there; this set has the files seq.in and label")
    texts, labels = ([line.strip() for line in lines(file)] for file in files)
    if len(texts) != len(labels):
        raise UserError(f"{folder}: {len(texts)} lines in seq.in but {len(labels)} in label")
    return _checked(folder, zip(texts, labels, strict=True))


def read_csv(path: Path) -> list[tuple[str, str]]:
    """Read (text, label) from a csv file with the columns text and category."""
    rows = csv_columns(path, "text", "category")
    return _checked(path, ((text.strip(), category.strip()) for text, category in rows))


def _read_clinc(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Read CLINC150 in scope, (training and validation, test); the out-of-scope lists stay out."""
    try:
        with open_text(path) as file:
            content = parse_json(file.read())
        parts = {
            part: [(str(text), str(label)) for text, label in content[part]]
            for part in ("train", "val", "test")
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not CLINC150's json: {error!r}") from error
    return _checked(path, parts["train"] + parts["val"]), _checked(path, parts["test"])


def _checked(path: Path, examples: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    checked = list(examples)
    for number, (text, label) in enumerate(checked, start=1):
        if not text or not label:
            raise UserError(f"{path}, example {number}: no {'label' if text else 'text'}")
    return checked
