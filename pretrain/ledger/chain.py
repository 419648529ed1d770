"""Chain the sums of all steps, so that the last link says what every step until then has read.

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

KINDS = ("sequences", "views")
"""What is hashed of a batch: its sequences as on disk, and what augmentation and masking made of them."""

_START = hashlib.blake2b(b"ledger of batches, 1", digest_size=16).hexdigest()

Ledger = dict[str, Any]


def begin(step: int) -> Ledger:
    """Return the ledger of a run that records its batches from `step` on."""
    return {"since": step, **dict.fromkeys(KINDS, _START), "last": {}}


def extend(ledger: Mapping[str, Any], sums: Sequence[int]) -> Ledger:
    """Return the ledger after one more step.

    sums: four signed 64-bit numbers of the step (`pretrain.ledger.hashes.sum_words`) over the global batch.

    >>> ledger = extend(begin(0), [1, 2, 3, -4])
    >>> ledger["last"]["views"]
    '0300000000000000fcffffffffffffff'
    >>> extend(ledger, [1, 2, 3, -4])["sequences"] == ledger["sequences"]
    False
    """
    last = sums_in_hexadecimal(sums)
    links = {
        kind: hashlib.blake2b(bytes.fromhex(ledger[kind] + last[kind]), digest_size=16).hexdigest()
        for kind in KINDS
    }
    return {"since": ledger["since"], **links, "last": last}


def sums_in_hexadecimal(sums: Sequence[int]) -> dict[str, str]:
    """Return the sums of a step, four signed 64-bit numbers, as 128 bits a kind, low word first."""
    return {
        kind: struct.pack("<2q", *sums[2 * number : 2 * number + 2]).hex()
        for number, kind in enumerate(KINDS)
    }


def of_row(ledger: Mapping[str, Any]) -> Ledger:
    """Return what a row of metrics says of the ledger: since when, and the links."""
    return {"since": ledger["since"], **{kind: ledger[kind] for kind in KINDS}}
