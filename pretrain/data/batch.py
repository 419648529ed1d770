"""The types of a batch: the order to the loader (`BatchSpec`) and what it returns (`RankBatch`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from augment.spec.grammar import IDENTITY, alternatives
from augment.tokens.synonyms import SynonymTable
from pretrain.data.ledger import NO_WORDS
from pretrain.data.masking import Masked, Masking
from pretrain.data.shards import ShardReader

NEGATIVE = "negative"  # the one column without which a view may be absent


def column_of(role: str) -> str:
    """Return the kind of a role, or of a column: its name without digits at the end."""
    return role.rstrip("0123456789")


@dataclass(frozen=True)
class ViewSpec:
    """One view of every sequence.

    role: "anchor", "positive", "negative" or a name of the caller's own. The view is made of the data's
        column of that name ("negative2"), or of that name without digits ("positive" of the role
        "positive2"), if it has one, else of the text. A record whose column is empty gives its text too:
        its positive is then another view of the same text (SDA's fallback).
    augmentation: a specification (`augment.spec.grammar`).
    labelled: whether `RankBatch.labels` are those of this view; of one view at most.
    """

    role: str
    augmentation: str
    labelled: bool = False

    @property
    def column(self) -> str:
        """Return the name of the column that the view is made of, if the data has it."""
        return column_of(self.role)


@dataclass(frozen=True)
class BatchSpec:
    """What to make of each sequence.

    views: in the order that numbers their random draws; roles differ.
    vocabulary: of the tokenizer that the data was prepared with. synonyms: the table for `subs`.
    max_length: most tokens of a sequence that the model takes; longer views are cut. None: any.
    prompts: role -> int32[p], tokens behind the first of every view of that role, after augmentation.
    """

    views: Sequence[ViewSpec]
    masking: Masking
    vocabulary: Vocabulary
    synonyms: SynonymTable | None = None
    max_length: int | None = None
    prompts: Mapping[str, np.ndarray] = field(default_factory=dict)

    def prompt(self, role: str) -> np.ndarray | None:
        """Return the prompt of a role: its own, or that of its name without digits."""
        return self.prompts.get(role, self.prompts.get(column_of(role)))


def label_names(view: ViewSpec) -> list[str]:
    """Return what the labels 0, 1, ..., A of a labelled view mean.

    They are the A augmentations of "a|b|c" in order, then `none`, for sequences that came out unchanged.

    >>> label_names(ViewSpec("augmented", "crop|reorder|crop", labelled=True))
    ['crop', 'reorder', 'none']
    """
    different = dict.fromkeys(alternatives(view.augmentation))
    return [name for name in different if name != IDENTITY] + [IDENTITY]


def number_of_labels(view: ViewSpec, data: ShardReader) -> int:
    """Return how many values `RankBatch.labels` may have: the data's own, else those of `label_names`."""
    return data.labels or len(label_names(view))


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One augmented view of n sequences.

    tokens: the view, never masked.
    identities: int64[n], equal for views made of the same sequence of tokens, wherever they are, before
        augmentation: two views of one sentence have one identity.
    present: bool[n], False if a view of role "negative" has nothing to be made of: the record has no
        negative, so that the view is the text's; or the data has no such column, and the augmentation left
        the text unchanged. Of a column "positive2" ... too, if the record has fewer positives.
    """

    tokens: Ragged
    identities: np.ndarray
    present: np.ndarray

    def slice(self, start: int, stop: int) -> "View":
        """Return sequences start to stop - 1; no token is copied."""
        return View(self.tokens.slice(start, stop), self.identities[start:stop], self.present[start:stop])

    @staticmethod
    def concatenate(parts: Sequence["View"]) -> "View":
        """Return all sequences of all parts, one part after the other."""
        return View(
            Ragged.concatenate([part.tokens for part in parts]),
            np.concatenate([part.identities for part in parts]),
            np.concatenate([part.present for part in parts]),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RankBatch:
    """What one rank gets for one step: n = lanes of the rank * B / L sequences (or records), lane by lane.

    A worker makes the batches of many steps at once, laid end to end in one such batch (a block).

    step: the global step, of a block the first; epoch: of the data, from 0, at that step.
    sequence_ids: uint64[n], the sequences' numbers in their split.
    original: the texts as on disk, never altered.
    masked: maskings of `original`, each with draws of its own.
    views: role -> augmented sequences; empty for a masked-language run.
    labels: int64[n]; of data with scores the bits of each record's float32 score; else None unless a view is
        labelled: the record's label if the data has labels, else what was done to that view
        (`label_names`).
    substitutions: damaged chunks, and the chunks that are read in their place, as `BlockMaker` describes
        them. The loader lists each once an epoch and lane: at the first step, counted from its start, at
        which the lane meets the chunk.
    words: uint64[n, 4], by which the ledger knows the sequences and their views (`pretrain.data.ledger`);
        none in a batch that no loader made.

    >>> two = Ragged.from_sequences([[1, 7, 2], [1, 8, 9, 2]])
    >>> view = View(two, identities=np.array([70, 89]), present=np.array([True, True]))
    >>> batch = RankBatch(0, 0, np.arange(2, dtype=np.uint64), two, [], {"anchor": view}, None, [])
    >>> batch.slice(1, 2).views["anchor"].tokens[0].tolist()
    [1, 8, 9, 2]
    >>> len(RankBatch.concatenate([batch, batch.slice(0, 1)]))
    3
    """

    step: int
    epoch: int
    sequence_ids: np.ndarray
    original: Ragged
    masked: list[Masked]
    views: dict[str, View]
    labels: np.ndarray | None
    substitutions: list[dict]
    words: np.ndarray = field(default_factory=NO_WORDS.copy)

    def __len__(self) -> int:
        return len(self.original)

    def slice(self, start: int, stop: int) -> "RankBatch":
        """Return sequences start to stop - 1 of the same step; no token is copied."""
        return replace(
            self,
            sequence_ids=self.sequence_ids[start:stop],
            original=self.original.slice(start, stop),
            masked=[masked.slice(start, stop) for masked in self.masked],
            views={role: view.slice(start, stop) for role, view in self.views.items()},
            labels=None if self.labels is None else self.labels[start:stop],
            words=self.words[start:stop],
        )

    @staticmethod
    def concatenate(parts: Sequence["RankBatch"]) -> "RankBatch":
        """Return one step's batch of the batches of neighbouring groups of lanes, in the order of lanes."""
        first = parts[0]
        if len(parts) == 1:
            return first
        return RankBatch(
            first.step,
            first.epoch,
            np.concatenate([part.sequence_ids for part in parts]),
            Ragged.concatenate([part.original for part in parts]),
            [Masked.concatenate([part.masked[i] for part in parts]) for i in range(len(first.masked))],
            {role: View.concatenate([part.views[role] for part in parts]) for role in first.views},
            None if first.labels is None else np.concatenate([part.labels for part in parts]),
            [substitution for part in parts for substitution in part.substitutions],
            np.concatenate([part.words for part in parts]),
        )
