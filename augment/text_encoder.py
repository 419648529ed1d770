"""`TextEncoder`: texts to tokens, by look-up where their words have been met before."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.ragged import Ragged, offsets_of
from augment.words import Memory, encode, words_between_spaces

MOST_PIECES = 1 << 16  # kept by an encoder, and as many of before, and of words (`MOST_WORDS`): some 20 MB each
LONGEST_PIECE = 64  # characters: what has fewer spaces (Chinese) does not come again


class TextEncoder:
    """Strings to a Ragged of `[CLS] tokens [SEP]` of at most `max_length` tokens, as preparation makes them.

    Where the tokenizer never joins what stands on two sides of a space (byte-level BPE and WordPiece with their own
    pre-tokenizers), tokens are kept by the piece between two spaces: augmented sentences are made of words met before, and
    looking them up takes a tenth of the time.

    tokenizer: a `tokenizers.Tokenizer` (`backend_tokenizer` of a transformers fast tokenizer). Pickles, so that it can be
    handed to workers.
    """

    def __init__(self, tokenizer: Any, cls_id: int, sep_id: int, max_length: int):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())  # a copy: settings of the caller's stay as they are
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.cls_id, self.sep_id, self.max_length = cls_id, sep_id, max_length
        added = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, added)) or "(?!)")
        self._words = words_between_spaces(self.tokenizer)
        # Token ids (bytes of int32) of pieces behind a space, and of those that open a text; None: does not stand alone.
        self._inside = Memory(MOST_PIECES)
        self._opening = self._inside if self._words and self._words.opens_alike else Memory(MOST_PIECES)

    def __call__(self, texts: Sequence[str], origins: Sequence[str] = (), tokens: Ragged | None = None) -> Ragged:
        """The tokens of N texts.

        origins: texts that these were made from, and tokens: theirs, as this encoder gives them. The tokens of words that both
        have are taken from there.
        """
        if self._words is None:
            rows = encode(self.tokenizer, list(texts))
        else:
            given = self._words.cut(origins, tokens) if tokens is not None else ({}, {})
            rows = self._rows_by_pieces(texts, *given)
        room = 4 * (self.max_length - 2)
        first, last = (array("i", [number]).tobytes() for number in (self.cls_id, self.sep_id))
        lengths = np.array([min(len(row), room) for row in rows], dtype=np.int64) // 4 + 2
        ids = b"".join([part for row in rows for part in (first, row[:room], last)])
        return Ragged(np.frombuffer(ids, np.int32).copy(), offsets_of(lengths))

    def _rows_by_pieces(self, texts: Sequence[str], opening: dict[str, bytes], inside: dict[str, bytes]) -> list[bytes]:
        """opening, inside: pieces with tokens that hold for these texts, beside those that are kept."""
        for known in (self._opening, self._inside):
            known.turn()
        split = [text.split(" ") for text in texts]
        rows, holes = [], []  # tokens of every piece; the (row, place) of those that are not among the given ones
        whole = set()  # rows that the tokenizer gets as they are
        for number, pieces in enumerate(split):
            tokens = list(map(inside.get, pieces))
            tokens[0] = opening.get(pieces[0])
            rows.append(tokens)
            if None in tokens:
                places = [place for place, ids in enumerate(tokens) if ids is None]
                if inside and 2 * len(places) > len(pieces) and not texts[number].isascii():
                    whole.add(number)  # as look-alike letters make them: such pieces do not come again
                else:
                    holes += [(number, place) for place in places]
        self._learn(self._opening, {split[number][0] for number, place in holes if not place}, "")
        self._learn(self._inside, {split[number][place] for number, place in holes if place}, " ")
        for number, place in holes:
            piece = split[number][place]
            ids = rows[number][place] = self._inside[piece] if place else self._opening[piece]
            if ids is None:
                whole.add(number)
        for number, row in zip(whole, encode(self.tokenizer, [texts[number] for number in whole])):
            rows[number] = [row]
        return list(map(b"".join, rows))

    def _learn(self, known: Memory, pieces: set[str], before: str) -> None:
        """Adds pieces that `known` lacks: as `before` + piece, None for those that do not stand alone."""
        missing = known.lacking(pieces)
        alone = [piece for piece in missing if len(piece) <= LONGEST_PIECE and self._is_whole(piece)]
        if self._added.search("\n".join(alone)):
            alone = [piece for piece in alone if not self._added.search(piece)]
        known.update(dict.fromkeys(missing))
        known.update(zip(alone, self._words([before + piece for piece in alone]), strict=True))

    def _is_whole(self, piece: str) -> bool:
        """Whether a piece is more than nothing, without white space at its ends, as the tokenizer reads it too."""
        if not piece.isascii() and self.tokenizer.normalizer is not None and piece:
            normal = self.tokenizer.normalizer.normalize_str(piece)
            if not normal or normal != normal.strip():
                return False
        return bool(piece) and piece == piece.strip()
