"""Write packed sequences as the shards of a task."""

import contextlib
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from augment.core.ragged import Ragged
from pretrain.data.shard_writer import ShardWriter, chunk_bounds, token_dtype
from pretrain.prepare.packing import Packed
from pretrain.prepare.stages.step import PlannedStep
from pretrain.prepare.work_folder import TokenizerSize

Annotate = Callable[[list[str], Ragged], dict[str, bytes]]
"""From the texts of a chunk's sequences, and these, to members of the shard."""


class Shards(contextlib.ExitStack):
    """The shards that one task writes: one of each split for which there is something to write."""

    def __init__(self, step: PlannedStep, rank: int):
        super().__init__()
        self._step, self._rank = step, rank
        self._dtype = token_dtype(TokenizerSize.read(step.work).vocabulary_size)
        self._writers: dict[str, ShardWriter] = {}

    def write(self, split: str, packed: Packed, annotate: Annotate | None = None) -> None:
        """Append sequences as chunks."""
        if split not in self._writers:
            path = self._step.out / split / f"shard-{self._rank:05d}.tar"
            writer = ShardWriter(path, self._dtype, self._step.work / "partial")
            self._writers[split] = self.enter_context(writer)
        columns = packed.columns
        offsets = packed.sequences.offsets[::columns]
        for start, stop in pairwise(chunk_bounds(np.diff(offsets), self._step.config.chunk_tokens).tolist()):
            first, end = offsets[start], offsets[stop]
            sequences = packed.sequences.slice(start * columns, stop * columns)
            labels = None if packed.labels is None else packed.labels[start:stop]
            annotation = None
            if annotate is not None:
                assert packed.texts is not None  # data that is annotated is packed with its texts
                annotation = annotate(packed.texts(start, stop), sequences)
            self._writers[split].write(
                sequences,
                _starts_within(packed.sentence_starts, first, end),
                _starts_within(packed.document_starts, first, end),
                columns=columns,
                labels=labels,
                annotation=annotation,
            )

    def records(self) -> dict[str, dict]:
        """Return the manifest's entry of each shard, once it is finished."""
        return {split: writer.record for split, writer in self._writers.items()}


def _starts_within(starts: np.ndarray, first: int, end: int) -> np.ndarray:
    """Return the starts in [first, end), counted from `first`; starts: int64, ascending."""
    low, high = np.searchsorted(starts, [first, end])
    return starts[low:high] - first
