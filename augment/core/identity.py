"""Tell which sequences of tokens are the same, and which texts, but for blanks and quotes.

Sequences are compared row by row in two batches, or by a number that equal sequences share.

The number depends on the tokens alone, so equal sequences have it in common on every rank and machine, and a
global batch finds its duplicates by comparing one number a sequence.
"""

import difflib
import functools

import numpy as np

from augment.core.keys import derive
from augment.core.ragged import Ragged, offsets_of, segment_indices

# Marks with several forms, mapped to the one that keyboards have.
_MARKS = str.maketrans({**dict.fromkeys("“”„‟«»＂", '"'), **dict.fromkeys("‘’‚‛`´＇", "'")})


def normalise(text: str) -> str:
    """Return a text as augmentation and original are compared: single blanks, straight quotes."""
    return " ".join(text.translate(_MARKS).replace("''", '"').split())


def sequence_identities(batch: Ragged) -> np.ndarray:
    """Return a 64-bit number for every sequence, equal for equal sequences of tokens: int64[N].

    Multilinear hashing (Lemire and Kaser 2014, section 3): sums of a(token) * b(position), random words.
    Two different sequences agree with probability 2^-59; even words lose bits.
    """
    words = _random_words(int(batch.ids.max(initial=0)) + 1, "token").take(batch.ids)
    words *= _random_words(int(batch.lengths.max(initial=0)), "position").take(batch.positions())
    sums = np.zeros(batch.num_tokens + 1, dtype=np.uint64)
    np.cumsum(words, out=sums[1:])
    return np.diff(sums.take(batch.offsets)).view(np.int64)


def equal_sequences(first: Ragged, second: Ragged) -> np.ndarray:
    """Return whether sequence i of one batch has the same tokens as sequence i of the other: bool[N]."""
    equal = first.lengths == second.lengths
    rows = np.flatnonzero(equal)
    lengths = first.lengths.take(rows)
    differ = np.zeros(int(lengths.sum()) + 1, dtype=np.int64)
    np.cumsum(
        first.ids.take(segment_indices(first.offsets.take(rows), lengths))
        != second.ids.take(segment_indices(second.offsets.take(rows), lengths)),
        out=differ[1:],
    )
    equal[rows] = np.diff(differ.take(offsets_of(lengths))) == 0
    return equal


def change(original: np.ndarray, view: np.ndarray) -> float:
    """Return the share of tokens that changed, 0 to 1: those outside the blocks that both have in order."""
    before, after = original[1:-1].tolist(), view[1:-1].tolist()
    longer = max(len(before), len(after))
    if longer == 0:
        return 0.0
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return 1.0 - sum(block.size for block in blocks) / longer


def _random_words(count: int, name: str) -> np.ndarray:
    """Return the first `count` words of a fixed random stream, uint64[count]."""
    return _stream(max(1024, 1 << (count - 1).bit_length()), name)[:count]


@functools.lru_cache(maxsize=8)
def _stream(count: int, name: str) -> np.ndarray:
    words = derive(np.arange(count, dtype=np.uint64), "identity", name)
    words.setflags(write=False)
    return words
