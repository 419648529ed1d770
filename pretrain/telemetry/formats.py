"""Format metrics for readers: durations, counts, and nested metrics by one name each. Imports no torch."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

LABELS = {
    "heldout_mlm_loss": "held-out MLM loss (nats)",
    "partner_found": "top-1 retrieval of the other view",
    "partner_loss": "held-out contrastive loss (nats)",
    "stsb-dev": "STS-B dev (Spearman x 100)",
}
"""What evaluations during training measure, by the names of metrics.jsonl."""


def flatten(metrics: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a nested dict as ("loss/mlm", 3.2); leave out what is not a number."""
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)


def format_seconds(seconds: float | None) -> str:
    """Format a duration as 3d 04:05:06, 04:05:06 or 05:06; --:-- when unknown."""
    if seconds is None or not math.isfinite(seconds):
        return "--:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}:{minute:02d}:{second:02d}"
    return f"{hour:02d}:{minute:02d}:{second:02d}" if hours else f"{minute:02d}:{second:02d}"


def format_count(number: float) -> str:
    """Format a number as 830, 12.3k or 4.56M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in Markdown."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def columns(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table for the terminal: the first column flush left, the others flush right.

    >>> print(columns(("", "tokens"), [("original", "7"), ("view 1", "12")]))
              tokens
    original       7
    view 1        12
    """
    widths = [max(map(len, column)) for column in zip(header, *rows)]
    lines = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in (header, *rows)]
    return "\n".join("  ".join(line) for line in lines)
