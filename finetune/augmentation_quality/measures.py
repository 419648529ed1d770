"""What augmentations change in sentences: rate of change, similarity, masked-language loss, overlap of words.

    rate      AugCSE's perturbation rate (Tang et al. 2022): sentences whose text differs in more than white
              space and forms of quotes; of augmentations of tokens, sentences with other tokens
    cosine    of the vectors of sentence and augmented sentence (AugCSE, section 6.1)
    loss      the encoder's own masked-language loss of hidden words, where AugCSE takes the difference of
              GPT-2's perplexities
    jaccard   words that both have / words that either has (Jaccard 1912, as SDA, section 6.3)

All but the rate are means over sentences that change.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from augment.core.identity import normalise
from augment.core.keys import sequence_keys
from augment.core.ragged import Ragged
from augment.core.vocabulary import Vocabulary
from finetune.geometry import measures
from finetune.geometry.augmentations import AugmentedSentences, Rewriting
from pretrain.data.masking import Masked

MASK_PERIOD = 7
"""Every seventh word is hidden at a time: 14%, as in training."""
MASK_ROUNDS = 3
"""Of the seven maskings that would hide every word once, so many are measured: 43% of the words."""
_HAN = "\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_HAN}]|[^\W{_HAN}]+(?:[-'’][^\W{_HAN}]+)*")
_SPACE_MARKS = "Ġ▁"


def changed_rows(sentences: AugmentedSentences, rewriting: Rewriting) -> np.ndarray:
    """Return the sentences that an augmentation changes, as the cache compares them: int64[K], rising."""
    which = np.flatnonzero(rewriting.changed)
    same = [n for n, text in rewriting.texts.items() if normalise(text) == normalise(sentences.sentences[n])]
    return which[~np.isin(which, same)]


def words_of_text(text: str) -> set[str]:
    """Return the different words of a text in lower case, punctuation aside; of Chinese, its characters."""
    return {word.lower() for word in _WORD.findall(text)}


def jaccard(first: str, second: str) -> float:
    """Return words that both texts have / words that either has, 0..1; 1 for two texts without words."""
    a, b = words_of_text(first), words_of_text(second)
    return len(a & b) / len(a | b) if a or b else 1.0


class Cosines:
    """Compare sentences with their augmentations by cosine; equal augmentations are encoded once."""

    def __init__(self, sentences: AugmentedSentences):
        self.sentences = sentences
        self._found: dict[tuple[int, bytes], float] = {}

    def __call__(self, rewriting: Rewriting, which: np.ndarray) -> np.ndarray:
        """Return the cosines of the sentences numbered by `which` (int64[K]) with their views: float64[K]."""
        rows = rewriting.rows
        packed = self.sentences.encoder is not None
        keys = [
            (n, rows[n].tobytes() if packed else self.sentences.text_of(rewriting, n).encode())
            for n in which.tolist()
        ]
        new = np.array([n for n, key in zip(which.tolist(), keys) if key not in self._found], dtype=np.int64)
        if len(new):
            found = 1 - measures.pair_distances(
                self.sentences.vectors[new], self.sentences.vectors_of(rewriting, new)
            )
            numbers = dict(zip(new.tolist(), found.tolist()))
            self._found.update((key, numbers[key[0]]) for key in keys if key[0] in numbers)
        return np.array([self._found[key] for key in keys])


# -- masked-language loss ----------------------------------------------


@dataclass(frozen=True)
class Words:
    """Hold the W words of a row of tokens.

    names: in lower case, without marks of spaces. starts, ends: in tokens of the row.
    """

    names: list[str]
    starts: np.ndarray
    ends: np.ndarray


def words_of_row(row: np.ndarray, tokenizer: Any, vocabulary: Vocabulary) -> Words:
    """Return the words of a row (int32[L]) as its vocabulary delimits them, special tokens aside."""
    starts = np.flatnonzero(vocabulary.word_starts(row))
    ends = np.append(starts[1:], len(row))
    ordinary = ~vocabulary.special[row[starts]]
    starts, ends = starts[ordinary], ends[ordinary]
    tokens = tokenizer.convert_ids_to_tokens(row.tolist())
    names = ["".join(tokens[a:b]).lstrip(_SPACE_MARKS).lower() for a, b in zip(starts, ends)]
    return Words(names, starts, ends)


def align(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs (word of `before`, word of `after`) of the matching blocks that difflib finds."""
    blocks = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]


class MaskedLosses:
    """Change of the masked-language loss under fixed masks, of some of the sentences.

    Word i of sentence n is hidden, all of its tokens, in the masking (i + shift of n) modulo `MASK_PERIOD`;
    the shift is drawn once for each sentence. A word that an augmentation keeps (`align`) is hidden in the
    same masking as in the original, so the same words are asked for in both; a new word is hidden by its own
    place. `MASK_ROUNDS` of the maskings are measured.

    numbers: int64[M], the sentences. Needs a masked-language head (`AugmentedSentences.has_mlm_head`).
    """

    def __init__(self, sentences: AugmentedSentences, numbers: np.ndarray):
        self.sentences, self.numbers = sentences, numbers
        keys = sequence_keys(sentences.seed, 0, numbers.astype(np.uint64), 0, "mask")
        self._shifts = dict(zip(numbers.tolist(), (keys % np.uint64(MASK_PERIOD)).tolist()))
        self._words = {n: self._words_of(sentences.originals[n]) for n in numbers.tolist()}
        rounds = [self.rounds(n, len(self._words[n].names), []) for n in numbers.tolist()]
        found = self.word_losses(sentences.originals.take(numbers), list(self._words.values()), rounds)
        self._losses = dict(zip(numbers.tolist(), found))

    def rounds(self, number: int, words: int, kept: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return the masking that hides each word of sentence `number`, int64[words].

        kept: `align` with the original.
        """
        rounds = np.arange(words)
        for i, j in kept:
            rounds[j] = i
        return (rounds + self._shifts[number]) % MASK_PERIOD

    def changes(self, rewriting: Rewriting, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean change a word in nats, augmented - original, as (all words, kept words).

        Of the sentences in `which` that are measured; float64 of those that have a hidden word in both texts,
        or a kept one.
        """
        chosen = which[np.isin(which, self.numbers)]
        rows = rewriting.rows.take(chosen)
        words = [self._words_of(rows[k]) for k in range(len(rows))]
        kept = [align(self._words[n].names, new.names) for n, new in zip(chosen.tolist(), words)]
        rounds = [
            self.rounds(n, len(new.names), pairs) for n, new, pairs in zip(chosen.tolist(), words, kept)
        ]
        over_all, over_kept = [], []
        for n, after, pairs in zip(chosen.tolist(), self.word_losses(rows, words, rounds), kept):
            before = self._losses[n]
            if before and after:
                over_all.append(np.mean(list(after.values())) - np.mean(list(before.values())))
            both = [after[j] - before[i] for i, j in pairs if i in before]
            if both:
                over_kept.append(np.mean(both))
        return np.array(over_all), np.array(over_kept)

    def word_losses(
        self, rows: Ragged, words: Sequence[Words], rounds: Sequence[np.ndarray]
    ) -> list[dict[int, float]]:
        """Return word -> loss in nats, summed over its tokens, for each of N rows.

        Only words hidden in the measured maskings have a loss.
        """
        batches, positions, owners = [], [], []
        width = max(map(len, rounds), default=0) or 1
        for number in range(MASK_ROUNDS):
            ids = rows.ids.copy()
            hidden: list[int] = []
            for k, (of_row, of_rounds) in enumerate(zip(words, rounds)):
                for w in np.flatnonzero(of_rounds == number).tolist():
                    span = range(rows.offsets[k] + of_row.starts[w], rows.offsets[k] + of_row.ends[w])
                    hidden += span
                    owners += [k * width + w] * len(span)
            ids[hidden] = self.sentences.vocabulary.mask_id
            batches.append(Ragged(ids, rows.offsets))
            positions.append(np.array(hidden, dtype=np.int64) + number * rows.num_tokens)
        places = np.concatenate(positions)
        labels = rows.ids[places % rows.num_tokens] if len(places) else np.empty(0, np.int32)
        found: list[dict[int, float]] = [{} for _ in range(len(rows))]
        if len(places):
            losses = self.sentences.losses_of(Masked(Ragged.concatenate(batches), places, labels))
            for owner, loss in zip(owners, losses.tolist()):
                k, w = divmod(owner, width)
                found[k][w] = found[k].get(w, 0.0) + loss
        return found

    def _words_of(self, row: np.ndarray) -> Words:
        return words_of_row(row, self.sentences.tokenizer, self.sentences.vocabulary)
