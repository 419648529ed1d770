"""Evaluate supervised relatedness, SentEval's SICK-R and STS-B columns, which are what CLEAR prints.

SentEval's code: tools/relatedness.py.

A softmax over the scores 1 to 5 of the features [|u - v|, u * v], fitted by mean squared error to a two-point
distribution whose mean is the gold score (Tai, Socher and Manning 2015); the prediction is the distribution's
mean. Every 50 passes the correlation on dev is taken, and training stops at the fourth time in all that it
did not rise. STS-B's scores begin at 0: what lies below 1 becomes a target that sums to less than 1, as
there.
"""

from collections.abc import Sequence

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from finetune.senteval.classifier import initial_weights

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
    features: Tensor,
    scores: np.ndarray,
    sizes: Sequence[int],
    seed: int = 1111,
    early_stop: str = "pearson",
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
        mass = torch.softmax(inputs[torch.from_numpy(rows).to(inputs.device)] @ weights, -1).cpu().numpy()
        return mass @ np.arange(1, SCORES + 1)

    best, best_weights, failures, epoch = -1.0, weights.clone(), 0, 0
    while epoch <= MAX_EPOCH:
        for _ in range(EPOCHS_BETWEEN):
            order = torch.from_numpy(random.permutation(len(train))).to(inputs.device)
            for index in order.split(BATCH):
                # the gradient of the mean squared error of softmax(inputs @ weights)
                mass, wanted = torch.softmax(inputs[index] @ weights, -1), targets[index]
                error = (mass - wanted).mul_(2 / wanted.numel())
                error = mass * (error - (error * mass).sum(-1, keepdim=True))
                torch.mm(inputs[index].T, error, out=weights.grad)
                optimizer.step()
        epoch += EPOCHS_BETWEEN
        predicted = predict(dev)
        score = _correlation(predicted, scores[dev], early_stop)
        score = 0.0 if np.isnan(score) else score
        if score > best:
            best, best_weights = score, weights.clone()
        else:
            if failures >= TENACITY:
                break
            failures += 1
    weights.data = best_weights
    predicted, gold = predict(test), scores[test]
    figures = {kind: 100 * _correlation(predicted, gold, kind) for kind in ("pearson", "spearman")}
    figures |= {"mse": float(np.mean((predicted - gold) ** 2)), f"dev_{early_stop}": 100 * best}
    return figures, predicted


def _correlation(predicted: np.ndarray, gold: np.ndarray, kind: str) -> float:
    """Return Pearson's or Spearman's correlation; NaN where all predictions are equal."""
    if np.ptp(predicted) == 0:
        return float("nan")
    return float((stats.pearsonr if kind == "pearson" else stats.spearmanr)(predicted, gold)[0])
