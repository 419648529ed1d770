"""Turn texts into tokens, by look-up where their words have been met before."""

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from augment.core.compiled import native
from augment.core.ragged import Ragged, offsets_of
from augment.text.cleaning import SpecialTokens, clean, for_clean_text
from augment.text.words import encode, is_plain, words_between_spaces

MOST_PIECES = 1 << 16  # kept by an encoder, and as many older ones: some 20 MB
LONGEST_PIECE = 64  # characters; longer pieces (Chinese has few spaces) do not occur again
_NO_IDS, _NO_OFFSETS = np.zeros(0, np.int32), np.zeros(1, np.int64)


class TextEncoder:
    """Turn strings into a Ragged of `[CLS] tokens [SEP]`, at most `max_length` each, as preparation does.

    Where a tokenizer never joins what a space separates (byte-level BPE, WordPiece), the compiled module
    keeps tokens by piece: a tenth of the time, as augmented sentences consist of words met before.
    """

    def __init__(self, tokenizer: Any, cls_id: int, sep_id: int, max_length: int):
        from tokenizers import Tokenizer

        # Copies, so that the caller's settings stay unchanged. Words are looked up in clean text.
        self.tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._clean_tokenizer, self._cleans = for_clean_text(tokenizer)
        for copy in (self.tokenizer, self._clean_tokenizer):
            copy.no_padding()
            copy.no_truncation()
        self.cls_id, self.sep_id, self.max_length = cls_id, sep_id, max_length
        self._added_tokens = [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]
        self._added = re.compile("|".join(map(re.escape, self._added_tokens)) or "(?!)")
        self._words = words_between_spaces(self._clean_tokenizer)
        self._pieces = self._empty_pieces()
        self._special = SpecialTokens(self.tokenizer)

    def __call__(
        self, texts: Sequence[str], origins: Sequence[str] = (), tokens: Ragged | None = None
    ) -> Ragged:
        """Return the tokens of N texts.

        origins: the text that each was made from; tokens: those of the origins, from this encoder. Words that
        a text shares with its origin take their tokens from there.
        """
        texts = list(texts)
        rows = (
            self._by_pieces(texts, list(origins), tokens) if self._pieces is not None else self._whole(texts)
        )
        lengths = np.fromiter(map(len, rows), np.int64, len(rows)) // 4
        return Ragged(np.frombuffer(b"".join(rows), np.int32).copy(), offsets_of(lengths))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pieces": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._special = SpecialTokens(self.tokenizer)  # a setting that is not pickled
        self._pieces = self._empty_pieces()

    def _empty_pieces(self) -> Any:
        """Return compiled `Pieces` that have met none; None if texts must stay whole."""
        words = self._words
        if words is None:
            return None
        vocabulary = (words.characters, words.spaced, words.opens_alike)
        pieces = native.Pieces(*vocabulary, self.cls_id, self.sep_id, self.max_length - 2, MOST_PIECES)
        if words.spelling is not None:
            method, arguments = words.spelling
            getattr(pieces, method)(*arguments, self._added_tokens, LONGEST_PIECE)
        return pieces

    def _whole(self, texts: list[str]) -> list[bytes]:
        """Return `[CLS] tokens [SEP]` of each text from the tokenizer, as bytes of int32."""
        room = 4 * max(0, self.max_length - 2)
        first, last = (array("i", [number]).tobytes() for number in (self.cls_id, self.sep_id))
        return [
            b"".join((first, row[:room], last))
            for row in encode(self.tokenizer, self._special.taken_apart(texts))
        ]

    def _by_pieces(self, given_texts: list[str], origins: list[str], tokens: Ragged | None) -> list[bytes]:
        """Return the same from pieces of the origins or met before, and learn the others."""
        texts, origins = (
            list(map(clean, given)) if self._cleans else given for given in (given_texts, origins)
        )
        given = (origins, tokens.ids, tokens.offsets) if tokens is not None else ([], _NO_IDS, _NO_OFFSETS)
        rows, opening, inside = self._pieces.rows(texts, *given, [])
        if opening or inside:
            for opens, missing in ((True, list(opening)), (False, list(inside))):
                self._pieces.learn(opens, missing, self._tokens_of(missing, "" if opens else " "))
            rows, _, _ = self._pieces.rows(texts, *given, rows)
        unfinished = [number for number, row in enumerate(rows) if row is None]
        for number, row in zip(unfinished, self._whole([given_texts[number] for number in unfinished])):
            rows[number] = row
        return rows

    def _tokens_of(self, pieces: list[str], before: str) -> list[bytes | None]:
        """Return the tokens of before + piece for each piece, None for those that do not stand alone."""
        alone = [
            piece
            for piece in pieces
            if len(piece) <= LONGEST_PIECE and self._is_whole(piece) and not self._added.search(piece)
        ]
        rows = encode(self._clean_tokenizer, [before + piece for piece in alone])
        found = dict(zip(alone, rows, strict=True))
        return list(map(found.get, pieces))

    def _is_whole(self, piece: str) -> bool:
        """Return whether a piece is not empty, without white space at its ends, also once normalized."""
        if piece and is_plain(piece):  # a piece has no spaces
            return True
        normalizer = self._clean_tokenizer.normalizer
        if not piece.isascii() and normalizer is not None and piece:
            normal = normalizer.normalize_str(piece)
            if not normal or normal != normal.strip():
                return False
        return bool(piece) and piece == piece.strip()
