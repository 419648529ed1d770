"""Evaluate few-shot intent classification as VaSCL (Zhang et al. 2022, section 4.2.1) describes it.

The encoder is frozen; a linear softmax layer on the raw vectors is trained with Adam (learning rate 1e-4,
batch 32, 1,000 iterations) on K examples a class; another K a class choose the iteration, out of every
hundredth; the test set is evaluated there. Training and validation files are merged before sampling. Five
splits; accuracy, mean and sample standard deviation.

The paper fixed its splits but published neither them nor its code. Ours depend on nothing but SEED, the
split's number and the order of the files: for every class, in the order of the classes' names,
`numpy.random.RandomState([SEED, split])` permutes its examples; the first K train and the next K validate, so
that the splits for 5, 10 and 20 are nested. A class with fewer than 2K examples gives the larger half of them
to training. Layers start as torch.nn.Linear does, seeded by the split.

Test examples of classes that no example trains are errors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from finetune.answers import Answers, examples_digest
from finetune.encoders.models import EmbeddingModel
from finetune.flags import Model
from finetune.frozen import Frozen, FrozenFlags, run
from finetune.results import Evaluation, sample_std
from pretrain.benchmarks.files import (
    DataSet,
    csv_columns,
    data_root,
    lines,
    locate,
    open_text,
    parse_json,
    require,
)
from pretrain.common import cli
from pretrain.common.errors import UserError

SETS = {  # name: (examples to sample from, test examples, classes to sample from) as published
    "SNIPS": (13784, 700, 7),
    "BANKING77": (10003, 3080, 77),
    "CLINC150": (18000, 4500, 150),
    "HWU64": (25716, None, 64),
}
SHOTS = (5, 10, 20)
SPLITS = 5
SEED = 0
LEARNING_RATE = 1e-4
BATCH = 32
ITERATIONS = 1000
VALIDATE_EVERY = 100


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
    root = data_root(data)
    paths = require(files(name, root), root)
    if name == "BANKING77":
        pool, test = map(read_csv, paths)
    elif name == "CLINC150":
        pool, test = _read_clinc(*paths)
    else:
        train, validation, test = (read_lines(*paths[start : start + 2]) for start in (0, 2, 4))
        pool = train + validation
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


def read_lines(*files: Path) -> list[tuple[str, str]]:
    """Read (text, label) from the files seq.in and label of one part, a line each."""
    texts, labels = ([line.strip() for line in lines(file)] for file in files)
    if len(texts) != len(labels):
        raise UserError(
            f"{files[0].parent}: {len(texts)} lines in seq.in but {len(labels)} in label; fetch both again"
        )
    return _checked(files[0].parent, zip(texts, labels, strict=True))


def read_csv(path: Path) -> list[tuple[str, str]]:
    """Read (text, label) from a csv file with the columns text and category."""
    rows = csv_columns(path, "text", "category")
    return _checked(path, [(text.strip(), category.strip()) for text, category in rows])


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


_SPLIT_FILES = tuple(
    f"{split}/{file}" for split in ("train", "valid", "test") for file in ("seq.in", "label")
)
_PLACES = {  # the files of a set, and where it comes from
    "SNIPS": (_SPLIT_FILES, "github.com/jianguoz/Few-Shot-Intent-Detection"),
    "BANKING77": (("train.csv", "test.csv"), "github.com/PolyAI-LDN/task-specific-datasets"),
    "CLINC150": (("data_full.json",), "github.com/clinc/oos-eval, data/data_full.json"),
    "HWU64": (_SPLIT_FILES, "github.com/xliuhw/NLU-Evaluation-Data (25,716 utterances in 64 intents)"),
}
DATA_SETS = tuple(
    DataSet(f"intents/{name}", tuple(f"intents/{name}/{file}" for file in names), origin)
    for name, (names, origin) in _PLACES.items()
)


def files(name: str, root: Path) -> list[Path]:
    """Return the files of a set."""
    return [locate(root, f"intents/{name}/{file}") for file in _PLACES[name][0]]


def score(model: EmbeddingModel, name: str, intents: Intents, evaluation: Evaluation) -> str:
    """Evaluate all splits of all shots of a set; a task is called NAME-SHOTS for each."""
    import torch

    from finetune.intent_layers import fit, samples

    chosen = [sample for k in SHOTS for sample in samples(intents.labels, k)]
    used = np.unique(np.concatenate([rows for sample in chosen for rows in (sample.train, sample.dev)]))
    encoded = torch.from_numpy(model.encode([intents.texts[row] for row in used] + intents.test_texts))
    vectors = torch.zeros(len(intents.texts), encoded.shape[1])
    vectors[used] = encoded[: len(used)]
    fits = fit(
        vectors,
        torch.from_numpy(intents.labels),
        encoded[len(used) :],
        torch.from_numpy(intents.test_labels),
        chosen,
        len(intents.classes),
        ITERATIONS,
        VALIDATE_EVERY,
    )
    data = examples_digest(intents.test_texts, None, intents.test_labels)
    for number, k in enumerate(SHOTS):
        of_splits, first = fits[number * SPLITS : (number + 1) * SPLITS], chosen[number * SPLITS]
        accuracies = [one.test for one in of_splits]
        scores = {
            "accuracy": float(np.mean(accuracies)),
            "validation_accuracy": float(np.mean([one.validation for one in of_splits])),
        }
        details = {"splits": accuracies, "iterations": [one.iteration for one in of_splits]}
        details |= {"train": len(first.train), "validation": len(first.dev)}
        answers = Answers.of([one.answers for one in of_splits], intents.test_labels, "accuracy", data)
        evaluation.add(f"{name}-{k}", "accuracy", scores, sample_std(accuracies), answers, **details)
    _notes(name, intents, evaluation)
    return ", ".join(f"{k}-shot {evaluation.tasks[f'{name}-{k}'].value:.2f}" for k in SHOTS)


def _notes(name: str, intents: Intents, evaluation: Evaluation) -> None:
    """Note what differs from the published sizes, and classes too small for the protocol."""
    pool, test, classes = SETS[name]
    sizes = np.bincount(intents.labels)
    evaluation.expect_size(name, "classes", len(sizes), classes)
    if test is None:  # published as one whole, split by whoever uses it
        evaluation.expect_size(name, "examples", len(intents.texts) + len(intents.test_texts), pool)
    else:
        evaluation.expect_size(name, "examples to sample from", len(intents.texts), pool)
        evaluation.expect_size(name, "test examples", len(intents.test_texts), test)
    for k in SHOTS:
        if short := int((sizes < 2 * k).sum()):
            few = f"{short} of {len(sizes)} classes have fewer than {2 * k} examples"
            evaluation.notes.append(f"{name}, {k}-shot: {few}; the larger half trains")


EVALUATION = Frozen(
    "intents",
    f"linear layer on frozen raw vectors, Adam {LEARNING_RATE}, batch {BATCH}, {ITERATIONS} iterations, "
    f"best of every {VALIDATE_EVERY} on K validation examples a class; {SPLITS} fixed splits of ours "
    f"(seed {SEED}; the paper has its own)",
    tuple(SETS),
    read,
    score,
    pooling=("mean", "VaSCL's"),
)


def main(model: Model, *, flags: FrozenFlags) -> int:
    """Classify intents from 5, 10 and 20 examples: a linear layer on frozen vectors, five fixed splits.

    Tasks: SNIPS, BANKING77, CLINC150, HWU64.
    """
    return run(EVALUATION, model, flags)


if __name__ == "__main__":
    cli.run(main)
