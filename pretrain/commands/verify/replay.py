"""Make the batches of a run again, from its configuration and its data alone, as sums of their hashes.

For the sequences alone the order of the data and one hash a sequence are enough: each chunk is read and
hashed once, and a step is a sum over a table of 16 bytes a sequence. With views the loader makes every batch
again, as for training.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from augment.core.identity import sequence_identities
from pretrain.config.run import Config
from pretrain.data.batch import ViewSpec
from pretrain.data.damage import replay
from pretrain.data.lanes import Lanes
from pretrain.data.ledger import COLUMNS, sequence_words, sum_words
from pretrain.data.loader import Loader, LoaderSettings, Position, lanes_of
from pretrain.data.shards import Chunk, DamagedShard, ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.objectives import view_specs
from pretrain.start.data import batch_spec, loader_config, open_train

_DRAWN_AT_ONCE = 1 << 20  # sequences


class Replay:
    """The order in which a run has read its data.

    Args:
        config: of the run.
        substitutions: damaged chunks, and what the run has read in their place.
        jumped: (first step, stop step) of steps that it has not read.

    Attributes:
        config: of what the loader reads; reader, lanes: the data, and its order.
        unread: chunk -> why it cannot be read now.
    """

    def __init__(
        self, config: Config, substitutions: Sequence[dict[str, Any]], jumped: Sequence[tuple[int, int]] = ()
    ) -> None:
        self.config = loader_config(config)
        self.reader: ShardReader = open_train(self.config)
        self.views: list[ViewSpec] = view_specs(self.config)
        self.settings = LoaderSettings.of(config)
        self.lanes: Lanes = lanes_of(self.reader, self.settings)
        self.substitutions, self.jumped = list(substitutions), jumped
        self.unread: dict[int, str] = {}
        self.first_of_chunk = np.concatenate([[0], np.cumsum(self.reader.chunk_sizes)])
        self._words = np.empty((self.reader.num_sequences, 2), np.uint64)
        self._hashed = np.zeros(self.reader.num_chunks, dtype=bool)

    def draws(self, first: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield, for some steps at a time, (steps int64[s], chunk int64[s, B], index int64[s, B])."""
        at_once = max(1, _DRAWN_AT_ONCE // self.settings.global_batch)
        spans = Position(first, stop, jumps=self.jumped).spans
        cuts = [[begin, *self.lanes.sizes.changes(begin, end), end] for begin, end in spans]
        for begin, end in itertools.chain.from_iterable(map(itertools.pairwise, cuts)):
            for start in range(begin, end, at_once):
                steps = start, min(start + at_once, end)
                chunk, index = self.lanes.draw_steps(*steps, 0, self.lanes.lanes)
                replay(chunk, index, self.lanes, steps, (0, self.lanes.lanes), self.substitutions)
                shape = (steps[1] - steps[0], -1)
                yield np.arange(*steps), chunk.reshape(shape), index.reshape(shape)

    def sums(self, first: int, stop: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each step, from `first`, and its sums (`sum_words`): those of views are 0."""
        for steps, chunk, index in self.draws(first, stop):
            new = [number for number in np.unique(chunk).tolist() if not self._hashed[number]]
            for number in new:
                self._hashed[number] = True
                rows = slice(self.first_of_chunk[number], self.first_of_chunk[number + 1])
                content = self.read(number)  # of a chunk that cannot be read, zeros
                self._words[rows] = 0
                if content is not None:
                    identities = sequence_identities(content.sequences)
                    self._words[rows] = sequence_words(content.sequence_ids, identities)
            words = self._words.take(self.first_of_chunk.take(chunk) + index, axis=0)
            for step, sums in zip(steps.tolist(), words.sum(axis=1, dtype=np.uint64)):
                yield step, (*sums.view(np.int64).tolist(), *(0,) * (COLUMNS - 2))

    def read(self, chunk: int) -> Chunk | None:
        """Read a chunk; None, with its reason in `unread`, if that fails."""
        try:
            return self.reader.read(chunk)
        except DamagedShard as error:
            self.unread[chunk] = str(error)
            return None

    def sums_with_views(self, first: int, stop: int, workers: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield each step, from `first`, and its sums, of batches that are masked and augmented again.

        Raises:
            DamagedShard: a chunk cannot be read now.
        """
        tokenizer = load_tokenizer(self.config.data_folder / "tokenizer")
        spec = batch_spec(self.config, self.views, tokenizer, self.config.model.max_positions)
        settings = replace(self.settings, workers=workers, damaged="refuse")
        position = Position(first, stop, recorded=self.substitutions, replaying=True, jumps=self.jumped)
        for batch in Loader(self.reader, spec, settings, position):
            yield batch.step, sum_words(batch.words)
