"""Draw the fixed splits of the examples, and train a linear layer on each split, all in one optimisation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from finetune.intents.sets import BATCH, LEARNING_RATE, SEED, SPLITS
from finetune.senteval.classifier import Rows, initial_weights


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
    seeds = [SEED + number % SPLITS for number in range(len(chosen))]
    started = [initial_weights(vectors.shape[1], classes, seed) for seed in seeds]
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
    rows = torch.zeros(iterations, len(chosen), BATCH, dtype=torch.int64)
    scale = torch.zeros(iterations, len(chosen), BATCH)
    for number, sample in enumerate(chosen):
        for step, batch in enumerate(mini_batches(len(sample.train), number % SPLITS, iterations)):
            rows[step, number, : len(batch)] = torch.from_numpy(sample.train[batch])
            scale[step, number, : len(batch)] = 1 / len(batch)
    return rows, scale


def _classes(layer: Tensor, vectors: Tensor) -> Tensor:
    """Return the class that a layer [C, d + 1] gives each vector, int64[N]."""
    return torch.addmm(layer[:, -1], vectors, layer[:, :-1].T).argmax(1)


def _accuracy(answers: Tensor, labels: Tensor) -> float:
    return 100 * float((answers == labels).double().mean())
