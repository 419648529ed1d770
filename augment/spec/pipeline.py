"""Apply a specification to batches: `Pipeline` maps sequences and their keys to augmented sequences."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from augment.core.errors import AugmentationError
from augment.core.keys import bits_per_sequence, derive
from augment.core.ragged import Ragged
from augment.spec.grammar import Specification
from augment.text.draws import Draws, draws_for
from augment.text.encoder import TextEncoder
from augment.text.parsed import ParsedSentence, Parses, without_parse

# Tokens augmented at a time: small enough that a stage's arrays stay in the cache, large enough that the
# hundred or so array operations of a pipeline cost little. Two views of del-span,reorder, one core, million
# source tokens/s, with blocks of 2**14, 2**17 and 2**20: 14, 20 and 13 at 29 tokens a sequence; 39, 121 and
# 163 at 512 tokens.
BLOCK_TOKENS = 1 << 17


@dataclass(frozen=True)
class BoundStep:
    """A step that is ready to run, as in `Entry`: with all parameters bound; `none` has no function."""

    name: str
    is_text: bool
    function: functools.partial | None
    batch: bool = False
    languages: tuple[str, ...] = ()

    def require_language(self, sentence: ParsedSentence) -> None:
        """Raise AugmentationError for a sentence of a language that the step is not written for."""
        if self.languages and sentence.language not in self.languages:
            raise AugmentationError(
                f"{self.name} is written for {' and '.join(map(repr, self.languages))}, and this text was "
                f"parsed as {sentence.language!r}: {sentence.text[:60]!r}"
            )


@dataclass(frozen=True)
class Pipeline:
    """Map a Ragged and one key per sequence to a new Ragged of the same N, by a specification.

    >>> from augment.core.keys import sequence_keys
    >>> from augment.core.vocabulary import Vocabulary
    >>> from augment.spec.build import build
    >>> plain = np.zeros(8, dtype=bool)  # ids 0 to 2 are [CLS], [SEP], [MASK]; every token is a word
    >>> vocabulary = Vocabulary(8, -1, 0, 1, 2, -1, np.arange(8) < 3, ~plain, np.ones(8, dtype=np.uint8))
    >>> pipeline = build("crop:rate=0.5", vocabulary)
    >>> batch = Ragged.from_sequences([[0, 3, 4, 5, 6, 1], [0, 7, 6, 5, 4, 1]])
    >>> keys = sequence_keys(seed=0, epoch=0, sequence_ids=np.arange(2), view=0, purpose="augment")
    >>> views = pipeline(batch, keys)
    >>> [views[i].tolist() for i in range(2)]
    [[0, 5, 6, 1], [0, 6, 5, 1]]

    The result for a sequence depends only on its tokens (for augmentations of text: on its text and parse)
    and its key. Stage i draws with keys derived from i, so a name that occurs twice draws anew. A pipeline
    pickles, so that workers can receive it.
    """

    specification: Specification
    stages: tuple[tuple[BoundStep, ...], ...]
    encoder: TextEncoder | None = None

    @property
    def name(self) -> str:
        return str(self.specification)

    @property
    def is_identity(self) -> bool:
        return self.specification.is_identity

    @property
    def needs_text(self) -> bool:
        """Return whether a call needs `sentences`."""
        return any(step.is_text for stage in self.stages for step in stage)

    @property
    def works_on_tokens(self) -> bool:
        return any(map(_works_on_tokens, self.stages))

    def __call__(self, batch: Ragged, keys: np.ndarray, sentences: Parses | None = None) -> Ragged:
        """Augment a batch; sequences whose text no augmentation changed keep their tokens.

        keys: uint64[N], from `keys.sequence_keys`. sentences: the N parses, for a pipeline that `needs_text`.
        """
        if len(keys) != len(batch):
            raise ValueError(f"{len(keys)} keys for {len(batch)} sequences: one key per sequence is needed")
        if self.is_identity or len(batch) == 0:
            return batch
        if not self.needs_text:
            return self.tokens(batch, keys, {})
        if sentences is None:
            raise AugmentationError(f"{self.name} works on text: sentences are needed, not only tokens")
        return self.tokens(batch, keys, self.texts(keys, sentences))

    def tokens(self, batch: Ragged, keys: np.ndarray, texts: Mapping[int, str]) -> Ragged:
        """Augment a batch whose texts were augmented before; texts: {sentence number: new text}."""
        if texts:
            assert self.encoder is not None  # without one there are only tokens
            changed = self.encoder(list(texts.values()))
            order = np.arange(len(batch))
            order[list(texts)] = len(batch) + np.arange(len(texts))
            batch = Ragged.concatenate([batch, changed]).take(order)
        if not self.works_on_tokens:
            return batch
        blocks = []
        start = 0
        while start < len(batch):
            reach = batch.offsets[start] + BLOCK_TOKENS
            stop = max(start + 1, int(np.searchsorted(batch.offsets, reach, side="right")) - 1)
            blocks.append(self._block(batch.slice(start, stop), keys[start:stop]))
            start = stop
        return Ragged.concatenate(blocks)

    def choices(self, keys: np.ndarray, stage: int = 0) -> np.ndarray:
        """Return which alternative of a stage each sequence takes, from 0: int64[N], by its key alone."""
        draws = bits_per_sequence(derive(keys, stage, "alternative"), 1)[:, 0] >> np.uint64(32)
        return ((draws * np.uint64(len(self.stages[stage]))) >> np.uint64(32)).astype(np.int64)

    def texts(self, keys: np.ndarray, sentences: Parses) -> dict[int, str]:
        """Run the steps on text over N sentences; return {sentence number: new text} of those that change."""
        changed: dict[int, str] = {}
        for number, alternatives in enumerate(self.stages):
            if not any(step.is_text for step in alternatives):
                break
            stage_keys, choice = derive(keys, number), self.choices(keys, number)
            for index, step in enumerate(alternatives):
                if not step.is_text:
                    continue
                rows = np.flatnonzero(choice == index)
                numbers = rows.tolist()
                current = (  # a sentence that an earlier stage changed has lost its parse
                    without_parse(changed[row], sentences[row].language) if row in changed else sentences[row]
                    for row in numbers
                )
                applied = _rewritten(step, current, draws_for(stage_keys[rows], step.name))
                for row, (sentence, new) in zip(numbers, applied):
                    if new is not None and new != sentence.text:
                        changed[row] = new
        return changed

    def _block(self, batch: Ragged, keys: np.ndarray) -> Ragged:
        for number, alternatives in enumerate(self.stages):
            if not _works_on_tokens(alternatives):
                continue
            stage_keys = derive(keys, number)
            if len(alternatives) == 1:
                batch = _apply(alternatives[0], batch, stage_keys)
                continue
            choice = self.choices(keys, number)
            groups = [np.flatnonzero(choice == index) for index in range(len(alternatives))]
            parts = [
                _apply(function, batch.take(group), stage_keys[group])
                for function, group in zip(alternatives, groups, strict=True)
            ]
            batch = Ragged.concatenate(parts).take(np.argsort(np.concatenate(groups)))
        return batch


def _works_on_tokens(stage: tuple[BoundStep, ...]) -> bool:
    return any(step.function is not None and not step.is_text for step in stage)


def _apply(step: BoundStep, batch: Ragged, keys: np.ndarray) -> Ragged:
    return batch if step.function is None or step.is_text or len(batch) == 0 else step.function(batch, keys)


def _rewritten(
    step: BoundStep, sentences: Iterable[ParsedSentence], draws: Sequence[Draws]
) -> Iterator[tuple[ParsedSentence, str | None]]:
    """Yield each sentence with its new text, in one call for all or one by one as they are decoded."""
    assert step.function is not None  # only `none` has no function, and it does not work on text
    if step.batch:
        batch = list(sentences)
        for sentence in batch:
            step.require_language(sentence)
        results = step.function(batch, draws) if batch else []
        if len(results) != len(batch):
            raise AugmentationError(
                f"{step.name} gave {len(results)} results for {len(batch)} sentences; give one for each"
            )
        yield from zip(batch, results, strict=True)
    else:
        for sentence, own in zip(sentences, draws, strict=True):
            step.require_language(sentence)
            yield sentence, step.function(sentence, own)
