"""A rank that is slower than the others, and by how much: all wait for it at every step.

The wall time of a step is the same on all ranks. What tells them apart is the time of the parts in which none
waits for another: data, encode and backward. Each rank's sum of them travels with the numbers that ranks
exchange before a step anyway. On a GPU it comes from events that have passed by then: nobody waits for it.
At ZeRO 3 ranks gather parameters within these parts, so there a slow rank shows less.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pretrain.telemetry.stopwatch import Stopwatch
from pretrain.watch.ending import FOLDER, call_with_timeout
from pretrain.watch.heartbeat import Heartbeat, read_all

PARTS = ("data", "encode", "backward")
SLOW = 1.3
"""Times the median from which on a rank is worth a warning."""
ROWS = 3
"""Consecutive rows of metrics in which it must be that slow."""
QUIET = 100
"""Rows until the same rank is named again."""
LEAST_SECONDS = 1.0
"""Of the median rank in a row: less is noise."""


class Stragglers:
    """Finds, at the end of each row of metrics, the slowest rank of the row."""

    def __init__(self, clock: Stopwatch, run_folder: Path, speaks: bool) -> None:
        """speaks: whether this rank warns; it reads on which machine the others run."""
        self.clock, self._folder, self._speaks = clock, run_folder / FOLDER, speaks
        self._row_began = self._sent = 0.0
        self._slow_rank: int | None = None
        self._slow_rows = 0  # consecutive ones, of that rank

    def busy(self) -> int:
        """Return this rank's microseconds in `PARTS` since the last row."""
        self._sent = self.clock.spent(PARTS)
        return int(1e6 * (self._sent - self._row_began))

    def end_row(self, busy: Sequence[int]) -> tuple[dict[str, Any], str | None]:
        """Begin the next row; return what the row of metrics says, and a warning if there is one.

        Args:
            busy: microseconds of each rank, as the row's last step exchanged them before it ran: that step
                counts for the next row.
        """
        self._row_began = self._sent
        median = statistics.median_low(busy)
        if len(busy) < 2 or not median:
            return {}, None
        slowest = max(range(len(busy)), key=busy.__getitem__)
        ratio = round(busy[slowest] / median, 3)
        slow = ratio > SLOW and median >= 1e6 * LEAST_SECONDS
        self._slow_rows = self._slow_rows + 1 if slow and slowest == self._slow_rank else int(slow)
        self._slow_rank = slowest if slow else None
        due = self._speaks and self._slow_rows % QUIET == ROWS
        row = {"slowest_rank": {"rank": slowest, "over_median": ratio}}
        return row, self._warning(slowest, ratio) if due else None

    def _warning(self, rank: int, ratio: float) -> str:
        none: dict[int, Heartbeat] = {}
        beat = call_with_timeout(lambda: read_all(self._folder), 1.0, none).get(rank)
        name = beat.name if beat is not None else f"rank {rank}"
        return (
            f"{name} needs {ratio:.2f} times the median rank's time for {', '.join(PARTS)}, for "
            f"{self._slow_rows} rows of metrics, and the others wait for it: look at its node for other "
            "processes, heat, or a slow device"
        )
