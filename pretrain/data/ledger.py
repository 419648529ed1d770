"""The ledger of a run: hashes of all batches, chained, so that the last link says what every step has read.

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

A ledger is plain JSON, part of `Progress` and so of every checkpoint; rows of metrics.jsonl have its links:

    {"since": 0, "sequences": "9f0c...", "views": "41d2...", "last": {"sequences": "...", "views": "..."}}

since: the step from which on batches are recorded. sequences, views: the links, 128 bits each in hexadecimal:
link s = BLAKE2b(link s - 1, sum of step s), and the first follows a constant. last: the sums of the last
step, by which a resume tells whether it reads what the run has read.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from augment.core.identity import sequence_identities
from augment.core.keys import bits_per_sequence, derive
from augment.core.ragged import Ragged

COLUMNS = 4
"""Words of a sequence: two of the sequence, then two of its views."""

NO_WORDS = np.empty((0, COLUMNS), np.uint64)
"""The words of a batch that nobody hashed."""

KINDS = ("sequences", "views")
"""What is hashed of a batch: its sequences as on disk, and what augmentation and masking made of them."""

_START = hashlib.blake2b(b"ledger of batches, 1", digest_size=16).hexdigest()

Ledger = dict[str, Any]


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


def begin_ledger(step: int) -> Ledger:
    """Return the ledger of a run that records its batches from `step` on."""
    return {"since": step, **dict.fromkeys(KINDS, _START), "last": {}}


def extend_ledger(ledger: Mapping[str, Any], sums: Sequence[int]) -> Ledger:
    """Return the ledger after one more step.

    sums: four signed 64-bit numbers of the step (`sum_words`) over the global batch.

    >>> ledger = extend_ledger(begin_ledger(0), [1, 2, 3, -4])
    >>> ledger["last"]["views"]
    '0300000000000000fcffffffffffffff'
    >>> extend_ledger(ledger, [1, 2, 3, -4])["sequences"] == ledger["sequences"]
    False
    """
    last = sums_in_hexadecimal(sums)
    whole = {kind: bytes.fromhex(ledger[kind] + last[kind]) for kind in KINDS}
    links = {kind: hashlib.blake2b(both, digest_size=16).hexdigest() for kind, both in whole.items()}
    return {"since": ledger["since"], **links, "last": last}


def sums_in_hexadecimal(sums: Sequence[int]) -> dict[str, str]:
    """Return the sums of a step, four signed 64-bit numbers, as 128 bits a kind, low word first."""
    return {kind: struct.pack("<2q", *sums[2 * n : 2 * n + 2]).hex() for n, kind in enumerate(KINDS)}
