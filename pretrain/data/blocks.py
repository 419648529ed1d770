"""The fused worker: from chunks on disk to masked originals and views, many steps and lanes in one pass.

`BlockMaker.make` is all that a loader worker does. It is a function of (steps, lanes) alone: how steps and
lanes are cut into blocks, and which process makes which block, decides who does the work and never what comes
out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from augment.core.identity import equal_sequences, sequence_identities
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged, offsets_of, segment_indices
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import IDENTITY, alternatives
from augment.spec.pipeline import Pipeline
from pretrain.common.errors import UserError
from pretrain.data.chunk_cache import ChunkCache
from pretrain.data.lanes import Lanes
from pretrain.data.masking import Masked, mask_tokens
from pretrain.data.shards import DamagedShard, ShardReader

NEGATIVE = "negative"  # the one column without which a view may be absent
_ATTEMPTS = 100  # replacements tried for a damaged chunk before the corpus is given up


@dataclass(frozen=True)
class ViewSpec:
    """One view of every sequence.

    role: "anchor", "positive", "negative" or a name of the caller's own. The view is made of the data's
        column of that name (digits at its end aside: "positive2") where it has one, else of the text, and of
        the text too for a record whose column is empty: its positive is then another view of the same text
        (SDA's fallback).
    augmentation: a specification (`augment.spec.grammar`).
    labelled: whether `RankBatch.labels` are those of this view; of one view at most.
    """

    role: str
    augmentation: str
    labelled: bool = False

    @property
    def column(self) -> str:
        """The column that the view is made of, if the data has it."""
        return self.role.rstrip("0123456789")


def label_names(view: ViewSpec) -> list[str]:
    """What the labels 0, 1, ..., A of a labelled view mean: the A augmentations of "a|b|c" in order, then
    `none`, which is for sequences that came out as they were.

    Raises:
        AugmentationError: the view's augmentation is no list of alternatives.
    """
    different = dict.fromkeys(alternatives(view.augmentation))
    return [name for name in different if name != IDENTITY] + [IDENTITY]


def number_of_labels(view: ViewSpec, data: ShardReader) -> int:
    """How many values `RankBatch.labels` may have: as many as the data has labels, else A + 1 (see
    `label_names`)."""
    return data.labels or len(label_names(view))


@dataclass(slots=True, eq=False)
class RankBatch:
    """What one rank gets for one step; n = lanes of the rank * B / L sequences (or records), lane after lane.

    step: the global step; epoch: of the data, from 0. sequence_ids: uint64[n], the sequences' numbers in
    their split.
    original: the texts as on disk, never altered. masked: 0, 1 or 2 maskings of them. views: augmented
    sequences (never masked), none for a masked-language run.
    identities: int64[n] a view, equal for views made of the same sequence of tokens, wherever they are
    (before
    augmentation: two views of one sentence have one identity). present: bool[n] a view, False where a view of
    role "negative" is none: the record has no negative, so that the view is the text's; or the data has no
    such column, and the augmentation left the text as it was. labels: int64[n], None unless a view is
    labelled: the record's label where the data has labels, else what was done to that view (`label_names`).
    substitutions: damaged chunks, and the chunks that are read in their place, as `BlockMaker` describes
    them. The loader lists each once an epoch and lane: at the first step, counted from its start, at which
    the lane meets the chunk.
    """

    step: int
    epoch: int
    sequence_ids: np.ndarray
    original: Ragged
    masked: list[Masked]
    views: list[Ragged]
    identities: list[np.ndarray]
    present: list[np.ndarray]
    labels: np.ndarray | None
    substitutions: list[dict]

    @staticmethod
    def concatenate(parts: list[RankBatch]) -> RankBatch:
        """One step's batch from the batches of neighbouring groups of lanes, in the order of lanes."""
        first = parts[0]
        return RankBatch(
            first.step,
            first.epoch,
            np.concatenate([part.sequence_ids for part in parts]),
            Ragged.concatenate([part.original for part in parts]),
            [Masked.concatenate([part.masked[i] for part in parts]) for i in range(len(first.masked))],
            [Ragged.concatenate([part.views[i] for part in parts]) for i in range(len(first.views))],
            [np.concatenate([part.identities[i] for part in parts]) for i in range(len(first.views))],
            [np.concatenate([part.present[i] for part in parts]) for i in range(len(first.views))],
            None if first.labels is None else np.concatenate([part.labels for part in parts]),
            [substitution for part in parts for substitution in part.substitutions],
        )


@dataclass(slots=True, eq=False)
class Block:
    """The batches of steps first_step, first_step + 1, ... for one group of lanes, end to end."""

    first_step: int
    steps: int
    steps_per_epoch: int
    sequence_ids: np.ndarray
    original: Ragged
    masked: list[Masked]
    views: list[Ragged]
    identities: list[np.ndarray]
    present: list[np.ndarray]
    labels: np.ndarray | None
    substitutions: list[dict]

    def batch(self, number: int) -> RankBatch:
        """The batch of step first_step + number; its token arrays are views of the block's."""
        size = len(self.original) // self.steps
        step, rows = self.first_step + number, (number * size, (number + 1) * size)
        return RankBatch(
            step,
            step // self.steps_per_epoch,
            self.sequence_ids[slice(*rows)],
            self.original.slice(*rows),
            [masked.slice(*rows) for masked in self.masked],
            [view.slice(*rows) for view in self.views],
            [identity[slice(*rows)] for identity in self.identities],
            [present[slice(*rows)] for present in self.present],
            None if self.labels is None else self.labels[slice(*rows)],
            [entry for entry in self.substitutions if entry["step"] == step],
        )


class BlockMaker:
    """Reads, draws, masks and augments. Pickles and forks; a process reads nothing before its first block.

    Args:
        reader, lanes, vocabulary: the split, its order and its tokens.
        views, pipelines: one augmentation a view; all see unmasked sequences, with keys of their own.
        mask_rate, mask_share, random_share: as `mask_tokens`; mask_copies: how many independent maskings.
        max_length: longest sequence that the model takes; None: any.
        skip_damaged: replace damaged chunks (see `_replace`) instead of raising DamagedShard.
        known_damaged: chunk -> reason, of chunks to be taken as damaged unread, so that a run resumed after a
            repair stays the same run.
        slots: chunks to keep in memory.

    A block lists a substitution at the first of its steps at which a lane meets the damaged chunk, as a dict:
    step, epoch, lane, chunk, replacement, reason; passed, the chunks that would have stood before the
    replacement and are damaged too; under_way, whether the lane drew from the chunk at the step before, so
    that its earlier steps may have read other data.
    """

    def __init__(
        self,
        reader: ShardReader,
        lanes: Lanes,
        vocabulary: Vocabulary,
        views: list[ViewSpec],
        pipelines: list[Pipeline],
        mask_rate: float,
        mask_share: float,
        random_share: float,
        mask_copies: int,
        max_length: int | None,
        skip_damaged: bool,
        known_damaged: dict[int, str],
        slots: int,
    ) -> None:
        self.reader, self.lanes, self.vocabulary = reader, lanes, vocabulary
        self.views, self.pipelines = views, pipelines
        self.mask_rate, self.mask_share, self.random_share = mask_rate, mask_share, random_share
        self.mask_copies, self.max_length, self.skip_damaged = mask_copies, max_length, skip_damaged
        self.slots = slots
        self._damaged = dict(known_damaged)
        self._cache: ChunkCache | None = None

    def make(self, first_step: int, stop_step: int, lane_start: int, lane_stop: int) -> Block:
        """The batches of steps [first_step, stop_step) for lanes [lane_start, lane_stop).

        Raises:
            DamagedShard: a chunk is damaged and the policy is to refuse.
            UserError: a sequence is longer than the model takes, or no chunk can stand in for a damaged one.
        """
        steps = stop_step - first_step
        places, substitutions = self.draw(first_step, stop_step, lane_start, lane_stop)
        original, ids = self._cache.gather(places), self._cache.numbers(places)
        self._check_lengths(original, ids)
        epochs = np.repeat(self.lanes.epoch_of(np.arange(first_step, stop_step)), len(original) // steps)
        seed = self.lanes.seed
        masked = [
            mask_tokens(
                original,
                sequence_keys(seed, epochs, ids, copy, "mask"),
                self.vocabulary,
                self.mask_rate,
                self.mask_share,
                self.random_share,
            )
            for copy in range(self.mask_copies)
        ]
        views, identities, present, labels = [], [], [], None
        identity_of_text = sequence_identities(original) if self.views else None
        for number, (spec, pipeline) in enumerate(zip(self.views, self.pipelines)):
            keys = sequence_keys(seed, epochs, ids, number, "augment")
            source, column, there = self._source(spec, original, places, ids)
            sentences = self._cache.sentences(places, column) if pipeline.needs_text else None
            view = clip(pipeline(source, keys, sentences), self.max_length)
            if spec.column == NEGATIVE and there is None:
                there = ~equal_sequences(source, view)
            views.append(view)
            identities.append(identity_of_text if source is original else sequence_identities(source))
            present.append(np.ones(len(original), dtype=bool) if there is None else there)
            if spec.labelled:
                labels = (
                    self._cache.labels(places)
                    if self.reader.labels
                    else _label(spec, pipeline, keys, source, view)
                )
        return Block(
            first_step,
            steps,
            self.lanes.steps_per_epoch,
            ids,
            original,
            masked,
            views,
            identities,
            present,
            labels,
            substitutions,
        )

    def _source(
        self, spec: ViewSpec, original: Ragged, places: np.ndarray, ids: np.ndarray
    ) -> tuple[Ragged, np.ndarray, np.ndarray | None]:
        """What a view is made of, the column that each sequence of it is from (int64[n]), and, for a column
        of negatives, where there is one: bool[n].
        """
        columns = self.reader.columns
        if spec.column not in columns[1:]:
            return original, np.zeros(len(original), dtype=np.int64), None
        column = columns.index(spec.column)
        source = self._cache.gather(places, column)
        self._check_lengths(source, ids)
        there = source.lengths > 0
        if not there.all():
            rows = np.arange(len(there))
            source = Ragged.concatenate([source, original]).take(np.where(there, rows, rows + len(rows)))
        return source, np.where(there, column, 0), there if spec.column == NEGATIVE else None

    def draw(
        self, first_step: int, stop_step: int, lane_start: int, lane_stop: int
    ) -> tuple[np.ndarray, list[dict]]:
        """Load what the steps need: (places of the records in the cache, int64[n]; substitutions)."""
        if self._cache is None:
            keep_text = any(pipeline.needs_text for pipeline in self.pipelines)
            self._cache = ChunkCache(self.reader, self.slots, self.vocabulary.size, keep_text)
        chunk, index = self.lanes.draw_steps(first_step, stop_step, lane_start, lane_stop)
        needed = set(np.unique(chunk).tolist())
        # Those that are there first: loading one must not push out another that this block is about to use.
        for number in sorted(needed, key=lambda number: number not in self._cache):
            try:
                self._load(number, needed)
            except DamagedShard:
                if not self.skip_damaged:
                    raise
        substitutions: list[dict] = []
        if self._damaged and not needed.isdisjoint(self._damaged):
            substitutions = self._replace(chunk, index, needed, first_step, stop_step, lane_start, lane_stop)
        return self._cache.places(chunk, index), substitutions

    def _load(self, chunk: int, needed: set[int]) -> None:
        if chunk in self._damaged:  # known: not read again at every block
            return
        try:
            self._cache.load(chunk, needed)
        except DamagedShard as error:
            self._damaged[chunk] = error.reason
            raise

    def _replace(
        self,
        chunk: np.ndarray,
        index: np.ndarray,
        needed: set[int],
        first_step: int,
        stop_step: int,
        lane_start: int,
        lane_stop: int,
    ) -> list[dict]:
        """Point draws from damaged chunks, in place, at others: the first good one of the sequence that
        `Lanes.replacements` gives for (epoch, chunk), at the same index modulo its size. Depends on the order
        of the data and on which chunks are good, not on who reads.
        """
        shape = (stop_step - first_step, lane_stop - lane_start, -1)
        drawn = chunk.reshape(shape).copy()
        chunks, indices = chunk.reshape(shape), index.reshape(shape)
        substitutions: dict[tuple[int, int, int], dict] = {}
        for number in sorted(needed & self._damaged.keys()):
            for row in np.flatnonzero((drawn == number).any(axis=(1, 2))):
                step = first_step + int(row)
                epoch = int(self.lanes.epoch_of(step))
                replacement, passed = self._replacement(epoch, number, needed)
                hit = drawn[row] == number
                chunks[row][hit] = replacement
                indices[row][hit] %= self.lanes.chunk_sizes[replacement]
                for lane in np.flatnonzero(hit.any(axis=1)) + lane_start:
                    if (epoch, int(lane), number) not in substitutions:
                        substitutions[epoch, int(lane), number] = {
                            "step": step,
                            "epoch": epoch,
                            "lane": int(lane),
                            "chunk": int(number),
                            "replacement": replacement,
                            "passed": passed,
                            "under_way": self._met_before(number, step, int(lane)),
                            "reason": self._damaged[number],
                        }
        return sorted(
            substitutions.values(), key=lambda entry: (entry["step"], entry["lane"], entry["chunk"])
        )

    def _replacement(self, epoch: int, chunk: int, needed: set[int]) -> tuple[int, list[int]]:
        """The chunk to read in place of a damaged one, and the damaged chunks that would have come before
        it."""
        passed: list[int] = []
        for candidate in self.lanes.replacements(epoch, chunk, _ATTEMPTS).tolist():
            if candidate not in self._damaged:
                needed.add(candidate)
                try:
                    self._load(candidate, needed)
                    return candidate, passed
                except DamagedShard:
                    if not self.skip_damaged:
                        raise
            if candidate != chunk and candidate not in passed:
                passed.append(candidate)
        raise UserError(
            f"chunk {chunk} of {self.reader.folder} is damaged, and so were the {_ATTEMPTS} chunks tried in "
            f"its place ({len(self._damaged)} of {self.reader.num_chunks} are known to be damaged). Restore "
            "the files or prepare the data again."
        )

    def _met_before(self, chunk: int, step: int, lane: int) -> bool:
        """Whether the lane's draw just before this step came from the same chunk in the same epoch."""
        if step % self.lanes.steps_per_epoch == 0:
            return False
        return int(self.lanes.draw(step - 1, lane, lane + 1)[0][-1]) == chunk

    def _check_lengths(self, original: Ragged, ids: np.ndarray) -> None:
        if self.max_length is None or len(original) == 0:
            return
        lengths = original.lengths
        if int(lengths.max()) > self.max_length:
            worst = int(lengths.argmax())
            raise UserError(
                f"sequence {int(ids[worst])} of {self.reader.folder} has {int(lengths[worst])} tokens, the "
                f"model takes {self.max_length}: raise model.max_positions, or prepare the data with "
                f"max_length {self.max_length}"
            )


def _label(spec: ViewSpec, pipeline: Pipeline, keys: np.ndarray, source: Ragged, view: Ragged) -> np.ndarray:
    """What was done to each sequence of a labelled view, int64[n]: the number of the alternative that it took
    in "a|b|c", and A, the number of augmentations, where it came out as it was (AugCSE's label correction,
    Tang et al. 2022, section 4.2).
    """
    names = label_names(spec)
    numbers = np.array([names.index(name) for name in alternatives(spec.augmentation)], dtype=np.int64)
    labels = numbers.take(pipeline.choices(keys))
    labels[equal_sequences(source, view)] = len(names) - 1
    return labels


def clip(view: Ragged, max_length: int | None) -> Ragged:
    """Cut sequences longer than max_length behind their first max_length - 1 tokens and end them with their
    own last one ([SEP]): augmentations that lengthen (`subs`, `repeat`) may pass what the model takes. int32
    ids as they came; the same object where nothing is too long.
    """
    lengths = view.lengths
    if max_length is None or len(view) == 0 or int(lengths.max()) <= max_length:
        return view
    kept = np.minimum(lengths, max_length)
    offsets = offsets_of(kept)
    ids = view.ids.take(segment_indices(view.offsets[:-1], kept))
    filled = kept > 0
    ids[offsets[1:][filled] - 1] = view.ids.take(view.offsets[1:][filled] - 1)
    return Ragged(ids, offsets)
