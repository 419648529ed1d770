"""What the checks of mechanisms say of a single row of metrics."""

from collections.abc import Mapping
from typing import Any

from pretrain.telemetry.formats import flatten
from pretrain.telemetry.monitors import checks_of


def inert_in(metrics: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return check -> its figures, for what is inert in one row of metrics."""
    row = dict(flatten(dict(metrics)))
    return {
        name: check.figures
        for name, check in checks_of(row)
        if check.holds(*(row[figure] for figure in check.figures))
    }
