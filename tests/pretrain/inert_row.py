"""From which values on the mechanism of an objective does nothing, as docs/objectives.md has it."""

from collections.abc import Mapping
from typing import Any

from pretrain.telemetry.formats import flatten

INERT = {
    "vadvcse": (("vadvcse_adversarial_over_random",), lambda ratio: ratio < 1.01),
    "vascl": (
        ("vascl_neighbourhood_rise", "vascl_neighbourhood_rise_of_random", "loss/vascl_neighbourhood"),
        lambda rise, of_random, loss: rise < 0.01 * loss or rise < 1.01 * of_random,
    ),
    "augcse": (
        ("discriminator_accuracy", "discriminator_majority_share"),
        lambda accuracy, majority: accuracy < majority + 0.01,
    ),
    "sda": (("sda_negation_share_of_loss",), lambda part: part < 0.01),
    "diffcse": (
        ("diffcse_replaced_token_accuracy", "diffcse_always_original_accuracy"),
        lambda accuracy, original: accuracy < max(original, 1 - original) + 0.01,
    ),
    "esimcse": (("esimcse_queue_share_of_loss",), lambda part: part < 0.01),
}


def inert_in(metrics: Mapping[str, Any]) -> list[str]:
    """Return the mechanisms that do nothing in one row of metrics."""
    row = dict(flatten(dict(metrics)))
    return [
        name
        for name, (figures, holds) in INERT.items()
        if row.keys() >= set(figures) and holds(*(row[figure] for figure in figures))
    ]
