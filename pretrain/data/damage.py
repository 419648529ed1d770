"""Damaged chunks of a run: what is recorded of them, and what is said.

With `data.damaged=skip` a chunk that cannot be trusted is replaced by another (`Lanes.replacements`), and the
substitution goes into the checkpoints. The record decides from then on:

- a chunk that the record names stays replaced to the end of the run, unread, also when it has been repaired;
- a chunk that is damaged after it was read is replaced from the next read on, which is a new entry of the
  record;
- held-out chunks follow the same rule, left out in place of replaced.

So the data of a run never change without an entry and a warning.
"""

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from pretrain.data.lanes import Lanes
from pretrain.data.shards import ShardReader

_RECORDED = "recorded as damaged earlier in this run"

substitution_key = itemgetter("epoch", "lane", "chunk", "replacement")
"""What makes two entries of the record the same substitution."""


def known_damaged(rows: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Return chunk -> reason of the damaged chunks that records of a run name."""
    rows = list(rows)
    passed = {int(chunk): _RECORDED for row in rows for chunk in row.get("passed", ())}
    return passed | {int(row["chunk"]): row["reason"] for row in rows}


def replay(
    chunk: np.ndarray,
    index: np.ndarray,
    lanes: Lanes,
    steps: tuple[int, int],
    served: tuple[int, int],
    rows: Iterable[dict[str, Any]],
) -> None:
    """Point draws at the chunks that a run has read in place of damaged ones, in place.

    chunk, index: as `Lanes.draw_steps` gives them for steps [first, stop) and the lanes `served`, of which
        all give equally many sequences.
    rows: the run's substitutions; each holds from its own step on, in its epoch and lane.
    """
    first, stop = steps
    rows = [row for row in rows if row["step"] < stop and served[0] <= row["lane"] < served[1]]
    if not rows:
        return
    shape = (stop - first, served[1] - served[0], -1)
    chunks, indices = chunk.reshape(shape), index.reshape(shape)
    drawn, drawn_index = chunks.copy(), indices.copy()
    epochs = lanes.epochs_of(np.arange(first, stop))
    for row in sorted(rows, key=lambda row: row["step"]):
        begin = max(row["step"] - first, 0)
        there = np.flatnonzero(epochs[begin:] == row["epoch"]) + begin
        lane = row["lane"] - served[0]
        hit = np.zeros(chunks.shape, dtype=bool)
        hit[there, lane] = drawn[there, lane] == row["chunk"]
        chunks[hit] = row["replacement"]
        indices[hit] = drawn_index[hit] % lanes.chunk_sizes[row["replacement"]]


def describe_substitution(row: dict[str, Any]) -> str:
    """Return the warning for a new substitution."""
    return (
        f"chunk {row['chunk']} is damaged ({row['reason']}): lane {row['lane']} reads chunk "
        f"{row['replacement']} in its place from step {row['step'] + 1} on (earlier steps may have read the "
        "chunk itself), to the end of this run, also when it is repaired: checkpoints record it"
    )


def describe_record(
    reader: ShardReader, rows: Sequence[dict[str, Any]], verb: str = "replaced"
) -> str | None:
    """Describe the chunks that a run's record names as damaged; None if it names none.

    verb: what the run does with them.
    """
    chunks = sorted(known_damaged(rows))
    if not chunks:
        return None
    listed = ", ".join(map(str, chunks[:20])) + (f" and {len(chunks) - 20} more" if chunks[20:] else "")
    return (
        f"{len(chunks)} damaged chunk(s) of {reader.folder / reader.split} are in this run's record and stay "
        f"{verb}, also if they have been repaired: {listed}. A new run reads them"
    )
