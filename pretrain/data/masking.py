"""Masking for the masked-language loss: which tokens to predict, and what the model sees in their place."""

from dataclasses import dataclass

import numpy as np

from augment.core.keys import token_bits, uniform_per_sequence
from augment.core.ragged import Ragged, segment_indices
from augment.core.selection import choose, count_per_sequence
from augment.core.vocabulary import Vocabulary
from pretrain.config.objectives import ObjectiveConfig

# Streams of a sequence's key: each use of the key draws other bits.
_CHOICE, _ROUNDING, _KIND, _REPLACEMENT = 0, 1, 2, 3


@dataclass(frozen=True)
class Masking:
    """How sequences are masked (`mask_tokens`), and how many times over, each with draws of its own.

    later, linear: (step, rate) in order, and whether the rate moves evenly to the next one or jumps.
    """

    rate: float = 0.15
    mask: float = 0.8
    random: float = 0.1
    copies: int = 1
    later: tuple[tuple[int, float], ...] = ()
    linear: bool = False

    @staticmethod
    def of(objective: ObjectiveConfig) -> "Masking":
        """Return the masking that training with an objective needs."""
        mlm = objective.mlm
        later, linear = tuple(sorted(mlm.later_rates.items())), mlm.rate_change == "linear"
        return Masking(mlm.rate, mlm.mask, mlm.random, objective.masked_copies, later, linear)

    def rate_at(self, steps: np.ndarray) -> np.ndarray:
        """Return the rate at each of the steps: int64[n], from 0, to float64[n]."""
        at, rates = np.array([(0, self.rate), *self.later], dtype=np.float64).T
        if self.linear:
            return np.interp(steps, at, rates)
        return rates.take(np.searchsorted(at, steps, side="right") - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """A batch with tokens hidden, and what they were.

    batch: Ragged of the same lengths as the original, a new array.
    positions: int64[P], indices into batch.ids of the tokens to predict, rising.
    labels: int32[P], the original tokens there.
    """

    batch: Ragged
    positions: np.ndarray
    labels: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each sequence, int64[N]."""
        return self.batch.lengths

    def take(self, order: np.ndarray) -> "Masked":
        """Return the sequences numbered by `order` (int64[K]), in that order."""
        batch = self.batch
        first = np.searchsorted(self.positions, batch.offsets[order])
        counts = np.searchsorted(self.positions, batch.offsets[order + 1]) - first
        chosen = segment_indices(first, counts)
        taken = batch.take(order)
        moved = np.repeat(taken.offsets[:-1] - batch.offsets[order], counts)
        return Masked(taken, self.positions[chosen] + moved, self.labels[chosen])

    def slice(self, start: int, stop: int) -> "Masked":
        """Return sequences start to stop - 1; of the tokens only the positions are copied."""
        first, last = self.batch.offsets[start], self.batch.offsets[stop]
        low, high = np.searchsorted(self.positions, (first, last))
        return Masked(self.batch.slice(start, stop), self.positions[low:high] - first, self.labels[low:high])

    @staticmethod
    def concatenate(parts: list["Masked"]) -> "Masked":
        """Return all sequences of all parts, one part after the other."""
        starts = np.cumsum([0] + [part.batch.num_tokens for part in parts])
        return Masked(
            Ragged.concatenate([part.batch for part in parts]),
            np.concatenate([part.positions + start for part, start in zip(parts, starts)]),
            np.concatenate([part.labels for part in parts]),
        )


def mask_tokens(
    batch: Ragged,
    keys: np.ndarray,
    vocabulary: Vocabulary,
    rate: float | np.ndarray = 0.15,
    mask: float = 0.8,
    random: float = 0.1,
) -> Masked:
    """Hide some of every sequence's ordinary tokens, for the model to predict.

    Of `rate` of them, `mask` are hidden behind [MASK], `random` replaced by a random ordinary token, and the
    rest left as they are (BERT, Devlin et al. 2019, section 3.1 and appendix A.1).

    How many: a sequence of n ordinary (not special) tokens gives floor(rate * n + u), u uniform per sequence,
    as in fairseq's RoBERTa (`MaskTokensDataset`), so the expected share is exactly `rate` at every length,
    where rounding to the nearest would give 20% of ten tokens; and at least one if n > 0, as in BERT's own
    `create_masked_lm_predictions`, so that every sequence is learnt from. Choosing the number first, rather
    than each token by itself as transformers' collator does, takes away the variance that makes one sentence
    in three of seven tokens predict nothing. Special tokens are neither counted, chosen, nor drawn as
    replacements; as in BERT, a random replacement may happen to be the token itself.

    What happens to a sequence depends on its tokens and its key only, never on the rest of the batch.

    batch: N sequences; left untouched. keys: uint64[N] (`augment.core.keys.sequence_keys`, purpose "mask").
    rate: share of a sequence's tokens; of all, or float64[N]. mask, random: shares, together at most 1.
    """
    assert np.all((rate >= 0) & (rate <= 1)) and min(mask, random) >= 0 and mask + random <= 1 + 1e-9
    lengths = batch.lengths
    maskable = ~vocabulary.special.take(batch.ids)
    sizes = count_per_sequence(maskable, batch.offsets)
    counts = (sizes * rate + uniform_per_sequence(keys, 1, _ROUNDING)[:, 0]).astype(np.int64)
    counts = np.minimum(np.maximum(counts, rate > 0), sizes)
    positions = choose(keys, lengths, counts, maskable, _CHOICE)
    labels = batch.ids.take(positions)

    kind = token_bits(keys, counts, _KIND)
    hidden = kind < np.uint64(round(mask * 2**32))
    swapped = kind >= np.uint64(round((1 - random) * 2**32))
    ordinary = np.flatnonzero(~vocabulary.special).astype(np.int32)
    draws = token_bits(keys, counts, _REPLACEMENT)[swapped].astype(np.uint64)
    seen = labels.copy()
    seen[swapped] = ordinary.take(((draws * np.uint64(len(ordinary))) >> np.uint64(32)).view(np.int64))
    # After the swaps: with mask + random = 1 rounding could let the two ranges meet.
    seen[hidden] = vocabulary.mask_id
    ids = batch.ids.copy()
    ids[positions] = seen
    return Masked(Ragged(ids, batch.offsets), positions, labels)
