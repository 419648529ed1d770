"""The work of a loader worker: from chunks on disk to masked originals and views, in one pass.

`BlockMaker.make` is all that a worker does: the batches of many steps and lanes at once. It is a function of
(steps, lanes) alone: how these are cut into blocks, and which process makes which block, decides who does the
work and never what comes out.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from augment.core.identity import equal_sequences, sequence_identities
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged, offsets_of, segment_indices
from augment.core.vocabulary import Vocabulary
from augment.spec.build import build
from augment.spec.grammar import alternatives, needs_synonyms, needs_text
from augment.spec.pipeline import Pipeline
from augment.text.encoder import TextEncoder
from augment.tokens.synonyms import SynonymTable
from pretrain.common.errors import UserError
from pretrain.data.annotation import WHOLE
from pretrain.data.batch import NEGATIVE, BatchSpec, RankBatch, View, ViewSpec, label_names
from pretrain.data.chunk_cache import ChunkCache
from pretrain.data.damage import known_damaged, replay
from pretrain.data.lanes import Lanes
from pretrain.data.ledger import batch_words, label_words, masking_words, sequence_words, view_words
from pretrain.data.masking import mask_tokens
from pretrain.data.shards import DamagedShard, ShardReader

_ATTEMPTS = 100  # replacements tried for a damaged chunk before the corpus is given up


def synonyms_for(
    specs: Iterable[str], path: Path | str | None, tokenizer: Any, vocabulary: Vocabulary
) -> SynonymTable | None:
    """Load the synonym table if any of the specifications needs one: loading takes seconds."""
    return SynonymTable.load(path, tokenizer, vocabulary) if any(map(needs_synonyms, specs)) else None


def build_for(
    reader: ShardReader, spec: str, vocabulary: Vocabulary, synonyms: SynonymTable | None
) -> Pipeline:
    """Build the pipeline of a specification for views of this data."""
    if not needs_text(spec):
        return build(spec, vocabulary, synonyms)
    if reader.annotation is None:
        raise UserError(f"{spec!r} works on text: prepare {reader.folder} with --annotate MODEL")
    if reader.annotation.get("texts") != WHOLE:
        cut = f"{reader.folder} has cut texts, {spec!r} needs whole ones"
        raise UserError(f"{cut}: prepare it with --overwrite")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(reader.tokenizer_path / "tokenizer.json"))
    encoder = TextEncoder(tokenizer, vocabulary.cls_id, vocabulary.sep_id, reader.max_length)
    return build(spec, vocabulary, synonyms, encoder)


class BlockMaker:
    """Reads, draws, masks and augments. Pickles and forks; a process reads nothing before its first block.

    skip_damaged: replace damaged chunks (see `_replace`) instead of raising DamagedShard. slots: chunks to
    keep in memory. recorded, replaying: as of `pretrain.data.loader.Position`.

    A block lists a substitution at the first of its steps at which a lane meets the damaged chunk, as a dict:
    step, epoch, lane, chunk, replacement, reason; passed, the chunks that would have stood before the
    replacement and are damaged too.
    """

    def __init__(
        self,
        reader: ShardReader,
        lanes: Lanes,
        spec: BatchSpec,
        skip_damaged: bool,
        recorded: Sequence[dict],
        slots: int,
        replaying: bool = False,
    ) -> None:
        self.reader, self.lanes, self.spec = reader, lanes, spec
        self.pipelines = [
            build_for(reader, view.augmentation, spec.vocabulary, spec.synonyms) for view in spec.views
        ]
        self.skip_damaged, self.slots = skip_damaged, slots
        self._replayed = list(recorded) if replaying else []
        self._damaged = {} if replaying else known_damaged(recorded)

    @cached_property
    def _cache(self) -> ChunkCache:
        keep_text = any(pipeline.needs_text for pipeline in self.pipelines)
        return ChunkCache(self.reader, self.slots, self.spec.vocabulary.size, keep_text)

    def make(self, first_step: int, stop_step: int, lane_start: int, lane_stop: int) -> RankBatch:
        """Make the block of steps [first_step, stop_step) for lanes [lane_start, lane_stop)."""
        spec, masking, seed = self.spec, self.spec.masking, self.lanes.seed
        places, substitutions = self.draw(first_step, stop_step, lane_start, lane_stop)
        original, ids = self._cache.gather(places), self._cache.numbers(places)
        self._check_lengths(original, ids)
        steps = np.arange(first_step, stop_step)
        epochs = np.repeat(self.lanes.epochs_of(steps), len(original) // len(steps))
        rates = np.repeat(masking.rate_at(steps), len(original) // len(steps))
        keys_of_copies = (sequence_keys(seed, epochs, ids, copy, "mask") for copy in range(masking.copies))
        masked = [
            mask_tokens(original, keys, spec.vocabulary, rates, mask=masking.mask, random=masking.random)
            for keys in keys_of_copies
        ]
        views: dict[str, View] = {}
        labels = self._cache.labels(places) if self.reader.scored else None
        identity_of_text = sequence_identities(original)
        for number, (wanted, pipeline) in enumerate(zip(spec.views, self.pipelines)):
            keys = sequence_keys(seed, epochs, ids, number, "augment")
            source, column, there = self._source(wanted, original, places, ids)
            sentences = self._cache.sentences(places, column) if pipeline.needs_text else None
            tokens = clip(pipeline(source, keys, sentences), spec.max_length)
            if wanted.column == NEGATIVE and there is None:
                there = ~equal_sequences(source, tokens)
            views[wanted.role] = View(
                clip(with_prompt(tokens, spec.prompt(wanted.role)), spec.max_length),
                identity_of_text if source is original else sequence_identities(source),
                np.ones(len(original), dtype=bool) if there is None else there,
            )
            if wanted.labelled:
                labels = (
                    self._cache.labels(places)
                    if self.reader.labels
                    else labels_of(wanted, pipeline.choices(keys), ~equal_sequences(source, tokens))
                )
        of_views = [masking_words(ids, copy, one.batch, one.positions) for copy, one in enumerate(masked)]
        for role, view in views.items():
            of_views.append(view_words(ids, role, view.tokens, view.identities, view.present))
        if labels is not None:
            of_views.append(label_words(ids, labels))
        words = batch_words(sequence_words(ids, identity_of_text), of_views)
        epoch = self.lanes.epoch_of(first_step)
        return RankBatch(first_step, epoch, ids, original, masked, views, labels, substitutions, words)

    def _source(
        self, spec: ViewSpec, original: Ragged, places: np.ndarray, ids: np.ndarray
    ) -> tuple[Ragged, np.ndarray, np.ndarray | None]:
        """Return what a view is made of, as (sequences, columns, there).

        columns: int64[n], the column that each sequence is from. there: bool[n], of a column of negatives,
        or of further positives, if there is one; else None.
        """
        columns = self.reader.columns
        name = spec.role if spec.role in columns else spec.column
        if name not in columns[1:]:
            return original, np.zeros(len(original), dtype=np.int64), None
        column = columns.index(name)
        source = self._cache.gather(places, column)
        self._check_lengths(source, ids)
        there = source.lengths > 0
        if not there.all():
            rows = np.arange(len(there))
            source = Ragged.concatenate([source, original]).take(np.where(there, rows, rows + len(rows)))
        lacks = spec.column == NEGATIVE or name != spec.column  # its first positive is always there
        return source, np.where(there, column, 0), there if lacks else None

    def draw(
        self, first_step: int, stop_step: int, lane_start: int, lane_stop: int
    ) -> tuple[np.ndarray, list[dict]]:
        """Load what the steps need: (places of the records in the cache, int64[n]; substitutions)."""
        chunk, index = self.lanes.draw_steps(first_step, stop_step, lane_start, lane_stop)
        replay(chunk, index, self.lanes, (first_step, stop_step), (lane_start, lane_stop), self._replayed)
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
            steps, lanes = (first_step, stop_step), (lane_start, lane_stop)
            substitutions = self._replace(chunk, index, needed, steps, lanes)
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
        steps: tuple[int, int],
        lanes: tuple[int, int],
    ) -> list[dict]:
        """Point draws from damaged chunks, in place, at others; return the substitutions.

        A draw goes to the first good chunk that `Lanes.replacements` gives for (epoch, chunk), at the same
        index modulo its size. That depends on the order of the data and on which chunks are good, not on who
        reads.
        """
        (first_step, stop_step), (lane_start, lane_stop) = steps, lanes
        shape = (stop_step - first_step, lane_stop - lane_start, -1)
        drawn = chunk.reshape(shape).copy()
        chunks, indices = chunk.reshape(shape), index.reshape(shape)
        substitutions: dict[tuple[int, int, int], dict] = {}
        for number in sorted(needed & self._damaged.keys()):
            for row in np.flatnonzero((drawn == number).any(axis=(1, 2))):
                step = first_step + int(row)
                epoch = self.lanes.epoch_of(step)
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
                            "reason": self._damaged[number],
                        }
        return sorted(substitutions.values(), key=itemgetter("step", "lane", "chunk"))

    def _replacement(self, epoch: int, chunk: int, needed: set[int]) -> tuple[int, list[int]]:
        """Return the chunk to read in place of a damaged one, and the damaged chunks that come before it."""
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
        damaged = f"chunk {chunk} is damaged, and {_ATTEMPTS} others"
        raise UserError(f"{self.reader.folder}: {damaged}: restore them")

    def _check_lengths(self, original: Ragged, ids: np.ndarray) -> None:
        longest = self.spec.max_length
        if longest is None or len(original) == 0:
            return
        lengths = original.lengths
        if int(lengths.max()) > longest:
            worst = int(lengths.argmax())
            raise UserError(
                f"sequence {int(ids[worst])} of {self.reader.folder} has {int(lengths[worst])} tokens: raise "
                f"model.max_positions, or prepare the data with max_length {longest}"
            )


def labels_of(spec: ViewSpec, taken: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Label what was done to each sequence of a labelled view: int64[n].

    A label is the number of the alternative taken in "a|b|c", int64[n], or A, the number of augmentations,
    if the sequence is not changed, bool[n] (AugCSE's label correction, Tang et al. 2022, section 4.2).
    """
    names = label_names(spec)
    numbers = np.array([names.index(name) for name in alternatives(spec.augmentation)], dtype=np.int64)
    return np.where(changed, numbers.take(taken), len(names) - 1)


def with_prompt(view: Ragged, prompt: np.ndarray | None) -> Ragged:
    """Put the tokens of a prompt, int32[p], behind the first token ([CLS]) of every sequence.

    >>> with_prompt(Ragged.from_sequences([[1, 7, 2], [1, 2]]), np.array([5, 6], np.int32)).ids
    array([1, 5, 6, 7, 2, 1, 5, 6, 2], dtype=int32)
    """
    if prompt is None or not len(prompt) or not len(view):
        return view
    offsets = view.offsets + np.arange(len(view) + 1) * len(prompt)
    ids = np.empty(offsets[-1], np.int32)
    places = offsets[:-1, None] + 1 + np.arange(len(prompt))
    ids[places] = prompt
    others = np.ones(len(ids), dtype=bool)
    others[places] = False
    ids[others] = view.ids
    return Ragged(ids, offsets)


def clip(view: Ragged, max_length: int | None) -> Ragged:
    """Cut sequences longer than max_length, and end them with their own last token ([SEP]).

    Augmentations that lengthen (`subs`, `repeat`) may pass what the model takes. int32 ids as they came; the
    same object if nothing is too long.
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
