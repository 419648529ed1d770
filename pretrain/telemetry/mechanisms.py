"""Say which of a run's losses, and of its objectives' mechanisms, do nothing.

A row of metrics holds each loss's share of the encoder's gradient, and a check of each objective's own
mechanism (docs/objectives.md, "Is the mechanism alive?"). Here is what is inert, and at which threshold, for
warnings in training (`InertTerms`).

A check costs a part of a step, so its figures are of the row's last step; a warning is of a mean over several
rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pretrain.telemetry.formats import flatten

LEAST_SHARE = 1e-3
"""A loss with less than this part of the contrastive loss's gradient is inert."""
HARDER_THAN_RANDOM = 1.01
"""What an adversary finds must be worse by this factor than random noise of the same length."""

BETTER_THAN_CHANCE = 0.01
"""By so much a classifier must be right more often than its best constant answer."""
LEAST_PART = 0.01
"""Negatives without which a loss would lack less than this part of itself are inert."""

MASKED = "_masked_share"
"""After a loss's name: the share of its negatives that a guide left out (`objective.false_negatives`)."""
MOST_MASKED = 0.9
"""With more of the negatives left out, a contrastive loss has next to nothing to tell apart."""

SHARE, COSINE = "_gradient_share", "_gradient_cosine"
AT_ONCE = 5
"""Rows of which the mean is taken, if a mechanism works from the first step or never."""
LEARNED = 20
"""The same, if a mechanism has to learn first."""


@dataclass(frozen=True)
class Check:
    """A condition on the figures of rows of metrics, and the warning that it gives.

    figures: names in a row, flattened; the check is of rows that have them all.
    holds: whether the condition holds for these values, in this order.
    message: {0}, {1} ... are the values.
    rows: number of consecutive rows whose mean, or each of which, must meet the condition.
    """

    figures: tuple[str, ...]
    holds: Callable[..., bool]
    message: str
    rows: int = AT_ONCE


CHECKS = {
    "vadvcse": Check(
        ("vadvcse_adversarial_over_random", "vadvcse_cosine_with_start"),
        lambda ratio, _: ratio < HARDER_THAN_RANDOM,
        "the adversarial step of V-advCSE finds nothing worse than random noise: its loss is {0:.4f} times "
        f"that of random noise of the same length (below {HARDER_THAN_RANDOM}), and the noise has a cosine "
        "of {1:.4f} with its random start. Take another objective.vadvcse.reading than smart-package, whose "
        "numbers are inert, or raise objective.vadvcse.step_size (appendix-A has none) until the cosine "
        "falls.",
    ),
    "vascl": Check(
        ("vascl_neighbourhood_rise", "vascl_neighbourhood_rise_of_random", "loss/vascl_neighbourhood"),
        lambda rise, of_random, loss: rise < LEAST_PART * loss or rise < HARDER_THAN_RANDOM * of_random,
        "the virtual augmentation of VaSCL hides nothing: it raises the neighbourhood loss, {2:.4g}, by "
        f"{{0:.4g}} (inert below {LEAST_PART} of it), a random one of the same length by {{1:.4g}} (inert "
        f"below {HARDER_THAN_RANDOM} times that). Raise objective.vascl.radius in the first case, lower it "
        "in the second.",
    ),
    "augcse": Check(
        ("discriminator_accuracy", "discriminator_majority_share"),
        lambda accuracy, majority: accuracy < majority + BETTER_THAN_CHANCE,
        "AugCSE's discriminator does not tell augmentations: it is right in {0:.4f} of the cases, and "
        f"always answering the most frequent one in {{1:.4f}} (inert below {BETTER_THAN_CHANCE} more). Its "
        "gradient then says nothing about them. Raise train.head_lr_scale, or take augmentations that "
        "change more.",
        LEARNED,
    ),
    "sda": Check(
        ("sda_negation_share_of_loss", "sda_negation_nearer_than_positive"),
        lambda part, _: part < LEAST_PART,
        f"SDA's negations do nothing: without them the loss would lack {{0:.2g}} of itself (below "
        f"{LEAST_PART}), and {{1:.2g}} of them are nearer to their sentence than its positive. Lower "
        "objective.sda.margin.",
    ),
    "diffcse": Check(
        ("diffcse_replaced_token_accuracy", "diffcse_always_original_accuracy"),
        lambda accuracy, original: accuracy < max(original, 1 - original) + BETTER_THAN_CHANCE,
        "DiffCSE's discriminator does not find replaced tokens: it is right about {0:.4f} of all, always "
        f'answering "original" about {{1:.4f}} (inert below {BETTER_THAN_CHANCE} more than the better '
        "constant answer). Raise objective.diffcse.replaced_token_weight, or change "
        "objective.diffcse.mask_rate.",
        LEARNED,
    ),
    "esimcse": Check(
        ("esimcse_queue_share_of_loss",),
        lambda part: part < LEAST_PART,
        "ESimCSE's queue does nothing: without its negatives the loss would lack {0:.2g} of itself (below "
        f"{LEAST_PART}). Lengthen objective.esimcse.queue, or set it to 0 and save its encoder.",
    ),
    "clear": Check(
        ("loss/contrastive", "contrastive_length_only"),
        lambda loss, of_lengths: loss >= of_lengths,
        "the contrastive loss, {0:.3f}, is not below {1:.3f}, what a matcher that sees nothing but the "
        "lengths of the views reaches. Take views whose lengths tell less (--aug "
        "crop:rate=1:min_rate=0.7,del-span,reorder), train longer, or lower "
        "objective.contrastive.temperature.",
        LEARNED,
    ),
}
"""Name of the mechanism -> its check."""

WEIGHTS = {
    "vadvcse_adversarial": "objective.vadvcse.adversarial_weight",
    "vascl_neighbourhood": "objective.vascl.neighbourhood_weight; with objective.vascl.reading code "
    "this loss trains the head alone",
    "augcse_discriminator": "objective.augcse.discriminator_weight",
    "diffcse_replaced_token": "objective.diffcse.replaced_token_weight",
}
"""Loss -> what raises its share of the gradient."""


def checks_of(row: Mapping[str, float]) -> Iterator[tuple[str, Check]]:
    """Yield (name, check) of every check that a flattened row has the figures of.

    Shares of gradients and of masked negatives come first, then mechanisms.
    """
    for name in row:
        if name.endswith(SHARE):
            yield name, _share(name)
        if name.endswith(MASKED):
            yield name, _masked(name)
    for name, check in CHECKS.items():
        if all(figure in row for figure in check.figures):
            yield name, check


class InertTerms:
    """Warn of what is inert in the mean of several rows, once a run.

    Rows in which a loss's weight is still to rise are left out: its share is, too.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        """
        Args:
            state: what `state` returned at the checkpoint that the run resumes from; None: a new run.
        """
        state = state or {}
        self._rows: dict[str, list[list[float]]] = dict(state.get("rows", {}))
        self._warned: list[str] = list(state.get("warned", ()))

    def state(self) -> dict[str, Any]:
        """Return what has been seen as JSON: a resumed run warns as an unbroken one."""
        return {"rows": self._rows, "warned": self._warned}

    def warnings(self, metrics: Mapping[str, Any]) -> list[str]:
        """Count a row of metrics in which all weights have risen; return the warnings that are due."""
        row, due = dict(flatten(dict(metrics))), []
        for name, check in checks_of(row):
            if name in self._warned:
                continue
            values = [row[figure] for figure in check.figures]
            last = self._rows[name] = [*self._rows.get(name, []), values][-check.rows :]
            means = [sum(column) / len(last) for column in zip(*last)]
            if len(last) == check.rows and check.holds(*means):
                self._warned.append(name)
                del self._rows[name]
                due.append(f"in the mean of {check.rows} rows of metrics, {check.message.format(*means)}")
        return due


def _share(name: str) -> Check:
    loss = name.removesuffix(SHARE)
    return Check(
        (name,),
        lambda share: share < LEAST_SHARE,
        f"the loss {loss} has {{0:.2g}} of the contrastive loss's gradient on the sentence vectors (below "
        f"{LEAST_SHARE:g}): it does not train the encoder. Raise {WEIGHTS.get(loss, 'its weight')}.",
    )


def _masked(name: str) -> Check:
    return Check(
        (name,),
        lambda share: share == 0 or share > MOST_MASKED,
        f"the guide of false negatives leaves {{0:.2g}} of the negatives of the loss "
        f"{name.removesuffix(MASKED)} out: none, or nearly all (more than {MOST_MASKED}). If none, raise "
        "objective.false_negatives.margin or set its guide to none, which costs less; if nearly all, lower "
        "the margin, below 0 if need be.",
    )
