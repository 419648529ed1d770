"""Augment the sentences of a chunk, and mark which of them have changed."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from augment.core.identity import equal_sequences, normalise
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import parse
from augment.spec.pipeline import Pipeline
from pretrain.data.annotation import Annotation
from pretrain.data.batch import ViewSpec, label_names
from pretrain.data.shards import ShardReader
from pretrain.data.tokenizer import load_tokenizer
from pretrain.data.worker import build_for, clip, synonyms_for

LABELLED = "augmented"
COLUMNS = ("positive", "negative", LABELLED)
OUTCOMES = ("not_applicable", "same", "changed")
NOT_APPLICABLE, SAME, CHANGED = range(len(OUTCOMES))


@dataclass(frozen=True)
class Augmented:
    """What N sentences became.

    outcome: int64[N], a number of `OUTCOMES`: changed; same, where the text differs in white space and quotes
    only, or in nothing that the tokens show; not_applicable, where the rule gave nothing else than the
    sentence. rows: int64[K], those that changed; tokens: Ragged of K. names: str of each augmentation; taken:
    int64[N], which of them each sentence drew.
    """

    outcome: np.ndarray
    rows: np.ndarray
    tokens: Ragged
    names: list[str]
    taken: np.ndarray

    def counts(self) -> dict[str, Counter[str]]:
        """Count how often each augmentation was drawn, and with what outcome."""
        # an augmentation that is named twice is counted once
        counts: dict[str, Counter[str]] = {name: Counter() for name in self.names}
        for number, name in enumerate(self.names):
            outcome = np.bincount(self.outcome[self.taken == number], minlength=len(OUTCOMES)).tolist()
            counts[name].update({"drawn": sum(outcome), **dict(zip(OUTCOMES, outcome))})
        return counts

    def labels(self, view: ViewSpec) -> np.ndarray:
        """Return the index of each augmentation in `label_names(view)`, int64[N]; the last: unchanged."""
        names = label_names(view)
        numbers = np.array([names.index(name) for name in self.names], dtype=np.int64)
        return np.where(self.outcome == CHANGED, numbers.take(self.taken), len(names) - 1)


def augment(
    pipeline: Pipeline, source: Ragged, keys: np.ndarray, sentences: Annotation | None, max_length: int
) -> Augmented:
    """Augment N sentences and mark which have changed.

    source: their tokens. keys: uint64[N]. sentences: their parses, for a pipeline that `needs_text`.
    max_length: longer ones are cut (`worker.clip`). Texts are compared after `normalise`, and by their
    tokens; where augmentations of tokens come after those of text, by their tokens alone.
    """
    texts: dict[int, str] = {}
    normalised: set[int] = set()
    if pipeline.needs_text:
        assert sentences is not None  # opening the pipeline refused data without parses
        texts = pipeline.texts(keys, sentences)
        normalised = {row for row, text in texts.items() if normalise(text) == normalise(sentences.text(row))}
    tokens = clip(pipeline.tokens(source, keys, texts), max_length)
    outcome = np.where(equal_sequences(source, tokens), NOT_APPLICABLE, CHANGED)
    one_stage = len(pipeline.stages) == 1
    compares_texts = one_stage or not pipeline.works_on_tokens
    for row in texts:
        unseen = not pipeline.works_on_tokens and outcome[row] != CHANGED
        if unseen or (compares_texts and row in normalised):
            outcome[row] = SAME
    rows = np.flatnonzero(outcome == CHANGED)
    taken = pipeline.choices(keys) if one_stage else np.zeros(len(source), dtype=np.int64)
    return Augmented(outcome, rows, tokens.take(rows), names_of(pipeline.name), taken)


def names_of(spec: str) -> list[str]:
    """Return what rates are counted for: the alternatives of one stage, or the whole of several stages."""
    specification = parse(spec)
    first, *others = specification.stages
    return [str(specification)] if others else [str(step) for step in first]


def merge_columns(source: Ragged, columns: Sequence[Augmented]) -> Ragged:
    """Return the stored sequences of N records: text, then each column, empty where unchanged."""
    count, width = len(source), 1 + len(columns)
    # the empty one
    order = np.full((count, width), count + sum(len(column.rows) for column in columns), dtype=np.int64)
    order[:, 0] = np.arange(count)
    begin = count
    for number, column in enumerate(columns, 1):
        order[column.rows, number] = begin + np.arange(len(column.rows))
        begin += len(column.rows)
    nothing = Ragged(np.empty(0, np.int32), np.zeros(2, np.int64))
    return Ragged.concatenate([source, *(column.tokens for column in columns), nothing]).take(order.ravel())


def open_pipelines(reader: ShardReader, columns: dict[str, str], synonyms: str | None) -> dict[str, Pipeline]:
    """Build each column's augmentation for this data.

    Raises: as `worker.build_for`, and AugmentationError where a synonym table is missing.
    """
    tokenizer = load_tokenizer(reader.tokenizer_path)
    vocabulary = Vocabulary.from_tokenizer(tokenizer)
    table = synonyms_for(columns.values(), synonyms, tokenizer, vocabulary)
    return {column: build_for(reader, spec, vocabulary, table) for column, spec in columns.items()}


def view_number(column: str, columns: Iterable[str]) -> int:
    """Return the number that a column's view draws with, a different one for each of a cache's `columns`.

    It is the view's number on-line in augcse (anchor 0, positive 1, augmented 2), in sda (anchor, positive,
    negative) and in sda+augcse, with all four: there, a cache's copy k is what a run of the same seed draws
    in its epoch k. Under a name in another order (augcse+sda) the on-line views are numbered otherwise and
    draw otherwise.
    """
    return {"positive": 1, "negative": 2, LABELLED: 3 if "negative" in columns else 2}[column]
