"""Compute an accuracy as SentEval does: which rows choose the L2 value, stop the training, are tested.

Three schemes, by what splits a data set has (tools/validation.py of the official code, its PyTorch path):

- `nested`: no split. Stratified k-fold; inside each fold's training part another k-fold chooses L2, then a
  fit on the whole part, 5% of it held out to stop by, is tested on the fold. Mean over folds.
- `cross_validated`: train and test. k-fold on train chooses L2, then a fit on train (5% held out) is tested
  once.
- `split`: train, dev and test. Dev chooses L2 and stops; the best fit is tested.

Scores are rounded to two decimals of a percent before they are compared, as there: ties go to the smallest
L2.

Supervised relatedness (tools/relatedness.py), SentEval's SICK-R and STS-B columns, is what CLEAR prints: a
softmax over the scores 1 to 5 of the features [|u - v|, u * v], fitted by mean squared error to a two-point
distribution whose mean is the gold score (Tai, Socher and Manning 2015); the prediction is the distribution's
mean. Every 50 passes the correlation on dev is taken, and training stops at the fourth time in all that it
did not rise. STS-B's scores begin at 0: what lies below 1 becomes a target that sums to less than 1, as
there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from finetune.senteval.classifier import ClassifierSettings, PairFeatures, Rows, fit_all, initial_weights
from pretrain.benchmarks.sts_tasks import correlations
from pretrain.common.errors import UserError

L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2)
_FOLD_SEED = 1111
"""Of the folds of nested cross-validation, fixed in the official code whatever the seed of the fits."""


@dataclass(frozen=True)
class Setting:
    """Number of folds and the classifier's settings."""

    folds: int
    classifier: ClassifierSettings

    def with_classifier(self, **settings: Any) -> "Setting":
        """Return the same with other settings of the classifier: seed, max_epoch, ..."""
        return replace(self, classifier=replace(self.classifier, **settings))


SETTINGS = {
    "test": Setting(10, ClassifierSettings()),
    "dev": Setting(5, ClassifierSettings(optimizer="rmsprop", batch_size=128, tenacity=3, epoch_size=2)),
}
"""`test`: what the SimCSE family and SentEval's README report. `dev`: SimCSE's fast setting, used during
training."""


@dataclass(frozen=True)
class Accuracy:
    """Percentages, rounded to two decimals as the official code prints them."""

    dev: float
    """The score by which L2 was chosen; what papers call the dev result of these tasks."""
    test: float
    l2: list[float]
    """Chosen, per outer fold."""
    predictions: np.ndarray
    """int64[test rows]; nested, every row is tested once."""


def nested(features: Tensor, labels: np.ndarray, classes: int, setting: Setting) -> Accuracy:
    """Evaluate features float32[N, d] by nested cross-validation: MR, CR, SUBJ, MPQA."""
    folds = StratifiedKFold(setting.folds, shuffle=True, random_state=_FOLD_SEED)
    outer = list(_split(folds, labels))
    inner = [Rows(train[a], train[b]) for train, _ in outer for a, b in _split(folds, labels[train])]
    fitted = fit_all(features, labels, classes, inner, np.array(L2_GRID), setting.classifier)
    scores = _percent(fitted.accuracy.reshape(len(outer), setting.folds, -1).mean(1))
    chosen = scores.argmax(1)
    held = [_hold_out(train, setting.classifier.seed) for train, _ in outer]
    discarded: dict[int, list[int]] = {}
    for number, (train, _) in enumerate(outer):
        discarded.setdefault(len(train), []).append(number)
    tests, predictions = np.empty(len(outer)), np.empty(len(labels), np.int64)
    for length, members in discarded.items():
        l2 = np.array(L2_GRID)[chosen[members], None]
        final = fit_all(features, labels, classes, [held[n] for n in members], l2, setting.classifier, length)
        for place, number in enumerate(members):
            rows = outer[number][1]
            index = torch.from_numpy(rows).to(features.device)
            predictions[rows] = final.predict(place, 0, features[index])
            tests[number] = _percent((predictions[rows] == labels[rows]).mean())
    dev, test = (float(np.round(percent.mean(), 2)) for percent in (scores.max(1), tests))
    return Accuracy(dev, test, [L2_GRID[n] for n in chosen], predictions)


def cross_validated(
    features: Tensor, labels: np.ndarray, size: int, classes: int, setting: Setting
) -> Accuracy:
    """Choose L2 by cross-validation on the first `size` rows, and test the others once: TREC, MRPC."""
    folds = StratifiedKFold(setting.folds, shuffle=True, random_state=setting.classifier.seed)
    rows = [Rows(a, b) for a, b in _split(folds, labels[:size])]
    fitted = fit_all(features, labels, classes, rows, np.array(L2_GRID), setting.classifier)
    scores = _percent(fitted.accuracy.mean(0))
    l2 = L2_GRID[int(scores.argmax())]
    held = _hold_out(np.arange(size), setting.classifier.seed)
    final = fit_all(features, labels, classes, [held], np.array([l2]), setting.classifier, size)
    predictions = final.predict(0, 0, features[size:])
    test = float(_percent((predictions == labels[size:]).mean()))
    return Accuracy(float(scores.max()), test, [l2], predictions)


def split(
    features: Tensor | PairFeatures,
    labels: np.ndarray,
    sizes: Sequence[int],
    classes: int,
    setting: Setting,
    grid: tuple[float, ...] = L2_GRID,
) -> Accuracy:
    """Evaluate on features of train, dev and test, end to end: SST2, SST5, SICK-E, SNLI, probing.

    The official code fits the best L2 again, from the same seed, to the same weights; the first stands.
    """
    train, dev, test = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    fitted = fit_all(features, labels, classes, [Rows(train, dev)], np.array(grid), setting.classifier)
    scores = _percent(fitted.accuracy[0])
    best = int(scores.argmax())
    predictions = fitted.predict(0, best, features[torch.from_numpy(test).to(features.device)])
    right = float(_percent((predictions == labels[test]).mean()))
    return Accuracy(float(scores.max()), right, [grid[best]], predictions)


def _split(folds: StratifiedKFold, labels: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    counts = np.bincount(labels)
    smallest = int(counts[counts > 0].min())
    if smallest < folds.n_splits:
        raise UserError(f"{folds.n_splits} folds need as many examples per class; the rarest has {smallest}")
    return list(folds.split(np.zeros(len(labels)), labels))


def _hold_out(rows: np.ndarray, seed: int) -> Rows:
    """Draw 5% of the rows to stop by: the fit's own generator's first draw, which `fit_all` then burns."""
    order = np.random.RandomState(seed).permutation(len(rows))
    held = int(0.05 * len(rows))
    return Rows(rows[order[held:]], rows[order[:held]])


def _percent(share: np.ndarray | float) -> np.ndarray:
    return np.round(100 * np.asarray(share, np.float64), 2)


# -- supervised relatedness ---------------------------------------------

SCORES = 5
BATCH, EPOCHS_BETWEEN, MAX_EPOCH, TENACITY = 64, 50, 1000, 3


def two_point_targets(scores: np.ndarray) -> np.ndarray:
    """Return, for a score between k and k + 1, the masses of k and k + 1: float32[N, 5]."""
    targets = np.zeros((len(scores), SCORES), np.float32)
    floor = np.floor(scores)
    for k in range(1, SCORES + 1):
        targets[:, k - 1] = np.where(
            floor + 1 == k, scores - floor, np.where(floor == k, floor - scores + 1, 0)
        )
    return targets


def relatedness(
    features: Tensor, scores: np.ndarray, sizes: Sequence[int], seed: int = 1111, early_stop: str = "pearson"
) -> tuple[dict[str, float], np.ndarray]:
    """Fit on train, stop by dev's "pearson" (SentEval) or "spearman" (SimCSE).

    Return test's correlations x 100 and mean squared error, with the dev correlation, and what was predicted
    for the test rows, float[M].
    """
    train, dev, test = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    inputs = torch.cat([features.float(), features.new_ones(len(features), 1)], 1)
    targets = torch.from_numpy(two_point_targets(scores)).to(features.device)
    weights = initial_weights(features.shape[1], SCORES, seed).to(features.device)
    weights.grad = torch.zeros_like(weights)
    optimizer = torch.optim.Adam([weights], fused=True)
    random = np.random.RandomState(seed)

    def predict(rows: np.ndarray) -> np.ndarray:
        mass = torch.softmax(inputs[torch.from_numpy(rows).to(inputs.device)] @ weights.T, -1).cpu().numpy()
        return mass @ np.arange(1, SCORES + 1)

    best, best_weights, failures, epoch = -100.0, weights.clone(), 0, 0
    while epoch <= MAX_EPOCH:
        for _ in range(EPOCHS_BETWEEN):
            order = torch.from_numpy(random.permutation(len(train))).to(inputs.device)
            for index in order.split(BATCH):
                # the gradient of the mean squared error of softmax(inputs @ weights')
                chosen, wanted = inputs[index], targets[index]
                mass = torch.softmax(chosen @ weights.T, -1)
                error = (mass - wanted).mul_(2 / wanted.numel())
                error = mass * (error - (error * mass).sum(-1, keepdim=True))
                torch.mm(error.T, chosen, out=weights.grad)
                optimizer.step()
        epoch += EPOCHS_BETWEEN
        spearman, pearson = correlations(predict(dev), scores[dev])
        score = np.nan_to_num(pearson if early_stop == "pearson" else spearman).item()
        if score > best:
            best, best_weights = score, weights.clone()
        else:
            if failures >= TENACITY:
                break
            failures += 1
    weights.data = best_weights
    predicted, gold = predict(test), scores[test]
    spearman, pearson = correlations(predicted, gold)
    figures = {"pearson": pearson, "spearman": spearman, "mse": float(np.mean((predicted - gold) ** 2))}
    return figures | {f"dev_{early_stop}": best}, predicted
