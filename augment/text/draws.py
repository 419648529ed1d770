"""Define what a text augmentation is, and draw its random numbers.

A text augmentation is a function of a parsed sentence and of draws that belong to (seed, sentence,
augmentation) alone:

    def shout(sentence: ParsedSentence, draws: Draws, mark: str = "!") -> str | None:
        ...

It edits by character offset (`ParsedSentence.edit`), leaves the rest of the text unchanged, and returns None
where it does not apply. A decorator (`augment.core.entry`) describes it for the catalogue. One that
calls a model takes sentences and draws as two sequences and returns a list (`Entry.batch`): it receives all
sentences of a block that chose it, and batches them on the device itself.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from augment.core.compiled import native
from augment.core.keys import derive

Item = TypeVar("Item")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


class Draws:
    """Draw random numbers for one sentence and one augmentation: the j-th is a hash of (key, j).

    >>> draws = Draws(7)
    >>> draws.below(10), draws.choice("abc"), draws.sample([1, 2, 3], k=2)
    (7, 'b', [2, 3])

    The numbers are those of `keys.bits_per_sequence(key, ...)`, one at a time and in plain Python; numpy
    would take ten times as long for a single one. Augmentations receive the compiled counterpart where there
    is one (`draws_for`).
    """

    __slots__ = ("_chances", "_state")

    def __init__(self, key: int):
        self._state = _mix(((int(key) & _MASK) + _GOLDEN) & _MASK)
        self._chances = 0  # 32 bits for the next `chance` below a 1; 0: none are left

    def bits(self) -> int:
        """Draw 64 random bits."""
        self._state = value = (self._state + _GOLDEN) & _MASK
        # `_mix`, written out: the call would double the time
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
        return value ^ (value >> 31)

    def uniform(self) -> float:
        """Draw from [0, 1), in multiples of 2**-53."""
        return (self.bits() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """Draw from 0, ..., n - 1; n: 1 or more."""
        if n < 1:
            raise ValueError(f"nothing can be drawn below {n}")
        return (self.bits() * n) >> 64

    def chance(self, p: float) -> bool:
        """Return True with probability p, to 2**-32."""
        bits = self._chances
        if bits:
            self._chances = 0
            return bits & 0xFFFFFFFF < p * 4294967296.0
        bits = self.bits()
        self._chances = bits >> 32 | 1 << 32
        return bits & 0xFFFFFFFF < p * 4294967296.0

    def choice(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], k: int) -> list[Item]:
        """Draw k different items (all, if there are fewer), in random order; k = len(items) shuffles.

        64 bits serve several draws, until the rest of them could tell at most 2**32 cases apart. A fraction
        that has
        chosen one of n items is multiplied by n: what remains is its place within that item's share.
        """
        pool = list(items)
        size = len(pool)
        k = max(0, min(k, size))
        fraction = told = 0
        for i in range(k):
            left = size - i
            if told < left:
                fraction, told = self.bits(), 1 << 32
            told //= left
            fraction *= left
            j = i + (fraction >> 64)
            fraction &= _MASK
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]


def draws_for(keys: np.ndarray, name: str) -> list[Draws]:
    """Return an augmentation's draws for each sentence; keys: uint64[N], of seed, epoch and view already."""
    kind = Draws if native is None else native.Draws
    return list(map(kind, derive(keys, name).tolist()))


def _mix(value: int) -> int:
    """Apply `keys.mix` to one number."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
