"""Text augmentations: the contract, their randomness, and the bridge from strings back to tokens.

A text augmentation is a function of a parsed sentence and of draws that belong to (seed, sentence, augmentation) alone:

    def shout(sentence: ParsedSentence, draws: Draws, mark: str = "!") -> str | None:
        ...

It edits by character offset (`ParsedSentence.edit`), leaves the rest of the text as it is, and returns None where it does not
apply. Keyword parameters are those of its `augment.entry.Entry` of kind "text", which stands in the module's own table,
`ENTRIES`; `augment.catalogue` collects the tables. One that calls a model takes sentences and draws as two sequences and returns
a list (`Entry.batch`): it is given all sentences of a block that chose it, and batches them on the device itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from augment.keys import derive
from augment.ragged import Ragged, offsets_of

TextAugmentation = Callable[..., str | None]  # (ParsedSentence, Draws, **parameters)
Item = TypeVar("Item")

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
MOST_PIECES = 1 << 17  # kept by an encoder: some 30 MB
# Normalizers that do not look past a space.
_BY_CHARACTER = frozenset({"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"})


class Draws:
    """Random draws for one sentence and one augmentation: the j-th is a hash of (key, j).

    The same numbers as `keys.bits_per_sequence(key, ...)`, one at a time and in plain Python, where numpy would take ten times
    as long for a single one.
    """

    __slots__ = ("_count", "_state")

    def __init__(self, key: int):
        self._state = _mix(((int(key) & _MASK) + _GOLDEN) & _MASK)
        self._count = 0

    def bits(self) -> int:
        """64 random bits."""
        self._count += 1
        return _mix((self._state + self._count * _GOLDEN) & _MASK)

    def uniform(self) -> float:
        """From [0, 1), in multiples of 2**-53."""
        return (self.bits() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """From 0, ..., n - 1; n: 1 or more."""
        if n < 1:
            raise ValueError(f"nothing can be drawn below {n}")
        return (self.bits() * n) >> 64

    def chance(self, p: float) -> bool:
        """True with probability p."""
        return self.uniform() < p

    def choice(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], k: int) -> list[Item]:
        """k different ones (all, where there are fewer), in random order; k = len(items) is a shuffle."""
        pool = list(items)
        k = min(k, len(pool))
        for i in range(k):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]


def draws_for(keys: np.ndarray, name: str) -> list[Draws]:
    """The draws of an augmentation for each sentence: keys uint64[N], one per sentence, already of seed, epoch and view."""
    return [Draws(key) for key in derive(keys, name).tolist()]


class TextEncoder:
    """Strings to a Ragged of `[CLS] tokens [SEP]` of at most `max_length` tokens, as preparation makes them.

    Where the tokenizer never joins what stands on two sides of a space (byte-level BPE and WordPiece with their own
    pre-tokenizers), tokens are kept by the piece between two spaces: augmented sentences are made of words met before, and
    looking them up takes a fifth of the time.

    tokenizer: a `tokenizers.Tokenizer` (`backend_tokenizer` of a transformers fast tokenizer). Pickles, so that it can be
    handed to workers.
    """

    def __init__(self, tokenizer: Any, cls_id: int, sep_id: int, max_length: int):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # a copy: settings of the caller's stay as they are
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.cls_id, self.sep_id, self.max_length = cls_id, sep_id, max_length
        self._by_pieces = _splits_at_spaces(json.loads(tokenizer.to_str()))
        self._added = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        # Tokens of pieces at the beginning of a text, and behind a space; None for those that do not stand alone.
        self._opening: dict[str, list[int] | None] = {}
        self._inside: dict[str, list[int] | None] = {}

    def __call__(self, texts: Sequence[str]) -> Ragged:
        rows = self._rows_by_pieces(texts) if self._by_pieces else self._encode(texts)
        room = self.max_length - 2
        lengths = np.array([min(len(row), room) + 2 for row in rows], dtype=np.int64)
        ids: list[int] = []
        for row in rows:
            ids.append(self.cls_id)
            ids += row if len(row) <= room else row[:room]
            ids.append(self.sep_id)
        return Ragged(np.array(ids, dtype=np.int32), offsets_of(lengths))

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def _rows_by_pieces(self, texts: Sequence[str]) -> list[list[int]]:
        split = [text.split(" ") for text in texts]
        opening = self._learn(self._opening, {pieces[0] for pieces in split}, "")
        inside = self._learn(self._inside, {piece for pieces in split for piece in pieces[1:]}, " ")
        rows, whole = [], []
        for number, pieces in enumerate(split):
            found = [opening[pieces[0]], *[inside[piece] for piece in pieces[1:]]]
            if None in found:
                whole.append(number)
                found = []
            rows.append([token for tokens in found for token in tokens])
        for number, row in zip(whole, self._encode([texts[number] for number in whole])):
            rows[number] = row
        return rows

    def _learn(self, known: dict[str, list[int] | None], pieces: set[str], before: str) -> dict[str, list[int] | None]:
        """`known`, with the pieces that it lacked: as `before` + piece, None for those that do not stand alone."""
        if len(known) > MOST_PIECES:
            known.clear()
        missing = [piece for piece in pieces if piece not in known]
        alone = [piece for piece in missing if self._stands_alone(piece)]
        known.update(dict.fromkeys(missing))
        known.update(zip(alone, self._encode([before + piece for piece in alone])))
        return known

    def _stands_alone(self, piece: str) -> bool:
        """Whether a piece has the same tokens whatever is around it: no white space at its ends, no special token in it."""
        return bool(piece) and piece == piece.strip() and not any(content in piece for content in self._added)


def _splits_at_spaces(settings: dict[str, Any]) -> bool:
    """Whether a tokenizer (its JSON) cuts text at every space, the space alone or with the word behind it."""
    before, normalizer = settings["pre_tokenizer"] or {}, settings["normalizer"]
    steps = (normalizer or {}).get("normalizers") or [normalizer or {"type": "NFC"}]
    if any(step["type"] not in _BY_CHARACTER for step in steps):
        return False
    if settings["model"]["type"] == "WordPiece":
        return before.get("type") == "BertPreTokenizer"
    return settings["model"]["type"] == "BPE" and before.get("type") == "ByteLevel" and before.get("use_regex", True)


def _mix(value: int) -> int:
    """`keys.mix` of one number."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)
