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

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from torch import Tensor

    from finetune.senteval.classifier import Rows

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


# -- layers ------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """What one layer reached: accuracies x 100, the iteration chosen, its answers to the test examples."""

    test: float
    validation: float
    iteration: int
    answers: np.ndarray
    """int64[M]."""


def samples(labels: np.ndarray, shots: int, splits: int = SPLITS) -> list[Rows]:
    """Return the fixed splits of examples with `labels` int64[N], rows in random order."""
    from finetune.senteval.classifier import Rows

    members = [np.flatnonzero(labels == number) for number in range(labels.max() + 1)]
    found = []
    for split in range(splits):
        # its stream never changes; numpy's newer generators may
        random = np.random.RandomState([SEED, split])
        shuffled = [random.permutation(rows) for rows in members]
        ends = [(min(shots, math.ceil(len(rows) / 2)), min(2 * shots, len(rows))) for rows in shuffled]
        train = np.concatenate([rows[:end] for rows, (end, _) in zip(shuffled, ends, strict=True)])
        validation = np.concatenate(
            [rows[start:end] for rows, (start, end) in zip(shuffled, ends, strict=True)]
        )
        found.append(Rows(train, validation))
    return found


def mini_batches(count: int, split: int, iterations: int) -> list[np.ndarray]:
    """Return the rows of mini-batches over `count` rows, reshuffled each pass, whose last is short."""
    random = np.random.RandomState([SEED, split, count])
    batches: list[np.ndarray] = []
    while len(batches) < iterations:
        order = random.permutation(count)
        batches += [order[start : start + BATCH] for start in range(0, count, BATCH)]
    return batches[:iterations]


def fit(
    vectors: Tensor,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    chosen: Sequence[Rows],
    classes: int,
    iterations: int,
    validate_every: int,
) -> list[Fit]:
    """Train a layer for every sample, all in one optimisation; sample f counts as split f % SPLITS.

    Weights are stacked [F, C, d + 1] and Adam is elementwise: every layer takes the steps that it would take
    alone, up to the order of float32 additions. A test label of -1 is always wrong.
    """
    import torch

    from finetune.senteval.classifier import initial_weights

    seeds = [SEED + number % SPLITS for number in range(len(chosen))]
    started = [initial_weights(vectors.shape[1], classes, seed).T for seed in seeds]
    weights = torch.stack(started).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=LEARNING_RATE)
    rows, scale = _padded_batches(chosen, iterations)
    best = [Fit(float("nan"), -1.0, 0, np.empty(0, np.int64))] * len(chosen)
    # a column of ones: the bias is a weight like any other
    with_one = torch.nn.functional.pad(vectors, (0, 1), value=1.0)
    for step in range(iterations):
        inputs = with_one[rows[step]]
        # The gradient of the mean cross-entropy, by hand: softmax less one-hot, over the size of the layer's
        # own batch.
        error = torch.softmax(torch.bmm(inputs, weights.detach().transpose(1, 2)), dim=2)
        error.scatter_add_(
            2, labels[rows[step]][..., None], error.new_tensor(-1.0).expand(*rows[step].shape, 1)
        )
        weights.grad = torch.bmm((error * scale[step][..., None]).transpose(1, 2), inputs)
        optimizer.step()
        if (step + 1) % validate_every == 0:
            for number, sample in enumerate(chosen):
                layer = weights.detach()[number]
                part = torch.from_numpy(sample.dev)
                score = _accuracy(_classes(layer, vectors[part]), labels[part])
                if score > best[number].validation:  # of equals the first
                    answers = _classes(layer, test)
                    best[number] = Fit(_accuracy(answers, test_labels), score, step + 1, answers.numpy())
    return best


def _padded_batches(chosen: Sequence[Rows], iterations: int) -> tuple[Tensor, Tensor]:
    """Return (rows int64[steps, F, BATCH], each row's weight in the mean, float32; 0 for padding)."""
    import torch

    rows = torch.zeros(iterations, len(chosen), BATCH, dtype=torch.int64)
    scale = torch.zeros(iterations, len(chosen), BATCH)
    for number, sample in enumerate(chosen):
        for step, batch in enumerate(mini_batches(len(sample.train), number % SPLITS, iterations)):
            rows[step, number, : len(batch)] = torch.from_numpy(sample.train[batch])
            scale[step, number, : len(batch)] = 1 / len(batch)
    return rows, scale


def _classes(layer: Tensor, vectors: Tensor) -> Tensor:
    """Return the class that a layer [C, d + 1] gives each vector, int64[N]."""
    return layer[:, -1].addmm(vectors, layer[:, :-1].T).argmax(1)


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return 100 * float((answers == labels).double().mean())


def score(model: EmbeddingModel, name: str, intents: Intents, evaluation: Evaluation) -> str:
    """Evaluate all splits of all shots of a set; a task is called NAME-SHOTS for each."""
    import torch

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
