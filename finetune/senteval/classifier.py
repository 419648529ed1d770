"""SentEval's classifier, many at once: every fold and every L2 value of a task in one batched optimisation.

A fit of SentEval (tools/classifier.py) is a logistic regression, trained
in mini-batches by a torch optimizer and stopped when the accuracy on held-out rows no longer rises. A task
needs up to 410 of them, each of a few thousand steps that take microseconds of arithmetic and a hundred
microseconds of overhead. Two facts make them one computation without changing what each computes:

- every fit re-seeds NumPy and torch with the same number, so fits over equally many rows draw the same
  permutations and start from the same weights;
- torch's optimizers (Adam, RMSprop, ...) are elementwise, so one optimizer over stacked weights is many
  optimizers.

Fits with equally many rows are a cohort: weights [G, R * C, d + 1] for G sets of rows, R values of L2 and C
classes, the rows of a mini-batch gathered once for all R. (As [d + 1, R * C] both products would run along
their short side, and a step take twice as long.) Results equal the official code's up to the order
of float32 additions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.common.errors import UserError

_GATHER_BYTES = 4 << 20
"""Rows gathered for one step of a cohort: larger cohorts run in parts, whose mini-batches stay in the
second-level cache."""


@dataclass(frozen=True)
class ClassifierSettings:
    """SentEval's `classifier` parameters, under its defaults (those of the SimCSE family's test mode)."""

    optimizer: Literal["adam", "rmsprop"] = "adam"
    """With torch's default learning rate."""
    batch_size: int = 64
    tenacity: int = 5
    """Stop at the first evaluation without improvement after this many; they are counted over the whole
    fit."""
    epoch_size: int = 4
    """Passes over the rows between two evaluations."""
    max_epoch: int = 200
    seed: int = 1111

    def make_optimizer(self, weights: Tensor) -> torch.optim.Optimizer:
        """Return the torch optimizer of the weights; weight decay differs between fits (`_Cohort.step`)."""
        if self.optimizer == "rmsprop":
            return torch.optim.RMSprop([weights])
        # fused: one pass over memory instead of eight; the same arithmetic
        return torch.optim.Adam([weights], fused=True)


@dataclass(frozen=True)
class PairFeatures:
    """InferSent's features of N pairs, [u, v, u * v, |u - v|], formed when rows are asked for.

    float32[N, 4 d] of a large set would be many times the vectors. All on the compute device.
    """

    vectors: Tensor
    first: Tensor
    second: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.first), 4 * self.vectors.shape[1]

    @property
    def device(self) -> torch.device:
        return self.vectors.device

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the features float32[B, 4 d] of the pairs int64[B]."""
        u, v = (self.vectors.index_select(0, side[rows]) for side in (self.first, self.second))
        return torch.cat([u, v, u * v, (u - v).abs_()], 1)


@dataclass(frozen=True)
class Rows:
    """The rows of one fit: `train` int64[n] and `dev` int64[m], indices into the features."""

    train: np.ndarray
    dev: np.ndarray


@dataclass
class Fitted:
    """Classifiers of G sets of rows and R values of L2."""

    accuracy: np.ndarray
    """float64[G, R]: best accuracy on each fit's dev rows, a share."""
    weights: list[Tensor]
    """Per set of rows: [R * C, d + 1] (bias last)."""
    classes: int

    def predict(self, fit: int, l2: int, features: Tensor) -> np.ndarray:
        """Return the class int64[N] of `features` float32[N, d], by row set `fit` and L2 number `l2`."""
        return _logits(_with_ones(features), self.weights[fit], self.classes)[:, l2].argmax(-1).cpu().numpy()


def fit_all(
    features: Tensor | PairFeatures,
    labels: np.ndarray,
    classes: int,
    rows: Sequence[Rows],
    l2: np.ndarray,
    settings: ClassifierSettings,
    discarded: int = 0,
) -> Fitted:
    """Fit a classifier for each of G sets of rows and R values of L2 (float[R] or [G, R], bias included).

    discarded: length of a permutation that SentEval draws before training, for dev rows; 0: none.
    """
    l2 = np.broadcast_to(np.asarray(l2, np.float64), (len(rows), np.shape(l2)[-1]))
    inputs = features if isinstance(features, PairFeatures) else _with_ones(features.float())
    targets = torch.from_numpy(np.asarray(labels, np.int64)).to(features.device)
    accuracy = np.zeros(l2.shape)
    weights = [torch.empty(0)] * len(rows)
    cohorts: dict[int, list[int]] = {}
    for number, part in enumerate(rows):
        if not len(part.train) or not len(part.dev):
            counts = f"{len(part.train)} rows to train on and {len(part.dev)} to stop by"
            raise UserError(f"too few examples: fit {number + 1} would have {counts}")
        cohorts.setdefault(len(part.train), []).append(number)
    width = max(1, _GATHER_BYTES // (4 * settings.batch_size * inputs.shape[1]))
    if features.device.type != "cpu":
        width *= 64
    for members in cohorts.values():
        for start in range(0, len(members), width):
            chosen = members[start : start + width]
            cohort = _Cohort(
                inputs, targets, classes, [rows[n] for n in chosen], l2[chosen], settings, discarded
            )
            cohort.run()
            for place, number in enumerate(chosen):
                accuracy[number], weights[number] = cohort.best_accuracy[place], cohort.best_weights[place]
    return Fitted(accuracy, weights, classes)


class _Cohort:
    """Fits over equally many rows, in step."""

    def __init__(
        self,
        inputs: Tensor | PairFeatures,
        targets: Tensor,
        classes: int,
        rows: list[Rows],
        l2: np.ndarray,
        settings: ClassifierSettings,
        discarded: int,
    ):
        """Start every fit. `inputs`: with a last column of ones; pairs get it with their features."""
        self.inputs, self.targets, self.classes, self.settings = inputs, targets, classes, settings
        device = inputs.device
        self.train = torch.from_numpy(np.stack([part.train for part in rows])).to(device)
        self.dev = [torch.from_numpy(part.dev).to(device) for part in rows]
        self.l2 = torch.from_numpy(l2).float().to(device)  # [G, R]
        self.random = np.random.RandomState(settings.seed)
        if discarded:
            self.random.permutation(discarded)
        width = inputs.shape[1] - (not isinstance(inputs, PairFeatures))
        groups, values = l2.shape
        self.weights = initial_weights(width, classes, settings.seed).repeat(groups, values, 1).to(device)
        self.weights.grad = torch.zeros_like(self.weights)
        self.optimizer = settings.make_optimizer(self.weights)
        self.best_accuracy = np.full(l2.shape, -1.0)
        self.best_weights = [one.clone() for one in self.weights]

    def run(self) -> None:
        """Train until every fit has stopped."""
        # which set each remaining row of the weights belongs to
        settings, places = self.settings, np.arange(len(self.dev))
        alive = np.ones(self.l2.shape, bool)
        failures = np.zeros(self.l2.shape, int)
        epoch = 0
        while len(places) and epoch <= settings.max_epoch:
            for _ in range(settings.epoch_size):
                order = self.random.permutation(self.train.shape[1])  # which all fits share
                shuffled = self.train.index_select(1, torch.from_numpy(order).to(self.inputs.device))
                for index in shuffled.split(settings.batch_size, dim=1):
                    self.step(index)
            epoch += settings.epoch_size
            accuracy = self.score(places)
            better = alive & (accuracy > self.best_accuracy[places])
            self.keep(places, better, accuracy)
            worse = alive & ~better
            alive &= ~(worse & (failures >= settings.tenacity))
            failures += worse
            going = alive.any(axis=1)
            if not going.all():
                places, alive, failures = places[going], alive[going], failures[going]
                self.drop(torch.from_numpy(np.flatnonzero(going)).to(self.inputs.device))

    def step(self, index: Tensor) -> None:
        """Step every fit on its own mini-batch: index int64[G, B]."""
        (groups, batch), each = index.shape, (self.l2.shape[1], -1)
        flat = index.reshape(-1)
        inputs = self.take(flat).view(groups, batch, -1)
        targets = self.targets.index_select(0, flat).view(groups, 1, 1, batch).expand(-1, each[0], 1, -1)
        # the gradient of each fit's mean cross-entropy by its logits: [G, R, C, B]
        logits = torch.bmm(self.weights, inputs.transpose(1, 2))
        error = torch.softmax(logits.unflatten(1, each), 2)
        error.scatter_add_(2, targets, error.new_full((1, 1, 1, 1), -1.0).expand(targets.shape))
        error.mul_(1 / batch)
        grad = self.weights.grad
        torch.bmm(error.view(logits.shape), inputs, out=grad)
        # torch's weight decay: added to the gradient of weights and bias alike
        grad.unflatten(1, each).addcmul_(self.weights.unflatten(1, each), self.l2[:, :, None, None])
        self.optimizer.step()

    def take(self, index: Tensor) -> Tensor:
        """Return float32[B, d + 1] of the rows int64[B], the last column ones."""
        if isinstance(self.inputs, PairFeatures):
            return _with_ones(self.inputs[index])
        return self.inputs.index_select(0, index)

    def score(self, places: np.ndarray) -> np.ndarray:
        """Return the accuracy of every fit on its dev rows, float64[G, R]."""
        shares = np.empty((len(places), self.l2.shape[1]))
        for row, place in enumerate(places):
            index = self.dev[place]
            predicted = _logits(self.take(index), self.weights[row], self.classes).argmax(-1)
            right = predicted.eq(self.targets.index_select(0, index)[:, None]).sum(0)
            shares[row] = right.double().cpu().numpy() / len(index)
        return shares

    def keep(self, places: np.ndarray, better: np.ndarray, accuracy: np.ndarray) -> None:
        """Remember the weights of the fits that are at their best."""
        each = (better.shape[1], -1)
        for row, place in enumerate(places):
            now, best = self.weights[row].unflatten(0, each), self.best_weights[place].unflatten(0, each)
            for number in np.flatnonzero(better[row]):
                self.best_accuracy[place, number] = accuracy[row, number]
                best[number] = now[number]

    def drop(self, remaining: Tensor) -> None:
        """Continue with the sets at these places of the weights only, the optimizer's state with them."""
        self.train, self.l2 = self.train[remaining], self.l2[remaining]
        state, shape = self.optimizer.state[self.weights], self.weights.shape
        for key, value in state.items():
            if torch.is_tensor(value) and value.shape == shape:
                state[key] = value[remaining].contiguous()
        self.weights.data = self.weights.data[remaining].contiguous()
        self.weights.grad = torch.zeros_like(self.weights)


def initial_weights(width: int, classes: int, seed: int) -> Tensor:
    """Return the weights [C, d + 1] of a new nn.Linear(d, C) under the seed, the bias as a last column."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = nn.Linear(width, classes)
    return torch.cat([layer.weight.detach(), layer.bias.detach()[:, None]], 1)


def _logits(inputs: Tensor, weights: Tensor, classes: int) -> Tensor:
    """Return logits [N, R, C] of inputs [N, d + 1] (last column ones), by the weights of one set of rows."""
    return (inputs @ weights.T).view(len(inputs), -1, classes)


def _with_ones(features: Tensor) -> Tensor:
    return torch.cat([features, features.new_ones(len(features), 1)], 1)
