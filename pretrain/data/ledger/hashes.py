"""Hash every sequence of a batch, and what was made of it, so that the sums of a step say what it has read.

A sequence gives four 64-bit words: two of the sequence (its number and its tokens as on disk) and two of its
views (tokens and positions of every masking; tokens, source and presence of every role; labels). A step's sum
adds the words of its sequences modulo 2^64, column by column. A sum has no order, so it is the same for any
lanes, ranks, workers and micro-batches, and ranks add their sums.

Two different texts have equal words with a probability of 2^-59 (`augment.core.identity.sequence_identities`,
multilinear hashing). Two different sets of words that look random have equal sums, 128 bits, with one of
2^-128. The words are fixed and public: this finds accidents, not forgery. Whoever can choose texts freely can
choose some whose sums agree.

Everything hashed is an integer of a fixed type (ids uint64, tokens int32), and every operation is one modulo
2^64, so that the words do not depend on numpy's version, the byte order or the machine.
"""

from collections.abc import Sequence

import numpy as np

from augment.core.identity import sequence_identities
from augment.core.keys import bits_per_sequence, derive
from augment.core.ragged import Ragged

COLUMNS = 4
"""Words of a sequence: two of the sequence, then two of its views."""

NO_WORDS = np.empty((0, COLUMNS), np.uint64)
"""The words of a batch that nobody hashed."""


def sequence_words(ids: np.ndarray, identities: np.ndarray) -> np.ndarray:
    """Return the words of sequences as on disk: uint64[n, 2].

    ids: uint64[n], numbers in their split. identities: int64[n], `sequence_identities` of their tokens.
    """
    return bits_per_sequence(derive(identities.view(np.uint64), "sequence", ids), 2)


def masking_words(ids: np.ndarray, copy: int, tokens: Ragged, positions: np.ndarray) -> np.ndarray:
    """Return the words of a masking: uint64[n, 2].

    copy: which of the maskings. tokens: n sequences as the model sees them. positions: int64[P], rising,
    indices into `tokens.ids` of what it has to predict.
    """
    cuts = np.searchsorted(positions, tokens.offsets)
    within = positions - np.repeat(tokens.offsets[:-1], np.diff(cuts))
    places = sequence_identities(Ragged(within.astype(np.int32), cuts))
    keys = derive(sequence_identities(tokens).view(np.uint64), f"masking {copy}", ids, places.view(np.uint64))
    return bits_per_sequence(keys, 2)


def view_words(
    ids: np.ndarray, role: str, tokens: Ragged, identities: np.ndarray, present: np.ndarray
) -> np.ndarray:
    """Return the words of the views of one role: uint64[n, 2].

    tokens, identities, present: as of `pretrain.data.batch.View`.
    """
    of_source = identities.view(np.uint64)
    keys = derive(sequence_identities(tokens).view(np.uint64), f"view {role}", ids, of_source, present)
    return bits_per_sequence(keys, 2)


def label_words(ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the words of labels, int64[n]: uint64[n, 2]."""
    return bits_per_sequence(derive(labels.astype(np.uint64), "label", ids), 2)


def batch_words(of_sequences: np.ndarray, of_views: Sequence[np.ndarray]) -> np.ndarray:
    """Put the words of sequences and the sum of those of all their views side by side: uint64[n, 4]."""
    words = np.zeros((len(of_sequences), COLUMNS), np.uint64)
    words[:, :2] = of_sequences
    for part in of_views:
        words[:, 2:] += part
    return words


def sum_words(words: np.ndarray) -> tuple[int, ...]:
    """Add the words of a step's sequences, uint64[n, k], modulo 2^64; as k signed 64-bit numbers."""
    return tuple(words.sum(axis=0, dtype=np.uint64).view(np.int64).tolist())
