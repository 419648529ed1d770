"""Put rows of tokens together from pieces between spaces: cut out of another text's tokens, or kept."""

from array import array
from collections.abc import Sequence
from itertools import chain, compress
from typing import Any

import numpy as np

from augment.core.ragged import Ragged, offsets_of, segment_indices
from augment.text.words import Memory, is_plain


class Pieces:
    """Keep the tokens of pieces that were met lately.

    `augment._native.Pieces` makes the same rows, compiled, and asks for fewer pieces: it also cuts tokens out
    of origins beyond ASCII (by `spaced`, which is not needed here), and spells plain pieces itself.

    characters: int32[V], spaced: bool[V], of every token (`Words`).
    alike: whether a piece has the same tokens at the beginning of a text as behind a space.
    first, last: the ids of [CLS] and [SEP]. room: the most tokens between them.
    most: the number of pieces kept, and as many from before.
    """

    def __init__(
        self,
        characters: np.ndarray,
        spaced: np.ndarray,
        alike: bool,
        first: int,
        last: int,
        room: int,
        most: int,
    ):
        self._characters, self._alike, self._room = characters, alike, max(0, room)
        self._first, self._last = (array("i", [number]).tobytes() for number in (first, last))
        # Token ids (bytes of int32) of pieces behind a space, and of those that open a text; None: the piece
        # does not stand alone.
        self._inside = Memory(most)
        self._opening = self._inside if alike else Memory(most)

    def rows(
        self,
        texts: list[str],
        origins: list[str],
        ids: np.ndarray,
        offsets: np.ndarray,
        before: list[bytes | None],
    ) -> tuple[list[bytes | None], set[str], set[str]]:
        """Return `[CLS] tokens [SEP]` of N texts, as bytes of int32, and the pieces to `learn`.

        The result is (rows, pieces at the beginning of texts, pieces inside). A row is None where pieces must
        be learned first; if it is still None after that, the tokenizer must encode the text.

        origins: empty, or the text that each was made from, whose tokens are ids (int32) and offsets (int64[N
            + 1]).
        before: empty, or the rows of an earlier call; those that are not None are kept.
        """
        for known in (self._opening, self._inside):
            known.turn()
        cut_opening, cut_inside = self._cut(origins, Ragged(ids, offsets)) if origins else ({}, {})
        split = [text.split(" ") for text in texts]
        # recalls pieces from before
        self._opening.missing({pieces[0] for pieces in split}.difference(cut_opening))
        self._inside.missing(set(chain.from_iterable(split)).difference(cut_inside))
        rows: list[bytes | None] = []
        opening: set[str] = set()
        inside: set[str] = set()
        for number, (text, pieces) in enumerate(zip(texts, split)):
            if before and before[number] is not None:
                rows.append(before[number])
                continue
            found: list[Any] = list(map(cut_inside.get, pieces))  # bytes, None, or ... where unknown
            found[0] = cut_opening.get(pieces[0])
            if None in found:
                for place, piece in enumerate(pieces):
                    if found[place] is None:
                        found[place] = (self._inside if place else self._opening).get(piece, ...)
            if ... not in found and None not in found:
                rows.append(b"".join((self._first, b"".join(found)[: 4 * self._room], self._last)))
                continue
            rows.append(None)
            missing = [place for place, tokens in enumerate(found) if tokens is ...]
            # Pieces of such texts (of look-alike letters, say) do not occur again.
            rare = origins and 2 * len(missing) > len(pieces) and not text.isascii()
            if not (None in found or "" in pieces or rare):
                for place in missing:
                    (inside if place else opening).add(pieces[place])
        return rows, opening, inside

    def learn(self, opens: bool, pieces: list[str], tokens: list[bytes | None]) -> None:
        """Keep the tokens of pieces that open a text (opens) or stand inside; None: not on its own."""
        (self._opening if opens else self._inside).update(zip(pieces, tokens, strict=True))

    def _cut(self, texts: Sequence[str], tokens: Ragged) -> tuple[dict[str, bytes], dict[str, bytes]]:
        """Return the token ids of the pieces that open a text, and of those inside, from N tokenized texts.

        tokens: `[CLS] tokens [SEP]` of each text. Only printable ASCII is cut, whose tokens have it character
        for character; texts that are longer than their tokens are left out.
        """
        lengths = np.maximum(tokens.lengths - 2, 0)
        ids = tokens.ids.take(segment_indices(tokens.offsets[:-1] + 1, lengths))
        row_starts = offsets_of(lengths)
        read = np.concatenate([[0], np.cumsum(self._characters.take(ids))])  # characters before each token
        # An empty piece (between two spaces, at an end) would have no place.
        expected = [
            len(text) - text.count(" ") if is_plain(text) and "  " not in f" {text} " else -1
            for text in texts
        ]
        rows = np.flatnonzero(np.diff(read.take(row_starts)) == expected)
        split = [texts[row].split(" ") for row in rows.tolist()]
        pieces = list(chain.from_iterable(split))
        if not pieces:
            return {}, {}
        first = offsets_of(np.array(list(map(len, split))))
        read_before = offsets_of(np.array(list(map(len, pieces))))  # of these texts alone
        shift = read.take(row_starts.take(rows)) - read_before.take(first[:-1])
        wanted = read_before[1:] + np.repeat(shift, np.diff(first))
        stops = np.searchsorted(read, wanted)
        if not np.array_equal(read.take(stops), wanted):  # these are not the tokens of the texts
            return {}, {}
        starts = np.concatenate([[0], stops[:-1]])
        starts[first[:-1]] = row_starts.take(rows)
        raw = ids.tobytes()
        cut = [raw[start:stop] for start, stop in zip((4 * starts).tolist(), (4 * stops).tolist())]
        if self._alike:
            inside = dict(zip(pieces, cut))
            return inside, inside
        opens = np.zeros(len(pieces), dtype=bool)
        opens[first[:-1]] = True
        opening = dict(zip(compress(pieces, opens), compress(cut, opens)))
        return opening, dict(zip(compress(pieces, ~opens), compress(cut, ~opens)))
