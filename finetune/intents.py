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

The paper leaves ATIS out of its table (appendix C: one class has 73% of the examples, 60% have fewer than
20); here it runs when asked for by name, with these two shares beside the result. Test examples of classes
that no example trains are errors.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from finetune.encoders.models import EmbeddingModel, open_model
from finetune.files import csv_columns, find, known_name, lines, parse_json
from finetune.flags import EvalData, Model, Out, Pooling
from finetune.results import Evaluation, TaskResult, finish, sample_std
from finetune.sets import DataSet, Part, parts
from pretrain.common import cli
from pretrain.common.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

SETS = {  # name: (examples to sample from, test examples, classes to sample from) as published
    "SNIPS": (13784, 700, 7),
    "BANKING77": (10003, 3080, 77),
    "CLINC150": (18000, 4500, 150),
    "HWU64": (25716, None, 64),
    "ATIS": (4978, 893, 22),
}
FOUR = ("SNIPS", "BANKING77", "CLINC150", "HWU64")
"""The sets of the paper's table 3."""
SHOTS = (5, 10, 20)
SPLITS = 5
SEED = 0
LEARNING_RATE = 1e-4
BATCH = 32
ITERATIONS = 1000
VALIDATE_EVERY = 100


@dataclass(frozen=True)
class Intents:
    """Examples to sample from (N) and test examples (M); classes are numbered in the order of their names.

    A test example whose class has no example to sample from has the number -1.
    """

    texts: list[str]
    labels: np.ndarray
    test_texts: list[str]
    test_labels: np.ndarray
    classes: list[str]


@dataclass(frozen=True)
class Sample:
    """One split: rows of `Intents.texts` to train on and to validate on."""

    train: np.ndarray
    validation: np.ndarray


@dataclass(frozen=True)
class Fit:
    """What one layer reached: accuracies x 100 and the iteration chosen."""

    test: float
    validation: float
    iteration: int


def read(name: str, data: str | Path | None = None) -> Intents:
    """The examples of a set of SETS.

    Raises:
        UserError: unknown set (with the nearest name), a file missing or damaged.
    """
    name = check_name(name)
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
        raise UserError(
            f"{name}: {len(classes)} classes and {len(test)} test examples; the files are damaged"
        )
    return Intents(
        [text for text, _ in pool],
        np.array([number_of[label] for _, label in pool]),
        [text for text, _ in test],
        np.array([number_of.get(label, -1) for _, label in test]),
        classes,
    )


def samples(labels: np.ndarray, shots: int, splits: int = SPLITS) -> list[Sample]:
    """Return the fixed splits of examples with `labels` int64[N], rows in random order.

    The module's description says how they are drawn.
    """
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
        found.append(Sample(train, validation))
    return found


def mini_batches(count: int, split: int, iterations: int) -> list[np.ndarray]:
    """Return the row numbers of `iterations` mini-batches over `count` rows.

    Reshuffled each pass; the last batch of a pass is short.
    """
    random = np.random.RandomState([SEED, split, count])
    batches: list[np.ndarray] = []
    while len(batches) < iterations:
        order = random.permutation(count)
        batches += [order[start : start + BATCH] for start in range(0, count, BATCH)]
    return batches[:iterations]


def first_weights(width: int, classes: int, split: int) -> tuple[Tensor, Tensor]:
    """Return (weight float32[C, d], bias float32[C]) of a new torch.nn.Linear(d, C) under this seed."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + split)
        layer = torch.nn.Linear(width, classes)
    return layer.weight.detach(), layer.bias.detach()


def fit(
    vectors: Tensor,
    labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    chosen: Sequence[Sample],
    classes: int,
    iterations: int,
    validate_every: int,
) -> list[Fit]:
    """Train a layer for every sample, all in one optimisation.

    Weights are stacked [F, C, d + 1] and Adam is elementwise, so that every layer takes the steps that it
    would take alone, with its own rows in its own mini-batches, up to the order of float32 additions. Sample
    f counts as split f % SPLITS.

    Args:
        vectors: float32[N, d]; labels int64[N] in 0 to C - 1. test: float32[M, d]; test_labels int64[M], -1
            always wrong.
    """
    import torch

    count, width = len(chosen), vectors.shape[1]
    started = [first_weights(width, classes, number % SPLITS) for number in range(count)]
    weights = torch.stack(
        [torch.cat([weight, bias[:, None]], 1) for weight, bias in started]
    ).requires_grad_()
    optimizer = torch.optim.Adam([weights], lr=LEARNING_RATE)
    rows, scale = _padded_batches(chosen, iterations)
    best = [Fit(float("nan"), -1.0, 0)] * count
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
                part = torch.from_numpy(sample.validation)
                score = _accuracy(layer, vectors[part], labels[part])
                if score > best[number].validation:  # of equals the first
                    best[number] = Fit(_accuracy(layer, test, test_labels), score, step + 1)
    return best


def _padded_batches(chosen: Sequence[Sample], iterations: int) -> tuple[Tensor, Tensor]:
    """Return (rows int64[steps, F, BATCH], each row's weight in the mean, float32 of that shape).

    Padding has the weight 0.
    """
    import torch

    rows = torch.zeros(iterations, len(chosen), BATCH, dtype=torch.int64)
    scale = torch.zeros(iterations, len(chosen), BATCH)
    for number, sample in enumerate(chosen):
        for step, batch in enumerate(mini_batches(len(sample.train), number % SPLITS, iterations)):
            rows[step, number, : len(batch)] = torch.from_numpy(sample.train[batch])
            scale[step, number, : len(batch)] = 1 / len(batch)
    return rows, scale


def _accuracy(layer: Tensor, vectors: Tensor, labels: Tensor) -> float:
    import torch

    logits = torch.addmm(layer[:, -1], vectors, layer[:, :-1].T)
    return 100 * float((logits.argmax(1) == labels).double().mean())


def evaluate(
    model: EmbeddingModel,
    loaded: Mapping[str, Intents],
    shots: Sequence[int] = SHOTS,
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> Evaluation:
    """Evaluate all splits of all shots of each set, by name as `read` read it.

    A task is called NAME-K for every number of shots K.
    """
    import torch

    started = time.perf_counter()
    protocol = (
        f"linear layer on frozen raw vectors, Adam {LEARNING_RATE}, batch {BATCH}, {ITERATIONS} iterations, "
        "best of every "
        f"{VALIDATE_EVERY} on K validation examples a class; {SPLITS} fixed splits of ours (seed {SEED}; "
        "the paper has its own)"
    )
    evaluation = Evaluation.of("intents", model, protocol)
    evaluation.expect_pooling("mean", "VaSCL's")
    for name, intents in loaded.items():
        clock = time.perf_counter()
        chosen = [sample for k in shots for sample in samples(intents.labels, k)]
        used = np.unique(
            np.concatenate([rows for sample in chosen for rows in (sample.train, sample.validation)])
        )
        encoded = torch.from_numpy(model.encode([intents.texts[row] for row in used] + intents.test_texts))
        vectors = torch.zeros(len(intents.texts), encoded.shape[1])
        vectors[used] = encoded[: len(used)]
        embedded = time.perf_counter() - clock
        labels, test_labels = torch.from_numpy(intents.labels), torch.from_numpy(intents.test_labels)
        fits = fit(
            vectors,
            labels,
            encoded[len(used) :],
            test_labels,
            chosen,
            len(intents.classes),
            ITERATIONS,
            VALIDATE_EVERY,
        )
        for number, k in enumerate(shots):
            part = slice(number * SPLITS, (number + 1) * SPLITS)
            evaluation.tasks[f"{name}-{k}"] = _result(fits[part], chosen[part])
        _notes(name, intents, shots, evaluation)
        figures = ", ".join(f"{k}-shot {evaluation.tasks[f'{name}-{k}'].value:.2f}" for k in shots)
        report(f"{name}: {figures}; {time.perf_counter() - clock:.0f} s, {embedded:.0f} of them encoding")
    evaluation.seconds = time.perf_counter() - started
    return evaluation


def _result(fits: Sequence[Fit], chosen: Sequence[Sample]) -> TaskResult:
    accuracy = np.array([one.test for one in fits])
    scores = {
        "accuracy": float(accuracy.mean()),
        "validation_accuracy": float(np.mean([one.validation for one in fits])),
    }
    details = {
        "splits": accuracy.tolist(),
        "iterations": [one.iteration for one in fits],
        "train": len(chosen[0].train),
        "validation": len(chosen[0].validation),
    }
    return TaskResult("accuracy", scores["accuracy"], scores, sample_std(accuracy.tolist()), details)


def _notes(name: str, intents: Intents, shots: Sequence[int], evaluation: Evaluation) -> None:
    """What differs from the published sizes, and classes too small for the protocol."""
    pool, test, classes = SETS[name]
    sizes = np.bincount(intents.labels)
    if name == "HWU64":  # published as one whole, split by whoever uses it
        if len(intents.texts) + len(intents.test_texts) != pool or len(sizes) != classes:
            evaluation.incomplete(
                f"HWU64 has {len(intents.texts) + len(intents.test_texts):,} examples in {len(sizes)} "
                f"classes here, {pool:,} in "
                f"{classes} in the paper"
            )
    elif (len(intents.texts), len(intents.test_texts), len(sizes)) != (pool, test, classes):
        evaluation.incomplete(
            f"{name} has {len(intents.texts):,} examples to sample from, {len(intents.test_texts):,} test "
            "examples and "
            f"{len(sizes)} classes here; {pool:,}, {test:,} and {classes} as published"
        )
    for k in shots:
        short = int((sizes < 2 * k).sum())
        if short:
            evaluation.notes.append(
                f"{name}, {k}-shot: {short} of {len(sizes)} classes have fewer than {2 * k} examples; the "
                "larger half trains"
            )
    if name == "ATIS":
        unseen = int((intents.test_labels < 0).sum())
        evaluation.notes.append(
            "ATIS is not in the paper's table (appendix C): its largest class has "
            f"{100 * sizes.max() / sizes.sum():.0f}% of the "
            f"examples, {100 * (sizes < 20).mean():.0f}% of its classes fewer than 20; {unseen} test "
            "examples are of classes "
            "without any"
        )


# -- reading
# ----------------------------------------------------------------------------------------------------------


def read_lines(folder: Path) -> list[tuple[str, str]]:
    """(text, label) from the files seq.in and label of one part, a line each."""
    for file in ("seq.in", "label"):
        if not (folder / file).is_file():
            raise UserError(
                f"{folder / file} is not there; a part of this set is a folder with the files seq.in "
                "and label"
            )
    texts, labels = ([line.strip() for line in lines(folder / file)] for file in ("seq.in", "label"))
    if len(texts) != len(labels):
        raise UserError(
            f"{folder}: {len(texts)} lines in seq.in but {len(labels)} in label; one of them is damaged"
        )
    return _checked(folder, zip(texts, labels, strict=True))


def read_csv(path: Path) -> list[tuple[str, str]]:
    """(text, label) from a csv file with the columns text and category."""
    return _checked(
        path, [(text.strip(), category.strip()) for text, category in csv_columns(path, "text", "category")]
    )


def _read_clinc(path: Path) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """In-scope (training and validation, test) examples of CLINC150; the out-of-scope lists stay out."""
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        parts = {
            part: [(str(text), str(label)) for text, label in content[part]]
            for part in ("train", "val", "test")
        }
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not CLINC150's json of train, val and test lists of [text, intent]: {error!r}"
        ) from error
    return _checked(path, parts["train"] + parts["val"]), _checked(path, parts["test"])


def _checked(path: Path, examples: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    checked = list(examples)
    for number, (text, label) in enumerate(checked, start=1):
        if not text or not label:
            raise UserError(
                f"{path}, example {number}: {'no text' if not text else 'no label'}; the file is damaged"
            )
    return checked


def _line_files(name: str, sizes: dict[str, int]) -> DataSet:
    """Return a set of Few-Shot-Intent-Detection, in the files seq.in and label of each split."""
    files = {
        split: ((f"intents/{name}/{split}/seq.in", f"intents/{name}/{split}/label"), rows)
        for split, rows in sizes.items()
    }
    return DataSet(
        f"intents/{name}",
        parts(files, lambda texts, _: read_lines(texts.parent)),
        "github.com/jianguoz/Few-Shot-Intent-Detection",
    )


def _whole(name: str, split: str, files: tuple[str, ...], rows: int, origin: str) -> DataSet:
    """Return a set whose examples are counted together."""

    def count(root: Path) -> int:
        found = read(name, root)
        return len(found.texts) + len(found.test_texts)

    paths = tuple(f"intents/{name}/{file}" for file in files)
    return DataSet(f"intents/{name}", {split: Part(paths, rows, count)}, origin)


_HWU64_FILES = tuple(
    f"{split}/{file}" for split in ("train", "valid", "test") for file in ("seq.in", "label")
)
DATA_SETS = (
    _line_files("SNIPS", {"train": 13084, "valid": 700, "test": 700}),
    DataSet(
        "intents/BANKING77",
        parts(
            {
                "train": (("intents/BANKING77/train.csv",), 10003),
                "test": (("intents/BANKING77/test.csv",), 3080),
            },
            read_csv,
        ),
        "github.com/PolyAI-LDN/task-specific-datasets",
    ),
    _whole(
        "CLINC150", "in scope", ("data_full.json",), 22500, "github.com/clinc/oos-eval, data/data_full.json"
    ),
    _whole(
        "HWU64",
        "all",
        _HWU64_FILES,
        SETS["HWU64"][0],
        "github.com/xliuhw/NLU-Evaluation-Data (25,716 utterances in 64 intents)",
    ),
    _line_files("ATIS", {"train": 4478, "valid": 500, "test": 893}),
)


def check_name(name: str) -> str:
    """The set's name as SETS has it; case does not matter.

    Raises:
        UserError: no such set; the message names the nearest.
    """
    return known_name(name, SETS, "intent set")


def main(
    model: Model,
    *,
    tasks: cli.Names = (),
    shots: tuple[cli.Count, ...] = SHOTS,
    pooling: Pooling = "",
    eval_data: EvalData = "",
    out: Out = "",
) -> int:
    """Few-shot intent classification: a linear layer on frozen vectors, five fixed splits.

    Args:
        tasks: sets by commas: SNIPS, BANKING77, CLINC150, HWU64 (without it, these four), ATIS.
        shots: training examples a class, by commas.
    """
    names = list(map(check_name, tasks or FOUR))
    # before the model: a missing file should not cost its loading
    loaded = {name: read(name, eval_data) for name in names}
    opened = open_model(model, pooling)
    result = evaluate(opened, loaded, shots)
    finish(result, opened, out)
    return 0


if __name__ == "__main__":
    cli.run(main)
