"""V-advCSE's readings: what each fixes of that which the paper leaves open, and the code that is not public.

The paper (Ko) prints algorithm 1, the divergences (equations 11 to 14) and closed forms of the worst noise
(appendix A). It does not print sigma, epsilon, eta, the norm of the best run, over what a norm is taken, or
what p(y | x) is of a model that has no y. A reading answers all of it; docs/objectives.md has the table.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class AdversarialReading:
    """All that `pretrain.losses.virtual_adversarial` has to know; None where a reading has no such number.

    adversarial_weight: lambda.
    sigma: standard deviation of the first noise on the word embeddings.
    step_size: eta.
    norm, scope: of the projection, and whether it is taken over a token's embedding or all of a sequence's.
    projection: a mode of `project_noise`.
    radius: epsilon, as a share of the size of the sequence's own word embeddings.
    form: of the divergence (`divergence`).
    over: what p is a softmax over: the features of a vector, or the batch's sentences (`in_batch_logits`).
    reduction: of the divergences of a batch's sentences.
    clean_gradient: whether the clean output learns too, or is a constant.
    """

    adversarial_weight: float
    sigma: float
    step_size: float | None
    norm: Literal["inf", "l2"]
    scope: Literal["token", "sequence"]
    projection: Literal["smart", "ball", "closed-form"]
    radius: float | None
    form: Literal["packaged", "printed"]
    over: Literal["features", "batch"]
    reduction: Literal["sum", "mean"]
    clean_gradient: bool


_PRINTED = AdversarialReading(
    adversarial_weight=1e-3,
    sigma=1e-2,
    step_size=1.0,
    norm="l2",
    scope="sequence",
    projection="ball",
    radius=0.05,
    form="printed",
    over="features",
    reduction="mean",
    clean_gradient=False,
)
ADVERSARIAL_READINGS = {
    "smart-package": AdversarialReading(
        adversarial_weight=1e-6,
        sigma=1e-5,
        step_size=1e-3,
        norm="inf",
        scope="token",
        projection="smart",
        radius=None,
        form="packaged",
        over="features",
        reduction="sum",
        clean_gradient=True,
    ),
    "algorithm-1": _PRINTED,
    "appendix-A": replace(_PRINTED, projection="closed-form", norm="inf", step_size=None),
    "in-batch": replace(_PRINTED, over="batch"),
}
