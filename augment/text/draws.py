"""Define what a text augmentation is, and draw its random numbers.

A text augmentation is a function of a parsed sentence and of draws that belong to (seed, sentence,
augmentation) alone:

    def shout(sentence: ParsedSentence, draws: Draws, mark: str = "!") -> str | None:
        ...

It edits by character offset (`ParsedSentence.edit`), leaves the rest of the text unchanged, and returns None
if it does not apply. word_lists/augmentations.tsv describes it for the catalogue. One that
calls a model takes sentences and draws as two sequences and returns a list (`Entry.batch`): it receives all
sentences of a block that chose it, and batches them on the device itself.

>>> draws = Draws(7)
>>> draws.below(10), draws.choice("abc"), draws.sample([1, 2, 3], k=2)
(7, 'b', [2, 3])
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from augment.core.compiled import native
from augment.core.keys import derive

Item = TypeVar("Item")

if TYPE_CHECKING:

    class Draws:
        """Draw the numbers of `keys.bits_per_sequence(key, ...)`, one at a time (augment/native/draws.h)."""

        def __init__(self, key: int): ...
        def bits(self) -> int: ...
        def uniform(self) -> float: ...
        def below(self, n: int) -> int: ...
        def chance(self, p: float) -> bool: ...
        def choice(self, items: Sequence[Item]) -> Item: ...
        def sample(self, items: Sequence[Item], k: int) -> list[Item]: ...

else:
    Draws = native.Draws


def draws_for(keys: np.ndarray, name: str) -> list[Draws]:
    """Return an augmentation's draws for each sentence; keys: uint64[N], of seed, epoch and view already."""
    return list(map(Draws, derive(keys, name).tolist()))
